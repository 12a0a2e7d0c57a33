//! One connection: bytes or messages in both directions, and a truthful end.

use crate::{
    messages::{Receiving, Sending},
    running::Running,
};
use marram_agent::{ConnectionKind, ConnectionState, STOPPED, StreamHalf};
use marram_wire::limits::{DATAGRAM_SIZE_MAX, MESSAGE_SIZE_MAX};
use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// One end of a session: what a TCP connection would be, and it goes on when an edge dies.
///
/// One in a stream ([`ConnectionKind::Stream`]) is read and written. One that keeps messages apart is not: it has [`Self::send`] and
/// [`Self::recv`], and takes a whole message or none.
///
/// Reading and writing work through `&Connection` too, so that two threads can share one. Dropping it says that no more will be
/// written, and that what comes still is thrown away; a cell that goes on talking then is told that this end broke, as when a TCP
/// socket is closed. To know that the other end had everything, [`Self::shutdown_write`] and read to the end. [`Self::abort`]
/// says that it failed.
///
/// Errors of reading and writing, of `send` and `recv`: [`io::ErrorKind::ConnectionReset`] if the session failed, with the reason and the session's
/// name; [`io::ErrorKind::NotConnected`] if this program's agent has stopped before the session was over;
/// [`io::ErrorKind::InvalidInput`] if it is of the other kind.
#[derive(Debug)]
pub struct Connection {
    half: StreamHalf,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    // The agent runs while there is a connection.
    _running: Arc<Running>,
}

impl Connection {
    pub(crate) fn new(half: StreamHalf, running: &Arc<Running>) -> Self {
        let (sending, receiving) = Default::default();
        Self { half, sending, receiving, _running: Arc::clone(running) }
    }

    /// How this program speaks here. What the other end is, a stream or not, it does not say.
    #[must_use]
    pub fn kind(&self) -> ConnectionKind {
        self.half.close_state.kind()
    }

