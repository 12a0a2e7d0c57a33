//! When an agent gives freed memory back to the system.
//!
//! The allocator keeps what was freed for the next messages, which is right while there are any. After a crowd of sessions
//! has gone, it would keep it for ever.

use std::time::{Duration, Instant};

/// Bytes that must have been freed before it is worth the time.
const FREED_MIN: u64 = 32 << 20;
/// Not more often: a loop with much to do frees and fills again.
const INTERVAL: Duration = Duration::from_secs(5);

/// Compares what is kept with the most that was kept since memory was last given back.
pub(super) struct Trim {
    most: u64,
    not_before: Instant,
}

impl Trim {
    pub(super) fn new(now: Instant) -> Self {
        Self { most: 0, not_before: now }
    }

    /// So much is kept now.
    pub(super) fn note(&mut self, kept: u64) {
        self.most = self.most.max(kept);
    }

    /// Whether most of it was freed since.
    pub(super) fn is_due(&self, kept: u64, now: Instant) -> bool {
        self.most - kept.min(self.most) >= FREED_MIN.max(self.most / 2) && now >= self.not_before
    }

    /// Memory was given back, and so much is kept.
    pub(super) fn done(&mut self, kept: u64, now: Instant) {
        (self.most, self.not_before) = (kept, now + INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_most_of_it_was_freed() {
        let now = Instant::now();
        let mut trim = Trim::new(now);
        trim.note(100 << 20);
        assert!(!trim.is_due(60 << 20, now), "the next messages need it");
        assert!(trim.is_due(40 << 20, now));
        trim.done(40 << 20, now);
        assert!(!trim.is_due(0, now) && trim.is_due(0, now + INTERVAL), "not all the time");
        trim.done(1 << 20, now);
        assert!(!trim.is_due(0, now + INTERVAL), "not for little");
    }
}
