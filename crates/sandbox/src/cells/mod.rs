//! The live cells of one process: started from images, run one input at a time, preempted, killed, removed.
//!
//! This module does not know sessions, logs or clocks: each [`Run`] brings the time.
//!
//! ```text
//!                expect/prewarm_one           remove, stop
//! image --bind--> ready cell --start(seed)--> live cell --> deferred free --> free slot
//!                     ^ stages() ^                |  ^
//!                                       run: Done |  | poll: Pending
//! ```
//! At most one handler computes at a time, since all of this belongs to one thread; several may be
//! preempted in the middle. A cell that stops for any reason is removed at once: after a trap its
//! memory is in the middle of a handler, so only a checkpoint and a replay lead back to a state
//! between two inputs.

mod bound;
mod config;
mod copying;
mod deferred_free;
mod driver;
mod live;
mod look;
mod ready;
mod stages;
mod state;
mod ticker;
mod trim;

pub use config::{CellsConfig, Reset};
pub use look::StageState;
pub use ready::{ReadyStats, WarmPoolStats};

use crate::buffers::Spares;
use crate::chain::Image;
use crate::checkpoint::VersionPool;
use crate::dirty::Method;
use crate::engine;
use crate::host::{Hosts, Print, linker};
use crate::image::StageImage;
use crate::keys::Keyring;
use crate::limits::{READY_SHARE, REASON_BYTES_MAX};
use crate::plain::plain_cut;
use crate::start_error::CellStartError;
use bound::Bound;
use bytes::Bytes;
use deferred_free::DeferredFree;
use driver::Drivers;
use live::Live;
use marram_session::cell::{CellId, CellStop, Ran, Run, RunOutcome, Seed};
use marram_wire::id::ImageHash;
use marram_wire::log::Found;
use ready::WarmPools;
use stages::{Failure, Stages};
use std::any::Any;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use ticker::Ticker;
use wasmtime::{Engine, InstanceAllocationStrategy, Linker};

/// The live cells of one process. Belongs to one thread: two busy threads in one address space slow each other down,
/// so there is one `Cells` per shard, and one process per shard.
pub struct Cells {
    /// Declared before the engine, so that every instance is dropped before the pool. The cells of
    /// sessions, by the numbers that the caller gave them.
    cells: HashMap<CellId, Stages>,
    /// Cells without a session yet.
    ready: WarmPools,
    /// Cells without a session any more.
    deferred_free: DeferredFree,
    /// Images that cells can start from, by the hash of the stage; [`Self::forget`] removes them.
    bound: HashMap<ImageHash, Rc<Bound>>,
    linker: Linker<Hosts>,
    drivers: Rc<Drivers>,
    engine: Engine,
    /// Wakes once a slice while guests run; see `ticker`.
    ticker: Ticker,
    /// How this process finds dirty pages: chosen once, at the start.
    method: Method,
    keyring: Keyring,
    /// Buffers of snapshots; shared with the threads that encode them.
    spares: Spares,
    /// Earlier versions of pages, for the checkpoints of backups.
    versions: VersionPool,
    /// What the cell that stopped last printed before it stopped.
    last_prints: Option<(CellId, Vec<Print>)>,
}

/// How far a handler came.
#[derive(Debug)]
pub enum Progress {
    /// The handler ended.
    Done(Ran),
    /// It used up its slice, or waits for what [`Cells::wanted`] returns. [`Cells::poll`] continues it; others may run meanwhile.
    Pending,
}

