//! Runs cells without Wasm: each is the oracle's hash chain, in some seeds between delay stages. Handles images, checkpoints and
//! seals as the sandbox's shell does, and knows nothing of sessions except the names in checkpoints.
//!
//! The simulator's cell is not WebAssembly but the record chain of `marram_chain_algo`, the same
//! code that the test guest is built from. It is cheap to run, and its outputs prove on
//! their own which inputs it consumed in which order (see `oracle`). The protocol's machines cannot
//! tell: to them running a cell is an effect, `Run` out and `Ran` in.
//!
//! ```text
//! Shard --Start/Restore/Run/Copy/Checkpoint/Remove--> Cells --+--> Stages (chain, delay stages)
//!                                                             +--> Tasks, Pauses: models to compare with
//!                                                             +--> Past: what ran before, on any edge
//!                                                             '--> twin: the real sandbox, if asked for
//! ```
//! [`Past`] is shared by all edges of a world, unlike anything real. It lets a cell on one edge be
//! compared with the same cell on another: same seed, same event, same result.

mod cache;
mod hall;
mod memory;
mod pauses;
mod replay;
mod restoring;
mod stages;
mod tasks;

use cache::{Reader, SimulatedCache};
use memory::{Memory, PAGES};
use pauses::Pauses;
pub(crate) use replay::play;
pub(crate) use restoring::{Copied, Restoring};
use restoring::{Restored, apply, fingerprint, tampered};
use stages::Stages;
use tasks::Tasks;

use crate::plan::{Poison, SERVER, Service, Shape, hall_trap_of};
use crate::program::LENGTH;
use bytes::Bytes;
use marram_chain_algo::Stream;
use marram_session::cell::{
    CellId, CellInput, CellOutput, CellStop, CheckpointBase, PortKind, Ran, Run, RunOutcome, Seed,
    TimerChange,
};
use marram_shard::api::CellError;
use marram_wire::{
    frame::{CheckpointMeta, Code},
    header::{self, Header},
    id::{ImageHash, Port, SessionId},
    peer::Peer,
    seal::Seal,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of a saved cell before its tasks and stages: seed, clock, events.
const HEAD_SIZE: usize = 32 + 8 + 8;
const FULL: u8 = 0;
const DELTA: u8 = 1;
const APART: u8 = 2;

/// Events that ran before on any edge: distinguishes a replay from a first run without asking the edges.
#[derive(Debug)]
pub(crate) struct Past {
    /// By the cell's seed, the chain's hash after each event. An edge that runs an event again must
    /// get the same hash; where it differs, the history got another order, and what follows the
    /// place is forgotten.
    hashes: BTreeMap<[u8; 32], Vec<u64>>,
    /// Sessions that a once-only poison has already hit: a session that has no log yet begins again
    /// with another seed. Without this a new attempt would be struck again, and a poison that
    /// happens once would look like one that happens always.
    struck: BTreeSet<SessionId>,
    /// Whether any poison was ever applied.
    pub(crate) poisoned: bool,
    /// The clients of halls whose input has stopped a handler.
    pub(crate) trapped: Vec<Trapped>,
    /// Whether an end lies, so that it may send more than it has credit for.
    pub(crate) lied_to: bool,
    /// Timers that were ever set: the cell's seed, the stage and its token.
    timers: BTreeSet<([u8; 32], u8, u64)>,
    /// What was known of clients, by the cell's seed and the number of the event that opened the port.
    clients: BTreeMap<([u8; 32], u64), Arc<Peer>>,
    /// The simulated cache that cells read from.
    cache: SimulatedCache,
    /// Wasm twins of all cells, if requested.
    #[cfg(feature = "wasm")]
    pub(crate) twins: Option<crate::twin::Twins>,
    /// Requests that an executor must never get. Collected here and not returned, since the callers
    /// are shells that must go on; the world takes them after each event.
    pub(crate) violations: Vec<String>,
}

impl Past {
    /// Nothing has run yet; with twins if their image is deployed.
    pub(crate) fn new() -> Self {
        Self {
            hashes: BTreeMap::new(),
            struck: BTreeSet::new(),
            poisoned: false,
            trapped: Vec::new(),
            lied_to: false,
            timers: BTreeSet::new(),
            clients: BTreeMap::new(),
            cache: SimulatedCache::default(),
            #[cfg(feature = "wasm")]
            twins: crate::twin::Twins::new(),
            violations: Vec::new(),
        }
    }

    /// Whether cells have Wasm twins. Twins read from no cache and connect to no server, nor do cells that have twins. Nor do cells that replay a
    /// recording read.
    fn has_twins() -> bool {
        #[cfg(feature = "wasm")]
        return crate::twin::is_deployed();
        #[cfg(not(feature = "wasm"))]
        false
    }

    /// How many answers of Wasm twins were compared.
    pub(crate) fn compared(&self) -> u64 {
        #[cfg(feature = "wasm")]
        return self.twins.as_ref().map_or(0, |twins| twins.compared);
        #[cfg(not(feature = "wasm"))]
        0
    }
}

/// How a run relates to earlier runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    /// The same event of the same cell was run before, with the same result.
    pub(crate) replayed: bool,
    /// The stage, if it was a timer's handler.
    pub(crate) timer: Option<u8>,
    /// Whether it was a task's handler.
    pub(crate) task: bool,
    /// Whether it drew random bytes.
    pub(crate) random: bool,
    /// Whether it read from the cache.
    pub(crate) read: bool,
    /// Whether its input was a datagram.
    pub(crate) datagram: bool,
    /// Whether the cell is a chain.
    pub(crate) chain: bool,
    /// Whether it is the first one that a hall's edge runs after it has rebuilt the cell, which had trapped.
    pub(crate) rebuilt: bool,
}

