//! Chooses the log, rebuilds the cell from it, and informs the ends (docs/protocol.md, "Choosing the log and rebuilding
//! the cell").
//!
//! Nothing is trusted: the chosen log, with the messages that it consumed, must give the running digest that came with
//! it. This is verified before any of it runs.

use super::{Now, Owner, OwnerEffect, OwnerPhase, end_state::EndState, log::LogMismatch, phase::Phase};
use crate::bug;
use crate::cell::{CellError, CellId, Seed};
use crate::replay::{Consumed, ReplayCursor};
use crate::trace;
use alloc::{boxed::Box, vec::Vec};
use bytes::{Bytes, BytesMut};
use marram_wire::{frame::Code, header::Header, id::Generation, log::Cursor, seal::Digest};

impl Owner {
    /// All ends have promised and sent what they keep.
    pub(super) fn choose(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if let Some(live) = self.live.take() {
            return self.continue_live(now, live, out);
        }
        // Every output that an end received depends on log that this end has. So the longest log has what all received
        // outputs depend on, and nothing that follows it was seen by an end.
        let best = self.ends.longest();
        if best.is_none() && !self.about.is_shared_cell() {
            return self.end_for_bug(bug!("an owner has at least one side", self.about.session), out);
        }
        let promised = best.and_then(|best| self.ends[best].promised.as_ref());
        let (start, log_end) = promised.map_or((0, 0), |promised| (promised.log_start, promised.log_end));
        if let Some(reason) = self.witness.refuses(log_end) {
            return self.terminate(Code::Tampered, reason, out);
        }
        let Phase::Promising(opening) = &mut self.phase else {
            let bug = bug!("a log is chosen while promises are collected", self.about.session);
            return self.end_for_bug(bug, out);
        };
        let (source, early) = (opening.source(), opening.take_early());
        let checkpoints = source.map_or(Vec::new(), |at| self.ends[at].announced().to_vec());
        let base = checkpoints.last().map_or(0, |checkpoint| checkpoint.log_offset);
        // A shared cell that has no log here begins: its group's claim has shown that no other edge has one.
        let mut bytes = best.map_or_else(BytesMut::new, |best| opening.log(best).clone());
        // `Opening::gather` has refused a log that begins behind its checkpoint, or ends before it.
        let covered = base.checked_sub(start).and_then(|covered| usize::try_from(covered).ok());
        let Some(covered) = covered.filter(|covered| *covered <= bytes.len()) else {
            let bug = bug!("the chosen log reaches from its checkpoint on", base, start, bytes.len());
            return self.end_for_bug(bug, out);
        };
        // From here on everything is as at the base; what an earlier attempt left is overwritten.
        self.log.choose(self.about.session, base, bytes.split_off(covered));
        self.state.is_opened = self.log.end() > 0;
        if self.state.is_opened {
            // One end was told nothing and called the session new, so that keepers began with it: another end has log of it.
            self.replicas.drop_begun(self.about.context(), out);
        }
        self.state.reset();
        self.ends.iter_mut().for_each(EndState::reset);
        self.enter(Phase::Restoring, "a log is chosen");
        self.checkpointer.restored(&checkpoints, &self.about.policy, &self.ends);
        if source.is_some() {
            // The executor has all parts by now. It may have answered before the other end's log was complete.
            if let Some(result) = early {
                self.stand_restored(now, result, out);
            }
            return;
        }
        // A session that has begun has the seed of its cell in its log, and every owner must use that one.
        if self.log.size() > 0 {
            match self.log.start_seed() {
                Some(seed) => self.state.seed = Seed(seed),
                None => return self.tampered("the log does not begin with a start", out),
            }
        }
        out.push(OwnerEffect::Start(self.about.image, self.state.seed));
    }

