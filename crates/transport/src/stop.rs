//! A request that a loop stops, in a form that a poll can wait for.
//!
//! A socket pair and not a flag: a signal handler may write to it (`write` is async-signal-safe),
//! and the poll of the loop wakes up for it.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
};

/// Signals that request a stop: service managers and terminals send them.
const SIGNALS: [i32; 2] = [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT];

/// Asks the loop to accept nothing new. Any other byte requests a stop: that of a signal is not ours.
const REFUSE: u8 = 2;
/// Asks it to accept new connections again.
const ACCEPT: u8 = 3;

/// What was requested since the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StopRequests {
    /// How often a stop was requested.
    pub stops: usize,
    /// Whether new connections are to be accepted, if that was said.
    pub accepts: Option<bool>,
}

/// Stops a loop: the first request drains it, the second one stops it at once.
#[derive(Debug)]
pub struct StopSignal {
    /// Receives one byte per request.
    pub receiver: UnixStream,
}

/// The other end of a [`StopSignal`].
#[derive(Debug)]
pub struct Stopper(UnixStream);

impl StopSignal {
    /// Stops when the process receives SIGTERM or SIGINT.
    ///
    /// # Errors
    /// If the operating system has no file descriptor left, or refuses the handler.
    pub fn on_signals() -> io::Result<Self> {
        let (stop, Stopper(sender)) = Self::pair()?;
        for signal in SIGNALS {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(stop)
    }

    /// Stops when the [`Stopper`] requests it or is dropped.
    ///
    /// # Errors
    /// If the operating system has no file descriptor left.
    pub fn pair() -> io::Result<(Self, Stopper)> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok((Self { receiver }, Stopper(sender)))
    }

    /// The stop requests since the last call, after `before` earlier ones. A dropped [`Stopper`] counts as a request if
    /// there was none before.
    ///
    /// The sender never blocks: if the buffer is full, further requests are lost, which changes
    /// nothing since two suffice.
    pub fn take(receiver: &mut impl Read, before: usize) -> StopRequests {
        let mut buffer = [0; 16];
        let mut requests = StopRequests { stops: 0, accepts: None };
        match receiver.read(&mut buffer) {
            Ok(0) => requests.stops = usize::from(before == 0),
            Ok(count) => {
                for byte in &buffer[..count] {
                    match *byte {
                        REFUSE => requests.accepts = Some(false),
                        ACCEPT => requests.accepts = Some(true),
                        _ => requests.stops += 1,
                    }
                }
            }
            Err(_) => {}
        }
        requests
    }
}

impl Stopper {
    /// Requests a stop. No error if the loop has already ended.
    pub fn stop(&self) {
        let _ = (&self.0).write(&[1]);
    }

    /// Requests that nothing new is accepted, or that it is again. The loop goes on.
    pub fn accept(&self, accepts: bool) {
        let _ = (&self.0).write(&[if accepts { ACCEPT } else { REFUSE }]);
    }
}
