//! Chooses the log, rebuilds the cell from it, and informs the ends (docs/protocol.md, "Choosing the log and rebuilding the
//! cell").
//!
//! Nothing is trusted: the chosen log, with the messages that it consumed, must give the running digest that came with it. This
//! is verified before any of it runs.

use super::{Now, Owner, OwnerEffect, OwnerPhase, end_state::Message, witness::LogMismatch};
use crate::bug;
use crate::cell::{CellError, CellId, CellInput, CellStop, Ran, Run, RunOutcome, Seed};
use crate::replay::{Handler, LogReplayError, ReplayCursor, opens};
use crate::trace;
use alloc::{boxed::Box, string::ToString, sync::Arc, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{Chosen, Code, LogPart},
    header::Header,
    id::Port,
    limits::PART_SIZE,
    log::{Cursor, Entry, Event, Peers},
    peer::Peer,
    seal::Digest,
};

impl Owner {
    /// All ends have promised and sent what they keep.
    pub(super) fn choose(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if let Some(live) = self.live.take() {
            let overtaken = self.was_overtaken(live);
            if self.follow.is_some() {
                if overtaken || !self.take_over(now, out) {
                    self.restart_from_ends(out);
                }
                return;
            }
            if !overtaken && self.resume_live(now, out) {
                return;
            }
            self.drop_streams(out);
            // Another generation may have been chosen meanwhile: only what the ends keep is valid.
            trace!(self.context(), "opens again: its live cell may have been overtaken");
            out.extend(self.cell.take().map(OwnerEffect::Remove));
            self.running = None;
            return out.push(OwnerEffect::Reopen(self.generation.count));
        }
        let Some(best) = self.longest() else {
            return self.end_for_bug(bug!("an owner has at least one side", self.session), out);
        };
        let log_end = self.sides[best].promised.as_ref().map_or(0, |promised| promised.log_end);
        if !self.reaches_what_was_seen(log_end, out) {
            return;
        }
        let checkpoints = self.source.map_or(Vec::new(), |at| self.sides[at].announced().to_vec());
        let base = checkpoints.last().map_or(0, |checkpoint| checkpoint.log_offset);
        let start = self.sides[best].promised.as_ref().map_or(0, |promised| promised.log_start);
        let mut bytes = self.sides[best].got_log.clone();
        // `gather` has refused a log that begins behind its checkpoint, or ends before it.
        let covered = base.checked_sub(start).and_then(|covered| usize::try_from(covered).ok());
        let Some(covered) = covered.filter(|covered| *covered <= bytes.len()) else {
            let bug = bug!("the chosen log reaches from its checkpoint on", base, start, bytes.len());
            return self.end_for_bug(bug, out);
        };
        self.log.floor = base;
        self.log.bytes = bytes.split_off(covered);
        self.log.cursor = Cursor::default();
        self.log.known.forget();
        self.opened = self.log.end() > 0;
        self.digest = Digest::start(self.session);
        self.timers = super::Timers::default();
        self.tasks = super::Tasks::default();
        self.pauses = super::Pauses::default();
        self.sides.iter_mut().for_each(super::EndState::reset);
        self.enter(OwnerPhase::Restoring, "a log is chosen");
        let agreed = !checkpoints.is_empty() && self.holders_agree(&checkpoints);
        self.checkpointer.restored(&checkpoints, agreed);
        if self.source.is_some() {
            // The executor has all parts by now. It may have answered before the other end's log was complete.
            if let Some(result) = self.early.take() {
                self.stand_restored(now, result, out);
            }
            return;
        }
        if !self.log.bytes.is_empty() {
            match Cursor::default().take(&mut self.log.bytes.clone().freeze()) {
                Ok(Entry { event: Event::Start { seed, .. }, .. }) => self.seed = Seed(seed),
                _ => return self.tampered("the log does not begin with a start", out),
            }
        }
        out.push(OwnerEffect::Start(self.image, self.seed));
    }

    /// The shard has named the cell that [`OwnerEffect::Start`] or [`OwnerEffect::Restore`] asked for.
    pub fn name_cell(&mut self, cell: CellId) {
        self.cell = Some(cell);
    }

