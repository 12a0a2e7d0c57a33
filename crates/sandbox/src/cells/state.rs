//! A cell's state as a whole: put back from checkpoints, hashed. How memory is copied for one is in `copying`.
//!
//! What a cell's state is: linear memory, mutable globals, ports and what is known of peers, the
//! generator's seed and position, and files with their descriptors. Tables and code are the
//! image's. Timers, tasks, the log and the outbox are the session's, which puts them into the
//! checkpoint's header. The engine's stack is empty between handlers, which is why a checkpoint is
//! only taken there.
//!
//! ```text
//! restore:   decode all --> fit --> start --> put
//! arriving:  begin --> fill, fill, ... --> complete = fit --> put
//! standby:   restored cell --> fit --> put          (advance; the cell is unchanged until everything fits)
//! ```

use super::Cells;
use super::live::{Live, Stage};
use crate::buffers::{populate, prefer_huge_pages};
use crate::chain::Image;
use crate::checkpoint::{
    CheckpointId, Copied, Decoded, Filling, RestoreError, Since, StageDecoded, StageSnapshot, Write, image_id,
};
use crate::dirty::PageSet;
use crate::files::{Files, Page};
use crate::generator::Generator;
use crate::globals::GlobalValue;
use crate::host::{Host, Hosts};
use crate::image::StageImage;
use crate::limits::{PAGE, WASM_PAGE};
use crate::start_error::CellStartError;
use marram_session::cell::{CellId, CheckpointBase, Seed};
use marram_wire::id::ImageHash;
use std::sync::Arc;
use wasmtime::Store;

impl Cells {
    /// Makes a cell from checkpoints: it continues as the cell that they were taken from.
    ///
    /// # Errors
    /// If they do not fit the image, or there is no room. Then the cell is gone.
    pub fn restore(&mut self, cell: CellId, image: &Arc<Image>, from: &Decoded) -> Result<(), RestoreError> {
        let files = Self::fits_new(image, from)?;
        // This seed is replaced, stage by stage.
        self.start(cell, image, from.stages[0].last().seed).map_err(RestoreError::Start)?;
        self.put(cell, from, files)
    }

    /// Starts a restore of a cell whose checkpoints are still arriving: [`Self::fill`] it as they arrive, then [`Self::complete`]
    /// it. It must not run before that.
    ///
    /// # Errors
    /// If there is no room.
    pub fn begin(&mut self, cell: CellId, image: &Arc<Image>) -> Result<(), RestoreError> {
        self.start(cell, image, Seed([0; 32])).map_err(RestoreError::Start)
    }

    /// Puts the contents that have arrived into the memory of a cell that was begun.
    ///
    /// # Errors
    /// If they do not fit. Then the cell is gone.
    pub fn fill(&mut self, cell: CellId, with: &Filling) -> Result<(), RestoreError> {
        // Filled before the whole is known to be good: a cell that was begun and does not complete
        // never runs.
        let filled = self.quiet(cell).map_or(Err(GONE), |stages| {
            let Live { stages, store, .. } = &mut *stages.live().borrow_mut();
            let stage = stages.get_mut(with.stage);
            let stage = stage.ok_or(RestoreError::Misfit("it has another number of stages"))?;
            if store.data().have_run() {
                return Err(HAS_RUN);
            }
            stage.fill(store, with)
        });
        if filled.is_err() {
            self.remove(cell);
        }
        filled
    }

    /// Restores the rest of a cell that was begun; then it can run.
    ///
    /// # Errors
    /// If the checkpoints do not fit the image. Then the cell is gone.
    pub fn complete(&mut self, cell: CellId, image: &Arc<Image>, from: &Decoded) -> Result<(), RestoreError> {
        // The cell must have been begun, and nothing may have run in it since.
        let have_run = self.quiet(cell).map(|stages| stages.live().borrow().store.data().have_run());
        match (have_run, Self::fits_new(image, from)) {
            (Some(false), Ok(files)) => self.put(cell, from, files),
            (have_run, fits) => {
                self.remove(cell);
                fits?;
                Err(if have_run.is_some() { HAS_RUN } else { GONE })
            }
        }
    }

