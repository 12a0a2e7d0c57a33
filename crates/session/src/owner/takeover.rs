//! Takeover. An owner that was a standby, or that a recorder helped, opens a generation as an owner with a live cell
//! does. It takes from the ends what follows the fed data, and continues; or it restarts from what the ends keep.

use super::{
    Now, Owner, OwnerEffect, OwnerPhase, end_state::EndState, log::Log, phase::Phase, replicas::Replicas,
};
use crate::{cell::Seed, trace};
use alloc::{boxed::Box, string::ToString, vec::Vec};
use bytes::Bytes;
use marram_wire::{frame::Code, log::Cursor, seal::Digest};

#[cfg(test)]
mod tests;

/// How long after a takeover its first checkpoint is due, in nanoseconds. Until then ends keep what the owner before had not covered, of which this
/// one does not know how much it is. Some stop reading when that is too much, so it is a short time.
const FIRST_CHECKPOINT_NS: u64 = 50_000_000;

impl Owner {
    /// The fed data is useless: the ends are asked again, for everything that they keep.
    pub(super) fn restart_from_ends(&mut self, why: &str, out: &mut Vec<OwnerEffect>) {
        if self.about.has_backup() {
            return self.step_down(
                Code::Waiting,
                alloc::format!("what this edge was fed is useless: {why}"),
                out,
            );
        }
        trace!(self.context(), "opens again, from what the ends keep: what it was fed is useless: {why}");
        self.forget_fed(out);
        out.push(OwnerEffect::Reopen(self.about.generation().count));
    }

    /// From here on this owner is as one that was fed nothing.
    fn forget_fed(&mut self, out: &mut Vec<OwnerEffect>) {
        if let Some(follow) = self.follow.take() {
            self.state.seed = follow.forget(out);
        }
        self.remove_cell(out);
        self.live = None;
        self.runner.forget_carried_clock();
        self.log = Log::new(self.about.session);
        for side in self.ends.iter_mut() {
            side.reset();
            side.inputs.clear();
            side.inputs_charge = 0;
        }
    }

    /// The connection to the feeding owner or recorder is lost.
    pub fn feed_lost(&mut self, out: &mut Vec<OwnerEffect>) {
        let Some(follow) = &mut self.follow else { return };
        follow.feed_lost(&mut self.cell, out);
        // A recorder's cell stands only when it sent all: a part of its data is of no use.
        let is_standing = follow.is_standing();
        let is_short =
            |it: &super::recall::Recall| it.lacks_checkpoints() || !it.is_whole(&self.log, &self.ends);
        if is_standing || !follow.recall().is_some_and(is_short) {
            return;
        }
        if self.phase() != OwnerPhase::Following {
            return self.restart_from_ends("the recorder sent only a part", out);
        }
        self.forget_fed(out);
        self.step_down(Code::Waiting, "the recorder sent only a part".to_string(), out);
    }

    /// A generation is about to be opened: a standby asks for promises as the owner of the fed cell.
    pub(super) fn begin_takeover(&mut self, out: &mut Vec<OwnerEffect>) {
        if self.phase() != OwnerPhase::Following {
            return;
        }
        if let Some(follow) = &mut self.follow
            && follow.recall().is_none()
        {
            follow.detach();
            self.feed_lost(out);
        }
        let has_cell = self.cell.is_some();
        let can = |it: &super::follow::Follow| it.can_take_over(has_cell, &self.log, &self.ends);
        let can_take_over = self.follow.as_ref().is_some_and(|follow| can(follow));
        if !can_take_over {
            return self.forget_fed(out);
        }
        if !has_cell {
            // The recorder has the whole log and no checkpoint: the cell starts as the log does.
            let Some(seed) = self.log.start_seed().filter(|_| self.log.floor() == 0) else {
                return self.forget_fed(out);
            };
            self.state.seed = Seed(seed);
            self.log.verify_from(Digest::start(self.about.session), Cursor::default());
            out.push(OwnerEffect::Start(self.about.image, self.state.seed));
        }
        self.live = Some(self.about.generation());
    }

