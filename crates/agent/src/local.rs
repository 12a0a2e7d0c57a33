//! One local connection: what a client or server that knows nothing of Marram speaks to.
//!
//! Bytes and the ways in which a TCP connection ends, passed on faithfully; knows no session. The program that the agent runs in may
//! speak in messages instead.

use crate::{
    messages::{self, Pieces},
    net::Socket,
    program::CloseState,
};
use bytes::{Buf, Bytes, BytesMut};
use marram_session::agent::{AgentInput, ConnectionFailure, ConnectionId};
use marram_wire::limits::STREAM_CUT;
use std::{
    collections::VecDeque,
    io::{self, IoSlice, Write},
    sync::Arc,
};

/// Slices in one write.
const SLICES: usize = 32;
/// A read that fills at least so much of its buffer keeps it; a shorter one is copied, so that what is retained does not
/// hold much more memory than it has bytes.
const KEEP: usize = STREAM_CUT / 4 * 3;

/// Bytes that wait to be written.
struct Part {
    bytes: Bytes,
    /// What stands before a message, or before all of them, is not of the session.
    is_head: bool,
}

/// One local connection.
pub(super) struct Local {
    id: ConnectionId,
    pub(super) socket: Socket,
    /// Still being made.
    pub(super) connecting: bool,
    /// Whether it waits for its turn to be read.
    pub(super) queued: bool,
    /// Whether the agent wants to hear from it.
    reading: bool,
    /// Whether the socket may have something.
    readable: bool,
    /// Whether the peer has closed, so that a short read is not the last.
    peer_closed: bool,
    /// Nothing more will be read.
    input_ended: bool,
    waiting: VecDeque<Part>,
    /// After what waits, say that no more will come.
    shutdown: bool,
    /// After what waits, close.
    closing: bool,
    /// What the program is told beside the bytes, if it is this very one.
    close_state: Option<Arc<CloseState>>,
    /// Whether that program reads no more; what it has written may still be there.
    deaf: bool,
    /// What that program said and nobody has heard yet, if it speaks in messages.
    pieces: Option<Pieces>,
}

impl Local {
    /// A connection that is there, or that is being made.
    pub(super) fn new(
        id: ConnectionId,
        socket: Socket,
        connecting: bool,
        close_state: Option<Arc<CloseState>>,
    ) -> Self {
        let keeps_messages =
            close_state.as_ref().is_some_and(|close_state| close_state.kind().keeps_messages());
        Self {
            pieces: keeps_messages.then(Pieces::default),
            id,
            socket,
            connecting,
            queued: false,
            reading: true,
            readable: false,
            peer_closed: false,
            input_ended: false,
            waiting: VecDeque::new(),
            shutdown: false,
            closing: false,
            close_state,
            deaf: false,
        }
    }

    /// Whether its program, which will write no more, has said that it failed.
    pub(super) fn is_aborted(&self) -> bool {
        self.input_ended && self.close_state.as_ref().is_some_and(|close_state| close_state.is_aborted())
    }

    /// Whether nothing more will be read, so that a failure has to be found otherwise.
    pub(super) fn input_ended(&self) -> bool {
        self.input_ended
    }

    /// Notes what the poll said.
    pub(super) fn ready(&mut self, readable: bool, peer_closed: bool) {
        self.readable |= readable;
        self.peer_closed |= peer_closed;
    }

    /// Whether [`Self::read`] may bring something.
    pub(super) fn wants_read(&self) -> bool {
        let has_more = self.readable || self.pieces.as_ref().is_some_and(Pieces::has_next);
        has_more && self.reading && !self.connecting && !self.input_ended && !self.closing
    }

    /// Stops or resumes reading.
    pub(super) fn set_reading(&mut self, on: bool) {
        self.reading = on;
    }

    /// Adds bytes to what will be written: a message, where messages are kept apart.
    pub(super) fn push(&mut self, bytes: Bytes) {
        if self.pieces.is_some() {
            let head = Bytes::copy_from_slice(&messages::head(bytes.len()));
            self.waiting.push_back(Part { bytes: head, is_head: true });
        }
        if !bytes.is_empty() {
            self.waiting.push_back(Part { bytes, is_head: false });
        }
    }

    /// Adds bytes that are none of the session's.
    pub(super) fn push_head(&mut self, bytes: Bytes) {
        self.waiting.push_back(Part { bytes, is_head: true });
    }

    /// After what waits, say that no more will come.
    pub(super) fn shutdown(&mut self) {
        self.shutdown = true;
    }