    /// As [`fit`], for a cell that still has its image's state.
    fn fits_new(image: &Image, from: &Decoded) -> Result<Vec<Files>, RestoreError> {
        let new = image.stages.iter().map(|stage| Before::new(&stage.image));
        fit(image.hash, new.collect(), from)
    }

    /// Advances a cell that was restored and has not run since to its next checkpoint, or over several: deltas, of which the
    /// first builds on the cell's checkpoint. It continues as a cell that is restored from all of them at once.
    ///
    /// For a warm standby. The session uses it when the owner's next delta has arrived completely,
    /// so that the standby always has a state that some checkpoint describes.
    ///
    /// # Errors
    /// If they do not fit the cell: the cell is unchanged. Only after [`RestoreError::Lost`] is it gone.
    pub fn advance(&mut self, cell: CellId, by: &Decoded) -> Result<(), RestoreError> {
        let misfit = RestoreError::Misfit;
        let stages = self.quiet(cell).ok_or(misfit("the cell does not exist or runs a handler"))?;
        let files = {
            let live = stages.live().borrow();
            let hosts = live.store.data();
            if hosts.have_run() {
                return Err(misfit("the cell has run since it was restored"));
            }
            let parts = (0..).zip(&live.stages);
            let parts = parts.map(|(at, stage)| stage.before(&live.store, at)).collect::<Option<_>>();
            let parts =
                parts.ok_or(misfit("the cell was not restored, or its last checkpoint is not known"))?;
            fit(stages.image(), parts, by)?
        };
        self.put(cell, by, files).map_err(|error| RestoreError::Lost(error.into()))
    }

    /// Applies checkpoints that fit, and the files made from them, to a cell. If that fails the
    /// cell is gone. A cell that is not quiet is left alone: the callers have checked that it
    /// exists.
    fn put(&mut self, cell: CellId, from: &Decoded, files: Vec<Files>) -> Result<(), RestoreError> {
        let put = self.quiet(cell).map_or(Ok(()), |stages| {
            let Live { stages, store, .. } = &mut *stages.live().borrow_mut();
            let mut parts = stages.iter_mut().enumerate().zip(&from.stages).zip(files);
            parts.try_for_each(|(((at, stage), from), files)| stage.put(store, at, from, files))
        });
        if put.is_err() {
            self.remove(cell);
        }
        put
    }

    /// A digest of everything that determines how the cell continues: equal for equal states, independent of how and where they
    /// were reached. Reads all of memory. `None` if the cell is gone or in the middle of a handler.
    ///
    /// For tests, recordings and comparisons of replays, and not for integrity: 64 MiB take tens of
    /// milliseconds. The hash does not cover the number of handlers that ran, timers and tasks.
    #[must_use]
    pub fn state_hash(&self, cell: CellId) -> Option<[u8; 32]> {
        let Live { stages, store, .. } = &mut *self.quiet(cell)?.live().borrow_mut();
        if let [only] = &stages[..] {
            return Some(only.hash(store, 0));
        }
        let mut hasher = blake3::Hasher::new_derive_key("marram chain state 1");
        for (at, stage) in stages.iter().enumerate() {
            hasher.update(&stage.hash(store, at));
        }
        Some(*hasher.finalize().as_bytes())
    }

    /// Bytes of linear memory that the cell has now, in all of its stages. `None` if it is gone or in the middle of a handler.
    #[must_use]
    pub fn memory_bytes(&self, cell: CellId) -> Option<usize> {
        let live = self.quiet(cell)?.live().borrow();
        Some(live.stages.iter().map(|stage| stage.memory.data_size(&live.store)).sum())
    }
}

/// The state of a stage before checkpoints are applied. Either a fresh cell, which has what the
/// image has, or a cell that was restored earlier.
struct Before<'a> {
    image: &'a StageImage,
    /// The checkpoint that they must build on; `None` if the stage has the image's state.
    on: Option<CheckpointId>,
    /// The full one before that, on which a merged delta may build as well.
    full: Option<CheckpointId>,
    memory_len: usize,
    /// None if it has the image's.
    memory: Option<&'a [u8]>,
    files: &'a Files,
}

impl<'a> Before<'a> {
    fn new(image: &'a StageImage) -> Self {
        Self {
            image,
            on: None,
            full: None,
            memory_len: image.memory.len(),
            memory: None,
            files: &image.files,
        }
    }
}

