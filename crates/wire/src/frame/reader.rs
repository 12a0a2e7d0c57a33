//! Cuts a byte stream into frames without copying payloads.

use super::Frame;
use crate::{codec, limits::FRAME_SIZE_MAX};
use bytes::{Buf, BytesMut};
use core::fmt;

/// Why a byte stream cannot be read further. The peer is at fault; close the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// A length of more than [`FRAME_SIZE_MAX`], or an invalid length.
    Length,
    /// A frame that cannot be decoded.
    Frame(codec::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => write!(f, "a frame claims to be larger than {FRAME_SIZE_MAX} bytes"),
            Self::Frame(error) => write!(f, "a frame cannot be decoded: {error}"),
        }
    }
}

impl core::error::Error for ReadError {}

/// Holds received bytes until the frame is complete.
#[derive(Default, Debug)]
pub struct Reader {
    /// Received and not yet decoded; append to it.
    pub buffer: BytesMut,
}

impl Reader {
    /// Takes the next complete frame, if there is one.
    ///
    /// # Errors
    /// If the stream cannot be read further. Later calls fail as well.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, ReadError> {
        let Some((len, prefix)) = length(&self.buffer)? else { return Ok(None) };
        if self.buffer.len() < prefix + len {
            return Ok(None);
        }
        self.buffer.advance(prefix);
        let body = self.buffer.split_to(len).freeze();
        Frame::decode(body).map(Some).map_err(ReadError::Frame)
    }

    /// Bytes that are missing of a partly received frame: the caller can reserve them before the next read.
    #[must_use]
    pub fn missing(&self) -> usize {
        match length(&self.buffer) {
            Ok(Some((len, prefix))) => (prefix + len).saturating_sub(self.buffer.len()),
            Ok(None) | Err(_) => 0,
        }
    }
}

/// Decodes the length prefix: the length of the body and of the prefix itself, once the prefix is complete.
fn length(bytes: &[u8]) -> Result<Option<(usize, usize)>, ReadError> {
    let mut len = 0usize;
    for (index, byte) in bytes.iter().take(4).enumerate() {
        len |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return if len > FRAME_SIZE_MAX { Err(ReadError::Length) } else { Ok(Some((len, index + 1))) };
        }
    }
    if bytes.len() >= 4 { Err(ReadError::Length) } else { Ok(None) }
}
