//! The owner of a session: the state machine between the ends, on the edge that holds the newest generation.
//!
//! It opens a generation in two steps (docs/protocol.md, "Opening a generation"), rebuilds the cell by checkpoint and replay,
//! feeds it one input at a time, logs what it consumed, releases outputs with the increment that they depend on, and lets the
//! ends delete what a checkpoint covers. It knows no wire: frames carry a channel, and the shard maps channels to wires.

mod checkpointer;
mod choose;
mod end_state;
mod follow;
mod invariants;
mod open;
mod pauses;
mod recall;
mod record;
mod replicas;
mod run;
mod takeover;
mod witness;

use crate::bug::Bug;
use crate::cell::{CellError, CellId, CellImage, CheckpointBase, Ran, Run, Seed};
use crate::replay::{Gathered, ReplayCursor};
pub use crate::schedule::TaskCounts;
use crate::schedule::{Kind, Tasks, Timers};
use crate::trace;
use crate::trace::{TraceContext, TraceRole};
use alloc::{
    boxed::Box,
    string::{String, ToString},
    vec::Vec,
};
use bytes::{Bytes, BytesMut};
use checkpointer::Checkpointer;
use end_state::EndState;
use follow::Follow;
pub use follow::StandbyError;
use marram_wire::{
    codec::Field,
    frame::{CheckpointMeta, Code, Ended, Failure, Frame, Reject},
    header::Header,
    id::{Generation, HostId, Port, SessionId},
    log::{Cursor, Known},
    seal::{Digest, Seal, SessionKeys},
};
pub use open::Attempt;
use pauses::Pauses;
use record::Record;
pub use record::{RECORD_NS, RECORD_STOPPED_NS, RecordRequest};
use replicas::Replicas;
pub use replicas::{KeeperId, ReplicaProgress};
use witness::Witness;
pub use witness::{ClientProgress, REPORT_NS, WitnessReply, Witnessing};

/// Which end keeps checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// The client's end.
    Client,
    /// The server's end.
    Server,
    /// Both.
    Both,
}

/// The app manifest's settings for its sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnerPolicy {
    /// The app's name.
    pub app: String,
    /// The server's name, if the app has a server.
    pub server: Option<String>,
    /// Whether ends keep messages, log and checkpoints (`endpoints`) or nothing (`none`).
    pub keep: bool,
    /// Which end keeps checkpoints.
    pub holder: Holder,
    /// The longest acceptable replay of what no checkpoint covers, in nanoseconds.
    pub recovery_target_ns: u64,
    /// How long ends keep the record of a session that cannot be resumed, in milliseconds.
    pub linger_ms: u32,
    /// Messages that the cell may send per second; 0 for no limit.
    pub messages_per_s: u32,
    /// Bytes of log that the session may write per second; 0 for no limit.
    pub log_bytes_per_s: u32,
    /// Whether a recording is made when a handler of the session is stopped.
    pub record_stops: bool,
    /// Whether other sessions use the same cell ([`crate::shared`]). Needs `keep` to be off.
    pub shared: bool,
    /// Whether an external witness stores how much the client has received, and what to do while the witness is unavailable.
    /// For apps without a server: their clients could otherwise go back to an older state.
    pub witness: Option<Witnessing>,
}

/// Both clocks of the machine, read once a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Monotonic, in nanoseconds from any origin.
    pub mono_ns: u64,
    /// Since the Unix epoch, in nanoseconds; may jump.
    pub unix_ns: i64,
}

