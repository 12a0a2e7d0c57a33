//! The clock of a loop that waits for sockets. It excludes the time in which this process could not run, so that a peer does not
//! seem silent because this process was suspended.

use mio::{Events, Poll};
use std::{
    io,
    time::{Duration, Instant},
};

/// If a poll returns so much later than it should, the process was stopped or starved; normal scheduling is not that late.
const STALL: Duration = Duration::from_millis(20);

/// Nanoseconds, for the pure state machines.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The error of a loop that cannot wait for its sockets, with these words before the operating system's.
#[must_use]
pub fn cannot_wait(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot wait for sockets: {error}"))
}

/// Time as the pure state machines see it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The instant of time 0. The state machines know only differences, so any instant serves.
    started: Instant,
    /// Read once for each poll: everything that is handled after one poll happens at one time,
    /// which makes a step reproducible and saves a system call for each event.
    now: Instant,
    /// Total time in which this process could not run.
    stalled: Duration,
}

impl Clock {
    /// Begins at 0.
    pub fn new(now: Instant) -> Self {
        Self { started: now, now, stalled: Duration::ZERO }
    }

    /// When the last poll returned.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The same, as the state machine sees it.
    pub fn now_ns(&self) -> u64 {
        nanos(self.now.duration_since(self.started).saturating_sub(self.stalled))
    }

    /// The instant of `at_ns`.
    pub fn at(&self, at_ns: u64) -> Instant {
        self.started + self.stalled + Duration::from_nanos(at_ns)
    }

    /// Waits for sockets. False if a signal came first.
    ///
    /// After a signal, [`Self::now`] still has the old time: the caller has no events to handle. A
    /// late return counts as a stall as a whole, not only what exceeds `STALL`. That errs on the
    /// side of patience: a peer that really was silent meanwhile is suspected later, never too
    /// early (Lifeguard's local health; `docs/protocol.md`, chapter 3). A poll without a timeout is
    /// never late.
    ///
    /// # Errors
    /// If the poll itself fails, which the loop cannot survive.
    pub fn wait(
        &mut self,
        poll: &mut Poll,
        events: &mut Events,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        let due = timeout.map(|timeout| Instant::now() + timeout);
        match poll.poll(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            polled => polled
                .map_err(|error| io::Error::new(error.kind(), format!("cannot wait for sockets: {error}")))?,
        }
        self.now = Instant::now();
        let late = due.and_then(|due| self.now.checked_duration_since(due));
        self.stalled += late.filter(|late| *late > STALL).unwrap_or_default();
        Ok(true)
    }
}
