//! One WebSocket client: its socket, its state, and the bytes that wait to be written.
//!
//! ```text
//! Asking ─ request complete ─▶ Asked ─ route: app ─▶ Talking ─ both directions over ─▶ Leaving ─▶ dropped
//!    └──── not valid ──────────────┴── refused ──────────┴──── protocol broken ──────────▲
//! ```
//!
//! In `Leaving` input is read and discarded until the client closes or `CLOSING` is over: a socket
//! that is closed with unread input is reset, and the peer may lose what was written before.

use super::{
    codec::{self, Closing, WsCodec, WsEvent},
    request::{self, UpgradeRefusal},
};
use crate::routing::Arrived;
use bytes::{Buf, Bytes, BytesMut};
use marram_session::agent::{
    ConnectionId,
    proxy::{self, ProxyError, ProxyHeader},
};
use marram_transport::Socket;
use marram_wire::limits::STREAM_CUT;
use std::{
    collections::VecDeque,
    io::{self, ErrorKind, IoSlice, Write},
    time::Instant,
};

/// Slices in one write.
const SLICES: usize = 32;

/// The state of the connection.
enum Stage {
    /// It has not sent a complete request; the bytes so far.
    Asking(BytesMut),
    /// Its request is valid: the answer that grants it, and the bytes after the request.
    /// Nothing is read in this stage: the route is decided within the same turn.
    Asked(Bytes, Bytes),
    /// It has a session.
    Talking(Box<WsCodec>),
    /// Only waiting bytes are still sent.
    Leaving,
}

/// The result of one step of a connection.
pub(super) enum Step {
    /// Nothing for the caller.
    Nothing,
    /// It sent a valid request, with this head.
    Asked(Bytes),
    /// It sent a message.
    Received(Bytes),
    /// It sent a close.
    Closed,
    /// It was refused, or broke the protocol; whether it had a session.
    Left(bool),
    /// Its proxy sent no valid header with the client's address.
    Unproxied(ProxyError),
    /// Its peer is gone.
    Gone,
}

/// Bytes that wait to be written.
struct Part {
    bytes: Bytes,
    /// The length of the message that ends with these bytes, if one does.
    /// Credit counts the message's bytes without frame headers, and only when all of it is written.
    ends: Option<usize>,
}

/// One connection.
pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) arrived: Arrived,
    /// Whether its proxy's header is still incomplete.
    proxied: bool,
    /// When it times out.
    pub(super) deadline: Option<Instant>,
    /// Whether the agent knows of it.
    /// Inputs may name it only while this is set.
    pub(super) known: bool,
    /// Whether the agent wants its input.
    pub(super) reading: bool,
    /// Whether it is in the queue for its next step.
    pub(super) queued: bool,
    stage: Stage,
    /// As in `Local`: set by events, cleared by a read that found nothing more.
    readable: bool,
    peer_closed: bool,
    /// Whether its client sent a close.
    heard_close: bool,
    /// Whether a close was sent to it, or is queued.
    said_close: bool,
    /// Whether the received bytes may contain more.
    fed: bool,
    /// Whether all input has been read.
    input_ended: bool,
    waiting: VecDeque<Part>,
    /// A pong waits to be written; the payload of the one after it.
    ponging: bool,
    pong: Option<Bytes>,
}

impl Connection {
    /// A connection that has sent nothing yet.
    pub(super) fn new(socket: Socket, arrived: Arrived, proxied: bool) -> Self {
        Self {
            socket,
            arrived,
            proxied,
            deadline: None,
            known: false,
            reading: true,
            queued: false,
            stage: Stage::Asking(BytesMut::new()),
            readable: false,
            peer_closed: false,
            heard_close: false,
            said_close: false,
            fed: false,
            input_ended: false,
            waiting: VecDeque::new(),
            ponging: false,
            pong: None,
        }
    }

    /// Records a poll event.
    pub(super) fn ready(&mut self, readable: bool, peer_closed: bool) {
        self.readable |= readable;
        self.peer_closed |= peer_closed;
    }

    /// Whether [`Self::step`] may return something.
    pub(super) fn wants_read(&self) -> bool {
        match &self.stage {
            Stage::Asked(..) => false,
            _ if self.input_ended => false,
            Stage::Talking(_) => (self.readable || self.fed) && (self.reading || self.heard_close),
            Stage::Asking(_) | Stage::Leaving => self.readable,
        }
    }

