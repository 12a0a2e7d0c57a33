//! The wish that a loop ends, as something that a poll can wait for.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
};

/// Signals that mean "please stop": what service managers and terminals send.
const SIGNALS: [i32; 2] = [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT];

/// Wakes a loop that is to end: the first time in order (drain), the second time at once.
#[derive(Debug)]
pub struct StopSignal {
    /// A byte comes for each wish.
    pub receiver: UnixStream,
}

/// The other end of a [`StopSignal`].
#[derive(Debug)]
pub struct Stopper(UnixStream);

impl StopSignal {
    /// Stops when the process is sent SIGTERM or SIGINT.
    ///
    /// # Errors
    /// If the operating system has no descriptor left, or refuses the handler.
    pub fn on_signals() -> io::Result<Self> {
        let (stop, Stopper(sender)) = Self::pair()?;
        for signal in SIGNALS {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(stop)
    }

    /// Stops when the other half says so or is dropped.
    ///
    /// # Errors
    /// If the operating system has no descriptor left.
    pub fn pair() -> io::Result<(Self, Stopper)> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok((Self { receiver }, Stopper(sender)))
    }

    /// How often the wish was uttered since the last call, by when it had been `before` times; a vanished [`Stopper`] has uttered
    /// it if it had not.
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
    /// Utters the wish. The loop may be gone already, which is what was wished for.
    pub fn stop(&self) {
        let _ = (&self.0).write(&[1]);
    }
}
