//! A Wasm twin of every simulated cell: runs what the fake runs, is saved and restored with it, and must answer alike.
//!
//! The world is still the fake's, so a seed has the same history with twins and without. Knows the sandbox, no protocol.

use marram_sandbox::{Cells, CellsConfig, Decoded, Image, Images, Progress, Quotas};
use marram_session::cell::{Base, CellId, Ran, Run, Seed};
use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::Path,
    sync::{Arc, OnceLock},
};

/// The chain's image, made once a process.
static IMAGE: OnceLock<Arc<Image>> = OnceLock::new();

/// Deploys the chain's module for all twins to come.
///
/// # Errors
/// If it is not there (`cargo xtask cells` builds it) or cannot be deployed.
pub fn deploy(module: &Path) -> io::Result<()> {
    let images = std::env::temp_dir().join(format!("marram-sim-{}", std::process::id()));
    let quotas = Quotas { handler_time_ns: 60_000_000_000, ..Quotas::default() };
    let image = Images::open(&images).and_then(|store| {
        let info = store.deploy(&fs::read(module).unwrap_or_default(), &[], &quotas)?;
        Ok(store.load(info.hash))
    });
    let image = image.map_err(io::Error::other)?.map_err(io::Error::other)?;
    IMAGE.get_or_init(|| image);
    fs::remove_dir_all(images)
}

/// The twins of one world.
pub(crate) struct Twins {
    cells: Cells,
    image: Arc<Image>,
    made: u64,
    /// By the cell's seed, the state's hash after each event that was looked at.
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
    /// None unless [`deploy`] was called.
    pub(crate) fn new() -> Option<Self> {
        let image = Arc::clone(IMAGE.get()?);
        let config = CellsConfig { slots: 200, ..CellsConfig::default() };
        let cells = Cells::new(config).expect("a pool of 200 cells fits this machine");
        Some(Self { cells, image, made: 0, states: BTreeMap::new(), compared: 0 })
    }

    fn name(&mut self) -> CellId {
        self.made += 1;
        CellId(self.made)
    }

    pub(crate) fn start(&mut self, seed: Seed) -> CellId {
        let id = self.name();
        self.cells.start(id, &self.image, seed).expect("a twin has a slot");
        id
    }

    /// Runs the same handler; says how the answer differs, if it does.
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
            && ran.clock_read == fake.clock_read;
        (!same).then(|| format!("the Wasm machine answers {ran:?}, the fake {fake:?}"))
    }

    /// The same event of the same cell leaves the same state, whether run first, in replay or after a restore.
    pub(crate) fn look(&mut self, twin: CellId, seed: Seed, event: u64, chain: u64) -> Option<String> {
        if !event.is_multiple_of(8) {
            return None;
        }
        let hash = self.cells.state_hash(twin)?;
        // Another order of uncommitted inputs is another state: the chain's own hash tells them apart.
        let mut key = seed.0;
        key.iter_mut().zip(chain.to_le_bytes()).for_each(|(byte, other)| *byte ^= other);
        let first = *self.states.entry((key, event)).or_insert(hash);
        (first != hash)
            .then(|| format!("after event {event} the Wasm machine's state differs from an earlier run's"))
    }

    pub(crate) fn save(&mut self, twin: CellId, base: Base) -> Vec<u8> {
        self.cells.snapshot(twin, base).expect("an idle twin can be saved").encode()
    }

    pub(crate) fn restore(&mut self, checkpoints: &[&[u8]]) -> CellId {
        let id = self.name();
        let decoded = Decoded::decode(checkpoints).expect("what a twin saved can be read");
        self.cells.restore(id, &self.image, &decoded).expect("what a twin saved can be restored");
        id
    }

    pub(crate) fn remove(&mut self, twin: CellId) {
        self.cells.remove(twin);
    }
}
