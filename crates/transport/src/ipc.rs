//! Messages between processes of one edge, some with a file descriptor.
//!
//! ```text
//! message := size (4, little-endian; top bit: a descriptor comes with the first byte) | body
//! ```
//!
//! Both sides are the same program, so an impossible size is a bug and not a protocol error of a peer. Knows no message types.
//!
//! ```text
//! stream:   | size | body ............ | size+top bit | body ... | size | body |
//! ancillary:                             ^ SCM_RIGHTS goes out with the first bytes of its message
//! ```
//!
//! It has no flow control: a supervisor and its shards exchange small messages, and a side that
//! does not read is treated as lost ([`IpcChannel::has_room`]).

use bytes::{Buf, Bytes, BytesMut};
use mio::net::UnixStream;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
};

/// Largest body, in bytes: several times the size of a full list of sessions.
const BODY_MAX: usize = 4 << 20;
const DESCRIPTOR: u32 = 1 << 31;
const PREFIX: usize = 4;
const READ_SIZE: usize = 64 << 10;
/// A process that leaves so many messages unread is stopped or lost; further messages to it are refused.
const WAITING_MAX: usize = 16_384;

const _: () = assert!(BODY_MAX < DESCRIPTOR as usize, "the top bit of a size is free");

/// A message and the descriptor that came with it.
pub(crate) type IpcMessage = (Bytes, Option<OwnedFd>);

/// One side of a connection between two processes of an edge.
#[derive(Debug)]
pub struct IpcChannel {
    socket: UnixStream,
    incoming: BytesMut,
    /// Received and not yet taken. They match the messages with a descriptor one to one, in order,
    /// since one `recvmsg` returns the descriptors of one `sendmsg` at most.
    descriptors: VecDeque<OwnedFd>,
    /// With prefixes. The first one may be partly written; its descriptor is then already sent.
    outgoing: VecDeque<IpcMessage>,
}

impl IpcChannel {
    /// Over a connected, non-blocking socket.
    pub fn new(socket: UnixStream) -> Self {
        Self { socket, incoming: BytesMut::new(), descriptors: VecDeque::new(), outgoing: VecDeque::new() }
    }

    /// For registration with a poll.
    pub fn socket(&mut self) -> &mut UnixStream {
        &mut self.socket
    }

    /// Whether there is room for one more message.
    ///
    /// The caller checks it before [`Self::send`]; `send` itself does not refuse.
    pub fn has_room(&self) -> bool {
        self.outgoing.len() < WAITING_MAX
    }

    /// Queues a message.
    ///
    /// # Panics
    /// If the body is larger than any that this program sends.
    pub fn send(&mut self, body: &[u8], descriptor: Option<OwnedFd>) {
        assert!(body.len() <= BODY_MAX, "a message of {} bytes between processes", body.len());
        let size = u32::try_from(body.len()).expect("below BODY_MAX");
        let size = if descriptor.is_some() { size | DESCRIPTOR } else { size };
        let mut message = BytesMut::with_capacity(PREFIX + body.len());
        message.extend_from_slice(&size.to_le_bytes());
        message.extend_from_slice(body);
        self.outgoing.push_back((message.freeze(), descriptor));
    }

    /// Writes until nothing waits (true) or the socket would block (false).
    pub fn flush(&mut self) -> io::Result<bool> {
        while let Some((message, descriptor)) = self.outgoing.front_mut() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let passed = descriptor.as_ref().map(|descriptor| [descriptor.as_fd()]);
            if let Some(passed) = &passed {
                let fits = ancillary.push(SendAncillaryMessage::ScmRights(passed));
                assert!(fits, "the space is for one descriptor");
            }
            match sendmsg(&self.socket, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    message.advance(sent);
                    *descriptor = None;
                    if message.is_empty() {
                        self.outgoing.pop_front();
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Reads until nothing is available; false once the other side is gone. The received messages can be taken in either case.
    pub fn read(&mut self) -> io::Result<bool> {
        loop {
            let len = self.incoming.len();
            self.incoming.resize(len + READ_SIZE, 0);
            let received = self.receive(len);
            self.incoming.truncate(len + received.as_ref().map_or(0, |count| *count));
            match received {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive(&mut self, len: usize) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut self.incoming[len..])];
        let received = recvmsg(&self.socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        Ok(received.bytes)
    }

    /// Takes the next complete message.
    ///
    /// # Panics
    /// If the announced size exceeds `BODY_MAX`: the peer is this program, so the stream is
    /// corrupt.
    pub fn next_message(&mut self) -> Option<IpcMessage> {
        let prefix = u32::from_le_bytes(*self.incoming.first_chunk::<PREFIX>()?);
        let size = usize::try_from(prefix & !DESCRIPTOR).expect("32 bits fit");
        assert!(size <= BODY_MAX, "a message of {size} bytes between processes");
        if self.incoming.len() < PREFIX + size {
            return None;
        }
        self.incoming.advance(PREFIX);
        let body = self.incoming.split_to(size).freeze();
        // Descriptors arrive with the first byte of their message at the latest, in order.
        let descriptor = if prefix & DESCRIPTOR != 0 { self.descriptors.pop_front() } else { None };
        Some((body, descriptor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    #[test]
    fn messages_and_their_descriptors_stay_together_in_order() {
        let (left, right) = UnixStream::pair().expect("sockets");
        let (mut left, mut right) = (IpcChannel::new(left), IpcChannel::new(right));
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let sizes = [0usize, 1, 5_000, 300_000, 3, 1_000_000, 7];
        let mut peers = Vec::new();
        for (index, size) in sizes.iter().enumerate() {
            let descriptor = (index % 2 == 0).then(|| {
                peers.push(TcpStream::connect(address).expect("listening"));
                OwnedFd::from(listener.accept().expect("connected").0)
            });
            left.send(&vec![u8::try_from(index).expect("few"); *size], descriptor);
        }
        let mut got = Vec::new();
        while got.len() < sizes.len() {
            left.flush().expect("open");
            assert!(right.read().expect("open"));
            got.extend(std::iter::from_fn(|| right.next_message()));
        }
        for (index, ((body, descriptor), size)) in got.into_iter().zip(sizes).enumerate() {
            assert_eq!(body, vec![u8::try_from(index).expect("few"); size]);
            assert_eq!(descriptor.is_some(), index % 2 == 0);
            if let Some(descriptor) = descriptor {
                TcpStream::from(descriptor).write_all(&[body.len().to_le_bytes()[0]]).expect("open");
                let mut byte = [0];
                peers.remove(0).read_exact(&mut byte).expect("written");
                assert_eq!(byte[0], body.len().to_le_bytes()[0]);
            }
        }
        drop(left);
        assert!(!right.read().expect("an end is no error"));
    }
}
