//! Credit for the messages of one channel in one direction. Their sender counts what it sends. Of messages to the owner, the owner counts
//! what the cell consumes; of outputs, the end counts what comes, and knows what of it the program has not taken.
//!
//! Both sides count what was granted since the log was chosen, or since the promise, as QUIC does for a stream (RFC 9000, section 4.1).
//! A sender sends while any of it is left, so the last message may exceed it: a window that is smaller than the largest message is enough.

use core::cmp::min;
use marram_wire::limits::{INPUT_WINDOW, MESSAGE_SIZE_MAX, charge};

/// The owner grants again once this much is missing from the largest window, in bytes. From a smaller one a quarter is
/// enough.
const GRANT_AT: u64 = INPUT_WINDOW - charge(MESSAGE_SIZE_MAX);

/// Credit of one channel, in bytes of charge.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct MessageCredit {
    granted: u64,
    used: u64,
}

impl MessageCredit {
    /// A log was chosen, and this much is granted with it.
    pub(crate) fn of(granted: u64) -> Self {
        Self { granted, used: 0 }
    }

    /// An end has promised: its owner may use a window less what the program has not taken, which `waits`.
    pub(crate) fn of_outputs(window: u64, waits: u64) -> Self {
        Self { granted: window.max(waits), used: waits }
    }

    /// What is left of it.
    pub(crate) fn left(self) -> u64 {
        self.granted.saturating_sub(self.used)
    }

    /// What to grant so that `window` is on its way or `waits`. Nothing if it is as much already.
    pub(crate) fn missing(self, window: u64, waits: u64) -> u64 {
        (self.used + window).saturating_sub(self.granted.saturating_add(waits))
    }

    /// Adds what is granted. False if it cannot be counted.
    pub(crate) fn grant(&mut self, bytes: u64) -> bool {
        let granted = self.granted.checked_add(bytes);
        granted.is_some_and(|granted| {
            self.granted = granted;
            true
        })
    }

    /// A message was sent, or consumed.
    pub(crate) fn spend(&mut self, charge: u64) {
        self.used += charge;
    }

    /// Whether one more message may be sent.
    pub(crate) fn is_left(self) -> bool {
        self.used < self.granted
    }

    /// What to grant so that the end has a whole window again, if it is worth a frame. All that was granted is then used up or
    /// can still be used, so an end without credit has messages that the cell will consume.
    pub(crate) fn due(self, window: u64) -> Option<u64> {
        let due = self.missing(window, 0);
        (due >= min(GRANT_AT, window / 4)).then_some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::limits::INPUT_WINDOW_MIN;

    #[test]
    fn the_last_message_may_exceed_the_credit() {
        let mut credit = MessageCredit::of(10);
        assert!(credit.is_left());
        credit.spend(1_000);
        assert!(!credit.is_left());
        assert!(credit.grant(990) && !credit.is_left());
        assert!(credit.grant(1) && credit.is_left());
        assert!(!credit.grant(u64::MAX));
    }

    #[test]
    fn after_all_its_messages_are_consumed_an_end_can_send_whatever_the_window() {
        for window in [INPUT_WINDOW_MIN, 100_000, INPUT_WINDOW] {
            for size in [charge(0), 1_000, window - 1, window, charge(MESSAGE_SIZE_MAX)] {
                let (mut end, mut owner) = (MessageCredit::of(window), MessageCredit::of(window));
                for _ in 0..1_000 {
                    assert!(end.is_left(), "messages of {size} in a window of {window}");
                    end.spend(size);
                    owner.spend(size);
                    if let Some(due) = owner.due(window) {
                        assert!(owner.grant(due) && end.grant(due));
                    }
                }
            }
        }
    }

    #[test]
    fn what_waits_counts_as_much_as_what_is_on_its_way() {
        let mut credit = MessageCredit::of_outputs(100, 30);
        assert_eq!((credit.left(), credit.missing(100, 30)), (70, 0));
        credit.spend(60);
        assert_eq!((credit.left(), credit.missing(100, 90)), (10, 0));
        assert_eq!(credit.missing(100, 50), 40, "40 were taken");
        assert_eq!((credit.missing(80, 50), credit.missing(60, 50), credit.missing(50, 50)), (20, 0, 0));
        // More waits than a window that has become smaller.
        let credit = MessageCredit::of_outputs(10, 30);
        assert_eq!((credit.left(), credit.missing(10, 30), credit.missing(10, 10)), (0, 0, 0));
        assert_eq!(credit.missing(10, 4), 6);
    }

    #[test]
    fn a_smaller_window_is_reached_by_granting_nothing() {
        let mut credit = MessageCredit::of(INPUT_WINDOW);
        credit.spend(INPUT_WINDOW - 1_000_000);
        assert_eq!(credit.due(INPUT_WINDOW_MIN), None, "the end still has more");
        credit.spend(1_000_000 - 60_000);
        assert_eq!(credit.due(INPUT_WINDOW_MIN), None, "not worth a frame");
        credit.spend(60_000);
        assert_eq!(credit.due(INPUT_WINDOW_MIN), Some(INPUT_WINDOW_MIN));
    }
}
