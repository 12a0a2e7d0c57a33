//! A Wasm twin of every simulated cell: it runs what the fake runs, is saved and restored with it, and must answer alike.
//!
//! The fake still drives the world, so a seed has the same history with and without twins. Knows the sandbox, not the protocol.
//!
//! Compiled only with the feature `wasm`: the engine takes minutes to build, and the mutants need
//! neither. Twins show that what the simulator proves of the protocol holds with the real executor:
//! chains, timers, tasks, generators and checkpoints behave alike.
//!
//! ```text
//! Run ----> fake cell ----> Ran  (goes to the shard)
//!     '---> twin      ----> Ran  (compared, then dropped)
//! ```

use crate::plan::Shape;
use marram_sandbox::{Cells, CellsConfig, Chain, Decoded, Image, Images, Progress, Quotas};
use marram_session::cell::{CellId, CheckpointBase, Ran, Run, Seed};
use marram_wire::id::ImageHash;
use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::Path,
    sync::{Arc, OnceLock},
};

/// The images of all shapes of cells, made once per process.
static IMAGES: OnceLock<Made> = OnceLock::new();

/// An image for each shape.
#[derive(Clone)]
struct Made {
    alone: Arc<Image>,
    delayed: Arc<Image>,
    delayed_and_server: Arc<Image>,
    hall: Arc<Image>,
}

/// Deploys the modules of all later twins from their folder.
///
/// # Errors
/// If they are missing (`cargo xtask cells` builds them) or cannot be deployed.
pub fn deploy(modules: &Path) -> io::Result<()> {
    let folder = std::env::temp_dir().join(format!("marram-sim-{}", std::process::id()));
    // The quotas allow a handler a minute, since a debug build beside seven others must not be
    // killed for being slow.
    let quotas = Quotas { handler_time_ns: 60_000_000_000, ..Quotas::default() };
    let images = Images::open(&folder).map_err(io::Error::other)?;
    let stage = |name: &str| -> io::Result<(String, ImageHash)> {
        let module = fs::read(modules.join(format!("{name}.wasm")))?;
        let info = images.deploy(&module, &[], &quotas).map_err(io::Error::other)?;
        Ok((name.to_owned(), info.hash))
    };
    let (chain, delay, hall) = (stage("chain")?, stage("delay")?, stage("hall")?);
    let load = |hash| images.load(hash).map_err(io::Error::other);
    let wired = |server, stages| {
        let chain = Chain::new(server, stages).map_err(io::Error::other)?;
        load(images.deploy_chain(&chain).map_err(io::Error::other)?)
    };
    let made = Made {
        alone: load(chain.1)?,
        delayed: wired(false, vec![delay.clone(), chain.clone()])?,
        delayed_and_server: wired(true, vec![delay.clone(), chain, delay])?,
        hall: load(hall.1)?,
    };
    IMAGES.get_or_init(|| made);
    fs::remove_dir_all(folder)
}

impl Made {
    fn of(&self, shape: Shape) -> &Arc<Image> {
        match shape {
            Shape::Alone => &self.alone,
            Shape::Delayed { server: false } => &self.delayed,
            Shape::Delayed { server: true } => &self.delayed_and_server,
            Shape::Hall => &self.hall,
        }
    }
}

/// Whether [`deploy`] was called.
pub(crate) fn is_deployed() -> bool {
    IMAGES.get().is_some()
}

/// The twins of one world.
pub(crate) struct Twins {
    /// One pool for all edges of the world: a twin's number is not the number of its fake.
    cells: Cells,
    images: Made,
    made: u64,
    /// The state's hash after each checked event, by the cell's seed and the event.
    states: BTreeMap<([u8; 32], u64), [u8; 32]>,
    /// How many answers were compared.
    pub(crate) compared: u64,
}

impl fmt::Debug for Twins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Twins").field("made", &self.made).finish_non_exhaustive()
    }
}

impl Twins {
    /// `None` unless [`deploy`] was called.
    pub(crate) fn new() -> Option<Self> {
        let images = IMAGES.get()?.clone();
        let config = CellsConfig { slots: 600, ..CellsConfig::default() };
        let cells = Cells::new(config).expect("a pool of 600 slots fits this machine");
        Some(Self { cells, images, made: 0, states: BTreeMap::new(), compared: 0 })
    }

    fn name(&mut self) -> CellId {
        self.made += 1;
        CellId(self.made)
    }

    pub(crate) fn start(&mut self, shape: Shape, seed: Seed) -> CellId {
        let id = self.name();
        self.cells.start(id, self.images.of(shape), seed).expect("a twin has a slot");
        id
    }

    /// Runs the same handler; returns how the answer differs, if it does.
    pub(crate) fn run(&mut self, twin: CellId, run: &Run, fake: &Ran) -> Option<String> {
        let run = Run { cell: twin, ..run.clone() };
        let mut progress = self.cells.run(run);
        let ran = loop {
            match progress {
                Progress::Done(ran) => break ran,
                Progress::Pending => progress = self.cells.poll(twin),
            }
        };
        self.compared += 1;
        let same = ran.outcome == fake.outcome
            && ran.outputs == fake.outputs
            && ran.timers == fake.timers
            && ran.tasks == fake.tasks
            && ran.clock_read == fake.clock_read;
        (!same).then(|| format!("the Wasm machine answers {ran:?}, the fake {fake:?}"))
    }

    /// Checks that the same event of the same cell leaves the same state, in a first run, in replay and after a restore.
    ///
    /// Only every eighth event is checked, because hashing reads all of the cell's memory.
    pub(crate) fn look(&mut self, twin: CellId, seed: Seed, event: u64, chain: u64) -> Option<String> {
        if !event.is_multiple_of(8) {
            return None;
        }
        let hash = self.cells.state_hash(twin)?;
        // Another order of uncommitted inputs makes another state: the chain's own hash distinguishes them.
        let mut key = seed.0;
        key.iter_mut().zip(chain.to_le_bytes()).for_each(|(byte, other)| *byte ^= other);
        let first = *self.states.entry((key, event)).or_insert(hash);
        (first != hash)
            .then(|| format!("after event {event} the Wasm machine's state differs from an earlier run's"))
    }

    // A fake is asked between handlers only, and so is its twin.
    /// Copies a piece of a twin that runs on, for a later [`Self::save`].
    pub(crate) fn prepare(&mut self, twin: CellId, base: CheckpointBase) {
        self.cells.prepare_snapshot(twin, base).expect("an idle twin can be copied");
    }

    pub(crate) fn save(&mut self, twin: CellId, base: CheckpointBase) -> Vec<u8> {
        self.cells.snapshot(twin, base).expect("an idle twin can be saved").encode()
    }

    pub(crate) fn restore(&mut self, shape: Shape, checkpoints: &[&[u8]]) -> CellId {
        let id = self.name();
        let decoded = Decoded::decode(checkpoints).expect("what a twin saved can be read");
        self.cells.restore(id, self.images.of(shape), &decoded).expect("what a twin saved can be restored");
        id
    }

    pub(crate) fn remove(&mut self, twin: CellId) {
        self.cells.remove(twin);
    }
}