impl Cells {
    /// Reserves memory for cells.
    ///
    /// # Errors
    /// If the machine cannot give the address space or a thread.
    pub fn new(config: CellsConfig) -> Result<Self, CellStartError> {
        let mut settings = if config.debugged { engine::debugged(true) } else { engine::config(true) };
        settings.allocation_strategy(InstanceAllocationStrategy::Pooling(config.pool()));
        // Only drivers are compiled here: that needs no extra threads.
        settings.parallel_compilation(false);
        let engine = Engine::new(&settings).map_err(|error| CellStartError::Pool(format!("{error:#}")))?;
        let linker = linker(&engine, true).map_err(|error| CellStartError::Pool(format!("{error:#}")))?;
        let drivers = Drivers::new(&engine).map_err(|error| CellStartError::Pool(format!("{error:#}")))?;
        let ticker = match config.slices {
            true => Ticker::start(engine.clone()).map_err(|error| CellStartError::Pool(error.to_string()))?,
            false => Ticker::still(),
        };
        let method = Method::choose(config.tracking);
        Ok(Self {
            cells: HashMap::new(),
            ready: WarmPools::new(config.slots as usize / READY_SHARE),
            deferred_free: DeferredFree::new(&config),
            bound: HashMap::new(),
            linker,
            drivers: Rc::new(drivers),
            engine,
            ticker,
            method,
            keyring: Keyring::default(),
            spares: Spares::default(),
            versions: VersionPool::default(),
            last_prints: None,
        })
    }

    /// Sets the keys that the host signs with for cells. Images that were already used keep their keys.
    #[must_use]
    pub fn with_keys(mut self, keyring: Keyring) -> Self {
        self.keyring = keyring;
        self
    }

