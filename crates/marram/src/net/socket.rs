//! A connected socket, over TCP or within the machine, with the few things that loops do to it.

use bytes::BytesMut;
use mio::{
    Interest, Registry, Token,
    event::Source,
    net::{TcpStream, UnixStream},
};
use std::{
    io::{self, IoSlice, Write},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

/// A connected stream, not blocking.
#[derive(Debug)]
pub(crate) enum Socket {
    /// To another process, perhaps on another machine.
    Tcp(TcpStream),
    /// Within an edge: between its gate and its shards.
    Unix(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Socket {
    /// Wraps a TCP stream that is, or is about to be, connected; small writes leave at once.
    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Whether a connection attempt has come to its end: an error if to a bad one.
    pub(crate) fn connected(&self) -> io::Result<bool> {
        match self {
            Self::Unix(_) => Ok(true),
            Self::Tcp(stream) => {
                if let Some(error) = stream.take_error()? {
                    return Err(error);
                }
                match stream.peer_addr() {
                    Ok(_) => Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Reads what is there, at most what fits behind the buffer's bytes; 0 at the end of the stream.
    pub(crate) fn read_into(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        let read = loop {
            match rustix::io::read(self, buffer.spare_capacity_mut()) {
                Ok((read, _)) => break read.len(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let len = buffer.len() + read;
        // SAFETY: the kernel has just written the `read` bytes behind the buffer's first `len - read`, and they lie within
        // its capacity since they came from its spare part. Zeroing 256 KiB before each read instead costs microseconds.
        unsafe { buffer.set_len(len) };
        Ok(read)
    }

    /// Reads at most what fits.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        rustix::io::read(self, buffer).map_err(Into::into)
    }

    /// The peer learns that this side will write no more.
    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        rustix::net::shutdown(self, rustix::net::Shutdown::Write).map_err(Into::into)
    }

    /// Closing will tell the peer that the connection failed, not that it ended.
    pub(crate) fn reset_on_close(&self) -> io::Result<()> {
        rustix::net::sockopt::set_socket_linger(self, Some(Duration::ZERO)).map_err(Into::into)
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        rustix::io::write(&*self, bytes).map_err(Into::into)
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        rustix::io::writev(&*self, slices).map_err(Into::into)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Source for Socket {
    fn register(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.source().register(registry, token, interests)
    }
    fn reregister(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.source().reregister(registry, token, interests)
    }
    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.source().deregister(registry)
    }
}
