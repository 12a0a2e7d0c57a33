//! Protection of a session whose app has none, while the session moves (docs/protocol.md, "Moves").
//!
//! ```text
//! Off -> Wanted -> On ----------------------------------> Ending -> Off      at the edge that the session leaves, if it stays after all
//!        no handler runs: ProtectNow, Protected             a new generation, then ProtectNow, Protected, Unprotect
//!                                       Ending -> Off                        at the edge to which it moves, once it owns the session
//! ```
//! From `ProtectNow` on the ends keep messages and log, as they do for an app with `endpoints`. What came before is only here, and later at
//! the other edge: the ends promise another owner only if that one has it. Checkpoints go to the other edge alone.
//!
//! Protection must not end at one end while another edge may still get the promise of the other one. So it ends only after every end has
//! confirmed a log that was chosen since the other edge was fed: no end promises that edge any more.

use super::{
    KeeperId, Now, Owner, OwnerEffect, OwnerPhase,
    log::{Log, Position},
};
use alloc::vec::Vec;
use marram_wire::{
    frame::{Code, ProtectNow, Protected, Truncate, Unprotect},
    id::Generation,
    log::Cursor,
    seal::{Digest, LOG_OFFSET_MAX},
};

/// While protection ends, ends and owner forget the log whenever it has so many bytes: nothing needs it.
const FORGET_BYTES: u64 = 1 << 20;

/// How far the protection of a session is that has none of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Protection {
    /// Nothing is kept.
    #[default]
    Off,
    /// It begins as soon as no handler runs.
    Wanted,
    /// The ends keep messages and log, or were asked to.
    On,
    /// As `On`, and it ends as soon as that is safe.
    Ending,
}

/// A place in the session: what comes before need not be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) log_offset: u64,
    pub(super) tag: [u8; 8],
    /// Messages consumed, by port.
    pub(super) took: Vec<u64>,
}

impl Owner {
    /// The session is about to be moved. If its app has no protection, it gets some until [`Self::end_protection`], or until the other
    /// edge owns it.
    pub fn begin_protection(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if self.about.policy.keeps.anything() || self.about.policy.shared {
            return;
        }
        self.about.protection = match self.about.protection {
            Protection::Off | Protection::Wanted => Protection::Wanted,
            Protection::On | Protection::Ending => Protection::On,
        };
        // Another edge will be fed in this generation, even if an earlier protection ended in it.
        self.about.protected_in = Generation::NONE;
        self.protect_if_between(now, out);
    }

    /// The session stays here. No other edge is fed any more, but one that was may still ask the ends for their promise.
    pub fn end_protection(&mut self, out: &mut Vec<OwnerEffect>) {
        self.about.protection = match self.about.protection {
            Protection::Off | Protection::Wanted => Protection::Off,
            Protection::On | Protection::Ending => Protection::Ending,
        };
        self.open_to_end(out);
    }

    /// Begins the protection that is wanted, between two handlers: the log begins with whole entries.
    pub(super) fn protect_if_between(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let is_due = self.about.protection == Protection::Wanted
            && self.phase() == OwnerPhase::Running
            && self.state.is_opened
            && !self.runner.is_busy()
            && self.ends.are_all_linked();
        if !is_due {
            return;
        }
        // As if each message consumed so far had an entry of a byte; and no offset is used twice under one key.
        let offset = self.ends.took().iter().sum::<u64>().saturating_add(1).max(self.log.end());
        if offset >= LOG_OFFSET_MAX {
            return;
        }
        let last_ns = self.runner.session_ns(now, &self.log);
        let digest = Digest::start(self.about.session);
        self.log = Log::at(Position { offset, digest, cursor: Cursor { last_ns } });
        self.about.protection = Protection::On;
        for side in self.ends.iter_mut() {
            side.kept_from = None;
            side.uncovered = 0;
            (side.known, side.known_tag) = (offset, digest.tag());
        }
        self.ask_to_protect(out);
        self.checkpoint_if_due(out);
    }

    /// Whether every end has the log up to where a keeper begins. That one cannot give it to them: it could not take over. Asks the ends if
    /// it is not known, so that this can be tried again.
    pub(super) fn is_log_confirmed(&mut self, keeper: KeeperId, out: &mut Vec<OwnerEffect>) -> bool {
        let Some(begins_at) = self.replicas.begins_at(keeper) else { return false };
        if self.about.has_backup() {
            return true;
        }
        if self.ends.iter().all(|side| side.confirmed_log >= begins_at) {
            return true;
        }
        let can_ask = self.about.keeps() && self.ends.are_all_linked();
        if can_ask && self.ends.iter().all(|side| side.unanswered == 0) {
            (0..self.ends.len()).for_each(|index| self.send_log(index, out));
            self.ask_to_protect(out);
        }
        false
    }

    fn ask_to_protect(&mut self, out: &mut Vec<OwnerEffect>) {
        let (log_offset, tag) = (self.log.end(), self.log.tag());
        for side in self.ends.iter_mut().filter(|side| side.channel.is_some()) {
            (side.unanswered, side.asked_log) = (side.unanswered + 1, log_offset);
        }
        self.ends.send(|channel| ProtectNow { channel, log_offset, tag }.into(), out);
    }