    /// How dirty pages are found, as a word for the operator.
    #[must_use]
    pub fn tracking(&self) -> &'static str {
        self.method.describe()
    }

    /// Maps the code of an image's stages before its first cell. Starting a cell also does it.
    ///
    /// # Errors
    /// If the engine refuses the code.
    pub fn prepare(&mut self, image: &Arc<Image>) -> Result<(), CellStartError> {
        self.bind_all(image).map(|_| ())
    }

    /// Binds all stages and compiles their driver: compiling takes longer than a handler may run.
    /// Called ahead of a start, when a delay harms no client.
    fn bind_all(&mut self, image: &Image) -> Result<Vec<Rc<Bound>>, CellStartError> {
        let refused = |error| CellStartError::Image { hash: image.hash(), why: format!("{error:#}") };
        self.drivers.prepare(image.stage_count()).map_err(refused)?;
        image.stages.iter().map(|stage| self.bind(&stage.image)).collect()
    }

    /// The keys are picked once, when the image is first bound. A missing key fails each start
    /// until it is configured.
    fn bind(&mut self, image: &Arc<StageImage>) -> Result<Rc<Bound>, CellStartError> {
        if let Some(bound) = self.bound.get(&image.hash) {
            return Ok(Rc::clone(bound));
        }
        let keys =
            self.keyring.pick(&image.keys).map_err(|key| CellStartError::Key { hash: image.hash, key })?;
        let bound = Bound::new(&self.engine, &self.linker, image, keys)
            .map_err(|error| CellStartError::Image { hash: image.hash, why: format!("{error:#}") })?;
        let bound = Rc::new(bound);
        self.bound.insert(image.hash, Rc::clone(&bound));
        Ok(bound)
    }

    /// Forgets the code of an image's stages; running cells keep it until they end.
    pub fn forget(&mut self, image: &Image) {
        for stage in &image.stages {
            self.bound.remove(&stage.image.hash);
        }
        self.ready.forget(image.hash());
    }

    /// Announces clients for this image: [`Self::prewarm_one`] will start cells ahead of them.
    pub fn expect(&mut self, image: &Arc<Image>) {
        self.ready.expect(image);
    }

    /// No more clients are expected for this image; later clients wait until their cells are started.
    pub fn expect_no_more(&mut self, image: ImageHash) {
        self.ready.forget(image);
    }

    /// Starts one cell ahead of its client, for the image that lacks the most. Called when the process is idle; returns whether
    /// there are more to start.
    ///
    /// The cell is started with a seed of zeros, which no handler sees: `WarmPools::take` gives it
    /// the session's. If the start fails, the machine is short of slots, and the pool is not filled
    /// further.
    pub fn prewarm_one(&mut self) -> bool {
        let Some(image) = self.ready.lacking() else { return false };
        match self.stages(&image, Seed([0; 32])) {
            Ok(stages) => self.ready.put(image.hash(), stages),
            Err(_) => self.ready.give_up(image.hash()),
        }
        true
    }

    /// Removes cells that were started ahead and not needed lately. Called periodically.
    pub fn tend(&mut self) {
        self.ready.tend();
    }

    /// Statistics of cells that were started ahead.
    #[must_use]
    pub fn ready_stats(&self) -> ReadyStats {
        self.ready.stats()
    }

    /// The same for one image; `None` if no clients are expected for it.
    #[must_use]
    pub fn pool_stats(&self, image: ImageHash) -> Option<WarmPoolStats> {
        self.ready.pool_stats(image)
    }

    /// Starts a cell from an image, in microseconds: all of its stages or none.
    ///
    /// # Errors
    /// If all slots are taken, the number is taken, or the engine refuses the image.
    pub fn start(&mut self, cell: CellId, image: &Arc<Image>, seed: Seed) -> Result<(), CellStartError> {
        if self.cells.contains_key(&cell) {
            return Err(CellStartError::Taken(cell));
        }
        let stages = match self.ready.take(image.hash(), seed) {
            Some(stages) => stages,
            None => match self.stages(image, seed) {
                // Cells without a client are removed before a client is refused.
                Err(CellStartError::Slot(_)) if self.deferred_free.clear() + self.ready.clear() > 0 => {
                    self.stages(image, seed)?
                }
                other => other?,
            },
        };
        self.cells.insert(cell, stages);
        Ok(())
    }

    /// All stages of a new cell, each in a slot of its own. Does not remove others to make room:
    /// [`Self::start`] does, for clients only.
    fn stages(&mut self, image: &Arc<Image>, seed: Seed) -> Result<Stages, CellStartError> {
        let bound =
            image.stages.iter().map(|stage| self.bind(&stage.image)).collect::<Result<Vec<_>, _>>()?;
        let live = Live::start(&bound, image.server, &self.drivers, seed, &self.method, self.ticker.watch())
            .map_err(|error| CellStartError::Slot(format!("{error:#}")))?;
        Ok(Stages::new(Arc::clone(image), live))
    }

    /// Gives a cell an input and runs its handlers, in all stages that have one to run, until the current slice ends.
    ///
    /// A cell that is unknown, or not done with its last input, returns [`RunOutcome::Stopped`]: the caller has a bug.
    /// After any [`RunOutcome::Stopped`] the cell is gone.
    ///
    /// Wall time between two polls is not charged. The input must be complete: there is no way to
    /// withdraw one, except by [`Self::remove`].
    pub fn run(&mut self, run: Run) -> Progress {
        let cell = run.cell;
        let Some(stages) = self.cells.get_mut(&cell) else {
            return Progress::Done(stopped(cell, CellStop::Kill("there is no such cell".into()), 0));
        };
        if !stages.are_quiet() {
            return self.end(
                cell,
                CellStop::Kill("it was given an input in the middle of a handler".into()),
                0,
            );
        }
        self.ticker.running();
        stages.begin(run);
        let resumed = stages.resume(self.ticker.watch());
        self.progress(cell, resumed)
    }

    /// Lets a preempted cell run for another slice.
    pub fn poll(&mut self, cell: CellId) -> Progress {
        let Some(stages) = self.cells.get_mut(&cell) else {
            return Progress::Done(stopped(cell, CellStop::Kill("there is no such cell".into()), 0));
        };
        if stages.are_quiet() {
            return self.end(cell, CellStop::Kill("it was resumed between handlers".into()), 0);
        }
        self.ticker.running();
        let resumed = stages.resume(self.ticker.watch());
        self.progress(cell, resumed)
    }

    /// The key of an object that a handler reads from the cache. Ask after each [`Progress::Pending`]; each key is returned once.
    /// The handler continues when [`Self::found`] has brought the object; do not poll it before.
    #[must_use]
    pub fn wanted(&self, cell: CellId) -> Option<Bytes> {
        self.cells.get(&cell)?.wanted()
    }

    /// Gives a waiting handler what was found in the cache.
    pub fn found(&mut self, cell: CellId, found: Found) {
        if let Some(stages) = self.cells.get(&cell) {
            stages.found(found);
        }
    }

    /// Turns what the stages report into what the caller sees; a cell that failed is gone
    /// afterwards.
    fn progress(&mut self, cell: CellId, resumed: Result<Option<Ran>, Failure>) -> Progress {
        match resumed {
            Ok(Some(ran)) => Progress::Done(ran),
            Ok(None) => Progress::Pending,
            Err(failure) => self.fail(cell, failure),
        }
    }

    /// For inputs that the caller may not give. The cell ends too, because its state no longer
    /// matches its log.
    fn end(&mut self, cell: CellId, stop: CellStop, spent_ns: u64) -> Progress {
        self.fail(cell, Failure { stop, spent_ns, reads: Vec::new() })
    }

    fn fail(&mut self, cell: CellId, failure: Failure) -> Progress {
        if let Some(mut live) = self.cells.remove(&cell).and_then(Stages::into_live) {
            self.last_prints = Some((cell, live.take_prints()));
            self.deferred_free.take(live);
        }
        let Failure { stop, spent_ns, reads } = failure;
        Progress::Done(Ran { reads, ..stopped(cell, stop, spent_ns) })
    }

    /// Ends a cell and frees its slots, even in the middle of a handler. Unknown cells are ignored.
    pub fn remove(&mut self, cell: CellId) {
        if let Some(live) = self.cells.remove(&cell).and_then(Stages::into_live) {
            self.deferred_free.take(live);
        }
    }

    /// Number of live cells.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether a cell of this image is live.
    #[must_use]
    pub fn runs(&self, image: &Image) -> bool {
        self.cells.values().any(|stages| stages.image() == image.hash())
    }

    /// Whether no cell is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Takes what the cell printed since the last call. Of the cells that stopped, this works for the last one: what it printed
    /// often says why it stopped.
    pub fn take_prints(&mut self, cell: CellId) -> Vec<Print> {
        if let Some(stages) = self.cells.get_mut(&cell).filter(|stages| stages.are_quiet()) {
            return stages.take_prints();
        }
        self.last_prints
            .take_if(|(stopped, _)| *stopped == cell)
            .map(|(_, prints)| prints)
            .unwrap_or_default()
    }

    /// The stages of a cell that is between inputs.
    fn quiet(&self, cell: CellId) -> Option<&Stages> {
        self.cells.get(&cell).filter(|stages| stages.are_quiet())
    }
}

