//! What chooses the cell of a client, of an app that has one shared cell for each key (docs/protocol-epochs.md, "Keys").

use crate::{
    codec::{Error, Field},
    limits::CELL_KEY_MAX,
};
use alloc::boxed::Box;
use bytes::{Bytes, BytesMut};
use core::fmt;

/// A key: 1 to [`CELL_KEY_MAX`] bytes, with any values.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellKey(Box<[u8]>);

/// Why bytes are no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadKey {
    /// There are none.
    Empty,
    /// There are so many.
    TooLong(usize),
}

impl fmt::Display for BadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the key of its cell is empty"),
            Self::TooLong(bytes) => {
                write!(f, "the key of its cell has {bytes} bytes; the maximum is {CELL_KEY_MAX}")
            }
        }
    }
}

impl CellKey {
    /// The key with these bytes.
    ///
    /// # Errors
    /// If there are none, or too many.
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Result<Self, BadKey> {
        let bytes = bytes.into();
        match bytes.len() {
            0 => Err(BadKey::Empty),
            len if len > CELL_KEY_MAX => Err(BadKey::TooLong(len)),
            _ => Ok(Self(bytes)),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// As people read it: text as it is, other bytes as `\x00`.
impl fmt::Display for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Field for CellKey {
    fn put(&self, out: &mut BytesMut) {
        (self.0.len() as u64).put(out);
        out.extend_from_slice(&self.0);
    }

    fn take(from: &mut Bytes) -> Result<Self, Error> {
        Self::new(&<Bytes as Field>::take(from)?[..]).map_err(|bad| match bad {
            BadKey::Empty => Error::Unknown,
            BadKey::TooLong(_) => Error::TooLarge,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::ToString, vec};

    #[test]
    fn keys_survive_and_others_are_refused() {
        for len in [1, CELL_KEY_MAX] {
            let key = CellKey::new(vec![7; len]).expect("it is a key");
            let mut out = BytesMut::new();
            key.put(&mut out);
            let mut bytes = out.freeze();
            assert_eq!(CellKey::take(&mut bytes), Ok(key));
            assert!(bytes.is_empty());
        }
        for (len, bad, error) in [
            (0, BadKey::Empty, Error::Unknown),
            (CELL_KEY_MAX + 1, BadKey::TooLong(CELL_KEY_MAX + 1), Error::TooLarge),
        ] {
            assert_eq!(CellKey::new(vec![7; len]), Err(bad));
            let mut out = BytesMut::new();
            Bytes::from(vec![7; len]).put(&mut out);
            assert_eq!(CellKey::take(&mut out.freeze()), Err(error));
        }
    }

    #[test]
    fn people_can_read_a_key() {
        let key = CellKey::new(&b"/rooms/\x00\n\xff"[..]).expect("it is a key");
        assert_eq!(key.to_string(), "/rooms/\\x00\\n\\xff");
    }
}
