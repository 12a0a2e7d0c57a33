//! Waits for sockets with a timeout that is finer than a millisecond, to which epoll rounds its own up. An epoch of a millisecond
//! would else take almost two.

use mio::Poll;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::time::Duration;

/// Shorter timeouts than this one are fine. A millisecond more does not matter to others, and this costs a system call.
const FINE: Duration = Duration::from_millis(10);

/// Waits, if the timeout is short, until it is over or there are events. Returns with which timeout the events are to be polled.
#[must_use]
pub fn wait_finely(sockets: &Poll, timeout: Option<Duration>) -> Option<Duration> {
    let Some(short) = timeout.filter(|timeout| !timeout.is_zero() && *timeout < FINE) else {
        return timeout;
    };
    let mut sockets = [PollFd::new(sockets.registry(), PollFlags::IN)];
    let short = Timespec { tv_sec: 0, tv_nsec: i64::from(short.subsec_nanos()) };
    match poll(&mut sockets, Some(&short)) {
        // After a signal the caller looks whether there is something to do.
        Ok(_) | Err(Errno::INTR) => Some(Duration::ZERO),
        // Epoll waits for longer, and says what is wrong.
        Err(_) => timeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Events, Token, Waker};
    use std::{sync::Arc, thread, time::Instant};

    #[test]
    fn waits_for_as_long_as_it_should_and_not_past_an_event() {
        let mut sockets = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(sockets.registry(), Token(1)).unwrap());
        let (began, short) = (Instant::now(), Duration::from_micros(1_300));
        assert_eq!(wait_finely(&sockets, Some(short)), Some(Duration::ZERO));
        assert!(began.elapsed() >= short);
        for long in [None, Some(Duration::ZERO), Some(FINE)] {
            assert_eq!(wait_finely(&sockets, long), long, "is left to the poll");
        }
        // What wakes must outlive the wait: its event goes with it.
        let wakes = thread::spawn({
            let waker = Arc::clone(&waker);
            move || waker.wake()
        });
        let mut events = Events::with_capacity(1);
        while events.is_empty() {
            let timeout = wait_finely(&sockets, Some(FINE - Duration::from_nanos(1)));
            sockets.poll(&mut events, timeout).unwrap();
        }
        wakes.join().unwrap().unwrap();
        // The event was taken: it does not end the next wait.
        let began = Instant::now();
        assert_eq!(wait_finely(&sockets, Some(short)), Some(Duration::ZERO));
        assert!(began.elapsed() >= short);
    }
}
