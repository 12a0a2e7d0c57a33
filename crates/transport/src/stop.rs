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

    /// The number of stop requests since the last call, after `before` earlier ones. A dropped [`Stopper`] counts as a request if
    /// there was none before.
    ///
    /// The sender never blocks: if the buffer is full, further requests are lost, which changes
    /// nothing since two suffice.
    pub fn take(receiver: &mut impl Read, before: usize) -> usize {
        let mut buffer = [0; 16];
        match receiver.read(&mut buffer) {
            Ok(0) => usize::from(before == 0),
            Ok(count) => count,
            Err(_) => 0,
        }
    }
}

impl Stopper {
    /// Requests a stop. No error if the loop has already ended.
    pub fn stop(&self) {
        let _ = (&self.0).write(&[1]);
    }
}