    /// After what waits, close.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// Whether it is closing and everything is written: it can be dropped.
    pub(super) fn is_over(&self) -> bool {
        self.closing && self.waiting.is_empty()
    }

    /// Reads once at most, and at most one cut of the stream, into `buffer`, which is empty before and after.
    pub(super) fn read(&mut self, buffer: &mut BytesMut) -> Option<AgentInput> {
        debug_assert!(buffer.is_empty(), "each read is taken out");
        let connection = self.id;
        if self.pieces.as_ref().is_some_and(Pieces::has_next) {
            return self.next_message();
        }
        if buffer.capacity() != STREAM_CUT {
            *buffer = BytesMut::with_capacity(STREAM_CUT);
        }
        match self.socket.read_into(buffer) {
            Ok(0) if self.close_state.as_ref().is_some_and(|close_state| close_state.is_aborted()) => {
                Some(self.broken())
            }
            // It has left in the middle of a message, of which nothing is heard then.
            Ok(0) if self.pieces.as_ref().is_some_and(|pieces| !pieces.is_empty()) => Some(self.broken()),
            Ok(0) => {
                self.input_ended = true;
                Some(AgentInput::EndOfInput { connection })
            }
            Ok(count) => {
                self.readable = count == STREAM_CUT || self.peer_closed;
                if let Some(pieces) = &mut self.pieces {
                    pieces.add(buffer);
                    buffer.clear();
                    return self.next_message();
                }
                let bytes = if count >= KEEP {
                    std::mem::take(buffer).freeze()
                } else {
                    let bytes = Bytes::copy_from_slice(buffer);
                    buffer.clear();
                    bytes
                };
                Some(AgentInput::Received { connection, bytes })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                None
            }
            Err(_) => Some(self.broken()),
        }
    }

    /// The next message in what was read, if one is whole.
    fn next_message(&mut self) -> Option<AgentInput> {
        match self.pieces.as_mut()?.next() {
            Ok(message) => message.map(|bytes| AgentInput::Received { connection: self.id, bytes }),
            Err(_) => Some(self.broken()),
        }
    }

    fn broken(&mut self) -> AgentInput {
        self.input_ended = true;
        self.waiting.clear();
        AgentInput::Broken { connection: self.id }
    }

    /// Its program is to learn that it failed when it is dropped now.
    pub(super) fn fail(&self, failure: ConnectionFailure) {
        match &self.close_state {
            Some(close_state) => close_state.fail(failure),
            // It is closed either way; at worst the program is told of an end where there was a failure.
            None => _ = self.socket.reset_on_close(),
        }
    }

    fn tell_end(&self) {
        if let Some(close_state) = &self.close_state {
            close_state.end();
        }
    }

    /// Writes what waits, as far as the socket takes it; how many bytes it took of what the session said, if it took any at all.
    pub(super) fn flush(&mut self) -> io::Result<Option<u64>> {
        let mut total = None;
        if self.connecting {
            return Ok(total);
        }
        while !self.waiting.is_empty() {
            if self.deaf && !self.input_ended {
                let said = self.waiting.drain(..).filter(|part| !part.is_head);
                *total.get_or_insert(0) += said.map(|part| part.bytes.len() as u64).sum::<u64>();
                break;
            }
            match self.write_once() {
                Ok(count) => *total.get_or_insert(0) += count as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(total),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel keeps for the agent what the program wrote before it closed.
                Err(error)
                    if error.kind() == io::ErrorKind::BrokenPipe
                        && self.close_state.is_some()
                        && !self.deaf =>
                {
                    self.deaf = true;
                    self.readable = true;
                }
                Err(error) => return Err(error),
            }
        }
        if self.shutdown || self.closing {
            self.tell_end();
        }
        if std::mem::take(&mut self.shutdown) {
            // A peer that has reset the connection meanwhile is found out by the next read.
            let _ = self.socket.shutdown_write();
        }
        Ok(total)
    }

    fn write_once(&mut self) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let parts = slices.iter_mut().zip(&self.waiting);
        let count = parts.map(|(slice, part)| *slice = IoSlice::new(&part.bytes)).count();
        let (mut left, mut said) = match self.socket.write_vectored(&slices[..count])? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => (written, 0),
        };
        while let Some(part) = self.waiting.front_mut() {
            let len = left.min(part.bytes.len());
            said += if part.is_head { 0 } else { len };
            left -= len;
            part.bytes.advance(len);
            if !part.bytes.is_empty() {
                break;
            }
            self.waiting.pop_front();
        }
        Ok(said)
    }
}