    /// An end keeps the session, and has the log up to where it was asked.
    pub(super) fn protected(&mut self, index: usize, protected: &Protected, out: &mut Vec<OwnerEffect>) {
        let (keeps, keeps_always) = (self.about.keeps(), self.about.policy.keeps.anything());
        let side = &mut self.ends[index];
        let is_first = side.kept_from.is_none() && !keeps_always;
        // Frames of one channel are in order: the end has all that it was sent before, and this owner all that the end sent.
        let fits = protected.sent_start == side.next && protected.received == side.acknowledged();
        let unanswered = side.unanswered.checked_sub(1);
        if !keeps || unanswered.is_none() || (is_first && !fits) {
            let reason = "an end does not keep what it was asked to keep".into();
            return self.terminate(Code::Protocol, reason, out);
        }
        if is_first {
            side.kept_from = Some(protected.sent_start);
        }
        side.unanswered = unanswered.unwrap_or(0);
        if side.unanswered == 0 {
            side.confirmed_log = side.asked_log;
        }
        self.open_to_end(out);
        self.end_if_confirmed(out);
    }

    /// Whether the ends have all that is not here: messages that they sent before they kept any are consumed.
    pub(super) fn is_covered(&self) -> bool {
        self.about.is_protected_for_now()
            && self.ends.iter().all(|side| side.kept_from.is_some_and(|from| side.took >= from))
    }

    /// Whether the other edge can go on, which has nothing else to go back to: it is fed all that the ends do not keep, and each of them
    /// has the log that it begins with. What a handler that runs has consumed was not fed yet.
    pub(super) fn can_hand_over_for_good(&self) -> bool {
        self.is_covered() && !self.runner.is_busy() && self.ends.iter().all(|side| side.unanswered == 0)
    }

    /// Whether the session goes on if an end is disconnected.
    pub(super) fn outlives_links(&self) -> bool {
        self.about.policy.keeps.anything()
            || self.is_covered()
            || (self.follow.is_some() && self.about.keeps())
    }

    /// Opens a generation, if protection is to end: the ends then promise no edge any more that was fed in an older one.
    pub(super) fn open_to_end(&mut self, out: &mut Vec<OwnerEffect>) {
        let is_due = self.about.protection == Protection::Ending
            && self.about.protected_in != self.about.generation()
            && self.phase() == OwnerPhase::Running;
        if is_due && self.is_covered() {
            out.push(OwnerEffect::Reopen(self.about.generation().count));
        } else if is_due && self.log.size() >= FORGET_BYTES {
            let (log_offset, tag, took) = (self.log.end(), self.log.tag(), self.ends.took());
            self.forget_before(&Place { log_offset, tag, took }, out);
        }
    }

    /// The ends are sent the chosen log. If protection is to end, they confirm that they have it.
    pub(super) fn confirm_to_end(&mut self, out: &mut Vec<OwnerEffect>) {
        if self.about.protection == Protection::Ending {
            self.about.protected_in = self.about.generation();
            self.ask_to_protect(out);
        }
    }

    /// Every end has the log that was chosen since: protection ends.
    fn end_if_confirmed(&mut self, out: &mut Vec<OwnerEffect>) {
        let is_due = self.about.protection == Protection::Ending
            && self.about.protected_in == self.about.generation()
            && self.phase() == OwnerPhase::Running;
        if !is_due || !self.ends.iter().all(|side| side.unanswered == 0 && side.channel.is_some()) {
            return;
        }
        self.about.protection = Protection::Off;
        self.checkpointer.abandon();
        self.log.truncate(self.log.end());
        self.ends.send(|channel| Unprotect { channel }.into(), out);
        for side in self.ends.iter_mut() {
            // What was sent arrives, or the session ends with its connection.
            side.acknowledge(side.sent as u64);
            side.kept_from = None;
        }
        self.release(out);
    }

    /// A keeper has confirmed what it was fed. The ends need not keep it any more: if this edge dies, that one goes on.
    pub(super) fn confirmed(&mut self, out: &mut Vec<OwnerEffect>) {
        let place = self.replicas.take_confirmed().filter(|_| self.about.is_protected_for_now());
        if let Some(place) = place.filter(|_| self.phase() == OwnerPhase::Running && self.is_covered()) {
            self.forget_before(&place, out);
        }
    }

    /// Ends, keepers and this owner forget what comes before this place, where all ends are linked.
    fn forget_before(&mut self, place: &Place, out: &mut Vec<OwnerEffect>) {
        if !self.ends.are_all_linked() || place.log_offset <= self.log.floor() {
            return;
        }
        for index in 0..self.ends.len() {
            self.send_log(index, out);
            let Some(channel) = self.ends[index].channel else { continue };
            let port = self.ends[index].port;
            let (log_offset, tag) = (place.log_offset, place.tag);
            let sent = place.took.get(index).copied().unwrap_or(0);
            out.push(OwnerEffect::Send(port, Truncate { channel, log_offset, tag, sent }.into()));
        }
        self.log.truncate(place.log_offset);
        self.replicas.feed_covered(place.log_offset, place.tag, &self.ends, out);
    }
}
