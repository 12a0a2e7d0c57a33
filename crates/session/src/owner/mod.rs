//! The owner of a session: the state machine between the ends, on the edge that holds the newest generation.
//!
//! It opens a generation in two steps (docs/protocol.md, "Opening a generation"), rebuilds the cell by checkpoint and
//! replay, feeds it one input at a time, logs what it consumed, releases outputs with the increment that they depend
//! on, and lets the ends delete what a checkpoint covers. It knows no wire: frames carry a channel, and the shard maps
//! channels to wires.
//!
//! Each part of its state is a machine of its own, with private fields: it decides, and [`Owner`] carries out what it
//! decides and tells the other parts. A part knows no other one, except that most read the log and the ends.
//!
//! | state | part | methods of the owner |
//! |---|---|---|
//! | the attempt: what the ends send until a log is chosen | `opening` | `open`, `choose`, `replaying` |
//! | the entry that runs, the clock, quotas | `runner` | `run` |
//! | the ends; the log; what follows from the log besides the cell's memory | `ends`, `log`, `state` | |
//! | checkpoints; the handler time that none covers | `checkpointer`, `uncovered` | `checkpoint` |
//! | keepers | `replicas` | here |
//! | what a standby is fed; what a recorder gave | `follow`, `recall` | `feed`, `recall`, `takeover` |
//! | recordings | `recordings` | `record` |
//! | the witness | `witness` | `witness` |
//! | protection of a session that has none, while it moves | `about` | `protection` |
//! | epochs that a backup has not confirmed | `epochs` | here |
//! | what a shared cell is rebuilt from, and its rebuild | `keep`, `rebuild` | `traps` |

mod about;
mod apart;
mod boundary;
mod changes;
mod checkpoint;
mod checkpoint_header;
mod checkpointer;
mod choose;
mod client_port;
mod clients;
mod connections;
mod copy_window;
mod effect;
mod end_state;
mod ends;
mod epochs;
mod feed;
mod follow;
mod forms;
mod invariants;
mod keep;
mod leave;
mod log;
mod marks;
mod open;
mod opening;
mod page_feed;
mod pages;
mod pauses;
mod phase;
mod policy;
mod port_list;
mod ports;
mod protection;
mod queues;
mod rebuild;
mod recall;
mod record;
mod recordings;
mod replaying;
mod replica_stream;
mod replicas;
mod room;
mod run;
mod runner;
mod share;
mod sides;
mod state;
mod takeover;
mod tape;
mod traps;
mod uncovered;
mod whole;
mod witness;

use crate::{
    cell::{CellId, CellImage, Ran, Seed},
    trace,
    trace::TraceContext,
};
use alloc::{boxed::Box, vec::Vec};
use marram_wire::{
    frame::{Channel, Code, Frame, Keep},
    id::{Generation, HostId, Port, SessionId},
    seal::SessionKeys,
};

pub use crate::schedule::TaskCounts;
pub use connections::{CellServer, CellServerState, OwedToServers};
pub use effect::{Now, OwnerEffect};
pub use ends::EndProgress;
pub use epochs::EpochRelease;
pub use feed::StandbyError;
pub use open::Attempt;
pub use phase::OwnerPhase;
pub use policy::{BackupForm, Holder, OwnerPolicy, OwnerTotals};
pub use ports::PortAttempt;
pub use record::{RECORD_NS, RECORD_STOPPED_NS, RecordRequest};
pub use replica_stream::{Feed, KeeperId};
pub use replicas::{CopyProgress, ReplicaProgress};
pub use share::OwnerShare;
pub use sides::ClientChange;
pub use uncovered::{REPLAY_SHARE_MIN_NS, REPLAY_SHARE_NS_PER_BYTE};
pub use witness::{ClientProgress, REPORT_NS, WitnessReply, Witnessing};