fn stopped(cell: CellId, stop: CellStop, cost_ns: u64) -> Ran {
    let outcome = RunOutcome::Stopped(stop);
    let (outputs, timers, tasks) = (Vec::new(), Vec::new(), Vec::new());
    Ran { cell, outcome, clock_read: false, outputs, timers, tasks, reads: Vec::new(), cost_ns }
}

/// The text for people about a panic in this program. A panic is not the guest's doing, but its
/// input caused it: the text goes to the session's ends, so it is made plain and short.
fn bug(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let text = format!("the host has a bug, please report it: {}", text.unwrap_or("no message"));
    plain_cut(&text, REASON_BYTES_MAX)
}

/// The text for people about an error that ended a guest: the cause and the function. The guest chose the names of its
/// functions.
///
/// Names are demangled. Frames of the driver are left out, since the author of the guest does not
/// know it.
pub(crate) fn reason(error: &wasmtime::Error) -> String {
    let mut text = error.root_cause().to_string();
    let trace = error.downcast_ref::<wasmtime::WasmBacktrace>();
    let frames = trace.map(wasmtime::WasmBacktrace::frames).unwrap_or_default();
    let frames = frames.iter().filter(|frame| !Drivers::is_named(frame.module().name()));
    for (n, frame) in frames.take(REASON_FRAMES_MAX).enumerate() {
        text.push_str(if n == 0 { ", in " } else { " < " });
        match frame.func_name() {
            Some(name) => text.push_str(&format!("{:#}", rustc_demangle::demangle(name))),
            None => text.push_str(&format!("function {}", frame.func_index())),
        }
    }
    plain_cut(&text, REASON_BYTES_MAX)
}

