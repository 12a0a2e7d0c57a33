//! A cell's state as a whole: taken into a snapshot, put back from checkpoints, hashed.

use super::live::{Live, Stage};
use super::{Cells, StartError};
use crate::buffers::{Spares, populate, prefer_huge_pages};
use crate::chain::Image;
use crate::checkpoint::{
    CheckpointId, Decoded, Filling, RestoreError, Snapshot, SnapshotError, StageDecoded, StageSnapshot,
    Write, image_id,
};
use crate::deploy::GlobalValue;
use crate::files::{Files, Page};
use crate::generator::Generator;
use crate::host::{Host, Hosts};
use crate::image::StageImage;
use crate::limits::{PAGE, WASM_PAGE};
use marram_session::cell::{CellId, CheckpointBase, Seed};
use marram_wire::id::ImageHash;
use std::sync::Arc;
use wasmtime::Store;

impl Cells {
    /// Copies out what a checkpoint on `base` needs: the pause that a cell feels. Encode the result elsewhere.
    ///
    /// # Errors
    /// If the cell is not between handlers, or a delta has nothing to build on. The cell goes on either way.
    pub fn snapshot(&mut self, cell: CellId, base: CheckpointBase) -> Result<Snapshot, SnapshotError> {
        let stages = self.quiet(cell).ok_or(SnapshotError::NotIdle)?;
        let mut live = stages.live().borrow_mut();
        let Live { stages: parts, store, .. } = &mut *live;
        let hosts = 0..parts.len();
        let take = |(stage, at): (&mut Stage, usize)| stage.snapshot(store, at, base, &self.spares);
        let taken: Result<Vec<_>, _> = parts.iter_mut().zip(hosts).map(take).collect();
        if taken.is_err() {
            // Of stages that were copied nobody will see the copy, so the next delta cannot build on it.
            parts.iter_mut().for_each(|stage| stage.checkpoint = None);
        }
        Ok(Snapshot::new(stages.image(), taken?))
    }

    /// Makes a cell from checkpoints: it continues as the one that they were taken of would have.
    ///
    /// # Errors
    /// If they do not fit the image, or there is no room. Nothing is left of the cell then.
    pub fn restore(&mut self, cell: CellId, image: &Arc<Image>, from: &Decoded) -> Result<(), RestoreError> {
        let files = Self::fits_new(image, from)?;
        // What the generators are seeded with now is replaced, stage by stage.
        self.start(cell, image, from.stages[0].last().seed).map_err(RestoreError::Start)?;
        self.put(cell, from, files)
    }

    /// Begins what [`Self::restore`] does at once, of a cell whose checkpoints are still on their way: [`Self::fill`] it as they
    /// come, then [`Self::complete`] it. It must not run before.
    ///
    /// # Errors
    /// If there is no room.
    pub fn begin(&mut self, cell: CellId, image: &Arc<Image>) -> Result<(), RestoreError> {
        self.start(cell, image, Seed([0; 32])).map_err(RestoreError::Start)
    }

