//! The two frames that carry messages. Their overhead is the cost of the protocol, so each field has to be necessary: 4 bytes on
//! a small message to an edge, 14 or 15 on one from it (the paper adds 12 and 36).

use super::{Channel, Frame};
use crate::{
    codec::{Error, Field},
    limits::MESSAGE_SIZE_MAX,
};
use bytes::{Bytes, BytesMut};

const INPUT: u8 = 0x40;
const OUTPUT: u8 = 0x60;
const CLOSE: u8 = 1;
const EXTRA: u8 = 2;

/// End to edge: the next message of this end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    /// The channel.
    pub channel: Channel,
    /// Outputs received since the last acknowledgement.
    pub ack: u64,
    /// Whether this ends the end's messages; then it has no payload.
    pub close: bool,
    /// The message.
    pub payload: Bytes,
}

/// Log entries that travel with an output, and the running digest after them (docs/protocol.md, "The log and increments").
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Increment {
    /// Sealed entries, from where the last increment to this end stopped.
    pub entries: Bytes,
    /// Keyed digest of the session up to the last of them.
    pub tag: [u8; 8],
}

/// Edge to end: the next output for this end, with the log that it depends on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// The channel.
    pub channel: Channel,
    /// The log that this end has not been sent yet; absent if there is none.
    pub increment: Option<Increment>,
    /// Whether this ends the outputs; then it has no payload.
    pub close: bool,
    /// The message.
    pub payload: Bytes,
}

impl From<Input> for Frame {
    fn from(frame: Input) -> Self {
        Self::Input(frame)
    }
}

impl From<Output> for Frame {
    fn from(frame: Output) -> Self {
        Self::Output(frame)
    }
}

fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

fn payload(rest: Bytes, close: bool) -> Result<Bytes, Error> {
    if close && !rest.is_empty() {
        return Err(Error::Trailing);
    }
    if rest.len() > MESSAGE_SIZE_MAX { Err(Error::TooLarge) } else { Ok(rest) }
}

impl Input {
    pub(super) fn put_head(&self, out: &mut BytesMut) -> Bytes {
        (INPUT | flag(self.close, CLOSE) | flag(self.ack > 0, EXTRA)).put(out);
        self.channel.put(out);
        if self.ack > 0 {
            self.ack.put(out);
        }
        self.payload.clone()
    }

    pub(super) fn take(kind: u8, mut body: Bytes) -> Result<Self, Error> {
        let close = kind & CLOSE != 0;
        let channel = Field::take(&mut body)?;
        let ack = if kind & EXTRA != 0 { u64::take(&mut body)? } else { 0 };
        Ok(Self { channel, ack, close, payload: payload(body, close)? })
    }
}

impl Output {
    pub(super) fn put_head(&self, out: &mut BytesMut) -> Bytes {
        (OUTPUT | flag(self.close, CLOSE) | flag(self.increment.is_some(), EXTRA)).put(out);
        self.channel.put(out);
        if let Some(increment) = &self.increment {
            increment.entries.put(out);
            increment.tag.put(out);
        }
        self.payload.clone()
    }

    pub(super) fn take(kind: u8, mut body: Bytes) -> Result<Self, Error> {
        let close = kind & CLOSE != 0;
        let channel = Field::take(&mut body)?;
        let increment = if kind & EXTRA != 0 {
            Some(Increment { entries: Field::take(&mut body)?, tag: Field::take(&mut body)? })
        } else {
            None
        };
        Ok(Self { channel, increment, close, payload: payload(body, close)? })
    }
}
