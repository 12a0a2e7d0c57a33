//! Takeover. An owner that was a standby, or that a recorder helped, opens a generation as an owner with a live cell does. It
//! takes from the ends what follows the fed data, and continues; or it restarts from what the ends keep.

use super::{EndState, Log, Now, Owner, OwnerEffect, OwnerPhase, Replicas};
use crate::{cell::Seed, trace};
use alloc::{string::ToString, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::Code,
    log::{Cursor, Event},
    seal::Digest,
};

impl Owner {
    /// The fed data is useless: the ends are asked again, for everything that they keep.
    pub(super) fn restart_from_ends(&mut self, out: &mut Vec<OwnerEffect>) {
        trace!(self.context(), "opens again, from what the ends keep: what it was fed is useless");
        self.forget_fed(out);
        out.push(OwnerEffect::Reopen(self.generation.count));
    }

    pub(super) fn forget_fed(&mut self, out: &mut Vec<OwnerEffect>) {
        if let Some(follow) = self.follow.take() {
            self.seed = follow.own_seed;
            out.extend(follow.former.map(|former| OwnerEffect::Remove(former.cell)));
        }
        out.extend(self.cell.take().map(OwnerEffect::Remove));
        self.replay = None;
        self.live = None;
        self.log = Log::default();
        for side in &mut self.sides {
            side.reset();
            side.inputs.clear();
            side.inputs_charge = 0;
        }
    }

    /// The connection to the feeding owner or recorder is lost.
    pub fn feed_lost(&mut self, out: &mut Vec<OwnerEffect>) {
        let Some(follow) = &mut self.follow else { return };
        follow.channel = None;
        if let Some((meta, _)) = follow.arriving.take_if(|(meta, got)| *got < meta.size) {
            // An incomplete checkpoint: the cell is as it was before.
            if meta.full {
                out.extend(self.cell.take().map(OwnerEffect::Remove));
                let former = follow.former.take();
                self.cell = former.map(|former| former.cell);
                follow.standing = former.is_some_and(|former| former.standing);
            }
            follow.standing &= self.cell.is_some();
        }
        // A complete one: the cell is about to be restored from it.
        follow.standing &= follow.arriving.is_none();
        let recalls = follow.recalled.is_some() && !follow.standing;
        if recalls && (self.recalled_lacks() || !self.recalled_whole()) {
            match self.phase {
                OwnerPhase::Following => {
                    self.forget_fed(out);
                    self.step_down(Code::Waiting, "the recorder sent only a part".to_string(), out);
                }
                _ => self.restart_from_ends(out),
            }
        }
    }

    /// Whether a cell can run here, or will without further frames from the feed.
    pub(super) fn can_take_over(&self) -> bool {
        self.follow.as_ref().is_some_and(|follow| {
            let started = self.log.floor == 0 && self.log.end() > 0 && self.cell.is_some();
            let arrived = follow.arriving.as_ref().is_some_and(|(meta, got)| *got == meta.size);
            // A recorder that was fed nothing yet has nothing to start with.
            let recalled = follow.recalled.is_some() && self.recalled_whole() && self.log.end() > 0;
            follow.standing || recalled || arrived || (started && follow.arriving.is_none())
        })
    }

    /// A generation is about to be opened: a standby asks for promises as the owner of the fed cell.
    pub(super) fn begin_takeover(&mut self, out: &mut Vec<OwnerEffect>) {
        if self.phase != OwnerPhase::Following {
            return;
        }
        if let Some(follow) = &mut self.follow
            && follow.recalled.is_none()
        {
            follow.channel = None;
            self.feed_lost(out);
        }
        let begun = |owner: &mut Self, out: &mut Vec<OwnerEffect>| {
            owner.cell.is_some() || (owner.log.floor == 0 && owner.start_recalled(out))
        };
        if self.can_take_over() && begun(self, out) {
            self.live = Some(self.generation);
        } else {
            self.forget_fed(out);
        }
    }

    /// Starts the cell if the recorder has the whole log and no checkpoint. False if the log does not begin with a start entry.
    fn start_recalled(&mut self, out: &mut Vec<OwnerEffect>) -> bool {
        let first = Cursor::default().take(&mut self.log.bytes.clone().freeze());
        let Some(Event::Start { seed, .. }) = first.ok().map(|entry| entry.event) else { return false };
        self.seed = Seed(seed);
        self.digest = Digest::start(self.session);
        out.push(OwnerEffect::Start(self.image, self.seed));
        true
    }