/// An action for the shard to carry out.
#[derive(Clone, Debug)]
pub enum OwnerEffect {
    /// Send this to the end at this port, if it is linked.
    Send(Port, Frame),
    /// Start a cell.
    Start(CellImage, Seed),
    /// Start a cell from checkpoints: a full one and its deltas. Their bytes follow. The cell runs only after this is answered
    /// and a log is chosen. It is removed if no log is chosen.
    Restore(CellImage, Vec<CheckpointMeta>),
    /// The next bytes of the checkpoints that [`OwnerEffect::Restore`] named, sealed. No part contains bytes of two of them.
    Part(Bytes),
    /// The next checkpoint of a cell that was restored and has not run: a delta on the last one. Its bytes follow. Answered as
    /// [`OwnerEffect::Restore`].
    Advance(CellId, CheckpointMeta),
    /// Run a handler.
    Run(Run),
    /// Copy the cell's state, as it is now.
    Copy(CellId, CheckpointBase),
    /// Encode the last copy and seal it after this header.
    Checkpoint(CellId, Box<Header>, Seal),
    /// Hash the cell's state, as it is now, for the recording that follows.
    Hash(CellId),
    /// The session as it was when the ends were asked, or the reason why there is no recording of it.
    Recorded(RecordRequest, Result<Box<Gathered>, String>),
    /// Send this to a keeper.
    ToKeeper(KeeperId, Frame),
    /// A keeper stopped keeping the session, for this reason. Nothing waits for it.
    KeeperLost(KeeperId, Code, String),
    /// A hot standby replays too slowly; [`OwnerEffect::KeeperLost`] follows.
    StandbySlow(KeeperId),
    /// Send this to the owner or recorder that feeds this standby.
    ToFeeder(Frame),
    /// Ask the witness what the client has acknowledged; answered by [`Owner::witnessed`] with this generation.
    AskWitness(Generation),
    /// Report to the witness what the client has. Nothing waits for it.
    Report(ClientProgress),
    /// The session continues although the witness is unavailable.
    WitnessMissing,
    /// The cell is not needed any more.
    Remove(CellId),
    /// Open another generation, newer than this count: another attempt interfered, or the cell cannot be kept.
    Reopen(u64),
    /// The owner no longer has the session. The next request for the session opens a new generation.
    Done(Code, String),
}

/// The owner's phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnerPhase {
    /// Standing by: fed by the session's owner.
    Following,
    /// Waiting for promises and for what the ends keep.
    Promising,
    /// Waiting for the cell to be started or restored.
    Restoring,
    /// Running the chosen log through the cell.
    Replaying,
    /// Messages flow.
    Running,
    /// A handler was stopped. Before the ends are informed, they send what they keep.
    Recording,
    /// Every end has received everything. The owner waits until the ends are ready to delete the session.
    Finishing,
    /// The cell lives, but no end is linked.
    Detached,
}

impl OwnerPhase {
    /// In the order of their encoding.
    const ALL: [Self; 8] = [
        Self::Following,
        Self::Promising,
        Self::Restoring,
        Self::Replaying,
        Self::Running,
        Self::Recording,
        Self::Finishing,
        Self::Detached,
    ];

    /// The phase in listings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Following => "standing by",
            Self::Promising => "opening",
            Self::Restoring => "restoring",
            Self::Replaying => "replaying",
            Self::Running => "running",
            Self::Recording => "recording",
            Self::Finishing => "finishing",
            Self::Detached => "detached",
        }
    }
}

impl Field for OwnerPhase {
    fn put(&self, out: &mut BytesMut) {
        (*self as u8).put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, marram_wire::codec::Error> {
        Self::ALL.get(usize::from(u8::take(from)?)).copied().ok_or(marram_wire::codec::Error::Unknown)
    }
}

/// Counted over the owner's life.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct OwnerTotals {
    /// Messages, timers and tasks consumed, replay not counted.
    pub consumed: u64,
    /// Entries consumed in replay.
    pub replayed: u64,
    /// Outputs produced, replay not counted.
    pub produced: u64,
    /// Checkpoints stored by an end.
    pub checkpoints: u64,
    /// Bytes of these checkpoints, sealed.
    pub checkpoint_bytes: u64,
    /// Generations opened by this owner.
    pub generations: u64,
    /// Pauses that the owner ended because nothing else could end them.
    pub pauses_ended: u64,
}

/// The owner of one session.
#[derive(Debug)]
pub struct Owner {
    session: SessionId,
    image: CellImage,
    keys: SessionKeys,
    policy: OwnerPolicy,
    generation: Generation,
    seal: Seal,
    phase: OwnerPhase,
    sides: Vec<EndState>,
    /// Named by the shard.
    cell: Option<CellId>,
    seed: Seed,
    /// Identity of the agent of the client's end, as the edge verified it when the present generation was opened.
    client_identity: Option<String>,
    /// The generation under which the cell was chosen, and from which it is valid.
    live: Option<Generation>,
    running: Option<run::Running>,
    replay: Option<ReplayCursor>,
    /// Index of the side that provides the executor's checkpoints in this attempt.
    source: Option<usize>,
    /// The executor's answer to [`OwnerEffect::Restore`], if it came before the ends' log was complete.
    early: Option<Result<Box<Header>, CellError>>,
    log: Log,
    /// Whether the cell's ports are open: the session's first entry is consumed, or runs now.
    opened: bool,
    digest: Digest,
    timers: Timers,
    tasks: Tasks,
    pauses: Pauses,
    /// Session time minus monotonic time, in nanoseconds.
    clock_offset_ns: i64,
    checkpointer: Checkpointer,
    rates: run::Rates,
    record: Option<Record>,
    replicas: Replicas,
    /// While the owner is a standby, and until the takeover is complete.
    follow: Option<Box<Follow>>,
    witness: Witness,
    /// Index of the port that is considered first for the next message.
    turn: usize,
    /// The kind of the last entry: the next input is of another kind, if one waits.
    last: Kind,
    totals: OwnerTotals,
}