    /// All ends have promised, and none has promised another owner since the fed generation: appends what they have
    /// after the fed log, and replays to its end. An error if this is not possible.
    pub(super) fn take_over(&mut self, now: Now, out: &mut Vec<OwnerEffect>) -> Result<(), &'static str> {
        let promised = |side: &EndState| {
            side.promised.as_ref().filter(|it| it.live).map(|it| (it.log_start, it.log_end, it.tag))
        };
        let all_live = self.ends.lasting().all(|side| promised(side).is_some());
        if !all_live {
            return Err("an end promised another one since");
        }
        let best = self.ends.longest();
        // An end that lives goes on behind the messages that it was fed. With any other number, which a peer may claim,
        // all messages behind it would be out of order.
        if self.ends.lasting().any(|side| side.next != side.fed_end()) {
            return Err("an end does not continue the messages that were fed");
        }
        // A shared cell goes on with what it was fed.
        let own = (self.log.floor(), self.log.end(), self.log.tag());
        let longest = best.map_or(Some(own), |best| promised(&self.ends[best]));
        let (log_start, log_end, tag) = longest.ok_or("no end has promised")?;
        // This owner cannot send log that only some of the ends have.
        let covered = self.follow.as_ref().map_or(0, |follow| follow.covered().0);
        let lacks = |side: &EndState| promised(side).is_none_or(|(_, end, _)| end < self.log.floor());
        if self.about.keeps_log() && self.log.floor() > covered && self.ends.iter().any(lacks) {
            return Err("an end lacks log that no checkpoint covers");
        }
        let mut behind = Bytes::new();
        if log_end > self.log.end() {
            let Phase::Promising(opening) = &self.phase else { return Err("no promises are awaited") };
            if log_start != self.log.end() {
                return Err("the log of the ends does not continue what was fed");
            }
            let best = best.ok_or("no end has promised")?;
            behind = opening.log(best).clone().freeze();
        }
        if let Some(reason) = self.witness.refuses(log_end.max(self.log.end())) {
            self.terminate(Code::Tampered, reason, out);
            return Ok(());
        }
        let follow = self.follow.as_mut().ok_or("it was fed nothing")?;
        let recalled = follow.recall().is_some();
        if follow.recall().is_some_and(|recall| !recall.is_continued_by(&self.ends)) {
            return Err("the ends do not continue the recorder's messages");
        }
        // All of a recorder's data must lead to what the ends know.
        follow.choose((log_end, tag));
        self.state.is_opened = true;
        if recalled {
            self.log.append_unverified(&behind);
        } else if !self.ends.decide_nothing() {
            if !self.log.append_verified(&self.about, &self.ends, &behind) {
                return Err("the log of the ends does not verify");
            }
            if let Some(cursor) = follow.replay() {
                cursor.extend(behind);
            }
        }
        self.enter(Phase::Restoring, "a log is chosen");
        self.begin_replay(now, out);
        Ok(())
    }

    /// Replays the chosen log once the cell can run.
    pub(super) fn begin_replay(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let Some(follow) = &mut self.follow else { return };
        if follow.can_finish()
            && let Some((recall, mut owed)) = follow.take_recall()
        {
            let base = follow.base();
            owed.extend(self.witness.seen_behind(base.offset));
            if !recall.holds(&self.about, base, owed, &mut self.log, &self.ends) {
                return self.restart_from_ends("the recorder's data does not verify", out);
            }
        }
        if let Some(follow) = self.follow.as_mut().filter(|follow| follow.can_finish())
            && !matches!(self.phase, Phase::Replaying(_))
        {
            follow.begin_replay(&self.log);
            if let Some(cursor) = follow.take_replay() {
                self.enter(Phase::Replaying(Box::new(cursor)), "its cell stands");
            }
        }
        self.follow_on(now, out);
    }

    /// The session belongs to this owner now, and soon needs a checkpoint of its own: not while its client waits for this edge.
    pub(super) fn finish_takeover(&mut self, now: Now) {
        if let Some(follow) = self.follow.take() {
            self.checkpointer.look_ns = Some(now.mono_ns.saturating_add(FIRST_CHECKPOINT_NS));
            self.checkpointer.took_over(follow.restored(), &self.about.policy, &self.ends);
            let (offset, tag) = follow.covered();
            if offset > 0 {
                // An end that was disconnected at that time may have to delete the covered log before it has room for
                // the rest.
                self.checkpointer.covered_before(offset, tag, &self.ends);
            }
            self.replicas = Replicas::default();
        }
    }

    /// The session's group is claimed by this edge, which was its backup: it has all that the former primary's outputs had to wait for. An end
    /// with more, whose owner ran ahead, promises it all the same.
    pub fn has_claimed(&mut self) {
        self.epochs.claimed_here();
    }

    /// This edge goes on with a session that it is fed: it takes the session over as soon as all of that is replayed.
    pub fn promote(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if let Some(follow) = &mut self.follow {
            follow.promote(&mut self.cell, out);
            self.follow_on(now, out);
        }
    }

    /// Whether a standby has replayed all that it was fed.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        self.follow.as_ref().is_some_and(|follow| follow.is_caught_up())
    }

    /// A standby's progress: the offset up to which it was fed the log, and whether it could take over now.
    #[must_use]
    pub fn standing_by(&self) -> Option<(u64, bool)> {
        let follow = self.follow.as_ref()?;
        let can_take_over = follow.can_take_over(self.cell.is_some(), &self.log, &self.ends);
        Some((self.log.end(), can_take_over))
    }
}