    pub(super) fn longest(&self) -> Option<usize> {
        let ends =
            self.sides.iter().map(|side| side.promised.as_ref().map_or(0, |promised| promised.log_end));
        ends.enumerate().max_by_key(|(index, end)| (*end, core::cmp::Reverse(*index))).map(|(index, _)| index)
    }

    /// The cell never stopped: every end's last promise before this one was to this owner, so no other owner can have chosen.
    fn resume_live(&mut self, now: Now, out: &mut Vec<OwnerEffect>) -> bool {
        let all_live =
            self.sides.iter().all(|side| side.promised.as_ref().is_some_and(|promised| promised.live));
        if !all_live {
            return false;
        }
        let log_end = self.log.end();
        let resumed = self.sides.iter_mut().all(|side| {
            side.promised
                .as_ref()
                .is_some_and(|promised| promised.log_end <= log_end && promised.sent_start == side.took)
                && {
                    let (received, window) =
                        side.promised.as_ref().map_or((0, 0), |p| (p.received, p.window));
                    side.resume(received, window)
                }
        });
        if resumed {
            self.tell_chosen(now, out);
        }
        resumed
    }

    /// The answer to [`OwnerEffect::Start`].
    pub fn started(
        &mut self,
        now: Now,
        cell: CellId,
        result: Result<(), CellError>,
        out: &mut Vec<OwnerEffect>,
    ) {
        if self.former_started(cell, &result, out) {
            return;
        }
        if self.cell != Some(cell) {
            return trace!(self.context(), "ignores that a cell started: it was removed");
        }
        if self.is_following() {
            return self.stands(now, result.map(|()| None), out);
        }
        if self.phase != OwnerPhase::Restoring {
            return trace!(self.context(), "ignores that its cell started: it is {}", self.phase.name());
        }
        match result {
            Ok(()) => self.verify(now, out),
            Err(error) => self.not_restored(error, out),
        }
    }

    /// The answer to [`OwnerEffect::Restore`].
    pub fn restored(
        &mut self,
        now: Now,
        cell: CellId,
        result: Result<Box<Header>, CellError>,
        out: &mut Vec<OwnerEffect>,
    ) {
        match self.phase {
            _ if self.cell != Some(cell) => {
                trace!(self.context(), "ignores that a cell was restored: it was removed");
            }
            _ if self.is_following() => self.stands(now, result.map(Some), out),
            OwnerPhase::Promising if self.source.is_some() => self.early = Some(result),
            OwnerPhase::Restoring => self.stand_restored(now, result, out),
            _ => trace!(self.context(), "ignores that its cell was restored: it is {}", self.phase.name()),
        }
    }

    fn stand_restored(
        &mut self,
        now: Now,
        result: Result<Box<Header>, CellError>,
        out: &mut Vec<OwnerEffect>,
    ) {
        let header = match result {
            Ok(header) => header,
            Err(error) => return self.not_restored(error, out),
        };
        if header.session != self.session
            || header.log_offset != self.log.floor
            || header.ports.len() != self.sides.len()
        {
            return self.tampered("a checkpoint is of another session or position", out);
        }
        self.digest = Digest(header.head);
        self.log.cursor = Cursor { last_ns: header.last_ns };
        self.timers = super::Timers::restore(header.timers_set, &header.timers);
        self.tasks = super::Tasks::restore(&header.tasks, &header.locks);
        self.pauses = super::Pauses::restore(&header.paused);
        for (side, state) in self.sides.iter_mut().zip(header.ports) {
            side.restore(state);
        }
        self.restored_from(self.digest.tag());
        self.verify(now, out);
    }

    fn not_restored(&mut self, error: CellError, out: &mut Vec<OwnerEffect>) {
        // A missing cell does not end the session.
        if error.code.is_retryable() {
            self.step_down(error.code, error.reason, out);
        } else {
            self.terminate(error.code, error.reason, out);
        }
    }

    pub(super) fn tampered(&mut self, reason: &str, out: &mut Vec<OwnerEffect>) {
        self.terminate(Code::Tampered, reason.to_string(), out);
    }