/// A client whose input has stopped a hall's handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trapped {
    /// Its message: that of this visit.
    Message(u32),
    /// That it left, when it had said this.
    Close(Stream),
}

/// Properties that all cells of a seed share.
///
/// They come from the plan and are the same on all edges: an edge with other habits would be
/// another app.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Which handler fails.
    pub(crate) poison: Option<Poison>,
    /// Extra bytes in every full checkpoint, and in the pages of a backup.
    pub(crate) ballast: usize,
    /// Whether cells have a memory: the sessions of this seed have a backup.
    pub(crate) has_memory: bool,
    /// Replay cost that a handler reports, in nanoseconds.
    pub(crate) cost_ns: u64,
    /// Whether clients, and whether servers, use datagrams.
    pub(crate) datagrams: [bool; 2],
    /// Whether a hall's close handlers trap for some clients.
    pub(crate) closes_trap: bool,
    /// The inputs at which a hall connects to a server.
    pub(crate) hall_connects: [Option<u64>; 2],
    /// Whether cells read from their edge's cache. Wasm twins have no cache.
    pub(crate) reads: bool,
}

impl Habits {
    /// Sections of this kind, each part behind its length, and the extra bytes.
    fn with_ballast(&self, kind: u8, parts: &[&[u8]]) -> Vec<u8> {
        let mut sections = vec![kind];
        for part in parts {
            sections.extend_from_slice(&(part.len() as u64).to_le_bytes());
            sections.extend_from_slice(part);
        }
        sections.resize(sections.len() + self.ballast, 0xba);
        sections
    }
}

/// One simulated cell. All fields but `session`, `twin`, `saved` and `copied` are its state, and
/// are part of each checkpoint.
#[derive(Clone, Debug)]
struct Cell {
    session: SessionId,
    stages: Stages,
    tasks: Tasks,
    pauses: Pauses,
    /// Of a session with a backup.
    memory: Option<Memory>,
    seed: Seed,
    /// The last time that a handler read: the next must not be earlier.
    clock_ns: i64,
    events: u64,
    #[cfg(feature = "wasm")]
    twin: Option<CellId>,
    /// The state copied or restored last. Deltas are made against it, as the exclusive or: equal
    /// bytes become zeros. `None` until the first copy or restore.
    saved: Option<Vec<u8>>,
    /// The state of the last full checkpoint that was copied or restored, for merged deltas.
    full: Option<Vec<u8>>,
    /// The base of the copy that is being prepared, and the events when that began.
    preparing: Option<(CheckpointBase, u64)>,
    /// Sections of the last copy, until they are sealed. `Copy` and `Checkpoint` are two requests,
    /// because a real shard copies at a message boundary and seals later. What happens in between
    /// must not change the copy.
    copied: Option<(Vec<u8>, Copied)>,
}

