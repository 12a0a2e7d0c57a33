//! Cells on demand of the pure shard: the only place in this crate that runs them.
//!
//! Handlers run on the calling thread. Loading images, sealing and opening checkpoints happen on the worker.

use super::{checkpoints, setup::Setup, worker::Worker};
use crate::net::Limiter;
use anyhow::Context;
use bytes::Bytes;
use marram_edge::api::{CellError, In, SealedCheckpoint};
use marram_sandbox::{
    Cells, CellsConfig, Decoded, Image, Images, Level, LoadError, Progress, RestoreError, Snapshot,
    SnapshotError, StartError,
};
use marram_session::cell::{Base, CellId, Ran, Run, Seed};
use marram_wire::{
    frame::Code,
    header::{self, Header},
    id::{ImageHash, SessionId},
    seal::{Seal, SessionKeys},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    sync::Arc,
    time::Instant,
};
use tracing::{debug, error, info, warn};

/// What a cell is to begin with.
enum Beginning {
    /// The image alone.
    Seed(Seed),
    /// Checkpoints on it.
    Checkpoints(Box<Restored>),
}

/// Checkpoints that were opened and decoded.
struct Restored {
    header: Box<Header>,
    decoded: Decoded,
}

enum Loaded {
    /// The worker has it in hand.
    Underway(Vec<(CellId, Beginning)>),
    /// It is here. There are never more than an operator has deployed.
    Here(Arc<Image>),
}

/// What the worker brings back.
enum Answer {
    Image(ImageHash, Result<Arc<Image>, LoadError>),
    Opened { cell: CellId, image: ImageHash, result: Result<Box<Restored>, CellError> },
    Sealed { cell: CellId, number: u32, bytes: Bytes },
}

/// The cells of one shard.
pub(super) struct Executor {
    cells: Cells,
    images: BTreeMap<ImageHash, Loaded>,
    /// Handlers that used up their slice, in turn.
    preempted: VecDeque<CellId>,
    /// Cells that are asked for and not there yet; one that is removed meanwhile must not come to life.
    expected: BTreeSet<CellId>,
    /// States that were copied and are still to be sealed, one a cell at the most.
    copies: BTreeMap<CellId, Result<Snapshot, SnapshotError>>,
    worker: Worker<Answer>,
    prints: Limiter,
}

impl Executor {
    /// Makes room for cells and starts the worker, which will use `waker`.
    pub(super) fn start(setup: &Setup, waker: mio::Waker) -> anyhow::Result<Self> {
        let images = Images::open(setup.images()).with_context(|| {
            format!("cannot use the image cache {}: make it writable", setup.images().display())
        })?;
        let cells = Cells::new(CellsConfig { slots: setup.cells_max, ..CellsConfig::default() })
            .context("cannot make room for cells: lower cells_max, or raise vm.max_map_count")?;
        info!(shard = setup.shard, tracking = cells.tracking(), slots = setup.cells_max, "room for cells");
        let worker = Worker::start(images, waker)?;
        Ok(Self {
            cells,
            images: BTreeMap::new(),
            preempted: VecDeque::new(),
            expected: BTreeSet::new(),
            copies: BTreeMap::new(),
            worker,
            prints: Limiter::new(Instant::now()),
        })
    }

    /// Whether a preempted handler waits for its turn.
    pub(super) fn is_busy(&self) -> bool {
        !self.preempted.is_empty()
    }

    /// Loads an image ahead of its first cell.
    pub(super) fn prepare(&mut self, image: ImageHash) {
        if let Entry::Vacant(entry) = self.images.entry(image) {
            entry.insert(Loaded::Underway(Vec::new()));
            self.worker.urgent(move |images| Answer::Image(image, images.load(image)));
        }
    }

    /// Starts a cell, at once if its image is here.
    pub(super) fn start_cell(
        &mut self,
        cell: CellId,
        image: ImageHash,
        seed: Seed,
        inputs: &mut VecDeque<In>,
    ) {
        self.expected.insert(cell);
        self.begin(cell, image, Beginning::Seed(seed), inputs);
    }

    /// Restores a cell: the worker opens and decodes, this thread applies.
    pub(super) fn restore(
        &mut self,
        cell: CellId,
        session: SessionId,
        image: ImageHash,
        keys: SessionKeys,
        sealed: Vec<SealedCheckpoint>,
    ) {
        self.expected.insert(cell);
        self.prepare(image);
        self.worker.urgent(move |_| {
            let (started, size) =
                (Instant::now(), sealed.iter().map(|sealed| sealed.bytes.len()).sum::<usize>());
            let result = checkpoints::open(session, image, &keys, sealed).and_then(|opened| {
                let opened_us = started.elapsed().as_micros();
                let decoded = Decoded::decode(&opened.sections).map_err(|error| unrestorable(&error))?;
                let decoded_us = started.elapsed().as_micros();
                debug!(%session, size, opened_us, decoded_us, "checkpoints opened");
                Ok(Box::new(Restored { header: opened.header, decoded }))
            });
            Answer::Opened { cell, image, result }
        });
    }

    fn begin(&mut self, cell: CellId, image: ImageHash, beginning: Beginning, inputs: &mut VecDeque<In>) {
        self.prepare(image);
        match self.images.get_mut(&image) {
            Some(Loaded::Underway(waiting)) => waiting.push((cell, beginning)),
            Some(Loaded::Here(image)) => {
                if self.expected.remove(&cell) {
                    inputs.push_back(bring_to_life(&mut self.cells, cell, image, beginning));
                }
            }
            None => unreachable!("it was prepared above"),
        }
    }

    /// Copies a cell's state now.
    pub(super) fn copy(&mut self, cell: CellId, base: Base) {
        self.copies.insert(cell, self.cells.snapshot(cell, base));
    }

