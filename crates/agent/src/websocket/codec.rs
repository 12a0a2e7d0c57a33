//! The frames of one WebSocket, in both directions: decodes a client's bytes, and encodes the headers of outgoing messages. Pure:
//! bytes in, values out. Uses `tungstenite` for decoding, fed from memory, and does not let it answer by itself.
//!
//! ```text
//! frame := FIN, opcode (1) | MASK, length (1, 3 or 9) | [mask (4): client to server only] | payload    (RFC 6455, 5.2)
//! ```
//!
//! Messages to the client are unmasked and never fragmented, so only the header is made here and
//! the payload is written by reference. The library's own answers to pings and closes are
//! discarded, since they would not keep their place among the queued messages.

use bytes::{Buf, Bytes, BytesMut};
use marram_wire::{
    frame::Code,
    limits::{MESSAGE_SIZE_MAX, STREAM_CUT},
};
use std::io::{self, ErrorKind, Read, Write};
use tungstenite::{
    Error, Message, WebSocket,
    protocol::{
        Role, WebSocketConfig,
        frame::{
            CloseFrame, Frame,
            coding::{CloseCode, Control, Data, OpCode},
        },
    },
};

/// Bytes taken from memory at a time: each connection has a buffer of this size.
const READ: usize = 4 << 10;
/// Header size of a client's control frame.
/// Two bytes and the mask.
const CONTROL_HEAD: usize = 6;
/// Bytes for the reason in a close frame.
const REASON_MAX: usize = 123;

/// A client's message or control frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WsEvent {
    /// A complete message.
    Message(Bytes),
    /// A ping; the pong must repeat these bytes.
    Ping(Bytes),
    /// The client's close.
    /// Its code and reason are not passed on: a cell sees an end of input.
    Close,
}

/// How a conversation ends: a status code of RFC 6455, and a reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Closing {
    code: u16,
    words: String,
}

impl Closing {
    /// Everything was sent.
    pub fn done() -> Self {
        Self { code: 1000, words: String::new() }
    }

    /// The session ended before everything was sent.
    /// 1013 ("try again later") if another attempt can help, 1011 ("internal error") else.
    pub fn session(code: Code, reason: &str) -> Self {
        let later = code.is_retryable() || matches!(code, Code::NoEdge | Code::ServerDown);
        Self { code: if later { 1013 } else { 1011 }, words: reason.into() }
    }

    /// All connections together hold too many bytes of partial messages, and this client's is the oldest.
    pub fn crowded() -> Self {
        Self { code: 1013, words: "too many messages are in transit; send it again later".into() }
    }

    /// The client's protocol error.
    /// 1009 too big, 1007 not UTF-8, 1002 protocol error.
    fn broken(error: &Error) -> Self {
        let (code, words) = match error {
            Error::Capacity(_) => (1009, format!("a message can have at most {MESSAGE_SIZE_MAX} bytes")),
            Error::Utf8(_) => (1007, "a text message is not UTF-8".into()),
            other => (1002, other.to_string()),
        };
        Self { code, words }
    }

    /// The close frame.
    /// A control frame has at most 125 bytes of payload, two of which are the code. The reason is
    /// cut at a character.
    pub fn frame(&self) -> Bytes {
        let mut end = self.words.len().min(REASON_MAX);
        while !self.words.is_char_boundary(end) {
            end -= 1;
        }
        let reason = self.words[..end].into();
        let close = Frame::close(Some(CloseFrame { code: CloseCode::from(self.code), reason }));
        encode(&close)
    }
}

/// One WebSocket.
#[derive(Debug)]
pub struct WsCodec {
    /// Assembles fragments, unmasks and checks; it reads from memory and never from a socket.
    machine: WebSocket<Memory>,
    /// Whether the client's last message was binary.
    binary: bool,
    /// Bytes after the last complete message, without control frames.
    /// Counted here since the library does not tell how much it holds.
    behind: usize,
}