    /// Puts what has come into the memory of a cell that was begun.
    ///
    /// # Errors
    /// If it does not fit. Nothing is left of the cell then.
    pub fn fill(&mut self, cell: CellId, with: &Filling) -> Result<(), RestoreError> {
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

    /// Makes the rest of a cell that was begun what its checkpoints say; it can run then.
    ///
    /// # Errors
    /// If they do not fit the image. Nothing is left of the cell then.
    pub fn complete(&mut self, cell: CellId, image: &Arc<Image>, from: &Decoded) -> Result<(), RestoreError> {
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

    fn fits_new(image: &Image, from: &Decoded) -> Result<Vec<Files>, RestoreError> {
        let new = image.stages.iter().map(|stage| Before::new(&stage.image));
        fit(image.hash, new.collect(), from)
    }

    /// Brings a cell that was restored and has not run since to its next checkpoint, or over several: deltas, of which the first
    /// builds on what the cell has. It continues as one that is restored from all of them at once.
    ///
    /// # Errors
    /// If they do not fit the cell: it is as before. Only after [`RestoreError::Lost`] it is gone.
    pub fn advance(&mut self, cell: CellId, by: &Decoded) -> Result<(), RestoreError> {
        let misfit = RestoreError::Misfit;
        let stages = self.quiet(cell).ok_or(misfit("the cell is gone or in the middle of a handler"))?;
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

    /// Puts checkpoints that fit on a cell, with the files that they make. If that fails nothing is left of the cell.
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

    /// A digest over everything that decides how the cell goes on: equal for equal states, wherever and however they
    /// came about. Reads all of memory. `None` if the cell is gone or in the middle of a handler.
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

/// What a stage has before checkpoints are put on it.
struct Before<'a> {
    image: &'a StageImage,
    /// The checkpoint that they must build on; none if it has the image's state.
    on: Option<CheckpointId>,
    memory_len: usize,
    files: &'a Files,
}

impl<'a> Before<'a> {
    fn new(image: &'a StageImage) -> Self {
        Self { image, on: None, memory_len: image.memory.len(), files: &image.files }
    }
}

/// Refuses what can be refused before anything is touched; the files that each stage will have.
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
    fn fits(&self, from: &StageDecoded) -> Result<(), RestoreError> {
        let image = self.image;
        if from.image != image.hash {
            return Err(RestoreError::Image { found: from.image, expected: image.hash });
        }
        if from.on != self.on {
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
        Ok(())
    }

    fn restored_files(&self, from: &StageDecoded) -> Result<Files, RestoreError> {
        let mut files = self.files.clone();
        let misfit = |error: crate::files::FilesError| RestoreError::Misfit(error.0);
        for (index, parsed) in from.chain.iter().enumerate() {
            if let Some(directory) = &parsed.directory {
                if index == 0 && from.on.is_none() {
                    // A full checkpoint brings all files; those that initialisation made may be gone or changed.
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

fn to_page(bytes: &[u8]) -> Option<Page> {
    <[u8; PAGE]>::try_from(bytes).ok().map(Arc::new)
}

/// Each in the store of its cell, where it has this number.
impl Stage {
    fn snapshot(
        &mut self,
        store: &mut Store<Hosts>,
        at: usize,
        base: CheckpointBase,
        spares: &Spares,
    ) -> Result<StageSnapshot, SnapshotError> {
        let previous = self.checkpoint.filter(|_| self.tracker.is_armed());
        let base = match base {
            CheckpointBase::Image => None,
            CheckpointBase::Previous => Some(previous.ok_or(SnapshotError::NoBase)?),
        };
        let image = &self.bound.image;
        let memory = self.memory.data(&*store);
        let wanted = if base.is_some() { CheckpointBase::Previous } else { CheckpointBase::Image };
        let runs = match self.tracker.take(memory, &image.memory, wanted) {
            Ok(runs) => runs,
            Err(error) => {
                self.checkpoint = None;
                return Err(SnapshotError::Tracking(error.to_string()));
            }
        };
        let pages: usize = runs.iter().map(ExactSizeIterator::len).sum();
        let mut bytes = spares.take(pages * PAGE);
        for run in &runs {
            bytes.extend_from_slice(&memory[run.start as usize * PAGE..run.end as usize * PAGE]);
        }
        let memory_len = memory.len();
        let globals = self.globals(store);
        let host = store.data_mut().act_for(at);
        let mut snapshot = StageSnapshot {
            image: Arc::clone(image),
            base,
            id: [0; 16],
            memory_len,
            runs,
            bytes,
            globals,
            ports: host.ports.clone(),
            seed: *host.generator.seed(),
            position: host.generator.position(),
            files: host.files.take_changes(base.is_none()),
            spares: spares.clone(),
        };
        snapshot.id = name(host, &snapshot);
        self.checkpoint = Some(snapshot.id);
        Ok(snapshot)
    }

    pub(super) fn globals(&self, store: &mut Store<Hosts>) -> Vec<GlobalValue> {
        let mut values = Vec::with_capacity(self.globals.len());
        for global in &self.globals {
            let value = GlobalValue::from_val(&global.get(&mut *store));
            values.push(value.expect("deployment refuses mutable globals that are no numbers"));
        }
        values
    }

    /// What checkpoints are put on; nothing if it is no checkpoint's state that is known.
    fn before<'a>(&'a self, store: &'a Store<Hosts>, at: usize) -> Option<Before<'a>> {
        Some(Before {
            image: &self.bound.image,
            on: Some(self.checkpoint?),
            memory_len: self.memory.data_size(store),
            files: &store.data().stage(at).files,
        })
    }

    /// Makes it what checkpoints that fit say.
    fn put(
        &mut self,
        store: &mut Store<Hosts>,
        at: usize,
        from: &StageDecoded,
        files: Files,
    ) -> Result<(), RestoreError> {
        // Whose memory grows, for the quota.
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
        // What was just written is known, and differs from the image; from here on writes count for the next delta.
        let memory = self.memory.data(&*store);
        let known = self.tracker.take(memory, &self.bound.image.memory, CheckpointBase::Image).is_ok();
        self.checkpoint = known.then_some(last.id);
        Ok(())
    }

    /// Puts what has come into memory.
    fn fill(&mut self, store: &mut Store<Hosts>, with: &Filling) -> Result<(), RestoreError> {
        if with.memory_len as u64 > self.bound.image.quotas.memory_max {
            return Err(RestoreError::Misfit("its memory is larger than the quota"));
        }
        // Whose memory grows, for the quota.
        store.data_mut().act_for(with.stage);
        self.write(store, with.memory_len, &with.writes)
    }

    /// Writes to memory that is made as large as this. Reading checked that everything lies within.
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
                .map_err(|error| RestoreError::Start(StartError::Slot(error.to_string())))?;
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
                Write::Awaited(range) => {
                    prefer_huge_pages(&mut memory[range.clone()]);
                    self.has_huge_pages = true;
                }
            }
        }
        Ok(())
    }

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
        hasher.update(&host.generator.seed().0);
        hasher.update(&host.generator.position().to_le_bytes());
        host.files.hash(&mut hasher);
        let memory = self.memory.data(&*store);
        hasher.update(&(memory.len() as u64).to_le_bytes());
        hasher.update(memory);
        *hasher.finalize().as_bytes()
    }
}

/// A name that no other checkpoint of this session's history has, but for the same state reached by the same inputs.
fn name(host: &Host, snapshot: &StageSnapshot) -> CheckpointId {
    let mut hasher = blake3::Hasher::new_derive_key("marram checkpoint name 1");
    hasher.update(&snapshot.base.unwrap_or_else(|| image_id(snapshot.image.hash)));
    hasher.update(&[u8::from(snapshot.base.is_some())]);
    for number in [host.handled, snapshot.memory_len as u64, snapshot.position, host.now_ns.cast_unsigned()] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(&snapshot.seed.0);
    for run in &snapshot.runs {
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

/// Of a cell that was to be restored.
const GONE: RestoreError = RestoreError::Misfit("the cell is gone or in the middle of a handler");
const HAS_RUN: RestoreError = RestoreError::Misfit("the cell has run since it was begun");

/// Bytes that are written in a row from which on one call that makes their pages present pays.
const POPULATED: usize = 4 * PAGE;