    /// As which server this program was given it; `None` at a client.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.half.close_state.server()
    }

    /// Sends one message: what comes out at the other end is this one, whole, or, where that is a stream, its bytes.
    ///
    /// Waits while the session keeps as much as it may; in [`ConnectionKind::Datagrams`] it does not: a datagram that finds no place is dropped,
    /// before it has a number, and counted ([`crate::Client::datagrams_dropped`]). There is place for 256 KiB before the session has
    /// begun, then for 16 MiB that the cell has not consumed, as [`marram_wire::limits`] has it; what has a number is delivered,
    /// whatever edges die.
    ///
    /// Where it may not wait (a timeout, or not blocking) it takes the message whole or fails with [`io::ErrorKind::WouldBlock`] and
    /// has taken nothing of it. What the socket did not take of it then goes first with the next one; [`Write::flush`] asks for that,
    /// and [`Self::shutdown_write`] too. One that is dropped in the middle of a message counts as broken. Threads take turns.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the message has more than 1 MiB, or more than the 65,507 bytes of a datagram.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        let max = match self.kind() {
            ConnectionKind::Stream => return Err(other_kind("a stream is written, not sent")),
            ConnectionKind::Messages => MESSAGE_SIZE_MAX,
            ConnectionKind::Datagrams => DATAGRAM_SIZE_MAX,
        };
        if message.len() > max {
            let words = format!("a message of {} bytes: at most {max} fit", message.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        }
        let sent = lock(&self.sending).send(message, |slices| self.stream().write_vectored(slices));
        self.has_written(sent)
    }

    /// The next message, which may be empty; waits for one. `None` once the other end has said its last, in order. Threads take turns.
    ///
    /// None is dropped on the way here: a cell whose messages are not taken is held up when there are about 1 MiB of them.
    ///
    /// # Errors
    /// As for all of them; [`io::ErrorKind::WouldBlock`] if none came in time, and what came of it is kept.
    pub fn recv(&self) -> io::Result<Option<Vec<u8>>> {
        if self.kind() == ConnectionKind::Stream {
            return Err(other_kind("a stream is read: it has no messages to receive"));
        }
        lock(&self.receiving).receive(|buffer| self.has_read(self.stream().read(buffer), buffer.len()))
    }

    /// Whether it can be read and written as bytes.
    fn is_stream(&self) -> io::Result<()> {
        match self.kind() {
            ConnectionKind::Stream => Ok(()),
            ConnectionKind::Messages | ConnectionKind::Datagrams => {
                Err(other_kind("messages are sent and received (`send`, `recv`)"))
            }
        }
    }

    /// Writes what is left of a message that was taken.
    fn flush_message(&self) -> io::Result<()> {
        self.has_written(lock(&self.sending).flush(|bytes| self.stream().write(bytes)))
    }

    /// Says that no more will be written or sent. What was is delivered, and reading goes on.
    ///
    /// # Errors
    /// If it is over already; [`io::ErrorKind::WouldBlock`] if there is still the rest of a message to be written.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.flush_message()?;
        self.half.stream.shutdown(Shutdown::Write)
    }

    /// Ends it as failed: the cell learns that this end has broken, not that it was done.
    pub fn abort(self) {
        self.half.close_state.abort();
        // Descriptors that were borrowed and copied would keep it open.
        let _ = self.half.stream.shutdown(Shutdown::Both);
    }

    /// How long reading waits at the most; for ever without a time. Zero is an error.
    ///
    /// # Errors
    /// As [`UnixStream::set_read_timeout`].
    pub fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        self.half.stream.set_read_timeout(time)
    }

    /// How long writing waits at the most; for ever without a time. Zero is an error.
    ///
    /// # Errors
    /// As [`UnixStream::set_write_timeout`].
    pub fn set_write_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        self.half.stream.set_write_timeout(time)
    }

    /// Whether reading and writing return [`io::ErrorKind::WouldBlock`] instead of waiting. Together with [`AsFd`], this is what
    /// a runtime needs to wait for many: the descriptor is a stream socket.
    ///
    /// # Errors
    /// As [`UnixStream::set_nonblocking`].
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.half.stream.set_nonblocking(on)
    }

    /// Why it failed, for people; `None` while it has not.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        match self.half.close_state.state() {
            ConnectionState::Failed(failure) => Some(match failure.session {
                Some(session) => format!("session {session}: {}", failure.reason),
                None => failure.reason,
            }),
            ConnectionState::Open | ConnectionState::Ended => None,
        }
    }

    fn failed(&self) -> Option<io::Error> {
        self.failure().map(|reason| io::Error::new(io::ErrorKind::ConnectionReset, reason))
    }

    /// What reading brought: a stream that has ended may have failed.
    fn has_read(&self, read: io::Result<usize>, asked: usize) -> io::Result<usize> {
        match read {
            Ok(0) if asked > 0 => {}
            // The agent had not read everything when it closed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            read => return read,
        }
        match self.half.close_state.state() {
            ConnectionState::Ended => Ok(0),
            ConnectionState::Failed(_) => Err(self.failed().unwrap_or_else(stopped)),
            ConnectionState::Open => Err(stopped()),
        }
    }

    /// What writing brought: a stream that takes no more may have failed.
    fn has_written<T>(&self, written: io::Result<T>) -> io::Result<T> {
        match written {
            Err(error) if is_closed(&error) => match self.half.close_state.state() {
                ConnectionState::Failed(_) => Err(self.failed().unwrap_or(error)),
                ConnectionState::Ended => Err(error),
                ConnectionState::Open => Err(stopped()),
            },
            written => written,
        }
    }

    fn stream(&self) -> &UnixStream {
        &self.half.stream
    }
}

fn lock<T>(part: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is changed.
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

fn other_kind(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, words)
}

/// Whether a write failed because the other half is gone.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, STOPPED)
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.half.stream.as_fd()
    }
}

impl Read for &Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.is_stream()?;
        self.has_read(self.stream().read(buffer), buffer.len())
    }
    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.is_stream()?;
        let asked = buffers.iter().map(|buffer| buffer.len()).sum();
        self.has_read(self.stream().read_vectored(buffers), asked)
    }
}

impl Write for &Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_stream()?;
        self.has_written(self.stream().write(bytes))
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.is_stream()?;
        self.has_written(self.stream().write_vectored(slices))
    }
    /// Writes what is left of a message that was sent while that could not wait; of a stream nothing ever is.
    fn flush(&mut self) -> io::Result<()> {
        self.flush_message()
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(slices)
    }
    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}