/// The plaintext log, from the end of what a checkpoint covers.
#[derive(Debug, Default)]
struct Log {
    floor: u64,
    bytes: BytesMut,
    cursor: Cursor,
    /// Objects read from the cache that the log contains, since the cell was last copied.
    known: Known,
}

impl Log {
    fn end(&self) -> u64 {
        self.floor + self.bytes.len() as u64
    }

    /// The log from `offset` on; empty past the end. The log before `floor` is not here any more.
    fn since(&self, offset: u64) -> &[u8] {
        debug_assert!(
            offset >= self.floor,
            "the log from {offset} on is asked for, and it begins at {}",
            self.floor
        );
        let at = usize::try_from(offset.saturating_sub(self.floor)).unwrap_or(usize::MAX);
        self.bytes.get(at..).unwrap_or_default()
    }

    /// Drops the log before `offset`, as far as it is here.
    fn truncate(&mut self, offset: u64) {
        if let Ok(covered) = usize::try_from(offset.saturating_sub(self.floor)) {
            let covered = covered.min(self.bytes.len());
            let _ = self.bytes.split_to(covered);
            self.floor += covered as u64;
        }
    }
}

impl Owner {
    /// An owner that has not asked the ends yet. `hosts` are the agents of the client's end and, if the app has one, of the
    /// server's; `seed` is used if the session starts here.
    #[must_use]
    pub fn new(
        session: SessionId,
        image: CellImage,
        keys: SessionKeys,
        policy: OwnerPolicy,
        hosts: &[HostId],
        seed: Seed,
    ) -> Self {
        let seal = keys.seal(Generation::NONE);
        let sides = hosts.iter().zip([Port::CLIENT, Port::SERVER]);
        Self {
            session,
            image,
            policy,
            generation: Generation::NONE,
            seal,
            phase: OwnerPhase::Detached,
            sides: sides.map(|(host, port)| EndState::new(port, *host)).collect(),
            cell: None,
            seed,
            client_identity: None,
            live: None,
            running: None,
            replay: None,
            source: None,
            early: None,
            log: Log::default(),
            opened: false,
            digest: Digest::start(session),
            timers: Timers::default(),
            tasks: Tasks::default(),
            pauses: Pauses::default(),
            clock_offset_ns: 0,
            checkpointer: Checkpointer::default(),
            rates: run::Rates::default(),
            record: None,
            replicas: Replicas::default(),
            follow: None,
            witness: Witness::default(),
            turn: 0,
            last: Kind::Message,
            totals: OwnerTotals::default(),
            keys,
        }
    }

    /// The session's id.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The image of its cell.
    #[must_use]
    pub fn image(&self) -> CellImage {
        self.image
    }

    /// What this owner is in traces.
    #[must_use]
    pub fn context(&self) -> TraceContext {
        TraceContext::of_session(TraceRole::Owner, self.session, self.generation)
    }

    fn enter(&mut self, phase: OwnerPhase, why: &str) {
        if self.phase != phase {
            trace!(self.context(), "{} -> {}: {why}", self.phase.name(), phase.name());
        }
        self.phase = phase;
    }

    /// Its keys.
    #[must_use]
    pub fn keys(&self) -> &SessionKeys {
        &self.keys
    }

    /// Its policy.
    #[must_use]
    pub fn policy(&self) -> &OwnerPolicy {
        &self.policy
    }

    /// The newest generation that this owner opened.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The owner's phase.
    #[must_use]
    pub fn phase(&self) -> OwnerPhase {
        self.phase
    }

    /// The cell, if there is one.
    #[must_use]
    pub fn cell(&self) -> Option<CellId> {
        self.cell
    }

    /// Counted over the owner's life.
    #[must_use]
    pub fn totals(&self) -> OwnerTotals {
        self.totals
    }

    /// The agent of the end at this port; none if there is no such end.
    #[must_use]
    pub fn host(&self, port: Port) -> Option<HostId> {
        self.sides.iter().find(|side| side.port == port).map(|side| side.host)
    }