use about::About;
use checkpointer::Checkpointer;
use ends::Ends;
use epochs::Epochs;
use follow::Follow;
use keep::OwnKeep;
use log::Log;
use phase::Phase;
use recordings::Recordings;
use replicas::Replicas;
use runner::Runner;
use state::CellState;
use witness::Witness;

/// The owner of one session.
#[derive(Debug)]
pub struct Owner {
    about: About,
    phase: Phase,
    ends: Ends,
    /// The cell, from when it is asked for until it is removed. It can run only in some phases.
    cell: Option<CellId>,
    /// The generation under which a log was last chosen, while that log's cell lives: the next generation can continue
    /// with the cell, if no other log was chosen since. Kept without any end, and while promises are collected.
    live: Option<Generation>,
    log: Log,
    state: CellState,
    runner: Runner,
    checkpointer: Checkpointer,
    /// Of a shared cell: what it is rebuilt from if a client's input stops it.
    keep: Option<Box<OwnKeep>>,
    recordings: Recordings,
    replicas: Replicas,
    /// While the owner is a standby, and until the takeover is complete.
    follow: Option<Box<Follow>>,
    witness: Witness,
    /// If the app asks for epochs.
    epochs: Epochs,
    totals: OwnerTotals,
}

impl Owner {
    /// An owner that has not asked the ends yet. `hosts` are the agents of the client's end and, if the app has one, of
    /// the server's; `seed` is used if the session starts here.
    #[must_use]
    pub fn new(
        session: SessionId,
        image: CellImage,
        keys: SessionKeys,
        policy: OwnerPolicy,
        hosts: &[HostId],
        seed: Seed,
    ) -> Self {
        let about = About::new(session, image, keys, policy);
        let ends = if about.is_shared_cell() {
            Ends::of_shared_cell(session)
        } else {
            Ends::new([Port::CLIENT, Port::SERVER].into_iter().zip(hosts.iter().copied()))
        };
        Self {
            keep: about.is_shared_cell().then(Box::default),
            about,
            phase: Phase::Detached,
            recordings: Recordings::new(ends.len()),
            ends,
            cell: None,
            live: None,
            log: Log::new(session),
            state: CellState::new(seed),
            runner: Runner::default(),
            checkpointer: Checkpointer::default(),
            replicas: Replicas::default(),
            follow: None,
            witness: Witness::default(),
            epochs: Epochs::default(),
            totals: OwnerTotals::default(),
        }
    }