    /// Has what was copied encoded and sealed by the worker, when nothing more urgent is there.
    pub(super) fn checkpoint(
        &mut self,
        cell: CellId,
        header: Box<Header>,
        seal: Seal,
        inputs: &mut VecDeque<In>,
    ) {
        let number = header.number;
        match self.copies.remove(&cell).unwrap_or(Err(SnapshotError::NotIdle)) {
            Ok(snapshot) => self.worker.lazy(move |_| {
                let plain = header::join(&header, &snapshot.encode());
                Answer::Sealed { cell, number, bytes: seal.seal_checkpoint(number, &plain).into() }
            }),
            Err(error) => {
                let result = Err(error.to_string());
                inputs.push_back(In::Checkpointed { cell, number, result });
            }
        }
    }

    /// Runs a handler. `None` if it used up its slice: [`Self::resume_one`] goes on with it.
    pub(super) fn run(&mut self, run: Run) -> Option<Ran> {
        let cell = run.cell;
        let progress = self.cells.run(run);
        self.settle(cell, progress)
    }

    /// Lets the preempted handler whose turn it is run for another slice.
    pub(super) fn resume_one(&mut self) -> Option<Ran> {
        let cell = self.preempted.pop_front()?;
        let progress = self.cells.poll(cell);
        self.settle(cell, progress)
    }

    fn settle(&mut self, cell: CellId, progress: Progress) -> Option<Ran> {
        match progress {
            Progress::Pending => {
                self.preempted.push_back(cell);
                None
            }
            Progress::Done(ran) => {
                self.print(cell);
                Some(ran)
            }
        }
    }

    /// Writes what a guest printed to the log; of one that just stopped too, since that often says why.
    fn print(&mut self, CellId(cell): CellId) {
        for print in self.cells.take_prints(CellId(cell)) {
            let Some(swallowed) = self.prints.pass(Instant::now()) else { continue };
            let text = print.text;
            match print.level {
                Level::Error => error!(target: "guest", cell, swallowed, "{text}"),
                Level::Warning => warn!(target: "guest", cell, swallowed, "{text}"),
                Level::Information => info!(target: "guest", cell, swallowed, "{text}"),
                Level::Debug => debug!(target: "guest", cell, swallowed, "{text}"),
            }
        }
    }

    /// Ends a cell.
    pub(super) fn remove(&mut self, cell: CellId) {
        self.cells.remove(cell);
        self.expected.remove(&cell);
        self.copies.remove(&cell);
        self.preempted.retain(|other| *other != cell);
    }

    /// Takes what the worker has brought back.
    pub(super) fn take_answers(&mut self, inputs: &mut VecDeque<In>) {
        while let Some(answer) = self.worker.take() {
            match answer {
                Answer::Image(hash, result) => self.loaded(hash, result, inputs),
                Answer::Sealed { cell, number, bytes } => {
                    inputs.push_back(In::Checkpointed { cell, number, result: Ok(bytes) });
                }
                Answer::Opened { cell, image, result: Ok(restored) } => {
                    self.begin(cell, image, Beginning::Checkpoints(restored), inputs);
                }
                Answer::Opened { cell, result: Err(error), .. } => {
                    if self.expected.remove(&cell) {
                        inputs.push_back(In::Restored { cell, result: Err(error) });
                    }
                }
            }
        }
    }

    fn loaded(&mut self, hash: ImageHash, result: Result<Arc<Image>, LoadError>, inputs: &mut VecDeque<In>) {
        let Some(Loaded::Underway(waiting)) = self.images.remove(&hash) else { return };
        match result {
            Ok(image) => {
                if let Err(error) = self.cells.prepare(&image) {
                    warn!(image = %hash, %error, "an image cannot be mapped ahead of its first cell");
                }
                self.images.insert(hash, Loaded::Here(image));
                waiting.into_iter().for_each(|(cell, beginning)| self.begin(cell, hash, beginning, inputs));
            }
            Err(error) => {
                warn!(image = %hash, %error, "an image cannot be loaded");
                let error = CellError { code: Code::UnknownImage, reason: error.to_string() };
                for (cell, beginning) in waiting {
                    if self.expected.remove(&cell) {
                        inputs.push_back(failed(cell, &beginning, error.clone()));
                    }
                }
            }
        }
    }
}

fn bring_to_life(cells: &mut Cells, cell: CellId, image: &Arc<Image>, beginning: Beginning) -> In {
    match beginning {
        Beginning::Seed(seed) => {
            let result = cells.start(cell, image, seed).map_err(|error| unstartable(&error));
            In::Started { cell, result }
        }
        Beginning::Checkpoints(restored) => {
            let result = cells.restore(cell, image, &restored.decoded).map_err(|error| unrestorable(&error));
            In::Restored { cell, result: result.map(|()| restored.header) }
        }
    }
}

fn failed(cell: CellId, beginning: &Beginning, error: CellError) -> In {
    match beginning {
        Beginning::Seed(_) => In::Started { cell, result: Err(error) },
        Beginning::Checkpoints(_) => In::Restored { cell, result: Err(error) },
    }
}

fn unstartable(error: &StartError) -> CellError {
    let code = match error {
        StartError::Image { .. } => Code::UnknownImage,
        StartError::Pool(_) | StartError::Taken(_) | StartError::Slot(_) => Code::Busy,
    };
    CellError { code, reason: error.to_string() }
}

/// The seal held, so what cannot be decoded was sealed so by an edge: of another build, or broken. Trying it again
/// elsewhere is no use unless this machine was only full.
fn unrestorable(error: &RestoreError) -> CellError {
    match error {
        RestoreError::Start(error) => unstartable(error),
        other => CellError { code: Code::Tampered, reason: other.to_string() },
    }
}