/// The cells of one shard.
#[derive(Debug)]
pub(crate) struct Cells {
    /// By the shard's numbers.
    cells: BTreeMap<CellId, Cell>,
    /// Cells whose checkpoints are on their way; they have no entry in `cells` yet, unless they are
    /// standbys.
    restoring: BTreeMap<CellId, Restoring>,
    /// Cells that were restored and have not run since: they may be standbys.
    restored: BTreeMap<CellId, Restored>,
    /// The sessions whose cell has trapped here, until it runs again.
    trapped: BTreeSet<SessionId>,
    /// State hashes when last requested: they survive if the handler fails meanwhile.
    hashes: BTreeMap<CellId, [u8; 32]>,
    habits: Habits,
}

impl Cells {
    /// No cells yet.
    #[must_use]
    pub(crate) fn new(habits: Habits) -> Self {
        let (cells, restoring, restored) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let trapped = BTreeSet::new();
        Self { cells, restoring, restored, hashes: BTreeMap::new(), trapped, habits }
    }

    /// Starts a cell.
    ///
    /// # Errors
    /// If there is no such image.
    pub(crate) fn start(
        &mut self,
        id: CellId,
        session: SessionId,
        (image, seed): (ImageHash, Seed),
        past: &mut Past,
    ) -> Result<(), CellError> {
        let Some(shape) = Service::shape_of(image) else {
            return Err(CellError { code: Code::UnknownImage, reason: format!("no image {image}") });
        };
        #[cfg_attr(not(feature = "wasm"), expect(unused_mut, reason = "only a twin is put in"))]
        let mut cell = Cell::new(session, shape, seed, self.habits.has_memory);
        #[cfg(feature = "wasm")]
        (cell.twin = past.twins.as_mut().map(|twins| twins.start(shape, seed)));
        let _ = past;
        assert!(self.cells.insert(id, cell).is_none(), "cell {id:?} was started twice");
        Ok(())
    }

    /// Runs one handler; `None` if the cell is gone.
    ///
    /// The result is the answer and, for the count of rare states, how it relates to earlier runs.
    pub(crate) fn run(&mut self, run: &Run, past: &mut Past) -> Option<(Ran, Seen)> {
        let cell = self.cells.get_mut(&run.cell)?;
        let mut ran = Ran {
            cell: run.cell,
            outcome: RunOutcome::Idle,
            clock_read: false,
            outputs: Vec::new(),
            timers: Vec::new(),
            tasks: Vec::new(),
            reads: Vec::new(),
            cost_ns: self.habits.cost_ns,
        };
        if self.habits.poison.is_some_and(|poison| cell.is_poisoned(poison, past)) {
            past.poisoned = true;
            ran.outcome = RunOutcome::Stopped(CellStop::Trap("unreachable".into()));
            self.cells.remove(&run.cell);
            return Some((ran, Seen::default()));
        }
        if let Some(trapped) = cell.traps(&run.input, self.habits.closes_trap) {
            past.trapped.push(trapped);
            ran.outcome = RunOutcome::Stopped(CellStop::Trap("unreachable".into()));
            self.trapped.insert(cell.session);
            #[cfg(feature = "wasm")]
            if let (Some(twins), Some(twin)) = (&mut past.twins, cell.twin) {
                twins.remove(twin);
            }
            self.cells.remove(&run.cell);
            return Some((ran, Seen::default()));
        }
        let rebuilt = run.logged.is_none() && self.trapped.remove(&cell.session);
        let drawn = cell.stages.drawn();
        // If what a client's joining led to is lost, another client may join there.
        if !cell.stages.is_hall() {
            judge_client(&run.input, (cell.seed.0, cell.events), past);
        }
        let datagram = judge_datagrams(&run.input, self.habits.datagrams, past);
        let reads = self.habits.reads && !Past::has_twins();
        cell.run(run, (reads, self.habits.datagrams), &mut ran, past);
        #[cfg(feature = "wasm")]
        cell.compare(run, &ran, past);
        // A piece of its copy between two handlers.
        cell.prepare_twin(past);
        // A twin connects to nothing, so its ports would not be those of the fake.
        let is_event =
            cell.stages.is_hall() && !matches!(run.input, CellInput::Gone { .. }) && !Past::has_twins();
        let connects =
            (0..).zip(self.habits.hall_connects).filter(|(_, at)| is_event && *at == Some(cell.events));
        ran.outputs.extend(connects.map(|(nth, _)| CellOutput::Connect {
            port: Port(Port::FIRST_CONNECTED.0 + nth),
            name: SERVER.into(),
        }));
        cell.pause(run, self.habits.datagrams, &mut ran, past);
        let hashes = past.hashes.entry(cell.seed.0).or_default();
        let place = usize::try_from(cell.events - 1).expect("a short history");
        let replayed = hashes.get(place) == Some(&cell.stages.hash());
        hashes.truncate(if replayed { usize::MAX } else { place });
        if hashes.len() == place {
            hashes.push(cell.stages.hash());
        }
        let timer = match run.input {
            CellInput::Timer { stage, .. } => Some(stage),
            _ => None,
        };
        let task = matches!(run.input, CellInput::Task { .. });
        let (random, read) = (cell.stages.drawn() > drawn, !ran.reads.is_empty());
        let chain = cell.stages.are_several();
        Some((ran, Seen { replayed, timer, task, random, read, datagram, chain, rebuilt }))
    }

