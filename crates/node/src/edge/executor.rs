//! Runs cells for the pure shard: the only place in this crate that does.
//!
//! Handlers run on the calling thread. The worker thread loads images and opens large checkpoints; the sealer thread seals them at
//! background priority. Small ones are opened and sealed on the calling thread too.
//!
//! ```text
//!                    shard's thread                           worker                     sealer (nice)
//! Start, Restore ─▶ expected ─▶ begin ◀── Image ◀─────────── images.load
//! Part ──────────────────────────────────────────────────▶  Arriving::push
//!                   fill the cell's memory ◀── Part, Opened ─┘
//! Run ─▶ run_queue ─▶ next_turn ─▶ Ran
//! Prepare ─▶ preparing ─▶ Prepared (large cells)
//! Copy ─▶ copies ─▶ Checkpoint ─────────────────────────────────────────────────────▶ encode, seal
//!                   Checkpointed ◀── Sealed ◀─────────────────────────────────────────┘
//! Record ────────────────────────────────────────────────▶  write a file (lazy)
//! ```
//!
//! A cell's memory is touched by the shard's thread alone, so there are no locks round it. Answers
//! carry the cell's id, which is never used twice: what comes for a cell that is gone finds
//! nothing.

mod arrivals;
mod copies;
mod guest_log;
mod turns;