/// Refuses what can be refused before anything changes; returns the files that each stage will
/// have. Everything that can be found without writing is found here, so that `advance` can leave
/// its cell unchanged.
fn fit(image: ImageHash, stages: Vec<Before<'_>>, from: &Decoded) -> Result<Vec<Files>, RestoreError> {
    if from.image() != image {
        return Err(RestoreError::Image { found: from.image(), expected: image });
    }
    if from.stages.len() != stages.len() {
        return Err(RestoreError::Misfit("it has another number of stages"));
    }
    let parts = stages.into_iter().zip(&from.stages);
    parts.map(|(before, from)| before.fits(from).and_then(|()| before.restored_files(from))).collect()
}

impl Before<'_> {
    /// The image, the base, the sizes and the types of globals. The contents of memory need no
    /// check: any bytes are a memory.
    fn fits(&self, from: &StageDecoded) -> Result<(), RestoreError> {
        let image = self.image;
        if from.image != image.hash {
            return Err(RestoreError::Image { found: from.image, expected: image.hash });
        }
        let on_full = from.first().is_merged && from.on.is_some() && from.on == self.full;
        if from.on != self.on && !on_full {
            return Err(RestoreError::Chain { index: 0 });
        }
        let last = from.last();
        if from.first().memory_len < self.memory_len || last.memory_len as u64 > image.quotas.memory_max {
            return Err(RestoreError::Misfit(
                "its memory is smaller than that of what it builds on, or larger than the quota",
            ));
        }
        let mut pairs = last.globals.iter().zip(&image.globals);
        let alike = last.globals.len() == image.globals.len()
            && pairs.all(|(a, b)| std::mem::discriminant(a) == std::mem::discriminant(b));
        if !alike {
            return Err(RestoreError::Misfit("its globals are not the image's"));
        }
        // Those of later checkpoints are checked as they are written.
        let first = self.memory.map(|memory| from.first().writes.iter().map(move |write| write.fits(memory)));
        first.into_iter().flatten().collect()
    }

    /// Works on a copy, which shares all pages with the original. The order within a checkpoint is
    /// fixed: directory, pages, descriptors; pages need their file, and descriptors are checked
    /// against the files at the end.
    fn restored_files(&self, from: &StageDecoded) -> Result<Files, RestoreError> {
        let mut files = self.files.clone();
        let misfit = |error: crate::files::FilesError| RestoreError::Misfit(error.0);
        for (index, parsed) in from.chain.iter().enumerate() {
            if let Some(directory) = &parsed.directory {
                if parsed.is_merged || index == 0 && from.on.is_none() {
                    // It contains all files; files that initialisation made, or earlier checkpoints, may be gone or changed.
                    files.clear();
                }
                files.restore_directory(directory).map_err(misfit)?;
            }
            for (inode, pages) in &parsed.files {
                let pages = pages.iter().map(|(index, page)| (index, page.and_then(to_page))).collect();
                files.restore_pages(*inode, pages).map_err(misfit)?;
            }
            if let Some(descriptors) = &parsed.descriptors {
                files.restore_descriptors(descriptors).map_err(misfit)?;
            }
        }
        files.finish_restore().map_err(misfit)?;
        Ok(files)
    }
}

/// `None` does not occur: pages are read in whole pages.
fn to_page(bytes: &[u8]) -> Option<Page> {
    <[u8; PAGE]>::try_from(bytes).ok().map(Arc::new)
}

