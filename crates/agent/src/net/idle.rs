//! When a loop does what nobody waits for.

use std::time::{Duration, Instant};

/// A loop to which nothing has happened for so long has a lull.
const IDLE_AFTER: Duration = Duration::from_millis(1);
/// Something of what waits for a lull is done so often even where there is none.
const LATEST: Duration = Duration::from_millis(5);

/// Has what nobody waits for (lines for the log, cells ahead of their clients) done when nothing else has happened for a moment.
///
/// Right after a message has left is the worst time for it: whoever gets the message is woken on the core of its sender, since
/// the kernel takes it that a sender goes to sleep, and stands in line there until that is so, even beside a core that idles.
#[derive(Clone, Copy, Default, Debug)]
pub struct IdleTasks {
    /// Since when there is something to do that was not done.
    since: Option<Instant>,
    /// It is quiet, and there may be more to do.
    goes_on: bool,
}

impl IdleTasks {
    /// Whether the time has come. `waits` says whether there is something to do, `quiet` whether the poll, with
    /// [`Self::timeout`], found nothing.
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

    /// How long to wait for something to happen; none if nothing waits for a lull.
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
