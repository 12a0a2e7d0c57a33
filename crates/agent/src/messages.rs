//! Messages between a program and its embedded agent. Their socket pair carries a stream, in which each message follows its
//! length.
//!
//! ```text
//! 4     length, little-endian, at most MESSAGE_SIZE_MAX
//! ...   the message
//! ```

use bytes::{Buf, Bytes, BytesMut};
use marram_wire::limits::{MESSAGE_SIZE_MAX, STREAM_CUT};

/// Bytes before each message.
pub const HEAD: usize = 4;
/// A message of at least so many bytes keeps the buffer that it was read into; a shorter one is copied, so that retained data
/// does not hold much more memory than its size.
const KEEP: usize = STREAM_CUT / 4 * 3;

/// The prefix of a message of this length, which is at most [`MESSAGE_SIZE_MAX`].
/// That of 258 is `[2, 1, 0, 0]`.
#[must_use]
pub fn head(len: usize) -> [u8; HEAD] {
    debug_assert!(len <= MESSAGE_SIZE_MAX, "a longer one is refused before");
    u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes()
}

/// Decodes the length of the next message; `None` if it is above the limit.
#[must_use]
pub fn length(head: [u8; HEAD]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(head)).ok().filter(|len| *len <= MESSAGE_SIZE_MAX)
}

/// The stream contains an invalid length: the writer is out of sync.
/// There is no way to find the next boundary: the connection breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoMessage;

/// Assembles messages from pieces.
///
/// It holds at most one incomplete message and one read behind it. Complete messages are taken one
/// a turn, so the agent can stop reading between two.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    bytes: BytesMut,
}

impl Pieces {
    /// Adds the next received bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether there is nothing, not even a partial message.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether [`Self::next`] would return a message or an error.
    pub(crate) fn has_next(&self) -> bool {
        match self.length() {
            Some(Ok(len)) => self.bytes.len() >= HEAD + len,
            Some(Err(NoMessage)) => true,
            None => false,
        }
    }

    fn length(&self) -> Option<Result<usize, NoMessage>> {
        self.bytes.first_chunk().map(|head| length(*head).ok_or(NoMessage))
    }

    /// The next complete message; `None` while there is none.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, NoMessage> {
        let Some(len) = self.length().transpose()? else { return Ok(None) };
        if self.bytes.len() < HEAD + len {
            // Reserves once, not at every piece.
            self.bytes.reserve(HEAD + len - self.bytes.len());
            return Ok(None);
        }
        self.bytes.advance(HEAD);
        let message = if len >= KEEP {
            self.bytes.split_to(len).freeze()
        } else {
            let message = Bytes::copy_from_slice(&self.bytes[..len]);
            self.bytes.advance(len);
            message
        };
        if self.bytes.is_empty() {
            // Most connections are idle most of the time: they hold no buffer for future messages.
            self.bytes = BytesMut::new();
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        messages.iter().flat_map(|message| [&head(message.len())[..], message].concat()).collect()
    }

    #[test]
    fn messages_are_the_same_however_their_stream_is_cut() {
        let sizes = [0, 1, KEEP - 1, 0, KEEP, MESSAGE_SIZE_MAX, 3];
        let messages: Vec<Vec<u8>> = (0..).zip(sizes).map(|(byte, size)| vec![byte; size]).collect();
        let stream = framed(&messages);
        for piece in [1, 3, 4, 5, 1_000, STREAM_CUT, stream.len()] {
            let (mut pieces, mut whole) = (Pieces::default(), Vec::new());
            for piece in stream.chunks(piece) {
                pieces.add(piece);
                while pieces.has_next() {
                    whole.push(pieces.next().unwrap().unwrap().to_vec());
                }
                assert_eq!(pieces.next(), Ok(None));
            }
            assert!(whole == messages && pieces.is_empty(), "cut into pieces of {piece}");
        }
    }

    #[test]
    fn no_message_is_longer_than_a_message_may_be() {
        let mut pieces = Pieces::default();
        let too_long = u32::try_from(MESSAGE_SIZE_MAX).unwrap() + 1;
        pieces.add(&framed(&[vec![7]]));
        pieces.add(&too_long.to_le_bytes()[..3]);
        assert_eq!(pieces.next(), Ok(Some(Bytes::from_static(&[7]))));
        assert!(!pieces.has_next());
        pieces.add(&too_long.to_le_bytes()[3..]);
        assert!(pieces.has_next(), "to say so");
        assert_eq!(pieces.next(), Err(NoMessage));
    }
}