    /// The session's id.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.about.session
    }

    /// The image of its cell.
    #[must_use]
    pub fn image(&self) -> CellImage {
        self.about.image
    }

    /// What this owner is in traces.
    #[must_use]
    pub fn context(&self) -> TraceContext {
        self.about.context()
    }

    /// Its keys.
    #[must_use]
    pub fn keys(&self) -> &SessionKeys {
        &self.about.keys
    }

    /// Whether a backup has what its ends do not keep, and its outputs wait for that (`epoch`).
    #[must_use]
    pub fn has_backup(&self) -> bool {
        self.about.has_backup()
    }

    /// Whether it is a cell with many clients that has a backup: these are ports of it, and its group's claim alone decides which edge
    /// runs it.
    #[must_use]
    pub fn is_shared_cell(&self) -> bool {
        self.about.is_shared_cell()
    }

    /// Its policy.
    #[must_use]
    pub fn policy(&self) -> &OwnerPolicy {
        &self.about.policy
    }

    /// The newest generation that this owner opened.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.about.generation()
    }

    /// The owner's phase.
    #[must_use]
    pub fn phase(&self) -> OwnerPhase {
        self.phase.public()
    }

    /// The cell, if there is one.
    #[must_use]
    pub fn cell(&self) -> Option<CellId> {
        self.cell
    }

    /// The shard has named the cell that [`OwnerEffect::Start`] or [`OwnerEffect::Restore`] asked for.
    pub fn name_cell(&mut self, cell: CellId) {
        self.cell = Some(cell);
        self.checkpointer.change_cell();
    }

    /// Counted over the owner's life.
    #[must_use]
    pub fn totals(&self) -> OwnerTotals {
        self.totals
    }

    /// The agent of the end at this port; none if there is no such end.
    #[must_use]
    pub fn host(&self, port: Port) -> Option<HostId> {
        self.ends.at(port).map(|side| side.host)
    }

    /// The port and the agent of each end that must promise a generation, in ascending order of ports: none of a shared cell, whose
    /// clients promise for themselves.
    pub fn hosts(&self) -> impl Iterator<Item = (Port, HostId)> {
        self.ends.lasting().map(|side| (side.port, side.host))
    }

    /// What has passed between this owner and each end.
    pub fn ends(&self) -> impl Iterator<Item = EndProgress> {
        self.ends.progress()
    }

    /// Whether a handler runs, or waits for its turn.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.runner.is_busy()
    }

    /// Log bytes: since the session began, and those not covered by a checkpoint.
    #[must_use]
    pub fn log_bytes(&self) -> (u64, u64) {
        (self.log.end(), self.log.size())
    }

    /// Counts of the cell's tasks and locks. Those of a shared cell count for no session.
    #[must_use]
    pub fn tasks(&self) -> TaskCounts {
        self.state.counts()
    }

    /// How many ends were looked at so far, each time that all were or those at which something had changed: what its clients cost a
    /// shared cell.
    #[must_use]
    pub fn ends_visited(&self) -> u64 {
        self.ends.visits()
    }

    /// Bytes held in memory for the session, without its cell.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.ends.held_bytes()
            + self.log.size()
            + self.log.read_size()
            + self.phase.held_bytes()
            + self.follow.as_ref().map_or(0, |follow| follow.held_bytes())
            + self.recordings.held_bytes()
            + self.checkpointer.held_bytes()
            + self.replicas.held_bytes()
            + self.keep.as_ref().map_or(0, |keep| keep.held_bytes())
    }

    /// Charge of the outputs that an end has not acknowledged, of the end with most.
    #[must_use]
    pub fn outbox_bytes(&self) -> u64 {
        self.ends.iter().map(|side| side.outbox_charge).max().unwrap_or(0)
    }

    /// Whether the session has an owner and is disconnected from an end.
    #[must_use]
    pub fn incomplete(&self) -> bool {
        !self.recovering() && self.phase() != OwnerPhase::Following && !self.ends.are_all_linked()
    }

    /// Whether a log is being chosen, restored or replayed, so that no output can be released.
    #[must_use]
    pub fn recovering(&self) -> bool {
        matches!(self.phase, Phase::Promising(_) | Phase::Restoring | Phase::Replaying(_) | Phase::Confirming)
    }

    /// Changes the phase, and drops the data that only the last one needed.
    fn enter(&mut self, phase: Phase, why: &str) {
        let (from, to) = (self.phase.public(), phase.public());
        if from != to {
            trace!(self.context(), "{} -> {}: {why}", from.name(), to.name());
        }
        self.phase = phase;
    }

    /// A frame from the end at `port`, on the channel of the current generation: the shard drops those of older ones
    /// (I4). What is accepted in which phase is listed in docs/protocol.md, "Opening a generation".
    pub fn receive(&mut self, now: Now, port: Port, frame: Frame, out: &mut Vec<OwnerEffect>) {
        if self.about.is_shared_cell() {
            return self.receive_at_port(now, port, frame, out);
        }
        let Some(index) = self.ends.index(port) else {
            return trace!(self.context(), "ignores {} of the absent port {}", frame.name(), port.0);
        };
        let promising = self.phase() == OwnerPhase::Promising;
        match frame {
            Frame::Promised(promised) if promising => self.promised(now, index, promised, out),
            // While promises are awaited, an end sends checkpoints for a recovery; later, only for a recording.
            Frame::LogPart(_) | Frame::CheckpointBegin(_) | Frame::CheckpointPart(_) if promising => {
                self.arrived(now, index, frame, out);
            }
            Frame::CheckpointBegin(_) | Frame::CheckpointPart(_) | Frame::Kept(_) | Frame::KeptInput(_) => {
                self.shown(index, frame, out);
            }
            Frame::Input(input) => self.input(now, index, input, out),
            Frame::Credit(credit) => self.credit(now, index, credit.received, credit.bytes, out),
            Frame::Stored(stored) => {
                self.stored(index, stored.bytes, stored.complete, out);
                // The cell may have waited because the log was full.
                self.pump(now, out);
            }
            Frame::Allowance(allowance) => {
                self.ends[index].allow(allowance.bytes);
                if self.phase() == OwnerPhase::Running {
                    self.checkpoint_if_due(out);
                    if self.about.has_backup() {
                        self.forget_if_much(out);
                    }
                }
            }
            Frame::Protected(protected) if !promising => self.protected(index, &protected, out),
            Frame::Superseded(superseded) => self.superseded(port, superseded.promised, out),
            Frame::Ended(ended) if ended.code.is_retryable() => self.step_down(ended.code, ended.reason, out),
            Frame::Ended(ended) => self.terminate(ended.code, ended.reason, out),
            Frame::Finished(_) if self.phase() == OwnerPhase::Finishing => self.finished(index, out),
            _ => self.terminate(
                Code::Protocol,
                "an end sent a frame that is not allowed in this phase".into(),
                out,
            ),
        }
    }

    /// The link to the end at `port` is gone.
    pub fn unlinked(&mut self, port: Port, out: &mut Vec<OwnerEffect>) {
        if self.about.is_shared_cell() {
            return self.port_away(port, "its connection broke");
        }
        let Some(index) = self.ends.index(port) else {
            return trace!(self.context(), "ignores that a link of the absent port {} broke", port.0);
        };
        self.ends[index].channel = None;
        if matches!(self.phase, Phase::Detached | Phase::Following) {
            return trace!(self.context(), "ignores that a link broke: it is {}", self.phase().name());
        }
        if !self.outlives_links() {
            return self.terminate(
                Code::Lost,
                "a connection broke, and the app is not protected".into(),
                out,
            );
        }
        if self.recordings.give_up("a connection of the session broke meanwhile", out)
            && self.fail_if_stopped(out)
        {
            return;
        }
        // An attempt needs all ends: with one of them alone, nothing says that its log is the longest (I11).
        if self.recovering() {
            return self.abort_attempt(Code::Waiting, "the other end's connection broke", out);
        }
        if self.ends.iter().all(|side| side.channel.is_none()) {
            self.enter(Phase::Detached, "no end is linked");
        } else {
            trace!(self.context(), "continues without the end at port {}", port.0);
        }
    }

    /// An end has promised another edge, and this owner has a backup: what it has is nowhere else, unless it has handed the session
    /// over. The claim of its group says whether it may ask again.
    fn give_way(&mut self, promised: Generation, out: &mut Vec<OwnerEffect>) {
        if !self.state.is_opened && self.follow.is_none() {
            // It has not begun here.
            return self.step_down(Code::Superseded, "another edge was promised the session".into(), out);
        }
        let may_ask = self.epochs.group().is_some() && !self.holds_outputs() && !self.epochs.given;
        self.ends.reject(Code::Superseded, "another edge was promised the session", out);
        self.enter(Phase::Detached, "an end has promised another edge");
        if may_ask {
            out.push(OwnerEffect::Reopen(promised.count));
        }
    }

    /// What a keeper is told when it begins.
    fn keep_frame(&self) -> Keep {
        Keep { group: self.epochs.group(), ..self.about.keep_frame(&self.ends, &self.log) }
    }

    /// The end at `port` has promised another generation.
    fn superseded(&mut self, port: Port, promised: Generation, out: &mut Vec<OwnerEffect>) {
        if promised <= self.about.generation() {
            return self.unlinked(port, out);
        }
        // Two edges may open at the same time. Until a log is chosen this owner can ask again, with a newer generation
        // than the end's promise; after that the session belongs to the newer owner.
        if self.phase() == OwnerPhase::Promising && !self.holds_outputs() {
            trace!(self.context(), "opens again: the end at port {} promised {promised}", port.0);
            out.push(OwnerEffect::Reopen(promised.count));
        } else if self.about.has_backup() {
            self.give_way(promised, out);
        } else {
            self.step_down(Code::Superseded, "a newer owner has the session".into(), out);
        }
    }

    /// The answer to [`OwnerEffect::Run`].
    pub fn ran(&mut self, now: Now, ran: Ran, out: &mut Vec<OwnerEffect>) {
        if self.cell != Some(ran.cell) {
            return trace!(self.context(), "ignores a handler of a cell that was removed");
        }
        if self.follow.is_some() {
            return self.replayed(now, ran, out);
        }
        // A handler of a live cell ends in any phase in which that cell can still be continued. In the others the entry
        // is not logged, and the next owner consumes its input again.
        match self.phase {
            Phase::Replaying(_) => self.replayed(now, ran, out),
            Phase::Following | Phase::Restoring | Phase::Finishing | Phase::Recording(_) => {
                trace!(self.context(), "ignores a handler that finished: it is {}", self.phase().name());
            }
            Phase::Running | Phase::Promising(_) | Phase::Detached | Phase::Confirming => {
                self.consumed(now, ran, out);
            }
        }
    }

    /// Makes a keeper keep the session from now on, over this channel of its wire.
    pub fn add_replica(
        &mut self,
        keeper: KeeperId,
        channel: Channel,
        feed: Feed,
        out: &mut Vec<OwnerEffect>,
    ) {
        self.replicas.add(keeper, channel, feed, false);
        self.replica_added(out);
    }

    /// The same of a keeper that is to be the next backup of the session: nothing waits for it before.
    pub fn add_next_backup(
        &mut self,
        keeper: KeeperId,
        channel: Channel,
        feed: Feed,
        out: &mut Vec<OwnerEffect>,
    ) {
        self.replicas.add(keeper, channel, feed, true);
        self.replica_added(out);
    }

    fn replica_added(&mut self, out: &mut Vec<OwnerEffect>) {
        if !self.state.is_opened && self.log.end() == 0 {
            let keep = self.keep_frame();
            self.replicas.start_with_session(&keep, out);
            self.backup_changed(out);
        } else if self.may_copy() {
            self.checkpoint_if_due(out);
        }
    }

    /// Whether its state can be copied now: its cell is here, and so is all that it did. A session with a backup is copied to the next
    /// one while none of its ends is linked, too.
    #[must_use]
    pub fn may_copy(&self) -> bool {
        match self.phase {
            Phase::Running | Phase::Confirming => true,
            Phase::Detached => {
                let is_here = self.cell.is_some() && self.follow.is_none() && !self.epochs.given;
                self.about.has_backup() && self.state.is_opened && is_here
            }
            _ => false,
        }
    }

    /// A keeper is disconnected, or not needed any more.
    pub fn remove_replica(&mut self, keeper: KeeperId, out: &mut Vec<OwnerEffect>) {
        let was_handed_over = self.is_handed_over();
        self.replicas.remove(keeper, out);
        self.backup_changed(out);
        self.stays(was_handed_over, out);
    }

    /// A checkpoint may have waited for a take-over that will not come; ends may have stopped reading until there is one.
    fn stays(&mut self, was_handed_over: bool, out: &mut Vec<OwnerEffect>) {
        if was_handed_over && !self.is_handed_over() && self.may_copy() {
            self.checkpoint_if_due(out);
        }
    }

    /// Tells a keeper to take the session over, once it has all that it needs, and would not have to replay too much: a warm standby that would
    /// gets another checkpoint first. False if it has not, or if this owner cannot hand the session over now, such as before an end has sent
    /// what it does not keep. The session goes on here until its ends promise the other edge.
    pub fn hand_over(&mut self, now: Now, keeper: KeeperId, out: &mut Vec<OwnerEffect>) -> bool {
        if self.phase() != OwnerPhase::Running || !self.is_log_confirmed(keeper, out) {
            return false;
        }
        let session_ns = self.runner.session_ns(now, &self.log);
        let is_able = self.about.policy.keeps.anything() || self.can_hand_over_for_good();
        let is_able = is_able && self.may_leave_pages(keeper, out);
        let is_cell = self.about.is_shared_cell();
        let stops = is_cell || self.about.has_backup() && !self.replicas.is_backup(keeper);
        let runs = stops && self.runner.is_busy();
        let is_done = is_able && self.replicas.hand_over((keeper, &self.ends), session_ns, runs, out);
        if is_able && !is_done {
            self.cover_to_leave(keeper, out);
        }
        // A shared cell stays this owner's until a claim says something else.
        self.epochs.given |= is_done && !is_cell;
        is_done
    }

    /// The session is not to be handed over any more. If a keeper was told to take it over, nothing changes.
    pub fn keep_on(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        self.replicas.take_no_boundary();
        self.pump(now, out);
    }

    /// What the edge would be told to which the session moved, on this channel: but for the position, which a session without
    /// protection does not know before it moves.
    #[must_use]
    pub fn move_frame(&self, channel: Channel) -> Keep {
        let keep = self.keep_frame();
        let took = alloc::vec![0; keep.took.len()];
        Keep { channel, hot: true, moves: true, log_offset: 0, last_ns: 0, took, ..keep }
    }

    /// How large the cell's state is, in bytes of sealed checkpoints: of the last full one, and of the changes since. None before
    /// the first one.
    #[must_use]
    pub fn state_bytes(&self) -> Option<u64> {
        self.checkpointer.state_bytes()
    }

    /// How far the checkpoint is that this keeper is sent now. None if it is sent none.
    #[must_use]
    pub fn copy_progress(&self, keeper: KeeperId) -> Option<CopyProgress> {
        self.replicas.copy_progress(keeper)
    }

    /// A keeper that is to take the session over is sent checkpoints only as far as this allows: parts, the last of them when
    /// this many bytes are reached, or all that follows (`u64::MAX`). Returns how many bytes were sent.
    pub fn allow_copy(&mut self, now: Now, keeper: KeeperId, bytes: u64, out: &mut Vec<OwnerEffect>) -> u64 {
        self.replicas.allow_copy(now.mono_ns, keeper, bytes, out)
    }

    /// Whether a keeper was told to take the session over, so that no checkpoint is begun.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.replicas.has_handed_over()
    }

    /// Progress of the session's keepers.
    pub fn keepers(&self) -> impl Iterator<Item = ReplicaProgress> {
        self.replicas.progress()
    }

    /// A frame from a keeper.
    pub fn from_keeper(&mut self, now: Now, keeper: KeeperId, frame: Frame, out: &mut Vec<OwnerEffect>) {
        let was_handed_over = self.is_handed_over();
        let has_waited = self.awaits_keeper_or_group();
        self.replicas.receive(self.about.context(), now.mono_ns, keeper, frame, out);
        self.pages_stored(now, out);
        self.confirmed(out);
        self.backup_changed(out);
        if has_waited {
            self.pump(now, out);
        }
        self.stays(was_handed_over, out);
    }

    /// Informs the ends which edge is the standby, if that has changed.
    pub fn tell_standby(&mut self, standby: Option<(&str, u8)>, out: &mut Vec<OwnerEffect>) {
        let phase = self.phase();
        if matches!(phase, OwnerPhase::Running | OwnerPhase::Confirming)
            && self.replicas.change_standby(standby)
            // Else they are told with the chosen log.
            && phase == OwnerPhase::Running
        {
            self.replicas.tell_standby(&self.ends, out);
        }
    }
}
