//! A connected socket, over TCP or within the machine, with the operations that the loops need.

use bytes::BytesMut;
use mio::{
    Interest, Registry, Token,
    event::Source,
    net::{TcpStream, UnixStream},
};
use rustix::net::sockopt;
use std::{
    io::{self, IoSlice, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

/// The kernel's unit for the times of its probes.
const SECOND: Duration = Duration::from_secs(1);
/// Unanswered probes in a row after which the kernel breaks a connection.
const PROBES: u32 = 5;
/// Unanswered retransmissions or probes after which a peer may count as gone.
const UNANSWERED: u8 = 2;

/// A connected stream, not blocking.
#[derive(Debug)]
pub enum Socket {
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
    /// Wraps a TCP stream that is connected or being connected; disables Nagle's algorithm.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Enables keep-alive probes, so that an idle connection breaks about `peer_unreachable` after the peer's host was last
    /// heard. For a connection with unacknowledged data, see [`Self::has_vanished`].
    pub fn ask_for_peer(&self, peer_unreachable: Duration) -> io::Result<()> {
        let Self::Tcp(stream) = self else { return Ok(()) };
        let (idle, interval) =
            ((peer_unreachable / 2).max(SECOND), (peer_unreachable / 2 / PROBES).max(SECOND));
        sockopt::set_tcp_keepidle(stream, idle)?;
        sockopt::set_tcp_keepintvl(stream, interval)?;
        sockopt::set_tcp_keepcnt(stream, PROBES)?;
        sockopt::set_socket_keepalive(stream, true)?;
        Ok(())
    }

    /// Whether the peer's host is gone: several retransmissions or probes are unanswered, and it has been silent for so long. The
    /// kernel alone would retry for a quarter of an hour. `TCP_USER_TIMEOUT` is not used, because it also ends connections to a
    /// peer that answers but does not read.
    pub fn has_vanished(&self, peer_unreachable: Duration) -> bool {
        let Self::Tcp(stream) = self else { return false };
        let Ok(info) = tcp_info(stream.as_fd()) else { return false };
        let asked = info.tcpi_retransmits.max(info.tcpi_probes);
        asked >= UNANSWERED && Duration::from_millis(info.tcpi_last_ack_recv.into()) >= peer_unreachable
    }

    /// Whether a connection attempt has finished; an error if it failed.
    /// `SO_ERROR` is taken first: `getpeername` alone would report a failed attempt as not
    /// connected forever.
    pub fn connected(&self) -> io::Result<bool> {
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

    /// Reads available bytes once, at most the buffer's spare capacity; 0 at the end of the stream.
    pub fn read_into(&self, buffer: &mut BytesMut) -> io::Result<usize> {
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
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        rustix::io::read(self, buffer).map_err(Into::into)
    }

    /// Closes the write side: the peer sees the end of the stream.
    pub fn shutdown_write(&self) -> io::Result<()> {
        rustix::net::shutdown(self, rustix::net::Shutdown::Write).map_err(Into::into)
    }

    /// Makes the close a reset: the peer sees a failure, not an end.
    pub fn reset_on_close(&self) -> io::Result<()> {
        sockopt::set_socket_linger(self, Some(Duration::ZERO)).map_err(Into::into)
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }
}

fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let size = size_of::<libc::tcp_info>();
    let mut len = libc::socklen_t::try_from(size).expect("a few hundred bytes");
    // SAFETY: the descriptor is open while it is borrowed, and `info` has room for the `len` bytes that the kernel may write.
    // There is no safe interface to it.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every field is an integer, and all bytes were zero before the kernel wrote some of them.
    Ok(unsafe { info.assume_init() })
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