    /// Log bytes: since the session began, and those not covered by a checkpoint.
    #[must_use]
    pub fn log_bytes(&self) -> (u64, u64) {
        (self.log.end(), self.log.bytes.len() as u64)
    }

    /// Counts of the cell's tasks and locks. Those of a shared cell count for no session.
    #[must_use]
    pub fn tasks(&self) -> TaskCounts {
        self.tasks.counts()
    }

    /// Bytes held in memory for the session, without its cell.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.sides.iter().map(EndState::held_bytes).sum::<u64>()
            + self.log.bytes.len() as u64
            + self.log.known.size()
            + self.replay.as_ref().map_or(0, ReplayCursor::held_bytes)
            + self.checkpointer.held_bytes()
    }

    /// Whether the session has an owner and is disconnected from an end.
    #[must_use]
    pub fn incomplete(&self) -> bool {
        !self.recovering()
            && self.phase != OwnerPhase::Following
            && self.sides.iter().any(|side| side.channel.is_none())
    }

    /// Whether a log is being chosen, restored or replayed, so that no output can be released.
    #[must_use]
    pub fn recovering(&self) -> bool {
        matches!(self.phase, OwnerPhase::Promising | OwnerPhase::Restoring | OwnerPhase::Replaying)
    }

    /// A frame from the end at `port`, on the channel of the current generation.
    pub fn receive(&mut self, now: Now, port: Port, frame: Frame, out: &mut Vec<OwnerEffect>) {
        let index = self.index(port);
        let promising = self.phase == OwnerPhase::Promising;
        match frame {
            Frame::Promised(promised) if promising => self.promised(now, index, promised, out),
            Frame::LogPart(part) if promising => self.got_log(now, index, &part, out),
            Frame::CheckpointBegin(begin) if promising => self.got_checkpoint(index, begin.meta, out),
            Frame::CheckpointPart(part) if promising => self.got_part(now, index, part.bytes, out),
            Frame::CheckpointBegin(begin) => self.kept_checkpoint(index, &begin.meta, out),
            Frame::CheckpointPart(part) => self.kept_part(index, &part.bytes, out),
            Frame::Kept(kept) => self.kept(index, kept, out),
            Frame::KeptInput(input) => self.kept_input(index, input, out),
            Frame::Input(input) => self.input(now, index, input, out),
            Frame::Credit(credit) => self.credit(now, index, credit.received, credit.bytes, out),
            Frame::Stored(stored) => {
                self.stored(index, stored.bytes, stored.complete, out);
                // The cell may have waited because the log was full.
                self.pump(now, out);
            }
            Frame::Superseded(superseded) => self.superseded(port, superseded.promised, out),
            Frame::Ended(ended) if ended.code.is_retryable() => self.step_down(ended.code, ended.reason, out),
            Frame::Ended(ended) => self.terminate(ended.code, ended.reason, out),
            Frame::Finished(_) if self.phase == OwnerPhase::Finishing => self.finished(index, out),
            _ => self.terminate(
                Code::Protocol,
                "an end sent a frame that is not allowed in this phase".into(),
                out,
            ),
        }
    }

    /// The link to the end at `port` is gone.
    pub fn unlinked(&mut self, port: Port, out: &mut Vec<OwnerEffect>) {
        let index = self.index(port);
        self.sides[index].channel = None;
        if matches!(self.phase, OwnerPhase::Detached | OwnerPhase::Following) {
            return trace!(self.context(), "ignores that a link broke: it is {}", self.phase.name());
        }
        if !self.policy.keep {
            return self.terminate(
                Code::Lost,
                "a connection broke, and the app is not protected".into(),
                out,
            );
        }
        let stopped = self.give_up_record("a connection of the session broke meanwhile", out);
        if stopped.is_some() {
            return self.fail_if_stopped(stopped, out);
        }
        if self.recovering() {
            return self.abort_attempt(Code::Waiting, "the other end's connection broke", out);
        }
        if self.sides.iter().all(|side| side.channel.is_none()) {
            self.enter(OwnerPhase::Detached, "no end is linked");
        } else {
            trace!(self.context(), "continues without the end at port {}", port.0);
        }
    }

    /// The end at `port` has promised another generation.
    fn superseded(&mut self, port: Port, promised: Generation, out: &mut Vec<OwnerEffect>) {
        if promised <= self.generation {
            return self.unlinked(port, out);
        }
        if self.phase == OwnerPhase::Promising {
            trace!(self.context(), "opens again: the end at port {} promised {promised}", port.0);
            out.push(OwnerEffect::Reopen(promised.count));
        } else {
            self.step_down(Code::Superseded, "a newer owner has the session".into(), out);
        }
    }

    /// The attempt fails. A live cell is kept for the next attempt.
    pub fn abort_attempt(&mut self, code: Code, reason: &str, out: &mut Vec<OwnerEffect>) {
        if self.live.is_none() {
            return self.step_down(code, reason.into(), out);
        }
        self.reject(code, reason, out);
        self.enter(OwnerPhase::Detached, reason);
    }

    /// Gives up ownership of the session. The ends know everything that has happened.
    pub fn step_down(&mut self, code: Code, reason: String, out: &mut Vec<OwnerEffect>) {
        trace!(self.context(), "steps down: {code:?}: {reason}");
        self.give_up_record("the session left this edge meanwhile", out);
        self.end_streams(code, &reason, out);
        self.reject(code, &reason, out);
        out.extend(self.cell.take().map(OwnerEffect::Remove));
        out.push(OwnerEffect::Done(code, reason));
    }

    fn reject(&mut self, code: Code, reason: &str, out: &mut Vec<OwnerEffect>) {
        for side in &mut self.sides {
            if let Some(channel) = side.channel.take() {
                out.push(OwnerEffect::Send(
                    side.port,
                    Reject { channel, code, reason: reason.into() }.into(),
                ));
            }
        }
    }

    /// Ends the session permanently.
    pub fn terminate(&mut self, code: Code, reason: String, out: &mut Vec<OwnerEffect>) {
        trace!(self.context(), "ends the session: {code:?}: {reason}");
        self.give_up_record("the session ended meanwhile", out);
        self.end_streams(code, &reason, out);
        for side in &mut self.sides {
            if let Some(channel) = side.channel.take() {
                let ended = Ended { channel, code, reason: reason.clone() };
                out.push(OwnerEffect::Send(side.port, ended.into()));
            }
        }
        out.extend(self.cell.take().map(OwnerEffect::Remove));
        out.push(OwnerEffect::Done(code, reason));
    }

    /// This owner is in a state that only a bug explains: the session ends, and no other session of the process.
    fn end_for_bug(&mut self, bug: Bug, out: &mut Vec<OwnerEffect>) {
        self.terminate(Code::Protocol, bug.to_string(), out);
    }

    /// A handler was stopped. The session may be retried once, since the fault may be this machine's. A second stop at the same
    /// position ends it, so that a poison message cannot move from edge to edge.
    fn failed(&mut self, input: u8, reason: String, out: &mut Vec<OwnerEffect>) {
        trace!(self.context(), "a handler was stopped at log offset {}: {reason}", self.log.end());
        let failure = Failure { log_offset: self.log.end(), input, reason };
        let again = self
            .sides
            .iter()
            .filter_map(|side| side.promised.as_ref()?.failed.as_ref())
            .any(|before| before.log_offset == failure.log_offset && before.input == failure.input);
        if again || !self.policy.keep {
            return self.terminate(Code::Guest, failure.reason, out);
        }
        for side in &mut self.sides {
            if let Some(channel) = side.channel.take() {
                let failed = marram_wire::frame::Failed { channel, failure: failure.clone() };
                out.push(OwnerEffect::Send(side.port, failed.into()));
            }
        }
        self.end_streams(Code::Guest, &failure.reason, out);
        out.extend(self.cell.take().map(OwnerEffect::Remove));
        out.push(OwnerEffect::Done(Code::Guest, failure.reason));
    }

    /// The answer to [`OwnerEffect::Run`].
    pub fn ran(&mut self, now: Now, ran: Ran, out: &mut Vec<OwnerEffect>) {
        if self.cell != Some(ran.cell) {
            return trace!(self.context(), "ignores a handler of a cell that was removed");
        }
        if self.follow.is_some() {
            return self.replayed(now, ran, out);
        }
        match self.phase {
            OwnerPhase::Replaying => self.replayed(now, ran, out),
            OwnerPhase::Following | OwnerPhase::Restoring | OwnerPhase::Finishing | OwnerPhase::Recording => {
                trace!(self.context(), "ignores a handler that finished: it is {}", self.phase.name());
            }
            OwnerPhase::Running | OwnerPhase::Promising | OwnerPhase::Detached => {
                self.consumed(now, ran, out)
            }
        }
    }

    fn index(&self, port: Port) -> usize {
        usize::from(port != Port::CLIENT).min(self.sides.len() - 1)
    }
}
