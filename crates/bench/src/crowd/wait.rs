//! How long one connection waits around a fault. Pure: the caller says what time it is.
//!
//! ```text
//! ask ------------- answered   ask --------------------------- answered   ask -- answered
//!                        ^ before the fault            |                          |
//!                              fault ^                 '- spans it                '- asked after it: the connection is back
//! ```
//! The gap is the longest wait that ended after the fault, until the caller stops to look. A wait
//! that began before the fault counts in full, since its client cannot know what it waited for.

use std::time::{Duration, Instant};

/// The waits of one connection.
#[derive(Default)]
pub(super) struct Waits {
    /// When the request in flight was sent.
    asked: Option<Instant>,
    /// The last fault.
    fault: Option<Instant>,
    /// The longest wait that ended after it.
    longest: Duration,
    /// Whether a request that was sent after the fault has been answered.
    is_back: bool,
}

impl Waits {
    /// A request is sent.
    pub(super) fn ask(&mut self, now: Instant) {
        self.asked = Some(now);
    }

    /// Whether a request is in flight.
    pub(super) fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// The answer is there.
    pub(super) fn answered(&mut self, now: Instant) {
        let (Some(asked), fault) = (self.asked.take(), self.fault) else { return };
        if fault.is_some_and(|fault| now >= fault) {
            self.longest = self.longest.max(now - asked);
            self.is_back |= fault.is_some_and(|fault| asked >= fault);
        }
    }

    /// A fault happens; an earlier one is forgotten.
    pub(super) fn strike(&mut self, now: Instant) {
        (self.fault, self.longest, self.is_back) = (Some(now), Duration::ZERO, false);
    }

    /// The longest wait that ended after the fault; `None` as long as no request that was sent after it has been answered.
    pub(super) fn gap(&self) -> Option<Duration> {
        self.is_back.then_some(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waits after these events: `a`sk, answe`r`ed, `f`ault, each with its time in milliseconds.
    fn after(events: &[(char, u64)]) -> Waits {
        let (start, mut waits) = (Instant::now(), Waits::default());
        for (event, ms) in events {
            let now = start + Duration::from_millis(*ms);
            match event {
                'a' => waits.ask(now),
                'r' => waits.answered(now),
                _ => waits.strike(now),
            }
        }
        waits
    }

    fn gap_ms(events: &[(char, u64)]) -> Option<u128> {
        after(events).gap().map(|gap| gap.as_millis())
    }

    #[test]
    fn a_wait_that_spans_the_fault_counts_in_full() {
        let events = [('a', 0), ('r', 90), ('a', 100), ('f', 110), ('r', 150), ('a', 150), ('r', 151)];
        assert_eq!(gap_ms(&events), Some(50));
        // What came before the fault does not count, and an answer to a request of before it does not end the gap.
        assert_eq!(gap_ms(&events[..5]), None);
        assert_eq!(gap_ms(&events[..6]), None);
    }

    #[test]
    fn a_later_wait_can_be_the_longest() {
        let events = [('a', 0), ('f', 1), ('r', 2), ('a', 2), ('r', 40), ('a', 40), ('r', 100)];
        assert_eq!(gap_ms(&events[..5]), Some(38));
        assert_eq!(gap_ms(&events), Some(60));
    }

    #[test]
    fn an_idle_connection_is_asked_after_the_fault() {
        assert_eq!(gap_ms(&[('a', 0), ('r', 1), ('f', 500)]), None);
        assert_eq!(gap_ms(&[('a', 0), ('r', 1), ('f', 500), ('a', 501), ('r', 511)]), Some(10));
    }

    #[test]
    fn each_fault_has_a_gap_of_its_own() {
        let events = [('f', 0), ('a', 1), ('r', 91), ('f', 100), ('a', 101), ('r', 106)];
        assert_eq!(gap_ms(&events), Some(5));
    }

    #[test]
    fn without_a_fault_there_is_no_gap() {
        assert_eq!(gap_ms(&[('a', 0), ('r', 90), ('a', 90), ('r', 95)]), None);
        assert!(after(&[('a', 0)]).is_waiting() && !after(&[('a', 0), ('r', 1)]).is_waiting());
    }
}