    /// Begins to copy a cell while it runs. The fake copies nothing ahead; a twin does.
    pub(crate) fn prepare(&mut self, id: CellId, base: CheckpointBase, past: &mut Past) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        cell.preparing = Some((base, cell.events));
        cell.prepare_twin(past);
    }

    /// Saves a cell, to be sealed later. True if it has run since the copy was prepared.
    ///
    /// ```text
    /// full   | 0 | length 8 | state | ballast, 0xba |
    /// delta  | 1 | length 8 | fingerprint of the base 8 | state XOR base |    the base of a merged one is the full one
    /// apart  | 2 | length 8 | state | length 8 | state of the full one on which merged deltas build | ballast |
    /// pages  | 3 |    a backup's, see `memory`
    /// ```
    /// With twins, each is followed by the twin's own checkpoint and its length. The fingerprint
    /// makes a delta on the wrong base an error here, so that a mistake in the owner's bookkeeping
    /// (I19) does not pass as a wrong state later.
    pub(crate) fn copy(&mut self, id: CellId, base: CheckpointBase, past: &mut Past) -> bool {
        let Some(cell) = self.cells.get_mut(&id) else { return false };
        let prepared = cell.preparing.take().is_some_and(|(on, events)| on == base && events < cell.events);
        let state = cell.save();
        let on = if base.is_previous() { &cell.saved } else { &cell.full };
        let mut sections = match (base, on) {
            (CheckpointBase::Backup, Some(saved)) => {
                let pages = memory::pages(saved, &state).expect("a cell with a backup has a memory");
                self.habits.with_ballast(PAGES, &[&pages])
            }
            (CheckpointBase::Previous | CheckpointBase::Full, Some(saved)) => {
                let mut sections = vec![DELTA];
                sections.extend_from_slice(&(state.len() as u64).to_le_bytes());
                sections.extend_from_slice(&fingerprint(saved));
                let saved = saved.iter().copied().chain(std::iter::repeat(0));
                sections.extend(state.iter().zip(saved).map(|(now, then)| now ^ then));
                sections
            }
            (CheckpointBase::Apart, Some(full)) => self.habits.with_ballast(APART, &[&state, full]),
            (
                CheckpointBase::Previous
                | CheckpointBase::Backup
                | CheckpointBase::Full
                | CheckpointBase::Apart,
                None,
            ) => {
                past.violations.push(format!("{id:?} has no checkpoint for a delta to build on"));
                return false;
            }
            (CheckpointBase::Image, _) => self.habits.with_ballast(FULL, &[&state]),
        };
        let on = on.as_deref().filter(|_| matches!(base, CheckpointBase::Previous | CheckpointBase::Full));
        let copied = Copied { state: fingerprint(&state), on: on.map(fingerprint) };
        // Also after a full copy: the next delta builds on what was copied last, whatever its kind.
        if base == CheckpointBase::Image {
            cell.full = Some(state.clone());
        }
        if base != CheckpointBase::Apart {
            cell.saved = Some(state);
        }
        #[cfg(feature = "wasm")]
        cell.save_twin(base, &mut sections, past);
        let _ = &mut sections;
        cell.copied = Some((sections, copied));
        prepared
    }

    /// What was copied of a cell and is not sealed yet.
    pub(crate) fn copied(&self, id: CellId) -> Option<(SessionId, Copied)> {
        let cell = self.cells.get(&id)?;
        Some((cell.session, cell.copied.as_ref()?.1))
    }

    /// Seals the copied state in the form in which an end stores it.
    ///
    /// # Errors
    /// If nothing was copied, or the cell is gone.
    pub(crate) fn checkpoint(&mut self, id: CellId, header: &Header, seal: &Seal) -> Result<Bytes, String> {
        let copied = self.cells.get_mut(&id).and_then(|cell| cell.copied.take());
        let (sections, _) = copied.ok_or("there is no copy of the cell")?;
        Ok(seal.seal_checkpoint(header.number, header::join(header, &sections)).into())
    }

    /// Prepares for the checkpoints of a cell.
    pub(crate) fn expect(&mut self, id: CellId, restoring: Restoring) {
        self.restoring.insert(id, restoring);
    }

    /// Takes a part of a cell's checkpoints; returns them when all have arrived.
    pub(crate) fn gather(&mut self, id: CellId, bytes: &[u8]) -> Option<Restoring> {
        let whole = self.restoring.get_mut(&id)?.take(bytes);
        if whole { self.restoring.remove(&id) } else { None }
    }

    /// Restores a cell from checkpoints.
    ///
    /// Checks what the header says against what the owner announced (`expected`), so that a
    /// checkpoint in the wrong place is refused as a real one would be. A cell that exists already
    /// is replaced: a standby gets its next checkpoint this way.
    ///
    /// # Errors
    /// If one of them cannot be opened, or does not match its position in the list.
    pub(crate) fn restore(
        &mut self,
        id: CellId,
        restoring: Restoring,
        past: &mut Past,
    ) -> Result<Box<Header>, CellError> {
        let (session, is_first) = (restoring.session, restoring.count() == 1);
        let (restored, header) = restoring.open()?;
        let Some(mut cell) = Cell::load(session, restored.state(), self.habits.has_memory) else {
            return Err(tampered("a cell that was not saved"));
        };
        cell.full = restored.full();
        #[cfg(feature = "wasm")]
        cell.restore_twin(header.image, restored.twin_parts(), past);
        let before = self.cells.insert(id, cell);
        assert!(before.is_none() || !is_first, "cell {id:?} was started twice");
        // The old cell of a standby had a twin in a slot of the pool.
        #[cfg(feature = "wasm")]
        if let (Some(twins), Some(twin)) = (&mut past.twins, before.and_then(|before| before.twin)) {
            twins.remove(twin);
        }
        let _ = past;
        self.restored.insert(id, restored);
        Ok(header)
    }

    /// Prepares for the next checkpoint of a cell that was restored as a standby. Begins with the state that was restored before:
    /// the fake makes a cell of it again, where the sandbox advances its cell. The result must be the same. False if it was not restored:
    /// then the sandbox refuses it.
    pub(crate) fn expect_more(&mut self, id: CellId, meta: CheckpointMeta) -> bool {
        let after = self.restored.get(&id).map(|restored| Restoring::after(restored.clone(), meta));
        let is_restored = after.is_some();
        self.restoring.extend(after.map(|restoring| (id, restoring)));
        is_restored
    }

    /// Forgets a cell.
    pub(crate) fn remove(&mut self, id: CellId, past: &mut Past) {
        #[cfg_attr(
            not(feature = "wasm"),
            expect(unused_variables, reason = "only a twin is removed as well")
        )]
        let cell = self.cells.remove(&id);
        self.restoring.remove(&id);
        self.restored.remove(&id);
        self.hashes.remove(&id);
        #[cfg(feature = "wasm")]
        if let (Some(twins), Some(twin)) = (&mut past.twins, cell.and_then(|cell| cell.twin)) {
            twins.remove(twin);
        }
        let _ = past;
    }
}