    /// Puts it, under the id `name`, at the end of the step queue, once, if a step may return something.
    pub(super) fn queue(&mut self, name: ConnectionId, ready: &mut VecDeque<ConnectionId>) {
        if self.wants_read() && !std::mem::replace(&mut self.queued, true) {
            ready.push_back(name);
        }
    }

    /// Whether its request is incomplete, and there is more to read.
    pub(super) fn may_yet_ask(&self) -> bool {
        matches!(self.stage, Stage::Asking(_)) && self.readable
    }

    /// Bytes that it holds of a partial message.
    pub(super) fn unfinished(&self) -> usize {
        match &self.stage {
            Stage::Talking(codec) => codec.unfinished(),
            Stage::Asking(_) | Stage::Asked(..) | Stage::Leaving => 0,
        }
    }

    /// Reads once at most. `buffer` is empty before and after.
    pub(super) fn step(&mut self, buffer: &mut BytesMut, origins: &[String]) -> Step {
        if let Some(step) = self.say() {
            return step;
        }
        if !self.readable {
            return Step::Nothing;
        }
        if buffer.capacity() != STREAM_CUT {
            *buffer = codec::reader();
        }
        match self.socket.read_into(buffer) {
            Ok(0) if self.heard_close && self.known => {
                // It closed without waiting for the answer. Its session can still end in order.
                self.input_ended = true;
                Step::Nothing
            }
            Ok(0) => Step::Gone,
            Ok(count) => {
                self.readable = count == STREAM_CUT || self.peer_closed;
                let step = self.take(buffer, origins);
                buffer.clear();
                step
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Step::Nothing
            }
            Err(_) => Step::Gone,
        }
    }

    /// Handles received bytes according to the stage.
    /// In `Leaving`, and after the client's close, bytes are ignored.
    fn take(&mut self, read: &BytesMut, origins: &[String]) -> Step {
        match &mut self.stage {
            Stage::Asking(head) => {
                // The end of the request may span earlier bytes and these.
                let mut from = head.len().saturating_sub(request::END.len() - 1);
                head.extend_from_slice(read);
                if self.proxied {
                    match proxy::read(head) {
                        Ok(ProxyHeader::More) => return Step::Nothing,
                        Err(error) => return Step::Unproxied(error),
                        Ok(ProxyHeader::Header { len, ends }) => {
                            head.advance(len);
                            self.arrived.through(ends);
                            (self.proxied, from) = (false, 0);
                        }
                    }
                }
                match request::read(head, from, origins) {
                    None => Step::Nothing,
                    Some(Ok((len, answer))) => {
                        let (asked, behind) = (head.split_to(len).freeze(), head.split().freeze());
                        self.stage = Stage::Asked(answer, behind);
                        Step::Asked(asked)
                    }
                    Some(Err(refusal)) => {
                        self.refuse(&refusal);
                        Step::Left(false)
                    }
                }
            }
            Stage::Talking(codec) if !self.heard_close => {
                codec.feed(Bytes::copy_from_slice(read));
                self.fed = true;
                self.say().unwrap_or(Step::Nothing)
            }
            // No longer needed.
            Stage::Asked(..) | Stage::Talking(_) | Stage::Leaving => Step::Nothing,
        }
    }

    /// The next event in the received bytes, if there is one.
    /// Events are taken one at a time, and only while the agent wants input: what remains stays in
    /// the codec.
    fn say(&mut self) -> Option<Step> {
        while self.fed && self.reading && !self.heard_close {
            let Stage::Talking(codec) = &mut self.stage else { break };
            match codec.decode() {
                Ok(None) => self.fed = false,
                Ok(Some(WsEvent::Message(bytes))) => return Some(Step::Received(bytes)),
                Ok(Some(WsEvent::Ping(bytes))) => self.answer_ping(bytes),
                Ok(Some(WsEvent::Close)) => {
                    (self.heard_close, self.fed) = (true, false);
                    return Some(Step::Closed);
                }
                Err(closing) => {
                    let known = self.known;
                    self.close(&closing);
                    self.leave();
                    return Some(Step::Left(known));
                }
            }
        }
        None
    }