use self::arrivals::{Arrivals, Next, OPEN_AT_ONCE_BYTES, Purpose};
use self::copies::{CellCopy, Preparing};
use self::guest_log::GuestLog;
use super::{
    caches::Caches,
    checkpoints::{Arriving, Restored, unrestorable},
    error::ShardError,
    pressure,
    recordings::Recordings,
    setup::Setup,
    standing::Standing,
    startup::{Expected, StartSource, start_cell},
    worker::Worker,
};
use bytes::Bytes;
use marram_sandbox::{
    Cells, CellsConfig, Filling, Image, Images, LoadError, limits::COPIES_BYTES, reset_scheduling,
    set_background,
};
use marram_session::{
    cell::{CellId, Run, Seed},
    replay::Gathered,
};
use marram_shard::{
    api::{CellError, Counter, Label, RecordRequest, SchedulingParams, ShardInput},
    cache::CachePolicy,
    run_queue::{RunQueue, Tenant},
};
use marram_transport::LogLimiter;
use marram_wire::{
    frame::{CheckpointMeta, Code},
    id::{ImageHash, SessionId},
    log::Found,
    seal::SessionKeys,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{info, warn};

/// What a tenant is charged for the shard's work beside running its handlers, in nanoseconds as measured. These are estimates,
/// since measuring would take several clock readings for each message.
mod cost {
    /// Opening a session: the handshakes of its ends, its keys, its cell.
    pub(super) const OPEN_NS: u64 = 40_000;
    /// Ending a session: the messages to its ends, the cleaning of its slot.
    pub(super) const END_NS: u64 = 25_000;
    /// An input: its frame, its log entry, the acknowledgement.
    pub(super) const INPUT_NS: u64 = 1_500;
    /// An output: its frame, and the acknowledgements of the ends.
    pub(super) const OUTPUT_NS: u64 = 500;
    /// Bytes that are copied and written in one nanosecond.
    pub(super) const BYTES_PER_NS: u64 = 2;
    /// Bytes of a large cell's memory that are returned to the kernel in one nanosecond, if all were written.
    pub(super) const FREEING_BYTES_PER_NS: u64 = 15;
}
/// Most recordings of stopped handlers that are being written at a time: further ones are dropped.
const STOPS_UNDERWAY_MAX: usize = 4;
/// Bytes of memory that one part of a cell's restoration fills.
const PART_BYTES: usize = if cfg!(test) {
    1 /* those of tests are small */
} else {
    256 << 10
};
/// Most such parts that are applied before other work has its turn. To write to fresh memory may take a millisecond.
const PARTS_AT_ONCE: usize = 1;
/// How often idle resources that are kept for future clients are checked.
const TEND_EVERY: Duration = Duration::from_secs(2);

/// An image of this shard. While it is being loaded no second request is made.
enum Loaded {
    /// The worker is loading it; these cells wait for it.
    Underway(Vec<(CellId, StartSource)>),
    /// It is loaded. There are never more than an operator has deployed.
    Here(Arc<Image>),
}

/// The worker's own state.
/// Owned by its thread: nothing of it is shared.
struct WorkerState {
    images: Images,
    recordings: Recordings,
    /// Large checkpoints.
    arrivals: Arrivals,
}

/// A result of the worker or the sealer.
enum Answer {
    Image(ImageHash, Result<Arc<Image>, LoadError>),
    Part { cell: CellId, image: ImageHash, fillings: Vec<Filling> },
    Opened { cell: CellId, image: ImageHash, result: Result<Box<Restored>, CellError> },
    Next(Next),
    Sealed { cell: CellId, number: u32, bytes: Bytes },
    Recorded { session: SessionId, tag: Option<u64>, result: Result<String, String> },
    Warmed,
}

/// An entry of the run queue.
enum QueuedHandler {
    /// A handler to start.
    Run(Run),
    /// A handler that was preempted.
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

/// The scheduling state of a cell.
/// It exists from the request for the cell to its removal, and so before the cell and after a
/// failure.
struct CellSlot {
    scheduling: SchedulingParams,
    /// The app, which decides the cache that its handlers read from.
    app: String,
    /// Its session; none if the cell is shared.
    session: Option<SessionId>,
    /// How many of its entries are in the run queue: 0 or 1.
    waiting: usize,
    /// Whether the shard was told that copies of it take long.
    is_large: bool,
    /// What was charged for the handler in progress.
    /// A handler reports the time of all its slices at the end; what was charged before is taken
    /// off then.
    charged_ns: u64,
    /// The state of a standby cell, until it runs.
    standing: Option<Box<Standing>>,
}

/// The cells of one shard.
pub(super) struct Executor {
    /// Instances, memory pool, prewarmed cells.
    cells: Cells,
    images: BTreeMap<ImageHash, Loaded>,
    /// The image that new clients of each app get.
    deployed: BTreeMap<String, ImageHash>,
    /// Handlers that are ready to run, including those that used up their slice.
    run_queue: RunQueue<QueuedHandler>,
    /// The scheduling state of each cell.
    slots: BTreeMap<CellId, CellSlot>,
    /// Tenants with a long last turn.
    slow: BTreeSet<Tenant>,
    /// Cells that were requested and do not exist yet. A cell that is removed in the meantime must not be started.
    expected: BTreeMap<CellId, Expected>,
    /// Opened checkpoints to advance standby cells to, unless the attempt is outdated by then.
    next: VecDeque<Next>,
    /// States that are copied and are not sealed yet, at most one for each cell.
    /// A copy is made at the entry's boundary; its header comes later (`docs/protocol.md`, chapter
    /// 8).
    copies: BTreeMap<CellId, CellCopy>,
    /// The cells of `copies` that are held back until their copy is whole.
    copying: VecDeque<CellId>,
    /// Large cells that are copied while they run.
    preparing: VecDeque<Preparing>,
    /// Beyond so many bytes of copies they are copied one after the other.
    copies_max: usize,
    /// Whether the worker makes buffers for copies.
    warming: bool,
    /// Hashes of states, for recordings that are not made yet.
    /// Taken at the moment of the request: the cell may go on before the ends have sent their
    /// parts.
    hashes: BTreeMap<CellId, [u8; 32]>,
    /// Recordings that the worker is making.
    /// Limits those of stopped handlers (`STOPS_UNDERWAY_MAX`): a guest can cause any number of
    /// them.
    recordings: usize,
    caches: Caches,
    worker: Worker<WorkerState, Answer>,
    /// Small checkpoints, which this thread opens.
    arrivals: Arrivals,
    /// Cells of which the worker opens the checkpoints.
    arrivals_at_worker: BTreeSet<CellId>,
    /// Bytes of checkpoints that are small; tests change it.
    open_at_once: u64,
    /// Whether the worker may have more results than were taken.
    is_behind: bool,
    sealer: Worker<(), Answer>,
    guest_log: GuestLog,
    log_limiter: LogLimiter,
    /// Whether a cell may have to be prewarmed.
    prewarming: bool,
    /// When to check prewarmed resources and the machine's memory again.
    tend_at: Instant,
    /// Whether the machine is short of memory; tests replace it.
    is_short: fn() -> bool,
    /// Whether it was short of memory at the last check.
    was_short: bool,
    reclaims: u64,
}

impl Executor {
    /// Allocates the cell pool and starts the worker, which wakes the shard with `waker`.
    pub(super) fn start(setup: &Setup, waker: Arc<mio::Waker>) -> Result<Self, ShardError> {
        let images = Images::open(setup.images())
            .map_err(|error| ShardError::Images(setup.images().to_owned(), error))?;
        let cells = Cells::new(CellsConfig { slots: setup.cells_max, ..CellsConfig::default() })
            .map_err(ShardError::Pool)?
            .with_keys(setup.keyring()?);
        // The compiler ran once, for the drivers of cells, and does not run again.
        crate::memory::give_back();
        info!(shard = setup.shard, tracking = cells.tracking(), slots = setup.cells_max, "cell pool ready");
        let state = WorkerState { images, recordings: setup.recordings(), arrivals: Arrivals::default() };
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
            copying: VecDeque::new(),
            preparing: VecDeque::new(),
            copies_max: COPIES_BYTES,
            warming: false,
            hashes: BTreeMap::new(),
            recordings: 0,
            caches,
            worker,
            arrivals: Arrivals::default(),
            arrivals_at_worker: BTreeSet::new(),
            open_at_once: OPEN_AT_ONCE_BYTES,
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

    /// Whether a handler is ready to run, or a cell to be filled or advanced.
    pub(super) fn is_busy(&self) -> bool {
        self.is_behind || !self.run_queue.is_empty() || !self.next.is_empty()
    }

    /// Sets the queue and the app of a cell's handlers.
    ///
    /// Comes before [`Self::start_cell`] or [`Self::restore`] for the same cell. The tenant pays
    /// for the opening now, so that sessions which end at once are not free.
    pub(super) fn scheduling(
        &mut self,
        cell: CellId,
        (app, session): (String, Option<SessionId>),
        scheduling: SchedulingParams,
    ) {
        self.run_queue.set_weight(scheduling.tenant, scheduling.weight);
        self.run_queue.charge(scheduling.tenant, cost::OPEN_NS);
        self.slots.insert(
            cell,
            CellSlot { scheduling, app, session, waiting: 0, is_large: false, charged_ns: 0, standing: None },
        );
    }

    /// Sets the cache that the cells of an app read from.
    pub(super) fn cache(&mut self, app: &str, policy: Option<&CachePolicy>) {
        let found = self.caches.configure(app, policy);
        self.go_on(found);
    }

    /// The same for an app that was deployed earlier; if the app has a cache already, its policy stays.
    pub(super) fn cache_unless_known(&mut self, app: &str, policy: Option<&CachePolicy>) {
        if !self.caches.has(app) {
            self.cache(app, policy);
            self.caches.retire(app);
        }
    }

    /// Gives waiting cells the objects that they read.
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

    /// Prewarms one cell; for idle time.
    pub(super) fn prewarm_one(&mut self) {
        self.prewarming = self.cells.prewarm_one();
    }

    /// Whether [`Self::reclaim_memory`] has something to do.
    pub(super) fn is_freeing(&self) -> bool {
        self.cells.is_freeing()
    }

    /// Returns a piece of the memory of ended cells to the kernel.
    ///
    /// Unmapping a large memory at once would stop the shard for milliseconds.
    pub(super) fn reclaim_memory(&mut self) {
        self.cells.free_piece();
    }

    /// Frees prewarmed resources that were not needed; all of them when the machine is short of memory. Unused cells and slots go
    /// first, since they are refilled in microseconds; images, which must be loaded again, go if that was not enough.
    pub(super) fn tend(&mut self, now: Instant) {
        if now < self.tend_at {
            return;
        }
        self.tend_at = now + TEND_EVERY;
        self.tend_copies(now);
        let slots = &self.slots;
        self.caches.sweep(|app| slots.values().any(|slot| slot.app == app));
        if (self.is_short)() {
            let (cells, slots) = self.cells.reclaim();
            let images = if self.was_short { self.drop_idle_images() } else { 0 };
            self.was_short = true;
            self.reclaims += 1;
            self.prewarming = false;
            if let Some(suppressed) = self.log_limiter.pass(now) {
                let what = "the machine is short of memory: released cells and images that were prepared for clients";
                warn!(cells, slots, images, suppressed, "{what}");
            }
        } else {
            self.was_short = false;
            self.cells.tend();
        }
    }

    /// Drops images that no cell runs. They are loaded again on request.
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

    /// Metrics of cells, slots and images, beside those of the shard.
    pub(super) fn counters(&self) -> Vec<Counter> {
        let (count, gauge) = (Counter::count, Counter::gauge);
        let (stats, pages) = (self.cells.ready_stats(), self.cells.page_counts());
        let mut counters = vec![
            gauge("cells", self.cells.len()),
            gauge("cells_ready", stats.ready),
            count("cells_ready_found_total", stats.found),
            count("cells_ready_missed_total", stats.missed),
            count("cells_ready_reclaimed_total", stats.reclaimed),
            gauge("slots_warm", self.cells.warm_slots()),
            gauge("images_loaded", self.loaded_count()),
            count("memory_reclaims_total", self.reclaims),
            count("epoch_pages_written_total", pages.written),
            count("epoch_pages_whole_total", pages.whole),
            count("epoch_pages_difference_total", pages.differences),
            count("epoch_pages_unchanged_total", pages.unchanged),
            gauge("epoch_page_versions_bytes", self.cells.version_bytes()),
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

    /// Sets the image that new clients of an app get; `None`: it is no longer deployed.
    ///
    /// Sessions of an earlier image go on with it; only prewarmed cells of it are no longer kept.
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

    /// Loads an image before its first cell needs it.
    /// Does nothing if it is loaded or being loaded.
    pub(super) fn prepare(&mut self, image: ImageHash) {
        if let Entry::Vacant(entry) = self.images.entry(image) {
            entry.insert(Loaded::Underway(Vec::new()));
            self.worker.urgent(move |state| Some(Answer::Image(image, state.images.load(image))));
        }
    }

    /// Starts a cell, at once if its image is loaded.
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

    /// Restores a cell from checkpoints with bytes that follow: the worker opens and decodes them, if they are large, and this
    /// thread copies decoded parts into the cell.
    ///
    /// The bytes come with [`Self::part`]; the answer is `Restored`, once. The image is loaded
    /// meanwhile.
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
        let arriving = Arriving::new(session, image, keys, checkpoints);
        let stands_by = self.slots.get(&cell).is_some_and(|slot| slot.standing.is_some());
        let arriving = if stands_by { arriving.may_be_apart() } else { arriving };
        self.expect_checkpoints(cell, Purpose::Restore, arriving);
    }

    /// Marks a cell that will be restored as a standby: it can be advanced until it runs.
    /// Call it after [`Self::scheduling`].
    pub(super) fn stand_by(&mut self, cell: CellId, standing: Standing) {
        if let Some(slot) = self.slots.get_mut(&cell) {
            slot.standing = Some(Box::new(standing));
        }
    }

    /// Advances a standby cell to its next checkpoint, with bytes that follow. Bytes of an earlier attempt are dropped.
    pub(super) fn advance(&mut self, cell: CellId, meta: CheckpointMeta, inputs: &mut VecDeque<ShardInput>) {
        let standing = self.slots.get_mut(&cell).and_then(|slot| slot.standing.as_mut());
        let Some((attempt, arriving)) = standing.and_then(|standing| standing.begin(meta)) else {
            let reason = "the cell does not stand by; restore it to have it at a later checkpoint".into();
            let result = Err(CellError { code: Code::Busy, reason });
            return inputs.push_back(ShardInput::Restored { cell, result });
        };
        self.expect_checkpoints(cell, Purpose::Advance(attempt), arriving);
    }

    /// Advances a cell to a checkpoint that has been opened. The shard must take the answer at once: a cell that was advanced
    /// before the shard takes the answer could run, and the shard would not know from which state.
    pub(super) fn next_advanced(&mut self) -> Option<ShardInput> {
        while let Some(Next { cell, attempt, result }) = self.next.pop_front() {
            let Some(slot) = self.slots.get_mut(&cell) else { continue };
            let Some(standing) = &mut slot.standing else { continue };
            if !standing.ends(attempt) {
                continue;
            }
            self.arrivals_at_worker.remove(&cell);
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

    /// Creates the cell, or fills a part of it. If its image is not loaded yet, it waits there; if
    /// the cell was removed meanwhile, nothing happens.
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
                // Only what may take longer than reading the clock is timed.
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
                        // More of its checkpoints may be on the way.
                        self.drop_arriving(cell);
                    }
                    _ => {}
                }
                inputs.push_back(input);
                inputs.extend(self.notice_size(cell));
            }
            None => unreachable!("it was prepared above"),
        }
    }

    /// Charges a cell's tenant for the time since `began`.
    fn charge_since(&mut self, cell: CellId, began: Option<Instant>) {
        let (Some(began), Some(slot)) = (began, self.slots.get(&cell)) else { return };
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.run_queue.charge(slot.scheduling.tenant, took_ns);
    }

    /// Hashes a cell's state at this moment, for a recording.
    pub(super) fn hash(&mut self, cell: CellId) {
        if let Some(hash) = self.cells.state_hash(cell) {
            self.hashes.insert(cell, hash);
        }
    }

    /// Lets the worker make and write a recording, when it has nothing more urgent. Recordings that no operator asked for are
    /// dropped when many wait.
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

    /// Logs what a guest printed, also if it was just stopped, since the output often says why.
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

    /// What the cell of a session printed before it was stopped, if that was recent.
    pub(super) fn last_errors(&self, session: SessionId) -> Option<&str> {
        self.guest_log.last_errors(session)
    }

    /// Ends a cell, if there is one, and charges its tenant.
    fn part_with(&mut self, cell: CellId) {
        let freeing = self.cells.deferred_free_bytes();
        self.cells.remove(cell);
        self.charge_freeing(cell, freeing);
    }

    /// Ends a cell and forgets its state.
    pub(super) fn remove(&mut self, cell: CellId) {
        self.part_with(cell);
        let slot = self.slots.remove(&cell);
        let standing = slot.as_ref().and_then(|slot| slot.standing.as_ref());
        if self.expected.remove(&cell).is_some() || standing.is_some_and(|standing| standing.is_underway()) {
            self.drop_arriving(cell);
        }
        self.forget_copies(cell);
        self.hashes.remove(&cell);
        let Some(slot) = slot else { return };
        self.caches.leave(&slot.app, cell);
        let SchedulingParams { tenant, class, .. } = slot.scheduling;
        if slot.waiting > 0 {
            self.run_queue.retain(tenant, class, |queued| queued.cell() != cell);
        }
        self.run_queue.charge(tenant, cost::END_NS);
    }

    /// Takes the worker's results; of those that fill cells only some.
    ///
    /// A large restoration has thousands of parts; taking them all at once would stop the other
    /// sessions.
    pub(super) fn take_answers(&mut self, inputs: &mut VecDeque<ShardInput>) {
        while let Some(found) = self.caches.next_found() {
            self.go_on(found);
        }
        let mut parts = 0;
        self.is_behind = false;
        while let Some(answer) = self.worker.take().or_else(|| self.sealer.take()) {
            parts += usize::from(matches!(answer, Answer::Part { .. }));
            self.take_answer(answer, inputs);
            if parts == PARTS_AT_ONCE {
                self.is_behind = true;
                return;
            }
        }
    }

    fn take_answer(&mut self, answer: Answer, inputs: &mut VecDeque<ShardInput>) {
        match answer {
            Answer::Image(hash, result) => self.loaded(hash, result, inputs),
            Answer::Sealed { cell, number, bytes } => {
                // Its copy is gone.
                self.begin_preparing();
                inputs.push_back(ShardInput::Checkpointed { cell, number, result: Ok(bytes) });
            }
            Answer::Recorded { session, tag, result } => {
                self.recordings -= 1;
                inputs.push_back(ShardInput::Recorded { session, tag, result });
            }
            Answer::Warmed => self.warming = false,
            Answer::Next(next) => self.next.push_back(next),
            Answer::Part { cell, image, fillings } => {
                self.begin(cell, image, StartSource::Part(fillings), inputs);
            }
            Answer::Opened { cell, image, result: Ok(restored) } => {
                self.arrivals_at_worker.remove(&cell);
                self.begin(cell, image, StartSource::Checkpoints(restored), inputs);
            }
            Answer::Opened { cell, result: Err(error), .. } => {
                self.arrivals_at_worker.remove(&cell);
                if let Some(expected) = self.expected.remove(&cell) {
                    // Half of its memory is filled: nothing may ever run on it.
                    if expected == Expected::Rest {
                        self.part_with(cell);
                    }
                    inputs.push_back(ShardInput::Restored { cell, result: Err(error) });
                }
            }
        }
    }

    /// The cells that waited for this image are started in the order in which they came.
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
            // `UnknownImage` can be retried: another edge may have a sound copy of the image.
            Err(error) => {
                if let Some(suppressed) = self.log_limiter.pass(Instant::now()) {
                    warn!(image = %hash, %error, suppressed, "an image cannot be loaded");
                }
                let error = CellError { code: Code::UnknownImage, reason: error.to_string() };
                for (cell, source) in waiting {
                    if self.expected.remove(&cell).is_some() {
                        self.drop_arriving(cell);
                        inputs.push_back(source.failed(cell, error.clone()));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