/// Checks what a cell sees of its client: every run of the same event must see the same.
///
/// The address and the identity of a client are inputs of the cell. They are logged, so each replay
/// must be given the first ones.
fn judge_client(input: &CellInput, event: ([u8; 32], u64), past: &mut Past) {
    let CellInput::Open { port, kind, peer } = input else { return };
    match peer {
        Some(peer) if kind.is_client() => {
            let before = past.clients.entry(event).or_insert_with(|| Arc::clone(peer));
            if before != peer {
                past.violations.push(format!("{port:?} was {before:?} and is {peer:?} in another run"));
            }
        }
        None if !kind.is_client() => {}
        _ => past.violations.push(format!("{port:?} opened as {kind:?}, and is {peer:?}")),
    }
}

/// Checks how the peers of a cell communicate. Every datagram must arrive whole: it contains its own length.
///
/// Returns whether the input is a datagram. Index 0 of `datagrams` is the client, index 1 the
/// server.
fn judge_datagrams(input: &CellInput, datagrams: [bool; 2], past: &mut Past) -> bool {
    match input {
        CellInput::Open { port, kind, .. } => {
            let expected = match *port {
                Port::SERVER => PortKind::server(datagrams[1]),
                port if port.is_from_connect() => PortKind::server(datagrams[1]),
                // The first one, or one of a hall's.
                _ => PortKind::client(datagrams[0]),
            };
            if *kind != expected {
                past.violations.push(format!("{port:?} opened as {kind:?}, and its peer is {expected:?}"));
            }
            false
        }
        CellInput::Message { port, payload } if datagrams[usize::from(*port != Port::CLIENT)] => {
            let length = payload.first_chunk::<LENGTH>().map(|length| u32::from_le_bytes(*length) as usize);
            if length != Some(payload.len()) {
                past.violations.push(format!(
                    "a datagram of {length:?} B reached the cell merged or cut, as {} B",
                    payload.len()
                ));
            }
            true
        }
        _ => false,
    }
}