/// Callers that a reason lists.
const REASON_FRAMES_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::Images;
    use crate::quotas::Quotas;
    use marram_session::cell::{CellInput, PortKind};
    use marram_wire::id::Port;

    #[test]
    fn a_bug_of_ours_ends_one_cell_and_names_itself() {
        let module = wat::parse_str(
            r#"(module (import "marram_v1" "close" (func $close (param i32)))
                 (memory (export "memory") 1)
                 (func (export "marram_alloc") (param i32) (result i32) (i32.const 0))
                 (func (export "marram_recv") (param i32 i32 i32)
                   (if (local.get 2) (then (call $close (i32.const 0))))))"#,
        )
        .unwrap();
        let dir = std::env::temp_dir().join(format!("marram-cells-bug-{}", std::process::id()));
        let images = Images::open(&dir).unwrap();
        let image = images.load(images.deploy(&module, &[], &Quotas::default()).unwrap().hash).unwrap();
        let mut cells = Cells::new(CellsConfig { slots: 4, ..CellsConfig::default() }).unwrap();
        cells.linker.allow_shadowing(true);
        cells
            .linker
            .func_wrap(crate::host::ABI_MODULE, "close", |_: u32| -> () { panic!("planted") })
            .unwrap();
        for cell in [CellId(1), CellId(2)] {
            cells.start(cell, &image, Seed([0; 32])).unwrap();
        }
        let message = |bytes: &'static [u8]| CellInput::Message { port: Port::CLIENT, payload: bytes.into() };
        let run = |cells: &mut Cells, cell, input| {
            let mut progress = cells.run(Run { cell, input, now_ns: 0, logged: None });
            loop {
                match progress {
                    Progress::Done(ran) => break ran.outcome,
                    // Happens on a busy machine.
                    Progress::Pending => progress = cells.poll(cell),
                }
            }
        };
        let killed = run(&mut cells, CellId(1), message(b"x"));
        let RunOutcome::Stopped(CellStop::Kill(reason)) = killed else { panic!("a kill") };
        assert!(reason.contains("bug") && reason.contains("planted"), "{reason:?}");
        assert_eq!(run(&mut cells, CellId(2), message(b"")), RunOutcome::Idle);
        // In a chain, the reason has the name of the stage, also when the driver delivers messages.
        let quiet = wat::parse_str(
            r#"(module (import "marram_v1" "send" (func $send (param i32 i32 i32)))
                 (memory (export "memory") 1)
                 (func (export "marram_alloc") (param i32) (result i32) (i32.const 0))
                 (func (export "marram_recv") (param i32 i32 i32)
                   (call $send (i32.const 1) (i32.const 0) (local.get 2))))"#,
        )
        .unwrap();
        let hash = |module: &[u8]| images.deploy(module, &[], &Quotas::default()).unwrap().hash;
        let stages = vec![("quiet".to_owned(), hash(&quiet)), ("bad".to_owned(), hash(&module))];
        let chain = crate::chain::Chain::new(false, stages).unwrap();
        let chain = images.load(images.deploy_chain(&chain).unwrap()).unwrap();
        for messages in [0, driver::AFTER] {
            cells.start(CellId(3), &chain, Seed([0; 32])).unwrap();
            let mut run = |input| run(&mut cells, CellId(3), input);
            assert_eq!(
                run(CellInput::Open { port: Port::CLIENT, kind: PortKind::Client, peer: None }),
                RunOutcome::Idle
            );
            (0..messages).for_each(|_| assert_eq!(run(message(b"")), RunOutcome::Idle));
            let RunOutcome::Stopped(CellStop::Kill(reason)) = run(message(b"x")) else { panic!("a kill") };
            assert!(reason.starts_with("stage 1 (bad): ") && reason.contains("planted"), "{reason:?}");
        }
        assert_eq!(cells.len(), 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
