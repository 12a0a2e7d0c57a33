//! What goes in and out of a conversation, whatever its mode is: bytes that wait to be read, and what is to be sent.

use std::net::SocketAddr;

/// Bytes that may wait for their turn on one side: beyond what a decoder spreads over several handlers, only what must not be
/// read yet.
const INBOX_BYTES_MAX: usize = 4 << 20;
/// An emptied buffer that is larger is given back: it would be in every checkpoint.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// Who says something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// What came from one side and was not used yet.
#[derive(Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    used: usize,
    /// Nothing more will come.
    pub(crate) is_ended: bool,
}

impl Inbox {
    /// Adds what came.
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

    /// What is not used yet.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// The first bytes are used.
    pub(crate) fn take(&mut self, len: usize) {
        self.used += len;
        if self.used >= self.bytes.len() {
            self.clear();
        }
    }

    /// All are.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
    }
}

/// What is to be sent, and then closed.
#[derive(Default)]
pub struct Out {
    /// For the client.
    pub client: Vec<u8>,
    /// For the server.
    pub server: Vec<u8>,
    /// Nothing more will be said to the client.
    pub closes_client: bool,
    /// Nothing more will be said to the server.
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

    /// Ends the conversation, for a reason if it is no good one.
    pub(crate) fn end(&mut self, reason: Option<String>) {
        (self.closes_client, self.closes_server) = (true, true);
        self.reason = reason;
    }
}

/// A conversation between client and server: bytes in, bytes out.
pub trait Pipe {
    /// The client is there; its address, where that is known.
    fn meet(&mut self, _client: Option<SocketAddr>) {}

    /// One side says something.
    fn receive(&mut self, side: Side, bytes: &[u8], out: &mut Out);

    /// One side will say no more.
    fn end(&mut self, side: Side);

    /// Goes on a little, for some tens of kilobytes of output. Says whether there is more to do without further input.
    fn step(&mut self, out: &mut Out) -> bool;
}
