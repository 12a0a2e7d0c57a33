//! One connection: bytes or messages in both directions, and an end that shows whether it failed.

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

/// One end of a session: like a TCP connection, except that it survives the death of an edge.
///
/// A stream ([`ConnectionKind::Stream`]) is read and written. The other kinds keep message boundaries: they have [`Self::send`]
/// and [`Self::recv`] instead, which take a whole message or nothing.
///
/// Reading and writing also work through `&Connection`, so that two threads can share one. Dropping it means that no more will be
/// written, and that further input is discarded; if the cell sends more, it learns that this end broke, as when a TCP socket is
/// closed. To be sure that the other end received everything, call [`Self::shutdown_write`] and read to the end. [`Self::abort`]
/// ends it as failed.
///
/// Errors of reading and writing, of `send` and `recv`: [`io::ErrorKind::ConnectionReset`] if the session failed, with the reason
/// and the session's id; [`io::ErrorKind::NotConnected`] if this program's agent has stopped before the session was over;
/// [`io::ErrorKind::InvalidInput`] if the connection has another kind.
#[derive(Debug)]
pub struct Connection {
    half: StreamHalf,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    // Keeps the agent running while there is a connection.
    _running: Arc<Running>,
}

impl Connection {
    pub(crate) fn new(half: StreamHalf, running: &Arc<Running>) -> Self {
        let (sending, receiving) = Default::default();
        Self { half, sending, receiving, _running: Arc::clone(running) }
    }

    /// How this program sends and receives here. The other end may use another kind.
    #[must_use]
    pub fn kind(&self) -> ConnectionKind {
        self.half.close_state.kind()
    }

    /// The server name under which this program received it; `None` at a client.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.half.close_state.server()
    }

    /// Sends one message: the other end receives this message, whole, or, if it uses a stream, its bytes.
    ///
    /// Blocks while the session buffers as much as it may; in [`ConnectionKind::Datagrams`] it does not: a datagram without room
    /// is dropped, before it has a number, and counted ([`crate::Client::datagrams_dropped`]). There is room for 256 KiB before
    /// the session has begun, then for 16 MiB that the cell has not consumed (see [`marram_wire::limits`]); a message that has a
    /// number is delivered, whatever edges die.
    ///
    /// If it may not block (a timeout, or non-blocking) it takes the message whole, or fails with [`io::ErrorKind::WouldBlock`]
    /// and takes nothing of it. The part of a taken message that the socket did not accept is written before the next one;
    /// [`Write::flush`] and [`Self::shutdown_write`] write it too. A connection that is dropped in the middle of a message counts
    /// as broken. Threads take turns.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the message has more than 1 MiB, or more than the 65,507 bytes of a datagram.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        let max = match self.kind() {
            ConnectionKind::Stream => return Err(other_kind("this is a stream: write to it instead")),
            ConnectionKind::Messages => MESSAGE_SIZE_MAX,
            ConnectionKind::Datagrams => DATAGRAM_SIZE_MAX,
        };
        if message.len() > max {
            let words = format!("a message of {} bytes: the maximum is {max}", message.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        }
        let sent = lock(&self.sending).send(message, |slices| self.stream().write_vectored(slices));
        self.has_written(sent)
    }

    /// The next message, which may be empty; blocks until there is one. `None` after the last message, if the other end has
    /// closed in order. Threads take turns.
    ///
    /// No message is dropped on the way here: a cell is paused when about 1 MiB of its messages are not taken.
    ///
    /// # Errors
    /// As for all of them; [`io::ErrorKind::WouldBlock`] if none arrived in time; a partly received message is kept.
    pub fn recv(&self) -> io::Result<Option<Vec<u8>>> {
        if self.kind() == ConnectionKind::Stream {
            return Err(other_kind("this is a stream: read from it instead"));
        }
        lock(&self.receiving).receive(|buffer| self.has_read(self.stream().read(buffer), buffer.len()))
    }

    /// Fails if it cannot be read and written as bytes.
    fn is_stream(&self) -> io::Result<()> {
        match self.kind() {
            ConnectionKind::Stream => Ok(()),
            ConnectionKind::Messages | ConnectionKind::Datagrams => {
                Err(other_kind("this connection has messages: use `send` and `recv`"))
            }
        }
    }

    /// Writes the rest of a message that was taken.
    fn flush_message(&self) -> io::Result<()> {
        self.has_written(lock(&self.sending).flush(|bytes| self.stream().write(bytes)))
    }

    /// Closes the write side: no more will be written or sent. Everything before is delivered, and reading continues.
    ///
    /// # Errors
    /// If the connection has already ended; [`io::ErrorKind::WouldBlock`] if the rest of a message still waits to be written.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.flush_message()?;
        self.half.stream.shutdown(Shutdown::Write)
    }

    /// Ends it as failed: the cell learns that this end has broken, not that it has closed in order.
    pub fn abort(self) {
        self.half.close_state.abort();
        // Copies of the descriptor would keep it open.
        let _ = self.half.stream.shutdown(Shutdown::Both);
    }

    /// The longest time that a read blocks; without one it blocks for ever. Zero is an error.
    ///
    /// # Errors
    /// As [`UnixStream::set_read_timeout`].
    pub fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        self.half.stream.set_read_timeout(time)
    }

    /// The longest time that a write blocks; without one it blocks for ever. Zero is an error.
    ///
    /// # Errors
    /// As [`UnixStream::set_write_timeout`].
    pub fn set_write_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        self.half.stream.set_write_timeout(time)
    }

    /// Whether reads and writes return [`io::ErrorKind::WouldBlock`] instead of blocking. Together with [`AsFd`], an async
    /// runtime can wait for many: the descriptor is a stream socket.
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

    /// The result of a read: a stream that has ended may have failed.
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

    /// The result of a write: a stream that accepts no more may have failed.
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
    // No code panics while it holds the lock.
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
    /// Writes the rest of a message that `send` took without blocking; a stream has none.
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
