//! One connection: bytes in both directions, and a truthful end.

use crate::running::Running;
use marram_agent::{Half, STOPPED, State};
use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::Duration,
};

/// One end of a session, as bytes: what a TCP connection would be, and it goes on when an edge dies.
///
/// Reading and writing work through `&Connection` too, so that two threads can share one. Dropping it says that no more will be
/// written, and that what comes still is thrown away; a cell that goes on talking then is told that this end broke, as when a TCP
/// socket is closed. To know that the other end had everything, [`Self::shutdown_write`] and read to the end. [`Self::abort`]
/// says that it failed.
///
/// Errors of reading and writing: [`io::ErrorKind::ConnectionReset`] if the session failed, with the reason and the session's
/// name; [`io::ErrorKind::NotConnected`] if this program's agent has stopped before the session was over.
#[derive(Debug)]
pub struct Connection {
    half: Half,
    // The agent runs while there is a connection.
    _running: Arc<Running>,
}

impl Connection {
    pub(crate) fn new(half: Half, running: &Arc<Running>) -> Self {
        Self { half, _running: Arc::clone(running) }
    }

    /// Says that no more will be written. What was written is delivered, and reading goes on.
    ///
    /// # Errors
    /// If it is over already.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.half.stream.shutdown(Shutdown::Write)
    }

    /// Ends it as failed: the cell learns that this end has broken, not that it was done.
    pub fn abort(self) {
        self.half.fate.abort();
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
        match self.half.fate.state() {
            State::Failed(failure) => Some(match failure.session {
                Some(session) => format!("session {session}: {}", failure.reason),
                None => failure.reason,
            }),
            State::Open | State::Ended => None,
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
        match self.half.fate.state() {
            State::Ended => Ok(0),
            State::Failed(_) => Err(self.failed().unwrap_or_else(stopped)),
            State::Open => Err(stopped()),
        }
    }

    /// What writing brought: a stream that takes no more may have failed.
    fn has_written(&self, written: io::Result<usize>) -> io::Result<usize> {
        match written {
            Err(error) if is_closed(&error) => match self.half.fate.state() {
                State::Failed(_) => Err(self.failed().unwrap_or(error)),
                State::Ended => Err(error),
                State::Open => Err(stopped()),
            },
            written => written,
        }
    }

    fn stream(&self) -> &UnixStream {
        &self.half.stream
    }
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
        self.has_read(self.stream().read(buffer), buffer.len())
    }
    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let asked = buffers.iter().map(|buffer| buffer.len()).sum();
        self.has_read(self.stream().read_vectored(buffers), asked)
    }
}

impl Write for &Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.has_written(self.stream().write(bytes))
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.has_written(self.stream().write_vectored(slices))
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
        Ok(())
    }
}
