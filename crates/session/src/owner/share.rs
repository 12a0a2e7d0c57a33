//! What an owner may keep at the moment: its share of the memory of its shard. It grows and shrinks with what the other
//! sessions of the shard keep; an owner alone has the largest one (docs/protocol.md, "A shard's memory").
//!
//! A small share slows a session down and never stops it: an end gets less credit, a checkpoint is due earlier, and the
//! cell rests while an end has not acknowledged as many outputs. Whatever the share is, the cell runs once all outputs
//! are acknowledged, and an end has credit once all of its messages are consumed.

use super::{Owner, OwnerEffect, OwnerPhase, ends::OUTBOX_MAX, sides::Chore};
use crate::{end::Share, trace};
use alloc::vec::Vec;
use marram_wire::limits::{INPUT_WINDOW, INPUT_WINDOW_MIN};

/// How much one owner may keep, in bytes of charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnerShare {
    outbox: u64,
    window: u64,
    allowance: u64,
}

impl OwnerShare {
    /// A share of the shard's memory as it is now, for a session of which each end may have `window` bytes in flight, however
    /// little of the memory is in use: credit that was granted cannot be taken back.
    #[must_use]
    pub fn of(share: Share, window: u64) -> Self {
        Self {
            outbox: share.room().min(OUTBOX_MAX),
            window: share.room().min(window).clamp(INPUT_WINDOW_MIN, INPUT_WINDOW),
            allowance: share.allowance(),
        }
    }

    /// The share of an owner that is alone.
    #[must_use]
    pub fn largest() -> Self {
        Self::of(Share::of(u64::MAX), u64::MAX)
    }

    /// The cell rests while more outputs than this wait for an end's acknowledgement.
    pub(super) fn outbox(self) -> u64 {
        self.outbox
    }

    /// What an end may have in flight.
    pub(super) fn window(self) -> u64 {
        self.window
    }

    /// How much of the log, or of an end's messages, may be uncovered before a checkpoint is due.
    pub(super) fn allowance(self) -> u64 {
        self.allowance
    }
}

impl Owner {
    /// Sets how much the session may keep here: it counts from the owner's next step on.
    pub fn share(&mut self, share: OwnerShare) {
        if self.ends.share.window != share.window {
            self.ends.all_changed(Chore::Grant);
        }
        self.ends.share = share;
    }

    /// The share became smaller, and nothing else happens to this session: it takes a checkpoint if one is due now.
    pub fn check_share(&mut self, out: &mut Vec<OwnerEffect>) {
        if self.phase() == OwnerPhase::Running {
            trace!(self.context(), "looks at its share of the shard's memory");
            self.checkpoint_if_due(out);
        }
    }

    /// Whether the cell rests only because the shard's memory is used up.
    #[must_use]
    pub fn is_slowed(&self) -> bool {
        let share = self.ends.share;
        let rests = |charge: u64| charge > share.outbox && charge <= OUTBOX_MAX;
        let rests = self.ends.iter().any(|side| rests(side.outbox_charge));
        self.phase() == OwnerPhase::Running && rests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::limits::{CHECKPOINT_AFTER_BYTES, RETAINED_MIN};

    #[test]
    fn a_share_is_within_what_the_protocol_allows() {
        let largest = OwnerShare::largest();
        assert_eq!((largest.outbox, largest.window), (OUTBOX_MAX, INPUT_WINDOW));
        assert_eq!(largest.allowance, CHECKPOINT_AFTER_BYTES);
        let least = OwnerShare::of(Share::of(0), 0);
        assert_eq!((least.outbox, least.window), (RETAINED_MIN, INPUT_WINDOW_MIN));
        let crowded = OwnerShare::of(Share::of(u64::MAX), 100_000);
        assert_eq!((crowded.outbox, crowded.window), (OUTBOX_MAX, 100_000));
    }
}