    /// All ends have promised, and none has promised another owner since the fed generation: appends what they have after the
    /// fed log, and replays to its end. False if this is not possible.
    pub(super) fn take_over(&mut self, now: Now, out: &mut Vec<OwnerEffect>) -> bool {
        let promised = |side: &EndState| {
            side.promised.as_ref().filter(|it| it.live).map(|it| (it.log_start, it.log_end, it.tag))
        };
        let all_live = self.sides.iter().all(|side| promised(side).is_some());
        let Some(best) = self.longest().filter(|_| all_live) else { return false };
        // An end that lives goes on behind the messages that it was fed. With any other number, which a peer may claim, all messages
        // behind it would be out of order.
        if self.sides.iter().any(|side| side.next != side.fed_end()) {
            return false;
        }
        let Some((log_start, log_end, tag)) = promised(&self.sides[best]) else { return false };
        // This owner cannot send log that only some of the ends have.
        let covered = self.follow.as_ref().map_or(0, |follow| follow.covered);
        let lacks = |side: &EndState| promised(side).is_none_or(|(_, end, _)| end < self.log.floor);
        if self.log.floor > covered && self.sides.iter().any(lacks) {
            return false;
        }
        let mut behind = Bytes::new();
        if log_end > self.log.end() {
            if log_start != self.log.end() {
                return false;
            }
            behind = self.sides[best].got_log.clone().freeze();
        }
        if !self.reaches_what_was_seen(log_end.max(self.log.end()), out) {
            return true;
        }
        let recall = self.follow.as_ref().and_then(|follow| follow.recalled.as_ref());
        if recall.is_some_and(|recall| !self.ends_go_on_from(recall)) {
            return false;
        }
        let Some(follow) = &mut self.follow else { return false };
        follow.chosen = true;
        self.opened = true;
        let recalled = follow.recalled.is_some();
        if recalled {
            // All of a recorder's data must lead to what the ends know.
            follow.owed.push((log_end, tag));
            self.log.bytes.extend_from_slice(&behind);
        } else {
            let from = (self.log.end(), self.digest, self.log.cursor);
            // Each end's log from there on must be of this history, not only the longest one.
            let places = self.held_behind(self.log.end());
            let Some(fed) = self.fed_behind() else { return false };
            self.log.bytes.extend_from_slice(&behind);
            let Ok((digest, cursor)) = self.follow_through(from, fed, &places) else { return false };
            (self.digest, self.log.cursor) = (digest, cursor);
            if let Some(course) = &mut self.replay {
                course.extend(behind);
            }
        }
        self.enter(OwnerPhase::Restoring, "a log is chosen");
        self.begin_replay(now, out);
        true
    }

    /// How many messages of each end were fed and wait behind those that the cell consumed.
    fn fed_behind(&self) -> Option<[usize; 2]> {
        let mut fed = [0; 2];
        for (side, fed) in self.sides.iter().zip(&mut fed) {
            let behind = side.promised.as_ref()?.sent_start.checked_sub(side.took)?;
            *fed = usize::try_from(behind).ok()?;
        }
        Some(fed)
    }

    /// Replays the chosen log once the cell can run.
    pub(super) fn begin_replay(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let Some(follow) = &self.follow else { return };
        if follow.chosen && follow.standing && follow.recalled.is_some() && !self.recalled_holds() {
            return self.restart_from_ends(out);
        }
        if self.follow.as_ref().is_some_and(|follow| follow.chosen && follow.standing) {
            self.enter(OwnerPhase::Replaying, "its cell stands");
        }
        self.follow_on(now, out);
    }

    /// The session belongs to this owner now, and soon needs a checkpoint of its own.
    pub(super) fn finish_takeover(&mut self) {
        if let Some(follow) = self.follow.take() {
            self.checkpointer.restored(&[], false);
            if follow.covered > 0 {
                // An end that was disconnected at that time may have to delete the covered log before it has room for the rest.
                self.covered_before(follow.covered, follow.covered_tag);
            }
            self.checkpointer.request_full();
            self.replicas = Replicas::default();
        }
    }

    /// A standby's progress: the offset up to which it was fed the log, and whether it could take over now.
    #[must_use]
    pub fn standing_by(&self) -> Option<(u64, bool)> {
        self.follow.as_ref().map(|_| (self.log.end(), self.can_take_over()))
    }
}