    /// All ends have promised, and this owner has a cell that lives, or was fed: continues with it, or opens again
    /// without it.
    fn continue_live(&mut self, now: Now, live: Generation, out: &mut Vec<OwnerEffect>) {
        if self.about.has_backup() {
            // Until the ends are told of this generation, another attempt goes on from the last one: nothing else has the session.
            self.live = Some(live);
        }
        // A standby is fed with a delay: its owner, which the ends believe, may have had more log (I31).
        let log_end = self.follow.is_none().then(|| self.log.end());
        let overtaken = self.witness.was_overtaken(live, log_end);
        if self.follow.is_some() {
            let taken = if overtaken { Err("its witness saw more log") } else { self.take_over(now, out) };
            return taken.err().into_iter().for_each(|why| self.restart_from_ends(why, out));
        }
        if !overtaken && self.ends.resume_live(self.log.end()) {
            let is_held = self.checkpointer.resume(&mut self.ends);
            self.tell_chosen(now, out);
            return self.continue_checkpoint(is_held, out);
        }
        self.replicas.drop_all(self.about.context(), out);
        if self.about.has_backup() {
            let reason = "an end does not go on where it stood, and keeps too little to begin again";
            return self.terminate(Code::Protocol, reason.into(), out);
        }
        // Another generation may have been chosen meanwhile: only what the ends keep is valid.
        trace!(self.context(), "opens again: its live cell may have been overtaken");
        self.remove_cell(out);
        self.runner.drop_running();
        out.push(OwnerEffect::Reopen(self.about.generation().count));
    }