    /// Checks the chosen log and the messages that it consumed, without running anything.
    fn verify(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        for side in &mut self.sides {
            // Messages that the checkpoint covers are not needed.
            let start = side.promised.as_ref().map_or(0, |promised| promised.sent_start);
            let Some(covered) = side.took.checked_sub(start) else {
                return self.tampered("an end does not have the messages that the log needs", out);
            };
            for _ in 0..covered {
                if side.inputs.pop_front().is_none() {
                    return self.tampered("an end does not have the messages that the log needs", out);
                }
            }
            side.inputs_charge =
                side.inputs.iter().map(|message| marram_wire::limits::charge(message.payload.len())).sum();
        }
        let seen = self.seen_behind(self.log.floor);
        let mut places = self.held_behind(self.log.floor);
        places.extend(seen);
        places.sort_unstable();
        let from = (self.log.floor, self.digest, self.log.cursor);
        let (digest, cursor) = match self.follow_through(from, [0; 2], &places) {
            Ok(end) => end,
            Err(LogMismatch::Missing) => {
                return self.tampered("an end does not have the messages that the log needs", out);
            }
            Err(LogMismatch::Unreadable | LogMismatch::Short) => {
                return self.tampered("the log cannot be decoded", out);
            }
            Err(LogMismatch::Altered(offset)) if offset < self.log.end() => {
                let reason = if seen.is_some_and(|(at, _)| at == offset) {
                    "the client's log is not the one that the witness has seen"
                } else {
                    "the logs of the ends belong to two histories"
                };
                return self.tampered(reason, out);
            }
            Err(LogMismatch::Altered(_)) => {
                return self.tampered("log or messages were altered: they do not match their digest", out);
            }
        };
        self.digest = digest;
        let whole = self.log.bytes.clone().freeze();
        self.enter(OwnerPhase::Replaying, "its cell stands and the log is verified");
        self.replay = Some(ReplayCursor::new(whole, self.log.cursor));
        self.log.cursor = cursor;
        self.replay_next(now, out);
    }

    pub(super) fn replay_next(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let (Some(mut course), Some(cell)) = (self.replay.take(), self.cell) else {
            return self.end_for_bug(bug!("a replay has a log and a cell", self.phase, self.cell), out);
        };
        match course.next_handler(|event| self.inputs_of(event)) {
            Err(_) if self.is_following() => self.cannot_follow("the log cannot be replayed", out),
            Err(LogReplayError::Unreadable) => self.tampered("the log cannot be decoded", out),
            Err(_) => self.tampered("the log consumes messages that do not exist", out),
            // More entries will follow.
            Ok(None) if self.waits_for_more() => self.replay = Some(course),
            Ok(None) => self.chosen(now, out),
            Ok(Some(Handler { input, now_ns, reads })) => {
                self.mark_busy();
                out.push(OwnerEffect::Run(Run { cell, input, now_ns, logged: Some(reads) }));
                self.replay = Some(course);
            }
        }
    }

    /// The handlers that an entry runs, in reverse order.
    fn inputs_of(&mut self, event: Event) -> Option<Vec<CellInput>> {
        Some(match event {
            Event::Message(port) => {
                let index = self.index(port);
                let message = self.sides[index].take_input()?;
                alloc::vec![input_of(port, message)]
            }
            Event::Timer => alloc::vec![self.timers.fire()?],
            Event::Task => alloc::vec![self.tasks.next()?],
            Event::Start { peers, .. } => self.opens(&peers),
        })
    }

    /// How the ends of a new session described their peers when they promised.
    pub(super) fn peers(&self) -> Peers {
        let promised = |port: Port| {
            let side = self.sides.iter().find(|side| side.port == port);
            side.and_then(|side| side.promised.as_ref())
        };
        let datagrams = |port: Port| promised(port).is_some_and(|promised| promised.datagrams);
        let origin = promised(Port::CLIENT).and_then(|promised| promised.origin.as_deref());
        Peers {
            server: self.sides.len() > 1,
            client_datagrams: datagrams(Port::CLIENT),
            server_datagrams: datagrams(Port::SERVER),
            client: Peer::new(origin, self.client_identity.as_deref()).map(Arc::new),
        }
    }

    /// The handlers that open the ports, in reverse order: they are taken from the end of the list, the client's first.
    pub(super) fn opens(&self, peers: &Peers) -> Vec<CellInput> {
        opens(self.sides.iter().map(|side| side.port), peers)
    }

