//! Cells on demand of the pure shard: the only place in this crate that runs them.
//!
//! Handlers run on the calling thread. Loading images and opening checkpoints happen on the worker, and sealing them on the
//! sealer, which has what the others leave.

mod guest_log;

use self::guest_log::GuestLog;
use super::{
    caches::Caches,
    checkpoints::{Arriving, Restored, unrestorable},
    pressure,
    recordings::Recordings,
    setup::Setup,
    standing::Standing,
    startup::{Expected, StartSource, start_cell},
    worker::Worker,
};
use anyhow::Context;
use bytes::Bytes;
use marram_agent::net::LogLimiter;
use marram_edge::{
    api::{CellError, Counter, Label, RecordRequest, SchedulingParams, ShardInput},
    cache::CachePolicy,
    run_queue::{Class, RunQueue, Tenant, WEIGHT},
};
use marram_sandbox::{
    Cells, CellsConfig, Filling, Image, Images, LoadError, Progress, Snapshot, SnapshotError,
    reset_scheduling, set_background,
};
use marram_session::{
    cell::{CellId, CellInput, CellOutput, CheckpointBase, Ran, Run, RunOutcome, Seed},
    replay::Gathered,
};
use marram_wire::{
    frame::{CheckpointMeta, Code},
    header::{self, Header},
    id::{ImageHash, SessionId},
    log::Found,
    seal::{Seal, SessionKeys},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{info, warn};

/// What a handler is charged that used up its slice.
const SLICE_NS: u64 = 1_000_000;
/// What a handler has of its tenant's time before the tenant's other cells have some: enough for most to end.
const STRETCH_NS: u64 = 4 * SLICE_NS;
/// A turn that took so long may do so again: what waits to be sent does not wait for it.
const LONG_NS: u64 = 100_000;

/// What a tenant is charged for what this shard does for it beside running its handlers, in nanoseconds as measured. No clock
/// is read for it: there would be several readings a message.
mod cost {
    /// Opening a session: the ends' greetings, its keys, its cell.
    pub(super) const OPEN_NS: u64 = 40_000;
    /// Ending it: the ends are told, the slot is cleaned.
    pub(super) const END_NS: u64 = 25_000;
    /// An input: its frame, its log entry, the answer's way back.
    pub(super) const INPUT_NS: u64 = 1_500;
    /// An output: its frame, and the ends' word that they have it.
    pub(super) const OUTPUT_NS: u64 = 500;
    /// Bytes that are copied and written in a nanosecond.
    pub(super) const BYTES_PER_NS: u64 = 2;
    /// Bytes of a large cell's memory that go back to the machine in a nanosecond, if all were written.
    pub(super) const FREEING_BYTES_PER_NS: u64 = 15;
}
/// Recordings of stopped handlers that may be written at a time: whoever is stopped often is not worth more.
const STOPS_UNDERWAY_MAX: usize = 4;
/// Bytes of memory of a cell that is being restored that are put into it at a time.
const PART_BYTES: usize = if cfg!(test) {
    1 /* those of tests are small */
} else {
    256 << 10
};
/// So many of those, before whatever else there is to do has its turn.
const PARTS_AT_ONCE: usize = 4;
/// How often what is kept ahead of clients is looked at.
const TEND_EVERY: Duration = Duration::from_secs(2);

enum Loaded {
    /// The worker has it in hand.
    Underway(Vec<(CellId, StartSource)>),
    /// It is here. There are never more than an operator has deployed.
    Here(Arc<Image>),
}

/// What the worker has at hand.
struct WorkerState {
    images: Images,
    recordings: Recordings,
    /// Checkpoints that are being opened, by the cells that they are for.
    arriving: BTreeMap<CellId, (Purpose, Arriving)>,
}

/// What arriving checkpoints are for.
#[derive(Clone, Copy)]
enum Purpose {
    /// Making the cell.
    Restore,
    /// Bringing it forward, in its attempt of this number.
    Advance(u64),
}

/// What the worker brings back.
enum Answer {
    Image(ImageHash, Result<Arc<Image>, LoadError>),
    Part { cell: CellId, image: ImageHash, fillings: Vec<Filling> },
    Opened { cell: CellId, image: ImageHash, result: Result<Box<Restored>, CellError> },
    Next(Next),
    Sealed { cell: CellId, number: u32, bytes: Bytes },
    Recorded { session: SessionId, tag: Option<u64>, result: Result<String, String> },
}

/// The next checkpoint of a cell that stands by, opened or refused.
struct Next {
    cell: CellId,
    attempt: u64,
    result: Result<Box<Restored>, CellError>,
}

/// What waits for its turn.
enum QueuedHandler {
    /// A handler to begin.
    Run(Run),
    /// One that was preempted.
    Resume(CellId),
}

impl QueuedHandler {
    fn cell(&self) -> CellId {
        match self {
            Self::Run(run) => run.cell,
            Self::Resume(cell) => *cell,
        }
    }
}

/// What is known of a cell's turns.
struct CellSlot {
    scheduling: SchedulingParams,
    /// Whose cache its handlers read from.
    app: String,
    /// For whom it is, unless it is shared.
    session: Option<SessionId>,
    /// How many wait: none or one, unless somebody's books are wrong.
    waiting: usize,
    /// What the handler that is under way was charged.
    charged_ns: u64,
    /// Of a cell that stands by, until it runs.
    standing: Option<Box<Standing>>,
}

/// The cells of one shard.
pub(super) struct Executor {
    cells: Cells,
    images: BTreeMap<ImageHash, Loaded>,
    /// What new clients will ask for, by app.
    deployed: BTreeMap<String, ImageHash>,
    /// Handlers that are to run, and those that used up their slice.
    run_queue: RunQueue<QueuedHandler>,
    /// Where each cell's handlers queue.
    slots: BTreeMap<CellId, CellSlot>,
    /// Tenants whose last turn was long.
    slow: BTreeSet<Tenant>,
    /// Cells that are asked for and not there yet; one that is removed meanwhile must not come to life.
    expected: BTreeMap<CellId, Expected>,
    /// Checkpoints to bring cells to, if they still stand where they stood.
    next: VecDeque<Next>,
    /// States that were copied and are still to be sealed, one a cell at the most.
    copies: BTreeMap<CellId, Result<Snapshot, SnapshotError>>,
    /// States that were hashed for a recording to come.
    hashes: BTreeMap<CellId, [u8; 32]>,
    /// Recordings that the worker has in hand.
    recordings: usize,
    caches: Caches,
    worker: Worker<WorkerState, Answer>,
    /// Whether the worker may have brought more than was taken.
    is_behind: bool,
    sealer: Worker<(), Answer>,
    guest_log: GuestLog,
    log_limiter: LogLimiter,
    /// Whether a cell may have to be started ahead of its client.
    prewarming: bool,
    /// When to look again at what is kept ahead, and at the machine's memory.
    tend_at: Instant,
    /// Whether the machine runs out of memory.
    is_short: fn() -> bool,
    /// Whether it did when that was looked at last.
    was_short: bool,
    reclaims: u64,
}

impl Executor {
    /// Makes room for cells and starts the worker, which will use `waker`.
    pub(super) fn start(setup: &Setup, waker: Arc<mio::Waker>) -> anyhow::Result<Self> {
        let images = Images::open(setup.images()).with_context(|| {
            format!("cannot use the image cache {}: make it writable", setup.images().display())
        })?;
        let cells = Cells::new(CellsConfig { slots: setup.cells_max, ..CellsConfig::default() })
            .context("cannot reserve the cell pool: lower cells_max, or raise vm.max_map_count")?
            .with_keys(setup.keyring()?);
        // The compiler of what stands beside long-lived cells ran once, and will not again.
        crate::memory::give_back();
        info!(shard = setup.shard, tracking = cells.tracking(), slots = setup.cells_max, "cell pool ready");
        let state = WorkerState { images, recordings: setup.recordings(), arriving: BTreeMap::new() };
        let caches = Caches::new(u64::from(setup.shards), Arc::clone(&waker));
        let worker = Worker::start("worker", reset_scheduling, state, Arc::clone(&waker))?;
        let sealer = Worker::start("sealer", set_background, (), waker)?;
        Ok(Self {
            cells,
            images: BTreeMap::new(),
            deployed: BTreeMap::new(),
            run_queue: RunQueue::default(),
            slots: BTreeMap::new(),
            slow: BTreeSet::new(),
            expected: BTreeMap::new(),
            next: VecDeque::new(),
            copies: BTreeMap::new(),
            hashes: BTreeMap::new(),
            recordings: 0,
            caches,
            worker,
            is_behind: false,
            sealer,
            guest_log: GuestLog::default(),
            log_limiter: LogLimiter::new(Instant::now()),
            prewarming: false,
            tend_at: Instant::now() + TEND_EVERY,
            is_short: pressure::is_short,
            was_short: false,
            reclaims: 0,
        })
    }

    /// Whether a handler waits for its turn, or a cell to be filled or brought forward.
    pub(super) fn is_busy(&self) -> bool {
        self.is_behind || !self.run_queue.is_empty() || !self.next.is_empty()
    }

    /// A cell's handlers will queue here.
    pub(super) fn scheduling(
        &mut self,
        cell: CellId,
        (app, session): (String, Option<SessionId>),
        scheduling: SchedulingParams,
    ) {
        self.run_queue.set_weight(scheduling.tenant, scheduling.weight);
        self.run_queue.charge(scheduling.tenant, cost::OPEN_NS);
        self.slots
            .insert(cell, CellSlot { scheduling, app, session, waiting: 0, charged_ns: 0, standing: None });
    }

    /// Where the cells of an app read from, from now on.
    pub(super) fn cache(&mut self, app: &str, policy: Option<&CachePolicy>) {
        let found = self.caches.configure(app, policy);
        self.go_on(found);
    }

    /// As above, of an app that was deployed earlier: what it is deployed with now counts.
    pub(super) fn cache_unless_known(&mut self, app: &str, policy: Option<&CachePolicy>) {
        if !self.caches.has(app) {
            self.cache(app, policy);
            self.caches.retire(app);
        }
    }

    /// Gives cells what they have waited for.
    fn go_on(&mut self, found: Vec<(CellId, Found)>) {
        for (cell, found) in found {
            self.cells.found(cell, found);
            self.queue(QueuedHandler::Resume(cell));
        }
    }

    /// Whether [`Self::prewarm_one`] may have something to do.
    pub(super) fn is_prewarming(&self) -> bool {
        self.prewarming
    }

    /// Starts one cell ahead of its client; for when there is nothing better to do.
    pub(super) fn prewarm_one(&mut self) {
        self.prewarming = self.cells.prewarm_one();
    }

    /// Whether [`Self::reclaim_memory`] has something to do.
    pub(super) fn is_freeing(&self) -> bool {
        self.cells.is_freeing()
    }

    /// Gives a piece of the memory of cells that ended back to the machine.
    pub(super) fn reclaim_memory(&mut self) {
        self.cells.free_piece();
    }

    /// Gives back what was kept ahead and not needed; all of it when the machine is short of memory. Cells and slots that are
    /// nobody's go first, for they are filled again in microseconds; images, which must be loaded again, where that was not enough.
    pub(super) fn tend(&mut self, now: Instant) {
        if now < self.tend_at {
            return;
        }
        self.tend_at = now + TEND_EVERY;
        let slots = &self.slots;
        self.caches.sweep(|app| slots.values().any(|slot| slot.app == app));
        if (self.is_short)() {
            let (cells, slots) = self.cells.reclaim();
            let images = if self.was_short { self.drop_idle_images() } else { 0 };
            self.was_short = true;
            self.reclaims += 1;
            self.prewarming = false;
            if let Some(suppressed) = self.log_limiter.pass(now) {
                let what = "the machine is short of memory: gave up what was kept ahead of clients";
                warn!(cells, slots, images, suppressed, "{what}");
            }
        } else {
            self.was_short = false;
            self.cells.tend();
        }
    }

    /// Images that no cell runs now are loaded again when one is asked for.
    fn drop_idle_images(&mut self) -> usize {
        let idle = |loaded: &Loaded| matches!(loaded, Loaded::Here(image) if !self.cells.runs(image));
        let hashes: Vec<ImageHash> =
            self.images.iter().filter(|(_, loaded)| idle(loaded)).map(|(hash, _)| *hash).collect();
        for hash in &hashes {
            if let Some(Loaded::Here(image)) = self.images.remove(hash) {
                self.cells.forget(&image);
            }
        }
        hashes.len()
    }

    /// What the operator may want to know of cells, slots and images, beside what the shard counts.
    pub(super) fn counters(&self) -> Vec<Counter> {
        let (count, gauge) = (Counter::count, Counter::gauge);
        let stats = self.cells.ready_stats();
        let mut counters = vec![
            gauge("cells", self.cells.len()),
            gauge("cells_ready", stats.ready),
            count("cells_ready_found_total", stats.found),
            count("cells_ready_missed_total", stats.missed),
            count("cells_ready_reclaimed_total", stats.reclaimed),
            gauge("slots_warm", self.cells.warm_slots()),
            gauge("images_loaded", self.loaded_count()),
            count("memory_reclaims_total", self.reclaims),
        ];
        for (app, image) in &self.deployed {
            let pool = self.cells.pool_stats(*image).unwrap_or_default();
            let loaded = matches!(self.images.get(image), Some(Loaded::Here(_)));
            counters.extend(
                [
                    gauge("app_cells_ready", pool.ready),
                    count("app_cells_ready_found_total", pool.found),
                    count("app_cells_ready_missed_total", pool.missed),
                    gauge("app_images_loaded", usize::from(loaded)),
                ]
                .map(|counter| counter.of(Label::app(app))),
            );
        }
        self.caches.count(&mut counters);
        counters
    }

    fn loaded_count(&self) -> usize {
        self.images.values().filter(|loaded| matches!(loaded, Loaded::Here(_))).count()
    }

    /// New clients of an app will ask for this image, or for none any more.
    pub(super) fn deployed(&mut self, app: &str, image: Option<ImageHash>) {
        let before = match image {
            Some(image) => self.deployed.insert(app.to_owned(), image),
            None => {
                self.caches.retire(app);
                self.deployed.remove(app)
            }
        };
        if let Some(before) = before.filter(|before| !self.deployed.values().any(|other| other == before)) {
            self.cells.expect_no_more(before);
        }
        let Some(image) = image else { return };
        match self.images.get(&image) {
            Some(Loaded::Here(loaded)) => {
                self.cells.expect(loaded);
                self.prewarming = true;
            }
            _ => self.prepare(image),
        }
    }

    /// Loads an image ahead of its first cell.
    pub(super) fn prepare(&mut self, image: ImageHash) {
        if let Entry::Vacant(entry) = self.images.entry(image) {
            entry.insert(Loaded::Underway(Vec::new()));
            self.worker.urgent(move |state| Some(Answer::Image(image, state.images.load(image))));
        }
    }

    /// Starts a cell, at once if its image is here.
    pub(super) fn start_cell(
        &mut self,
        cell: CellId,
        image: ImageHash,
        seed: Seed,
        inputs: &mut VecDeque<ShardInput>,
    ) {
        self.expected.insert(cell, Expected::Nothing);
        self.prewarming = true;
        self.begin(cell, image, StartSource::Seed(seed), inputs);
    }

    /// Restores a cell from checkpoints whose bytes follow: the worker opens and reads, this thread puts what there is into the
    /// cell.
    pub(super) fn restore(
        &mut self,
        cell: CellId,
        session: SessionId,
        image: ImageHash,
        keys: SessionKeys,
        checkpoints: Vec<CheckpointMeta>,
    ) {
        self.expected.insert(cell, Expected::Nothing);
        self.prepare(image);
        self.worker.urgent(move |state| {
            let arriving = Arriving::new(session, image, keys, checkpoints);
            state.arriving.insert(cell, (Purpose::Restore, arriving));
            None
        });
    }

    /// The cell that is to be restored will be brought forward, for as long as it does not run.
    pub(super) fn stand_by(&mut self, cell: CellId, standing: Standing) {
        if let Some(slot) = self.slots.get_mut(&cell) {
            slot.standing = Some(Box::new(standing));
        }
    }

    /// Brings a cell that stands by to its next checkpoint, whose bytes follow. What has arrived for it is dropped.
    pub(super) fn advance(&mut self, cell: CellId, meta: CheckpointMeta, inputs: &mut VecDeque<ShardInput>) {
        let standing = self.slots.get_mut(&cell).and_then(|slot| slot.standing.as_mut());
        let Some((attempt, arriving)) = standing.and_then(|standing| standing.begin(meta)) else {
            let reason = "the cell does not stand by; restore it to have it at a later checkpoint".into();
            let result = Err(CellError { code: Code::Busy, reason });
            return inputs.push_back(ShardInput::Restored { cell, result });
        };
        self.worker.urgent(move |state| {
            state.arriving.insert(cell, (Purpose::Advance(attempt), arriving));
            None
        });
    }

    /// Brings a cell to a checkpoint that has arrived; the answer is for the shard at once. Were it done before the shard takes
    /// the answer, the shard could run the cell meanwhile and not know from where.
    pub(super) fn next_advanced(&mut self) -> Option<ShardInput> {
        while let Some(Next { cell, attempt, result }) = self.next.pop_front() {
            let Some(slot) = self.slots.get_mut(&cell) else { continue };
            let Some(standing) = &mut slot.standing else { continue };
            if !standing.ends(attempt) {
                continue;
            }
            let began = Instant::now();
            let result = result.and_then(|next| {
                let advanced = self.cells.advance(cell, &next.decoded);
                advanced.map(|()| next.header).map_err(|error| unrestorable(&error))
            });
            if let Ok(header) = &result {
                standing.has(header);
            }
            self.charge_since(cell, Some(began));
            return Some(ShardInput::Restored { cell, result });
        }
        None
    }

    /// Has the next bytes of a cell's checkpoints opened while others are still on their way. What was sealed for its place goes
    /// into the memory of a cell that is to be restored; that it runs takes all of them. One that stands by stays what it is
    /// until all are there.
    pub(super) fn part(&self, cell: CellId, bytes: Bytes) {
        self.worker.urgent(move |state| {
            let (purpose, arriving) = state.arriving.get_mut(&cell)?;
            let (purpose, image) = (*purpose, arriving.image);
            let result = match arriving.push(&bytes) {
                Ok(false) if matches!(purpose, Purpose::Restore) => {
                    let fillings = arriving.take(PART_BYTES)?;
                    return Some(Answer::Part { cell, image, fillings });
                }
                Ok(false) => return None,
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            };
            let (_, arriving) = state.arriving.remove(&cell)?;
            let result = result.and_then(|()| arriving.finish());
            Some(match purpose {
                Purpose::Restore => Answer::Opened { cell, image, result },
                Purpose::Advance(attempt) => Answer::Next(Next { cell, attempt, result }),
            })
        });
    }

    fn begin(
        &mut self,
        cell: CellId,
        image: ImageHash,
        source: StartSource,
        inputs: &mut VecDeque<ShardInput>,
    ) {
        if !self.expected.contains_key(&cell) {
            return;
        }
        self.prepare(image);
        match self.images.get_mut(&image) {
            Some(Loaded::Underway(waiting)) => waiting.push((cell, source)),
            Some(Loaded::Here(image)) => {
                let Some(expected) = self.expected.get_mut(&cell) else { return };
                let began = source.is_large().then(Instant::now);
                let freeing = self.cells.deferred_free_bytes();
                let input = start_cell(&mut self.cells, cell, image, source, expected);
                self.charge_since(cell, began);
                let Some(input) = input else { return };
                self.expected.remove(&cell);
                let standing = self.slots.get_mut(&cell).and_then(|slot| slot.standing.as_mut());
                match (&input, standing) {
                    (ShardInput::Restored { result: Ok(header), .. }, Some(standing)) => standing.has(header),
                    (ShardInput::Restored { result: Err(_), .. }, _) => {
                        self.charge_freeing(cell, freeing);
                        // More of it may be on its way.
                        drop_arriving(&self.worker, cell);
                    }
                    _ => {}
                }
                inputs.push_back(input);
            }
            None => unreachable!("it was prepared above"),
        }
    }

    /// Charges the tenant of a cell for the time from then on.
    fn charge_since(&mut self, cell: CellId, began: Option<Instant>) {
        let (Some(began), Some(slot)) = (began, self.slots.get(&cell)) else { return };
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.run_queue.charge(slot.scheduling.tenant, took_ns);
    }

    /// Copies a cell's state now.
    pub(super) fn copy(&mut self, cell: CellId, base: CheckpointBase) {
        self.copies.insert(cell, self.cells.snapshot(cell, base));
    }

    /// Has what was copied encoded and sealed by the sealer.
    pub(super) fn checkpoint(
        &mut self,
        cell: CellId,
        header: Box<Header>,
        seal: Seal,
        inputs: &mut VecDeque<ShardInput>,
    ) {
        let number = header.number;
        match self.copies.remove(&cell).unwrap_or(Err(SnapshotError::NotIdle)) {
            Ok(snapshot) => self.sealer.lazy(move |()| {
                let plain = header::join(&header, &snapshot.encode());
                Some(Answer::Sealed { cell, number, bytes: seal.seal_checkpoint(number, &plain).into() })
            }),
            Err(error) => {
                let result = Err(error.to_string());
                inputs.push_back(ShardInput::Checkpointed { cell, number, result });
            }
        }
    }

    /// Hashes a cell's state now, for a recording.
    pub(super) fn hash(&mut self, cell: CellId) {
        if let Some(hash) = self.cells.state_hash(cell) {
            self.hashes.insert(cell, hash);
        }
    }

    /// Has a recording made and written by the worker, when nothing more urgent is there. Those that nobody asked for are
    /// left out when many wait.
    pub(super) fn record(
        &mut self,
        request: RecordRequest,
        gathered: Box<Gathered>,
        (edge, unix_ns): (String, i64),
        inputs: &mut VecDeque<ShardInput>,
    ) {
        let (session, tag) = (gathered.session, request.tag);
        let hash = gathered.cell.and_then(|cell| self.hashes.remove(&cell));
        if tag.is_none() && self.recordings >= STOPS_UNDERWAY_MAX {
            let result = Err("others are being written".to_string());
            return inputs.push_back(ShardInput::Recorded { session, tag, result });
        }
        self.recordings += 1;
        self.worker.lazy(move |worker| {
            let result = worker.recordings.keep(request, *gathered, edge, unix_ns, hash);
            Some(Answer::Recorded { session, tag, result })
        });
    }

    /// Queues a handler.
    pub(super) fn run(&mut self, run: Run) {
        let size = match &run.input {
            CellInput::Message { payload, .. } => payload.len() as u64,
            _ => 0,
        };
        let tenant = self.queue(QueuedHandler::Run(run)).tenant;
        self.run_queue.charge(tenant, cost::INPUT_NS + size / cost::BYTES_PER_NS);
    }

    /// Queues a turn behind its tenant's others, or before them if it is of a handler that has had a part of its stretch.
    fn queue(&mut self, queued: QueuedHandler) -> SchedulingParams {
        let cell = queued.cell();
        let (place, had_ns) = match self.slots.get_mut(&cell) {
            Some(slot) => {
                slot.waiting += 1;
                // Its state is its own from here on.
                let standing = slot.standing.take();
                if standing.is_some_and(|standing| standing.is_underway()) {
                    drop_arriving(&self.worker, cell);
                }
                (slot.scheduling, slot.charged_ns)
            }
            // It will be answered that there is no such cell.
            None => (SchedulingParams { tenant: Tenant::default(), weight: WEIGHT, class: Class::Fair }, 0),
        };
        if had_ns.is_multiple_of(STRETCH_NS) {
            self.run_queue.push(place.tenant, place.class, queued);
        } else {
            self.run_queue.requeue_front(place.tenant, place.class, queued);
        }
        place
    }

    /// Whether the next turn may take so long that what is ready should leave before it.
    pub(super) fn next_may_be_long(&self) -> bool {
        let next = self.run_queue.peek().and_then(|queued| self.slots.get(&queued.cell()));
        next.is_some_and(|slot| self.slow.contains(&slot.scheduling.tenant))
    }

    /// Runs the handler whose turn it is, at most for a slice. What it answers if it came to its end, and how long it had;
    /// nothing if none waits.
    pub(super) fn next_turn(&mut self) -> Option<(Option<Ran>, Duration)> {
        let queued = self.run_queue.pop()?;
        let cell = queued.cell();
        if let Some(slot) = self.slots.get_mut(&cell) {
            slot.waiting -= 1;
        }
        let freeing = self.cells.deferred_free_bytes();
        let mut started = self.caches.are_there().then(Instant::now);
        let mut progress = match queued {
            QueuedHandler::Run(run) => self.cells.run(run),
            QueuedHandler::Resume(cell) => self.cells.poll(cell),
        };
        let mut waits = false;
        while matches!(progress, Progress::Pending)
            && let Some(key) = self.cells.wanted(cell)
        {
            let app = self.slots.get(&cell).map_or("", |slot| slot.app.as_str());
            let Some(found) = self.caches.read(app, &key, cell) else {
                waits = true;
                break;
            };
            self.cells.found(cell, found);
            // One that reads and reads has its slice, what it computed before included, and no more.
            if started.get_or_insert_with(Instant::now).elapsed() > Duration::from_nanos(SLICE_NS) {
                break;
            }
            progress = self.cells.poll(cell);
        }
        self.charge_freeing(cell, freeing);
        let (ran, cost_ns) = match progress {
            // It may have computed before it asked.
            Progress::Pending if waits => {
                let spent_ns = started.map_or(0, |started| started.elapsed().as_nanos());
                (None, u64::try_from(spent_ns).unwrap_or(u64::MAX).max(cost::INPUT_NS))
            }
            Progress::Pending => (None, SLICE_NS),
            Progress::Done(ran) => {
                self.print(cell, matches!(ran.outcome, RunOutcome::Stopped(_)));
                let cost_ns = ran.cost_ns;
                (Some(ran), cost_ns)
            }
        };
        let spent_ns = self.charge(cell, cost_ns, ran.as_ref());
        if ran.is_none() && !waits {
            self.queue(QueuedHandler::Resume(cell));
        }
        Some((ran, Duration::from_nanos(spent_ns)))
    }

    /// Charges a turn to its tenant, and what it made if it was the handler's last; says how long this turn was.
    fn charge(&mut self, cell: CellId, cost_ns: u64, ran: Option<&Ran>) -> u64 {
        // Its session may have ended it meanwhile.
        let Some(slot) = self.slots.get_mut(&cell) else { return cost_ns };
        let tenant = slot.scheduling.tenant;
        let (spent_ns, made_ns) = match ran {
            None => {
                slot.charged_ns += cost_ns;
                (cost_ns, 0)
            }
            // A handler's cost is that of all its slices.
            Some(ran) => {
                (cost_ns.saturating_sub(std::mem::take(&mut slot.charged_ns)), sending_ns(&ran.outputs))
            }
        };
        if spent_ns >= LONG_NS {
            self.slow.insert(tenant);
        } else {
            self.slow.remove(&tenant);
        }
        self.run_queue.charge(tenant, spent_ns + made_ns);
        spent_ns
    }

    /// Charges what giving back the memory of a cell that has ended will take, if it ended since `before` bytes were to be
    /// given back: a tenant pays before it can take as much again.
    fn charge_freeing(&mut self, cell: CellId, before: usize) {
        let bytes = self.cells.deferred_free_bytes().saturating_sub(before) as u64;
        if let Some(slot) = self.slots.get(&cell).filter(|_| bytes > 0) {
            self.run_queue.charge(slot.scheduling.tenant, bytes / cost::FREEING_BYTES_PER_NS);
        }
    }

    /// Writes what a guest printed to the log; of one that was just stopped too, since that often says why.
    fn print(&mut self, cell: CellId, stopped: bool) {
        let prints = self.cells.take_prints(cell);
        let slot = self.slots.get(&cell);
        let (app, session) = (slot.map(|slot| slot.app.as_str()), slot.and_then(|slot| slot.session));
        if let Some(session) = session.filter(|_| stopped) {
            self.guest_log.stopped(session, &prints);
        }
        if !prints.is_empty() {
            self.guest_log.write(app, session, prints);
        }
    }

    /// What the cell of a session printed before it was stopped, if that was lately.
    pub(super) fn last_errors(&self, session: SessionId) -> Option<&str> {
        self.guest_log.last_errors(session)
    }

    /// Ends a cell, if there is one, at its tenant's expense.
    fn part_with(&mut self, cell: CellId) {
        let freeing = self.cells.deferred_free_bytes();
        self.cells.remove(cell);
        self.charge_freeing(cell, freeing);
    }

    /// Ends a cell, and what is known of it.
    pub(super) fn remove(&mut self, cell: CellId) {
        self.part_with(cell);
        let slot = self.slots.remove(&cell);
        let standing = slot.as_ref().and_then(|slot| slot.standing.as_ref());
        if self.expected.remove(&cell).is_some() || standing.is_some_and(|standing| standing.is_underway()) {
            drop_arriving(&self.worker, cell);
        }
        self.copies.remove(&cell);
        self.hashes.remove(&cell);
        let Some(slot) = slot else { return };
        self.caches.leave(&slot.app, cell);
        let SchedulingParams { tenant, class, .. } = slot.scheduling;
        if slot.waiting > 0 {
            self.run_queue.retain(tenant, class, |queued| queued.cell() != cell);
        }
        self.run_queue.charge(tenant, cost::END_NS);
    }

    /// Takes what the worker has brought back; of what fills cells only some.
    pub(super) fn take_answers(&mut self, inputs: &mut VecDeque<ShardInput>) {
        while let Some(found) = self.caches.next_found() {
            self.go_on(found);
        }
        let mut parts = 0;
        self.is_behind = false;
        while let Some(answer) = self.worker.take().or_else(|| self.sealer.take()) {
            match answer {
                Answer::Image(hash, result) => self.loaded(hash, result, inputs),
                Answer::Sealed { cell, number, bytes } => {
                    inputs.push_back(ShardInput::Checkpointed { cell, number, result: Ok(bytes) });
                }
                Answer::Recorded { session, tag, result } => {
                    self.recordings -= 1;
                    inputs.push_back(ShardInput::Recorded { session, tag, result });
                }
                Answer::Next(next) => self.next.push_back(next),
                Answer::Part { cell, image, fillings } => {
                    self.begin(cell, image, StartSource::Part(fillings), inputs);
                    parts += 1;
                    if parts == PARTS_AT_ONCE {
                        self.is_behind = true;
                        return;
                    }
                }
                Answer::Opened { cell, image, result: Ok(restored) } => {
                    self.begin(cell, image, StartSource::Checkpoints(restored), inputs);
                }
                Answer::Opened { cell, result: Err(error), .. } => {
                    if let Some(expected) = self.expected.remove(&cell) {
                        if expected == Expected::Rest {
                            self.part_with(cell);
                        }
                        inputs.push_back(ShardInput::Restored { cell, result: Err(error) });
                    }
                }
            }
        }
    }

    fn loaded(
        &mut self,
        hash: ImageHash,
        result: Result<Arc<Image>, LoadError>,
        inputs: &mut VecDeque<ShardInput>,
    ) {
        let Some(Loaded::Underway(waiting)) = self.images.remove(&hash) else { return };
        match result {
            Ok(image) => {
                if let Some(fault) = image.rebuilt() {
                    warn!(image = %hash, "an image was compiled again: {fault}");
                }
                if let Err(error) = self.cells.prepare(&image)
                    && let Some(suppressed) = self.log_limiter.pass(Instant::now())
                {
                    warn!(image = %hash, %error, suppressed, "an image cannot be mapped ahead of its first cell");
                }
                if self.deployed.values().any(|deployed| *deployed == hash) {
                    self.cells.expect(&image);
                    self.prewarming = true;
                }
                self.images.insert(hash, Loaded::Here(image));
                waiting.into_iter().for_each(|(cell, source)| self.begin(cell, hash, source, inputs));
            }
            Err(error) => {
                if let Some(suppressed) = self.log_limiter.pass(Instant::now()) {
                    warn!(image = %hash, %error, suppressed, "an image cannot be loaded");
                }
                let error = CellError { code: Code::UnknownImage, reason: error.to_string() };
                for (cell, source) in waiting {
                    if self.expected.remove(&cell).is_some() {
                        drop_arriving(&self.worker, cell);
                        inputs.push_back(source.failed(cell, error.clone()));
                    }
                }
            }
        }
    }
}

/// Has the worker forget what has arrived for a cell, and what is still to come.
fn drop_arriving(worker: &Worker<WorkerState, Answer>, cell: CellId) {
    worker.urgent(move |state| {
        state.arriving.remove(&cell);
        None
    });
}

/// What it costs to send these, about.
fn sending_ns(outputs: &[CellOutput]) -> u64 {
    let size = |output: &CellOutput| match output {
        CellOutput::Message { payload, .. } => payload.len() as u64,
        CellOutput::Close { .. } | CellOutput::Pause { .. } | CellOutput::Resume { .. } => 0,
    };
    outputs.iter().map(|output| cost::OUTPUT_NS + size(output) / cost::BYTES_PER_NS).sum()
}

#[cfg(test)]
mod tests;