impl Cell {
    fn new(session: SessionId, shape: Shape, seed: Seed, has_memory: bool) -> Self {
        Self {
            session,
            memory: has_memory.then(Memory::new),
            stages: Stages::new(shape, seed),
            tasks: Tasks::default(),
            pauses: Pauses::default(),
            seed,
            clock_ns: i64::MIN,
            events: 0,
            #[cfg(feature = "wasm")]
            twin: None,
            saved: None,
            full: None,
            preparing: None,
            copied: None,
        }
    }

    /// Whether the handler traps upon this input, and whose it is. One client in eight that leaves has said what its close handler traps upon.
    fn traps(&self, input: &CellInput, closes_trap: bool) -> Option<Trapped> {
        match input {
            CellInput::Message { payload, .. } if self.stages.is_hall() => {
                hall_trap_of(payload).map(Trapped::Message)
            }
            CellInput::Close { port } if closes_trap => {
                let said = self.stages.said(*port)?;
                (said.bytes > 0 && said.hash.is_multiple_of(8)).then_some(Trapped::Close(said))
            }
            _ => None,
        }
    }

    /// Counts the event that is about to run, from 1. Remembers the session that was struck, not
    /// the cell: a session that was stopped before it had a log starts again with another seed, as
    /// another cell.
    fn is_poisoned(&self, poison: Poison, past: &mut Past) -> bool {
        self.events + 1 == poison.event && (poison.always || past.struck.insert(self.session))
    }

    /// Runs the input in all stages, and compares timers, tasks and the clock with simple models of
    /// them. `Gone` never reaches a cell of this simulation's apps, and is no event.
    fn run(&mut self, run: &Run, (reads, datagrams): (bool, [bool; 2]), ran: &mut Ran, past: &mut Past) {
        if matches!(run.input, CellInput::Gone { .. }) {
            return;
        }
        if let Some(memory) = &mut self.memory {
            if !memory.is_after(self.events) {
                past.violations
                    .push(format!("the memory of a cell is not that after its event {}", self.events));
            }
            memory.write(self.events + 1);
        }
        self.events += 1;
        if let CellInput::Timer { stage, token } = run.input
            && !past.timers.contains(&(self.seed.0, stage, token))
        {
            past.violations.push(format!("a timer {token} fired in stage {stage}, which never set it"));
        }
        if let CellInput::Task { stage, token } = run.input
            && !self.tasks.take(stage, token)
        {
            past.violations.push(format!("task {token} of stage {stage} ran, and it was not its turn"));
        }
        self.stages.run(run, datagrams, &mut Reader::new(reads, run, &mut past.cache), ran);
        if !self.tasks.change(&ran.tasks) {
            past.violations.push(format!("a task ran without the lock that it has: {:?}", ran.tasks));
        }
        for change in &ran.timers {
            if let TimerChange::Set { stage, token, .. } = *change {
                past.timers.insert((self.seed.0, stage, token));
            }
        }
        if ran.clock_read {
            if run.now_ns < self.clock_ns {
                past.violations.push(format!(
                    "session time ran backwards: {} ns after {} ns",
                    run.now_ns, self.clock_ns
                ));
            }
            self.clock_ns = run.now_ns;
        }
    }