    /// The answer to [`OwnerEffect::Start`].
    pub fn started(
        &mut self,
        now: Now,
        cell: CellId,
        result: Result<(), CellError>,
        out: &mut Vec<OwnerEffect>,
    ) {
        if let Some(former) = self.follow.as_mut().and_then(|follow| follow.former_started(cell, &result)) {
            return former.unwrap_or_else(|why| self.fail_standby(why, out));
        }
        if self.cell != Some(cell) {
            return trace!(self.context(), "ignores that a cell started: it was removed");
        }
        if self.follow.is_some() {
            return self.stands(now, result.map(|()| None), out);
        }
        if self.runner.rebuild.is_some() {
            return self.rebuild_stands(now, result.map(|()| None), out);
        }
        if self.phase() != OwnerPhase::Restoring {
            return trace!(self.context(), "ignores that its cell started: it is {}", self.phase().name());
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
        if self.cell != Some(cell) {
            return trace!(self.context(), "ignores that a cell was restored: it was removed");
        }
        if self.follow.is_some() {
            return self.stands(now, result.map(Some), out);
        }
        if self.runner.rebuild.is_some() {
            return self.rebuild_stands(now, result.map(Some), out);
        }
        match &mut self.phase {
            Phase::Promising(opening) if opening.source().is_some() => opening.restored(result),
            Phase::Restoring => self.stand_restored(now, result, out),
            _ => trace!(self.context(), "ignores that its cell was restored: it is {}", self.phase().name()),
        }
    }

    /// The cell stands as at the base. Its header has the rest of the state.
    fn stand_restored(
        &mut self,
        now: Now,
        result: Result<Box<Header>, CellError>,
        out: &mut Vec<OwnerEffect>,
    ) {
        let mut header = match result {
            Ok(header) => header,
            Err(error) => return self.not_restored(error, out),
        };
        // An end chooses which of the session's checkpoints it sends as the announced one.
        if header.session != self.about.session || header.log_offset != self.log.floor() {
            return self.tampered("a checkpoint is of another session or position", out);
        }
        if !self.ends.are_in(&header) || !self.ends.restore_clients(&mut header) {
            return self.tampered("a checkpoint has other ports than the session", out);
        }
        self.log.verify_from(Digest(header.head), Cursor { last_ns: header.last_ns });
        self.state.restore(&header);
        for (side, state) in self.ends.iter_mut().zip(header.ports) {
            side.restore(state);
        }
        self.checkpointer.restored_from(&self.log, &self.ends);
        self.verify(now, out);
    }

    /// This machine cannot have the cell, or no machine can.
    fn not_restored(&mut self, error: CellError, out: &mut Vec<OwnerEffect>) {
        // A missing image or slot does not end the session: another edge may have it.
        if error.code.is_retryable() {
            self.step_down(error.code, error.reason, out);
        } else {
            self.terminate(error.code, error.reason, out);
        }
    }

    /// Checks the chosen log and the messages that it consumed, without running anything (I21). A client's end that
    /// hides log from one owner and shows it to the next could otherwise have a log of another history chosen, so each
    /// end's position counts.
    fn verify(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if !self.ends.iter_mut().all(EndState::drop_covered) {
            return self.tampered("an end does not have the messages that the log needs", out);
        }
        let from = self.log.unverified_start();
        let seen = self.witness.seen_behind(from.offset);
        let mut places = self.ends.held_behind(from.offset, self.about.keeps_checkpoints());
        places.extend(seen);
        places.sort_unstable();
        let followed =
            self.log.follow_through(&self.about.keys, &self.ends, from, Consumed::default(), &places);
        let reason = match followed {
            Ok(end) => {
                let whole = Bytes::copy_from_slice(self.log.since(from.offset));
                self.log.prove(end);
                let cursor = Box::new(ReplayCursor::new(whole, from.cursor));
                self.enter(Phase::Replaying(cursor), "its cell stands and the log is verified");
                return self.replay_next(now, out);
            }
            Err(LogMismatch::Missing) => "an end does not have the messages that the log needs",
            Err(LogMismatch::Unreadable | LogMismatch::Short) => "the log cannot be decoded",
            Err(LogMismatch::Altered(offset)) if offset >= self.log.end() => {
                "log or messages were altered: they do not match their digest"
            }
            Err(LogMismatch::Altered(offset)) if seen.is_some_and(|(at, _)| at == offset) => {
                "the client's log is not the one that the witness has seen"
            }
            Err(LogMismatch::Altered(_)) => "the logs of the ends belong to two histories",
        };
        self.tampered(reason, out);
    }

    /// The cell has reached the end of the chosen log. What the ends have received of it is dropped, and the rest is
    /// sent again (I14).
    pub(super) fn chosen(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        // Clients of a shared cell say later what they have received.
        let mut ends = self.ends.iter_mut().filter(|side| side.client.is_none());
        let resumed = ends.all(|side| {
            let (received, window) = side.promised.as_ref().map_or((0, 0), |p| (p.received, p.window));
            side.resume(received, window)
        });
        // What was fed may be wrong: only a replay of what the ends keep shows that an end is.
        if !resumed && self.follow.is_some() {
            return self.restart_from_ends("an end has received outputs that it does not produce", out);
        }
        self.finish_takeover(now);
        if !resumed {
            return self.tampered("an end has received outputs that the chosen log does not produce", out);
        }
        self.runner.set_clock(now, self.log.last_ns());
        self.stands_at_end();
        self.tell_chosen(now, out);
    }

    /// Sends every end the chosen log, then releases the waiting outputs, in this order **\[M\]** (I12): if this owner
    /// is lost now, the next one finds the log on which the outputs depend.
    pub(super) fn tell_chosen(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if self.awaits_backup() {
            self.enter(Phase::Confirming, "its backup must confirm this generation");
            self.epoch_is_due(out);
            return self.checkpoint_if_due(out);
        }
        self.checkpointer.make_room(&self.ends, &self.log, out);
        let generation = (self.about.generation(), self.about.seal());
        let told = (self.runner.session_ns(now, &self.log), self.epochs.runs_ahead());
        let log = (&self.log, self.about.keeps_log());
        self.ends.send_chosen(generation, told, log, self.state.pauses(), out);
        self.enter(Phase::Running, "the ends are sent the chosen log");
        self.live = Some(self.about.generation());
        self.checkpointer.tell_covered(&mut self.ends, out);
        if self.about.has_backup() {
            self.forget_kept(out);
        }
        self.confirm_to_end(out);
        self.replicas.tell_standby_again(&self.ends, out);
        self.ask_all_ports(out);
        self.ask_servers(now, out);
        self.begin_rebuild(out);
        if self.state.is_opened {
            if self.keep.as_ref().is_some_and(|keep| !keep.has_base()) {
                // What its clients do next may stop it.
                self.checkpoint_if_due(out);
            }
            self.release(out);
            // The ends waited without an owner: the next message goes before a checkpoint.
            self.pump(now, out);
            // Ends with full buffers have stopped reading: only a checkpoint makes room again.
            return self.checkpoint_if_due(out);
        }
        self.keep.iter_mut().for_each(|keep| keep.begin());
        self.runner.start(now, &self.ends, &self.log, &mut self.state);
        if !self.run_or_log(now, out) {
            self.pump(now, out);
        }
    }
}
