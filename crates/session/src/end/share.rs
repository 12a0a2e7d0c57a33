//! What an end may keep at the moment: its share of the memory of its agent. It grows and shrinks with what the other
//! sessions of the agent keep ([`crate::agent`]); an end alone has the largest one.

use super::{End, EndEffect, EndPhase};
use alloc::vec::Vec;
use marram_wire::{
    frame::Allowance,
    limits::{
        ALLOWANCE_MIN, CHECKPOINT_AFTER_BYTES, OUTPUT_WINDOW, OUTPUT_WINDOW_MIN, RETAINED_MAX, RETAINED_MIN,
        STREAM_CUT, charge,
    },
};

/// How much one end may keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    room: u64,
    allowance: u64,
}

impl Share {
    /// A share of so many bytes. Every end has the least one, so that every session goes on.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        let room = bytes.clamp(RETAINED_MIN, RETAINED_MAX);
        // An end that has stopped reading keeps more messages than the allowance. So a checkpoint is due once all of
        // them are consumed, and it makes room again.
        let largest = (room / 4).min(room - charge(STREAM_CUT)).min(CHECKPOINT_AFTER_BYTES);
        Self { room, allowance: (1 << largest.ilog2()).max(ALLOWANCE_MIN) }
    }

    /// Charge of its own messages that the end keeps before it stops reading from its program.
    #[must_use]
    pub fn room(self) -> u64 {
        self.room
    }

    /// How much of its messages, or of the log, may be uncovered before a checkpoint is due: a power of two, so that it
    /// seldom changes.
    #[must_use]
    pub fn allowance(self) -> u64 {
        self.allowance
    }
}

/// An allowance grows only by this factor, so that one which goes up and down is not reported each time.
const GROWS_BY: u64 = 4;

impl End {
    /// Sets how much the end may keep: its share of the agent's memory, and how much of outputs each end may be sent before its program takes
    /// them, however little of the memory is in use, since credit that was granted cannot be taken back. A smaller window of outputs holds
    /// from the next promise or grant on.
    pub fn limit(&mut self, share: Share, window: u64) {
        self.room = share.room;
        self.window = share.room.min(window).clamp(OUTPUT_WINDOW_MIN, OUTPUT_WINDOW);
    }

    /// The same. The owner is informed of a smaller allowance if the end keeps as much, and of a much larger one.
    pub fn allow(&mut self, share: Share, window: u64, out: &mut Vec<EndEffect>) {
        self.limit(share, window);
        if self.phase != EndPhase::Owned || !self.terms.as_ref().is_some_and(|terms| terms.keeps.anything()) {
            return;
        }
        let is_less = share.allowance < self.allowance && self.is_over(share);
        let is_more = share.allowance / GROWS_BY >= self.allowance;
        if is_less || is_more {
            self.allowance = share.allowance;
            let (channel, bytes) = (self.channel, share.allowance);
            out.push(EndEffect::Send(Allowance { channel, bytes }.into()));
        }
    }

    /// Whether the end has room for one more read, with this share.
    #[must_use]
    pub fn is_readable_with(&self, share: Share) -> bool {
        self.sent.charge() + charge(STREAM_CUT) <= share.room
    }

    /// Whether the end would read from its program if its share were the largest one.
    #[must_use]
    pub fn is_slowed(&self) -> bool {
        !self.readable() && self.sent.charge() + charge(STREAM_CUT) <= RETAINED_MAX
    }

    /// Whether the end keeps so much that a smaller allowance matters.
    #[must_use]
    pub fn is_over(&self, share: Share) -> bool {
        self.sent.charge().max(self.log.size()) >= share.allowance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_has_stopped_reading_keeps_more_than_its_allowance() {
        for bytes in (0..2 * RETAINED_MAX).step_by(1_000) {
            let Share { room, allowance } = Share::of(bytes);
            assert!((RETAINED_MIN..=RETAINED_MAX).contains(&room), "{bytes}");
            assert!((ALLOWANCE_MIN..=CHECKPOINT_AFTER_BYTES).contains(&allowance), "{bytes}");
            // It stops when one more read might not fit.
            let kept = room - charge(STREAM_CUT) + 1;
            assert!(kept > allowance, "{bytes}: stops at {kept}, is allowed {allowance}");
        }
    }

    #[test]
    fn a_share_is_the_usual_one_where_memory_is_free() {
        let usual = Share::of(u64::MAX);
        assert_eq!((usual.room(), usual.allowance()), (RETAINED_MAX, CHECKPOINT_AFTER_BYTES));
        let least = Share::of(0);
        assert_eq!((least.room(), least.allowance()), (RETAINED_MIN, ALLOWANCE_MIN));
        assert_eq!(Share::of(RETAINED_MAX / 8).allowance(), CHECKPOINT_AFTER_BYTES / 8);
    }
}