    /// Copies a piece of the twin, if its copy is being prepared.
    #[cfg_attr(
        not(feature = "wasm"),
        expect(clippy::unused_self, reason = "without twins nothing is copied ahead")
    )]
    fn prepare_twin(&self, past: &mut Past) {
        #[cfg(feature = "wasm")]
        if let (Some(twins), Some(twin), Some((base, _))) = (&mut past.twins, self.twin, self.preparing) {
            twins.prepare(twin, base);
        }
        let _ = past;
    }

    /// `| memory, if it has one | seed 32 | clock 8 | events 8 | tasks | pauses | stages |`, all little-endian.
    fn save(&self) -> Vec<u8> {
        let mut bytes = self.memory.as_ref().map(Memory::save).unwrap_or_default();
        bytes.extend_from_slice(&self.seed.0);
        bytes.extend_from_slice(&self.clock_ns.to_le_bytes());
        bytes.extend_from_slice(&self.events.to_le_bytes());
        bytes.extend_from_slice(&self.tasks.save());
        bytes.extend_from_slice(&self.pauses.save());
        bytes.extend_from_slice(&self.stages.save());
        bytes
    }

    /// Reads what [`Self::save`] wrote; `None` for anything else. The twin is restored by the
    /// caller.
    fn load(session: SessionId, bytes: Vec<u8>, has_memory: bool) -> Option<Self> {
        let (memory, rest) = match Memory::load(&bytes).filter(|_| has_memory) {
            Some((memory, rest)) => (Some(memory), rest),
            None => (None, &bytes[..]),
        };
        let (head, stages) = rest.split_first_chunk::<HEAD_SIZE>()?;
        let (seed, words) = head.split_first_chunk::<32>()?;
        let (clock, events) = words.split_first_chunk::<8>()?;
        let seed = Seed(*seed);
        let (tasks, stages) = Tasks::load(stages)?;
        let (pauses, stages) = Pauses::load(stages)?;
        Some(Self {
            session,
            stages: Stages::restore(stages, seed)?,
            tasks,
            pauses,
            memory,
            seed,
            clock_ns: i64::from_le_bytes(*clock),
            events: u64::from_le_bytes(events.try_into().ok()?),
            #[cfg(feature = "wasm")]
            twin: None,
            saved: Some(bytes),
            full: None,
            preparing: None,
            copied: None,
        })
    }
}

#[cfg(feature = "wasm")]
impl Cell {
    /// Gives the twin the same input and adds how its answer or its state differs.
    fn compare(&self, run: &Run, ran: &Ran, past: &mut Past) {
        if let (Some(twins), Some(twin)) = (&mut past.twins, self.twin) {
            past.violations.extend(twins.run(twin, run, ran));
            // That a port is gone is no event of the hall: it stands where it stood, with one port less.
            if !matches!(run.input, CellInput::Gone { .. }) {
                past.violations.extend(twins.look(twin, self.seed, self.events, self.stages.hash()));
            }
        }
    }

    /// Appends the twin's part after the fake's, its size last.
    fn save_twin(&self, base: CheckpointBase, sections: &mut Vec<u8>, past: &mut Past) {
        if let (Some(twins), Some(twin)) = (&mut past.twins, self.twin) {
            let part = twins.save(twin, base);
            sections.extend_from_slice(&part);
            sections.extend_from_slice(&(part.len() as u64).to_le_bytes());
        }
    }

    /// Cuts the twin's parts off the ends of the checkpoints. The twin cannot fail to restore what
    /// it saved.
    fn restore_twin(&mut self, image: ImageHash, parts: &[Bytes], past: &mut Past) {
        let Some(twins) = &mut past.twins else { return };
        let part = |sections: &Bytes| {
            let (rest, size) = sections.split_last_chunk::<8>().expect("a twin was saved");
            let size = usize::try_from(u64::from_le_bytes(*size)).expect("a checkpoint fits memory");
            sections.slice(rest.len() - size..rest.len())
        };
        let parts: Vec<Bytes> = parts.iter().map(part).collect();
        let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
        let shape = Service::shape_of(image).expect("it was started");
        self.twin = Some(twins.restore(shape, &parts));
    }
}
