//! Input and output of a conversation in any mode: received bytes that wait, and bytes to send.

use std::net::SocketAddr;

/// Bytes that may wait on one side: input that a decoder spreads over several handlers, and input that must not be
/// read yet.
const INBOX_BYTES_MAX: usize = 4 << 20;
/// A larger emptied buffer is freed: it would be part of every checkpoint.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// One of the two peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// Bytes from one side that were not used yet.
#[derive(Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    used: usize,
    /// No more input will follow.
    pub(crate) is_ended: bool,
}

impl Inbox {
    /// Adds received bytes.
    ///
    /// # Errors
    /// If too much waits already.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.rest().len() + bytes.len() > INBOX_BYTES_MAX {
            return Err(format!("more than {INBOX_BYTES_MAX} bytes would have to wait"));
        }
        if self.used > 0 {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The bytes that are not used yet.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Removes the first bytes, which were used.
    pub(crate) fn take(&mut self, len: usize) {
        self.used += len;
        if self.used >= self.bytes.len() {
            self.clear();
        }
    }

    /// Removes all bytes.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
    }
}

/// Bytes to send, and whether to close afterwards.
#[derive(Default)]
pub struct Out {
    /// Bytes for the client.
    pub client: Vec<u8>,
    /// Bytes for the server.
    pub server: Vec<u8>,
    /// Whether to close the client's port after them.
    pub closes_client: bool,
    /// Whether to close the server's port after them.
    pub closes_server: bool,
    /// Why the conversation was ended early.
    pub reason: Option<String>,
}

impl Out {
    /// How many bytes wait to be sent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.client.len() + self.server.len()
    }

    /// Whether nothing waits to be sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the conversation, with a reason if it is an error.
    pub(crate) fn end(&mut self, reason: Option<String>) {
        (self.closes_client, self.closes_server) = (true, true);
        self.reason = reason;
    }
}

/// A conversation between client and server: bytes in, bytes out.
pub trait Pipe {
    /// The client has connected; its address, if known.
    fn meet(&mut self, _client: Option<SocketAddr>) {}

    /// One side has sent bytes.
    fn receive(&mut self, side: Side, bytes: &[u8], out: &mut Out);

    /// One side will send no more.
    fn end(&mut self, side: Side);

    /// Continues for some tens of kilobytes of output. Returns whether there is more to do without further input.
    fn step(&mut self, out: &mut Out) -> bool;
}