/// A stage needs the store of its cell, and its number there.
impl Stage {
    /// Completes a snapshot of which the memory has been copied.
    pub(super) fn snapshot(
        &mut self,
        store: &mut Store<Hosts>,
        at: usize,
        base: CheckpointBase,
        memory: Copied,
    ) -> StageSnapshot {
        let on = match base {
            CheckpointBase::Image | CheckpointBase::Apart => None,
            CheckpointBase::Previous | CheckpointBase::Backup => self.checkpoint,
            CheckpointBase::Full => self.full_checkpoint,
        };
        let memory_len = self.memory.data_size(&*store);
        let globals = self.globals(store);
        let host = store.data_mut().act_for(at);
        let is_apart = base == CheckpointBase::Apart;
        let since = self.full_checkpoint.filter(|_| is_apart);
        let mut snapshot = StageSnapshot {
            image: Arc::clone(&self.bound.image),
            base: on,
            since: since.map(|full| Since { full, pages: self.tracker.pages(CheckpointBase::Full) }),
            is_merged: base == CheckpointBase::Full,
            id: [0; 16],
            memory_len,
            memory,
            versions: self.versions.clone(),
            globals,
            ports: host.ports.clone(),
            seed: *host.generator.seed(),
            position: host.generator.position(),
            files: if is_apart {
                host.files.differences()
            } else {
                host.files.take_changes(!base.is_previous())
            },
        };
        snapshot.id = name(host, &snapshot);
        if is_apart {
            return snapshot;
        }
        self.tracker.settle(base);
        self.checkpoint = Some(snapshot.id);
        if base == CheckpointBase::Image {
            self.full_checkpoint = self.checkpoint;
        }
        snapshot
    }

    /// In the order of the image; deployment gave each an export for this.
    pub(super) fn globals(&self, store: &mut Store<Hosts>) -> Vec<GlobalValue> {
        let mut values = Vec::with_capacity(self.globals.len());
        for global in &self.globals {
            let value = GlobalValue::from_val(&global.get(&mut *store));
            values.push(value.expect("deployment refuses mutable globals that are no numbers"));
        }
        values
    }

    /// The state that checkpoints are applied to; `None` if the stage is not in the state of a known checkpoint.
    fn before<'a>(&'a self, store: &'a Store<Hosts>, at: usize) -> Option<Before<'a>> {
        Some(Before {
            image: &self.bound.image,
            on: Some(self.checkpoint?),
            full: self.full_checkpoint,
            memory_len: self.memory.data_size(store),
            memory: Some(self.memory.data(store)),
            files: &store.data().stage(at).files,
        })
    }

    /// Applies checkpoints that fit.
    ///
    /// The checkpoints are written one over the other, oldest first: pages of a delta replace those
    /// before it.
    fn put(
        &mut self,
        store: &mut Store<Hosts>,
        at: usize,
        from: &StageDecoded,
        files: Files,
    ) -> Result<(), RestoreError> {
        // Memory growth counts against the quota of this stage.
        store.data_mut().act_for(at);
        let last = from.last();
        for parsed in &from.chain {
            self.write(store, parsed.memory_len, &parsed.writes)?;
        }
        for (global, value) in self.globals.iter().zip(&last.globals) {
            global
                .set(&mut *store, value.to_val())
                .map_err(|_| RestoreError::Misfit("a global does not take its value"))?;
        }
        let host = store.data_mut().act_for(at);
        host.ports = last.ports.clone();
        host.generator = Generator::resume(last.seed, last.position);
        host.files = files;
        // The contents just written are known and differ from the image; from here on writes count for the next delta.
        let memory = self.memory.data(&*store);
        // If tracking cannot begin, the cell runs, and its next checkpoint is a full one.
        let has_full = from.on.is_none();
        let since = from.first().since.as_ref();
        let mut deltas = since.map_or_else(PageSet::default, |since| since.pages.clone());
        from.chain.iter().skip(usize::from(has_full)).for_each(|parsed| deltas.add_all(&parsed.pages));
        let known = self.tracker.skip(memory, &self.bound.image.memory, (has_full, &deltas)).is_ok();
        self.copying = None;
        self.checkpoint = known.then_some(last.id);
        if has_full {
            self.full_checkpoint = Some(since.map_or(from.first().id, |since| since.full));
        }
        Ok(())
    }

    /// Puts contents that have arrived into memory.
    fn fill(&mut self, store: &mut Store<Hosts>, with: &Filling) -> Result<(), RestoreError> {
        if with.memory_len as u64 > self.bound.image.quotas.memory_max {
            return Err(RestoreError::Misfit("its memory is larger than the quota"));
        }
        // Memory growth counts against the quota of this stage.
        store.data_mut().act_for(with.stage);
        self.write(store, with.memory_len, &with.writes)
    }