    /// Only the last of several pings is answered, so that the number of waiting pongs is bounded.
    fn answer_ping(&mut self, bytes: Bytes) {
        if self.said_close {
            return;
        }
        if self.ponging {
            self.pong = Some(bytes);
        } else {
            self.ponging = true;
            self.waiting.push_back(Part { bytes: codec::pong(bytes), ends: None });
        }
    }

    /// Grants a valid request: from now on it has a session.
    /// The order of `waiting` makes the answer precede all messages.
    pub(super) fn grant(&mut self) {
        if let Stage::Asked(answer, behind) = std::mem::replace(&mut self.stage, Stage::Leaving) {
            let mut codec = WsCodec::default();
            codec.feed(behind);
            (self.fed, self.known) = (true, true);
            self.waiting.push_back(Part { bytes: answer, ends: None });
            self.stage = Stage::Talking(Box::new(codec));
        }
    }

    /// Refuses a request, and closes.
    pub(super) fn refuse(&mut self, refusal: &UpgradeRefusal) {
        self.waiting.push_back(Part { bytes: refusal.answer(), ends: None });
        self.said_close = true;
        self.stage = Stage::Leaving;
    }

    /// Queues one more message.
    pub(super) fn push(&mut self, message: Bytes) {
        let Stage::Talking(codec) = &self.stage else { return };
        if !self.said_close {
            let len = message.len();
            self.waiting.push_back(Part { bytes: codec.header(&message), ends: (len == 0).then_some(0) });
            if len > 0 {
                self.waiting.push_back(Part { bytes: message, ends: Some(len) });
            }
        }
    }

    /// Ends it after a timeout: sends a close, as far as possible without blocking.
    pub(super) fn give_up(&mut self) {
        match self.stage {
            Stage::Asking(_) => self.refuse(&UpgradeRefusal::late()),
            _ => self.close(&Closing::done()),
        }
        // The result does not matter: the connection is dropped.
        let _ = self.flush();
    }

    /// Whether everything is written, including the close, and only its client can end it in order.
    /// From then on only the client's close is missing, which gets a deadline.
    pub(super) fn awaits_close(&self) -> bool {
        self.said_close && self.waiting.is_empty()
    }

    /// Queues a close with the reason, after the waiting bytes. A client that was not admitted gets none.
    pub(super) fn close(&mut self, closing: &Closing) {
        if matches!(self.stage, Stage::Talking(_)) && !self.said_close {
            self.said_close = true;
            self.waiting.push_back(Part { bytes: closing.frame(), ends: None });
        }
    }

    /// The agent has finished with it.
    pub(super) fn leave(&mut self) {
        self.known = false;
        self.stage = Stage::Leaving;
    }

    /// Whether everything is written and nothing is awaited: it can be dropped. If its client has not closed, wait for that,
    /// since the kernel would discard written bytes because of the unread ones.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Leaving) && self.waiting.is_empty() && self.heard_close
    }

    /// Writes waiting bytes, as far as the socket takes them. Returns the bytes of completed messages, if any message was
    /// completed.
    pub(super) fn flush(&mut self) -> io::Result<Option<u64>> {
        let mut total = None;
        while !self.waiting.is_empty() {
            match self.write_once(&mut total) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(total),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if matches!(self.stage, Stage::Leaving) {
            // If the peer has reset the connection meanwhile, the next read detects it.
            let _ = self.socket.shutdown_write();
        }
        Ok(total)
    }

    fn write_once(&mut self, total: &mut Option<u64>) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let parts = slices.iter_mut().zip(&self.waiting);
        let count = parts.map(|(slice, part)| *slice = IoSlice::new(&part.bytes)).count();
        let mut left = match self.socket.write_vectored(&slices[..count])? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => written,
        };
        while let Some(part) = self.waiting.front_mut() {
            if left < part.bytes.len() {
                part.bytes.advance(left);
                break;
            }
            left -= part.bytes.len();
            if let Some(len) = part.ends {
                *total = Some(total.unwrap_or(0) + len as u64);
            }
            self.waiting.pop_front();
        }
        if self.ponging && self.waiting.is_empty() {
            self.ponging = false;
            if let Some(bytes) = self.pong.take() {
                self.answer_ping(bytes);
            }
        }
        Ok(())
    }
}