    /// A handler finished in replay.
    pub(super) fn replayed(&mut self, now: Now, ran: Ran, out: &mut Vec<OwnerEffect>) {
        self.mark_idle();
        let Some(course) = &mut self.replay else {
            return trace!(self.context(), "ignores a handler that finished: nothing is replayed");
        };
        let now_ns = course.now_ns();
        if let RunOutcome::Stopped(CellStop::Trap(reason) | CellStop::Kill(reason)) = ran.outcome {
            if self.waits_for_more() {
                return self.cannot_follow(&reason, out);
            }
            return self.failed(4, alloc::format!("in replay: {reason}"), out);
        }
        let whole = match course.ran(ran.clock_read, &ran.reads) {
            Ok(whole) => whole,
            Err(lost) => {
                let what = match lost {
                    LogReplayError::Reads => "the handler read something else from the cache",
                    _ => "the handler read the clock",
                };
                let reason = alloc::format!("the replay diverged from the log: {what}");
                if self.waits_for_more() {
                    return self.cannot_follow(&reason, out);
                }
                return self.failed(4, reason, out);
            }
        };
        // A forbidden action ended the session when it was first done, so no log contains one.
        if let Err(reason) = self.apply(now_ns, &ran) {
            let reason = alloc::format!("in replay: {reason}");
            if self.waits_for_more() {
                return self.cannot_follow(&reason, out);
            }
            return self.failed(4, reason, out);
        }
        self.drop_received();
        self.checkpointer.spent(ran.cost_ns);
        if whole {
            self.totals.replayed += 1;
            self.end_entry();
            self.entry_replayed(out);
        }
        self.replay_next(now, out);
    }

    /// The cell has reached the end of the chosen log.
    fn chosen(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let resumed = self.sides.iter_mut().all(|side| {
            let (received, window) = side.promised.as_ref().map_or((0, 0), |p| (p.received, p.window));
            side.resume(received, window)
        });
        if !resumed && self.is_following() {
            return self.restart_from_ends(out);
        }
        self.finish_takeover();
        if !resumed {
            return self.tampered("an end has received outputs that the chosen log does not produce", out);
        }
        let logged_ns = self.log.cursor.last_ns;
        let session_ns = logged_ns.max(now.unix_ns);
        self.clock_offset_ns = session_ns.saturating_sub(i64::try_from(now.mono_ns).unwrap_or(i64::MAX));
        self.tell_chosen(now, out);
    }

    /// Sends every end the chosen log, then releases the waiting outputs.
    fn tell_chosen(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let end = self.log.end();
        self.make_room(out);
        let has_server = self.sides.len() > 1;
        for side in &mut self.sides {
            let Some(channel) = side.channel else { continue };
            let credit = side.begin_credit(self.pauses.stops(side.port, has_server));
            let has = side.promised.as_ref().map_or(0, |promised| promised.log_end);
            let mut offset = has.max(self.log.floor);
            let missing = self.log.since(offset);
            // 0 also if nothing is missing.
            let last = missing.chunks(PART_SIZE).count().saturating_sub(1);
            let mut tail = Bytes::new();
            for (index, part) in missing.chunks(PART_SIZE).enumerate() {
                let mut sealed = part.to_vec();
                self.seal.log(offset, &mut sealed);
                if index == last {
                    tail = sealed.into();
                    break;
                }
                let part = LogPart { channel, generation: self.generation, offset, bytes: sealed.into() };
                offset += PART_SIZE as u64;
                out.push(OwnerEffect::Send(side.port, part.into()));
            }
            let chosen = Chosen { channel, log_offset: offset, log: tail, tag: self.digest.tag(), credit };
            out.push(OwnerEffect::Send(side.port, chosen.into()));
            (side.known, side.known_tag) = (end, self.digest.tag());
            side.got_log = bytes::BytesMut::new();
        }
        self.enter(OwnerPhase::Running, "the ends are sent the chosen log");
        self.live = Some(self.generation);
        self.tell_covered(out);
        self.tell_ends_standby_again(out);
        self.begin(now, out);
    }
}

/// The cell's input for a message.
pub(super) fn input_of(port: Port, message: Message) -> CellInput {
    if message.close {
        CellInput::Close { port }
    } else {
        CellInput::Message { port, payload: message.payload }
    }
}