    /// Grows memory to this length and writes to it. Reading already checked that everything lies within.
    ///
    /// Memory never shrinks, so `memory_len` is at least what there is, or the checkpoint was
    /// refused by `fits`.
    fn write(
        &mut self,
        store: &mut Store<Hosts>,
        memory_len: usize,
        writes: &[Write],
    ) -> Result<(), RestoreError> {
        let have = self.memory.data_size(&*store);
        if memory_len > have {
            let pages = ((memory_len - have) / WASM_PAGE) as u64;
            self.memory
                .grow(&mut *store, pages)
                .map_err(|error| RestoreError::Start(CellStartError::Slot(error.to_string())))?;
        }
        let memory = self.memory.data_mut(&mut *store);
        for write in writes {
            match write {
                Write::Zeros(range) => memory[range.clone()].fill(0),
                Write::Bytes(at, bytes) => {
                    let target = &mut memory[*at..*at + bytes.len()];
                    if bytes.len() >= POPULATED {
                        populate(target);
                    }
                    target.copy_from_slice(bytes);
                }
                Write::Difference(pages, _) => {
                    write.fits(memory)?;
                    for (at, bytes) in pages {
                        let target = memory[*at..*at + bytes.len()].iter_mut();
                        target.zip(bytes).for_each(|(byte, change)| *byte ^= change);
                    }
                }
                Write::Awaited(range) => {
                    prefer_huge_pages(&mut memory[range.clone()]);
                    self.has_huge_pages = true;
                }
            }
        }
        Ok(())
    }

    /// The state hash of one stage. Memory is hashed as a whole, since which pages were written is
    /// no part of the state.
    pub(super) fn hash(&self, store: &mut Store<Hosts>, at: usize) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("marram cell state 1");
        for global in self.globals(store) {
            let mut bytes = Vec::with_capacity(17);
            global.encode(&mut bytes);
            hasher.update(&bytes);
        }
        let host = store.data().stage(at);
        for (port, open) in host.ports.list() {
            hasher.update(&port.0.to_le_bytes());
            hasher.update(&[u8::from(*open)]);
        }
        for (port, peer) in host.ports.peers() {
            let mut encoded = bytes::BytesMut::new();
            marram_wire::codec::Field::put(peer, &mut encoded);
            hasher.update(&port.0.to_le_bytes());
            hasher.update(&encoded);
        }
        if host.ports.past() > 0 {
            // Behind a number that is no port's, so that this is never read as a port or a peer.
            hasher.update(&u32::MAX.to_le_bytes());
            hasher.update(&host.ports.past().to_le_bytes());
        }
        hasher.update(&host.generator.seed().0);
        hasher.update(&host.generator.position().to_le_bytes());
        host.files.hash(&mut hasher);
        let memory = self.memory.data(&*store);
        hasher.update(&(memory.len() as u64).to_le_bytes());
        hasher.update(memory);
        *hasher.finalize().as_bytes()
    }
}

/// A checkpoint id that is unique in this session's history, except for the same state reached by the same inputs.
///
/// Two attempts at one session that ran the same inputs may give the same id, and then the states
/// are equal, so either may be the base of a delta. Contents of pages are not hashed: that would
/// add to the pause.
fn name(host: &Host, snapshot: &StageSnapshot) -> CheckpointId {
    let mut hasher = blake3::Hasher::new_derive_key("marram checkpoint name 1");
    hasher.update(&snapshot.base.unwrap_or_else(|| image_id(snapshot.image.hash)));
    hasher.update(&[u8::from(snapshot.base.is_some())]);
    for number in [host.handled, snapshot.memory_len as u64, snapshot.position, host.now_ns.cast_unsigned()] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(&snapshot.seed.0);
    for run in snapshot.memory.runs() {
        hasher.update(&run.start.to_le_bytes());
        hasher.update(&run.end.to_le_bytes());
    }
    let mut globals = Vec::with_capacity(snapshot.globals.len() * 17);
    for global in &snapshot.globals {
        global.encode(&mut globals);
    }
    hasher.update(&globals);
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    id
}

/// Errors for the cell of a restore: it is missing or busy, or has run.
const GONE: RestoreError = RestoreError::Misfit("the cell does not exist or runs a handler");
const HAS_RUN: RestoreError = RestoreError::Misfit("the cell has run since it was begun");

/// From this many consecutive bytes on, one call that maps their pages pays off.
const POPULATED: usize = 4 * PAGE;
