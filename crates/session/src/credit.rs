//! Credit for the messages of one channel from an end to its owner. The end counts what it sends, the owner what the
//! cell consumes.
//!
//! Both count what was granted since the log was chosen, as QUIC does for a stream (RFC 9000, section 4.1). An end sends
//! while any of it is left, so the last message may exceed it: a window that is smaller than the largest message is enough.

use core::cmp::min;
use marram_wire::limits::{INPUT_WINDOW, MESSAGE_SIZE_MAX, charge};

/// The owner grants again once this much is missing from the largest window, in bytes. From a smaller one a quarter is
/// enough.
const GRANT_AT: u64 = INPUT_WINDOW - charge(MESSAGE_SIZE_MAX);

/// Credit of one channel, in bytes of charge.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct InputCredit {
    granted: u64,
    used: u64,
}

impl InputCredit {
    /// A log was chosen, and this much is granted with it.
    pub(crate) fn of(granted: u64) -> Self {
        Self { granted, used: 0 }
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
        let due = (self.used + window).checked_sub(self.granted)?;
        (due >= min(GRANT_AT, window / 4)).then_some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::limits::INPUT_WINDOW_MIN;

    #[test]
    fn the_last_message_may_exceed_the_credit() {
        let mut credit = InputCredit::of(10);
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
                let (mut end, mut owner) = (InputCredit::of(window), InputCredit::of(window));
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
    fn a_smaller_window_is_reached_by_granting_nothing() {
        let mut credit = InputCredit::of(INPUT_WINDOW);
        credit.spend(INPUT_WINDOW - 1_000_000);
        assert_eq!(credit.due(INPUT_WINDOW_MIN), None, "the end still has more");
        credit.spend(1_000_000 - 60_000);
        assert_eq!(credit.due(INPUT_WINDOW_MIN), None, "not worth a frame");
        credit.spend(60_000);
        assert_eq!(credit.due(INPUT_WINDOW_MIN), Some(INPUT_WINDOW_MIN));
    }
}
