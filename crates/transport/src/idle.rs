//! When a loop does deferred work.

use std::time::{Duration, Instant};

/// A loop without events for so long is idle.
const IDLE_AFTER: Duration = Duration::from_millis(1);
/// Some deferred work is done at this interval even if the loop is never idle.
const LATEST: Duration = Duration::from_millis(5);

/// Defers non-urgent work (log lines, prewarmed cells) until the loop is idle.
///
/// The worst time for it is right after a message was sent: the kernel expects that the sender will sleep and wakes the receiver
/// on the sender's core, where the receiver waits in the run queue until the sender does sleep, even if another core is idle.
#[derive(Clone, Copy, Default, Debug)]
pub struct IdleTasks {
    /// Since when work is deferred.
    since: Option<Instant>,
    /// The loop is idle, and there may be more to do.
    goes_on: bool,
}

impl IdleTasks {
    /// Whether to do deferred work now. `waits` says whether there is any; `quiet` whether the poll, with [`Self::timeout`],
    /// found nothing.
    ///
    /// Call it once after each poll. If it returns true, do one small piece of work and call it
    /// again after the next poll: while the loop stays idle, that poll has the timeout 0, so that
    /// events interrupt the backlog between pieces.
    pub fn is_now(&mut self, waits: bool, quiet: bool, now: Instant) -> bool {
        if !waits {
            *self = Self::default();
            return false;
        }
        let since = *self.since.get_or_insert(now);
        self.goes_on = quiet;
        let is_now = quiet || now.duration_since(since) >= LATEST;
        if is_now {
            self.since = Some(now);
        }
        is_now
    }

    /// How long the poll should wait; none if no work is deferred.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.since.map(|_| if self.goes_on { Duration::ZERO } else { IDLE_AFTER })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_done_when_nothing_happens_or_late() {
        let (start, mut idle_tasks) = (Instant::now(), IdleTasks::default());
        assert!(!idle_tasks.is_now(false, true, start) && idle_tasks.timeout().is_none());
        assert!(!idle_tasks.is_now(true, false, start));
        assert_eq!(idle_tasks.timeout(), Some(IDLE_AFTER));
        assert!(idle_tasks.is_now(true, true, start + IDLE_AFTER));
        assert_eq!(idle_tasks.timeout(), Some(Duration::ZERO), "there may be more to do");
        assert!(!idle_tasks.is_now(true, false, start + 2 * IDLE_AFTER), "something has happened");
        assert_eq!(idle_tasks.timeout(), Some(IDLE_AFTER));
        assert!(idle_tasks.is_now(true, false, start + IDLE_AFTER + LATEST));
        assert_eq!(idle_tasks.timeout(), Some(IDLE_AFTER));
        assert!(
            !idle_tasks.is_now(true, false, start + IDLE_AFTER + LATEST),
            "what has come since waits as long"
        );
        assert!(idle_tasks.is_now(true, false, start + IDLE_AFTER + 2 * LATEST));
        assert!(!idle_tasks.is_now(false, false, start + 3 * LATEST) && idle_tasks.timeout().is_none());
    }
}
