//! One local connection: to a client or server that knows nothing of Marram.
//!
//! It forwards bytes and every way in which a TCP connection can end; knows no session. A program with an embedded agent may send
//! messages instead of a stream.
//!
//! ```text
//!                 reads: at most STREAM_CUT a turn          writes: up to 32 slices
//! socket ─────────▶ [Pieces, if messages] ─▶ Received       Write ─▶ [head] bytes ─▶ socket
//! its close ──────▶ EndOfInput or Broken                    Shutdown, Close ─▶ after the waiting bytes
//! ```
//!
//! How a connection ends must survive the way through the edge: FIN becomes an end of input, RST a
//! failure, and the other way round. A program that checks for a reset sees one.

use crate::{
    messages::{self, Pieces},
    program::CloseState,
};
use bytes::{Buf, Bytes, BytesMut};
use marram_session::agent::{AgentInput, ConnectionFailure, ConnectionId};
use marram_transport::Socket;
use marram_wire::limits::STREAM_CUT;
use std::{
    collections::VecDeque,
    io::{self, IoSlice, Write},
    sync::Arc,
    time::Duration,
};

/// Slices in one write.
const SLICES: usize = 32;
/// A read that fills at least so much of its buffer keeps the buffer; a shorter one is copied, so that retained data does not
/// hold much more memory than its size.
const KEEP: usize = STREAM_CUT / 4 * 3;

/// Bytes that wait to be written.
/// The bytes of one write of the agent, or a header.
struct Part {
    bytes: Bytes,
    /// Headers before a message, or before all of them, do not belong to the session.
    /// They give no credit back, since the edge did not send them.
    is_head: bool,
}

/// One local connection.
pub(super) struct Local {
    id: ConnectionId,
    pub(super) socket: Socket,
    /// Whether the connection is still being established.
    pub(super) connecting: bool,
    /// Whether the kernel probes its peer.
    probes: bool,
    /// Whether it waits for its turn to be read.
    pub(super) queued: bool,
    /// Whether the agent wants its input.
    /// False while the session has no room: the kernel's buffer fills and the peer stops (flow
    /// control, `docs/protocol.md`, chapter 10).
    reading: bool,
    /// Whether the socket may be readable.
    readable: bool,
    /// Whether the peer has closed, so that a short read is not the last.
    peer_closed: bool,
    /// Whether all input has been read.
    input_ended: bool,
    /// Bounded by the credit that the agent has granted to the edge, not here.
    waiting: VecDeque<Part>,
    /// Whether to close the write side after the waiting bytes.
    shutdown: bool,
    /// Whether to close after the waiting bytes.
    closing: bool,
    /// State that the embedding program reads beside the bytes, if this connection is to it.
    close_state: Option<Arc<CloseState>>,
    /// Whether that program does not read any more; bytes that it wrote before may still arrive.
    deaf: bool,
    /// Received bytes of the program that are not processed yet, if it sends messages.
    pieces: Option<Pieces>,
}

impl Local {
    /// A connection that is established, or being established.
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
            probes: false,
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

    /// Whether its peer's host is gone. The first call begins to probe the peer: most connections end before, and do not
    /// pay for the system calls.
    pub(super) fn has_vanished(&mut self, peer_unreachable: Duration) -> bool {
        if !self.probes {
            // A socket that refuses is broken, and its next event says so.
            self.probes = self.socket.ask_for_peer(peer_unreachable).is_ok();
        }
        self.socket.has_vanished(peer_unreachable)
    }

    /// Whether its program, which will write no more, has reported a failure.
    ///
    /// A socket pair has no reset: an abort is a flag beside it, and a close with the flag set is a
    /// failure.
    pub(super) fn is_aborted(&self) -> bool {
        self.input_ended && self.close_state.as_ref().is_some_and(|close_state| close_state.is_aborted())
    }

    /// Whether all input has been read, so that a failure must be detected in another way.
    pub(super) fn input_ended(&self) -> bool {
        self.input_ended
    }

    /// Records a poll event.
    /// The flags stay set until a read proves them wrong, as events are edge-triggered.
    pub(super) fn ready(&mut self, readable: bool, peer_closed: bool) {
        self.readable |= readable;
        self.peer_closed |= peer_closed;
    }

    /// Whether [`Self::read`] may return something.
    pub(super) fn wants_read(&self) -> bool {
        let has_more = self.readable || self.pieces.as_ref().is_some_and(Pieces::has_next);
        has_more && self.reading && !self.connecting && !self.input_ended && !self.closing
    }

    /// Stops or resumes reading.
    pub(super) fn set_reading(&mut self, on: bool) {
        self.reading = on;
    }

    /// Queues bytes to be written: one message, if message boundaries are kept.
    pub(super) fn push(&mut self, bytes: Bytes) {
        if self.pieces.is_some() {
            let head = Bytes::copy_from_slice(&messages::head(bytes.len()));
            self.waiting.push_back(Part { bytes: head, is_head: true });
        }
        if !bytes.is_empty() {
            self.waiting.push_back(Part { bytes, is_head: false });
        }
    }

    /// Queues bytes that do not belong to the session.
    pub(super) fn push_head(&mut self, bytes: Bytes) {
        self.waiting.push_back(Part { bytes, is_head: true });
    }

    /// Closes the write side after the waiting bytes.
    pub(super) fn shutdown(&mut self) {
        self.shutdown = true;
    }

    /// Closes the connection after the waiting bytes.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// Whether it is closing and everything is written: it can be dropped.
    pub(super) fn is_over(&self) -> bool {
        self.closing && self.waiting.is_empty()
    }

    /// Reads at most once, and at most one cut of the stream, into `buffer`, which is empty before and after.
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
            // The order matters: an abort also closes the stream, and must not look like an orderly
            // end.
            Ok(0) if self.close_state.as_ref().is_some_and(|close_state| close_state.is_aborted()) => {
                Some(self.broken())
            }
            // The program left in the middle of a message: the partial message is discarded.
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

    /// The next message in the received bytes, if one is complete.
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

    /// Makes its program see a failure when the connection is dropped now.
    pub(super) fn fail(&self, failure: ConnectionFailure) {
        match &self.close_state {
            Some(close_state) => close_state.fail(failure),
            // It is closed in any case; at worst the program sees an end instead of a failure.
            None => _ = self.socket.reset_on_close(),
        }
    }

    /// Before the stream is closed, so that the program finds the state when it reads the end.
    fn tell_end(&self) {
        if let Some(close_state) = &self.close_state {
            close_state.end();
        }
    }

    /// Writes waiting bytes, as far as the socket takes them. Returns how many bytes of the session were written, or none if
    /// nothing was.
    pub(super) fn flush(&mut self) -> io::Result<Option<u64>> {
        let mut total = None;
        if self.connecting {
            return Ok(total);
        }
        while !self.waiting.is_empty() {
            // Counted as written: the session must go on until the program's own last bytes have
            // been read.
            if self.deaf && !self.input_ended {
                let said = self.waiting.drain(..).filter(|part| !part.is_head);
                *total.get_or_insert(0) += said.map(|part| part.bytes.len() as u64).sum::<u64>();
                break;
            }
            match self.write_once() {
                Ok(count) => *total.get_or_insert(0) += count as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(total),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel keeps what the program wrote before it closed.
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
            // If the peer has reset the connection meanwhile, the next read detects it.
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