impl Default for WsCodec {
    /// A codec for a client that was just admitted.
    fn default() -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ)
            .write_buffer_size(0)
            .max_message_size(Some(MESSAGE_SIZE_MAX))
            .max_frame_size(Some(MESSAGE_SIZE_MAX));
        let machine = WebSocket::from_raw_socket(Memory(Bytes::new()), Role::Server, Some(config));
        Self { machine, binary: false, behind: 0 }
    }
}

impl WsCodec {
    /// Adds received bytes: at most one read, after everything before was taken ([`Self::decode`]).
    /// Usually nothing is left, and the bytes are not copied.
    pub fn feed(&mut self, bytes: Bytes) {
        self.behind += bytes.len();
        let memory = &mut self.machine.get_mut().0;
        if memory.is_empty() {
            *memory = bytes;
        } else {
            *memory = [&memory[..], &bytes].concat().into();
        }
    }

    /// The client's next event; `None` if more bytes are needed. After [`WsEvent::Close`] and errors there is nothing.
    ///
    /// # Errors
    /// The close for a client that breaks the protocol.
    pub fn decode(&mut self) -> Result<Option<WsEvent>, Closing> {
        loop {
            let heard = match self.machine.read() {
                Ok(Message::Text(text)) => {
                    self.binary = false;
                    WsEvent::Message(text.into())
                }
                Ok(Message::Binary(bytes)) => {
                    self.binary = true;
                    WsEvent::Message(bytes)
                }
                Ok(Message::Ping(bytes)) => {
                    self.forget_control(bytes.len());
                    WsEvent::Ping(bytes)
                }
                Ok(Message::Pong(bytes)) => {
                    self.forget_control(bytes.len());
                    continue;
                }
                Ok(Message::Frame(_)) => continue,
                Ok(Message::Close(_)) => WsEvent::Close,
                Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(Closing::broken(&error)),
            };
            if let WsEvent::Message(_) = heard {
                self.behind = self.machine.get_ref().0.len();
            }
            return Ok(Some(heard));
        }
    }

    fn forget_control(&mut self, payload: usize) {
        self.behind = self.behind.saturating_sub(CONTROL_HEAD + payload);
    }

    /// Bytes held of a partial message; those in the same read as the end of an earlier message do not count.
    /// An estimate, for the common limit `UNFINISHED_MAX`.
    pub fn unfinished(&self) -> usize {
        self.behind.saturating_sub(self.machine.get_ref().0.len())
    }

    /// The header of a message to the client. It is a text message if it is valid text and the client's last message was text, or
    /// it has sent none.
    pub fn header(&self, message: &Bytes) -> Bytes {
        let text = !self.binary && std::str::from_utf8(message).is_ok();
        let data = if text { Data::Text } else { Data::Binary };
        let mut bytes = Vec::new();
        let frame = Frame::message(Bytes::new(), OpCode::Data(data), true);
        let written = frame.header().format(message.len() as u64, &mut bytes);
        written.expect("memory takes what is written");
        bytes.into()
    }
}

/// The answer to a ping.
pub fn pong(bytes: Bytes) -> Bytes {
    let mut frame = Frame::pong(bytes);
    debug_assert_eq!(frame.header().opcode, OpCode::Control(Control::Pong));
    frame.header_mut().is_final = true;
    encode(&frame)
}

fn encode(frame: &Frame) -> Bytes {
    let mut bytes = Vec::new();
    frame.header().format(frame.payload().len() as u64, &mut bytes).expect("memory takes what is written");
    bytes.extend_from_slice(frame.payload());
    bytes.into()
}

/// The decoder's input. Its own answers are written here and discarded.
#[derive(Debug)]
struct Memory(Bytes);

impl Read for Memory {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let len = buffer.len().min(self.0.len());
        self.0.copy_to_slice(&mut buffer[..len]);
        Ok(len)
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The target of the next read of a socket.
pub fn reader() -> BytesMut {
    BytesMut::with_capacity(STREAM_CUT)
}

#[cfg(test)]
mod tests;
