//! The frames of one WebSocket, both ways: what a client's bytes come to, and what stands before what it is sent. Pure: bytes in,
//! values out. Takes frames apart with `tungstenite`, fed from memory, and lets it answer nothing by itself.

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

/// What is taken from memory at a time: each connection has a buffer of this size.
const READ: usize = 4 << 10;
/// What stands before the payload of a client's control frame.
const CONTROL_HEAD: usize = 6;
/// A close frame has so much room for words.
const REASON_MAX: usize = 123;

/// What a client said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WsEvent {
    /// A whole message.
    Message(Bytes),
    /// It wants this back.
    Ping(Bytes),
    /// It will say no more.
    Close,
}

/// How a conversation ends: a code of RFC 6455, and words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Closing {
    code: u16,
    words: String,
}

impl Closing {
    /// All is said.
    pub fn done() -> Self {
        Self { code: 1000, words: String::new() }
    }

    /// The session is over before all is said.
    pub fn session(code: Code, reason: &str) -> Self {
        let later = code.is_retryable() || matches!(code, Code::NoEdge | Code::ServerDown);
        Self { code: if later { 1013 } else { 1011 }, words: reason.into() }
    }

    /// Too many messages are not whole yet, and this client's for longest.
    pub fn crowded() -> Self {
        Self { code: 1013, words: "too many messages are on their way here; send it again later".into() }
    }

    /// What the client broke.
    fn broken(error: &Error) -> Self {
        let (code, words) = match error {
            Error::Capacity(_) => (1009, format!("a message has at most {MESSAGE_SIZE_MAX} bytes here")),
            Error::Utf8(_) => (1007, "a text is not UTF-8".into()),
            other => (1002, other.to_string()),
        };
        Self { code, words }
    }

    /// The frame that says so.
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
    machine: WebSocket<Memory>,
    /// Whether the client's last message was no text.
    binary: bool,
    /// Bytes that came behind the last whole message, but for control frames.
    behind: usize,
}

impl Default for WsCodec {
    /// One whose client was just let in.
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
    /// What the client sent next: at most one read, after what came before was taken ([`Self::decode`]).
    pub fn feed(&mut self, bytes: Bytes) {
        self.behind += bytes.len();
        let memory = &mut self.machine.get_mut().0;
        if memory.is_empty() {
            *memory = bytes;
        } else {
            *memory = [&memory[..], &bytes].concat().into();
        }
    }

    /// What the client says next; `None` if it has said no more. After [`WsEvent::Close`] and errors there is nothing.
    ///
    /// # Errors
    /// How to close a connection whose client breaks the protocol.
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

    /// How much is held of a message that is not whole yet, but for what was begun in a read that brought another to its end.
    pub fn unfinished(&self) -> usize {
        self.behind.saturating_sub(self.machine.get_ref().0.len())
    }

    /// What stands before a message to the client. It is text if the client's last one was, or it has sent none, and it can be.
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

/// Where the machine reads, and what takes its own answers, which nobody gets.
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

/// What the next read of a socket goes to.
pub fn reader() -> BytesMut {
    BytesMut::with_capacity(STREAM_CUT)
}

#[cfg(test)]
mod tests;
