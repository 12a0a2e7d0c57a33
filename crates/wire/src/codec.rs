//! The primitives of every format: LEB128 integers, fixed arrays, short text, bounded lists.
//!
//! Knows no message; `take` never reads past the end, never allocates more than the input could hold.

use crate::limits::{LIST_MAX, TEXT_MAX};
use alloc::{boxed::Box, string::String, vec::Vec};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use core::fmt;

/// Why bytes could not be decoded. The sender is at fault; a retry with the same bytes fails again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The bytes end in the middle of a value.
    Truncated,
    /// An integer, text or list is larger than its limit.
    TooLarge,
    /// A value that this version does not know.
    Unknown,
    /// Bytes are left after the last field.
    Trailing,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the bytes end in the middle of a value",
            Self::TooLarge => "a value is larger than its limit",
            Self::Unknown => "a value is not known to this version",
            Self::Trailing => "bytes are left after the last field",
        })
    }
}

impl core::error::Error for Error {}

/// A value with exactly one encoding.
pub trait Field: Sized {
    /// Appends the encoding.
    fn put(&self, out: &mut BytesMut);
    /// Decodes one value and removes its bytes from the front.
    ///
    /// # Errors
    /// If the bytes are not an encoding of such a value.
    fn take(from: &mut Bytes) -> Result<Self, Error>;
}

impl Field for u64 {
    fn put(&self, out: &mut BytesMut) {
        let mut rest = *self;
        loop {
            let low = rest.to_le_bytes()[0] & 0x7f;
            rest >>= 7;
            if rest == 0 {
                return out.put_u8(low);
            }
            out.put_u8(low | 0x80);
        }
    }

    fn take(from: &mut Bytes) -> Result<Self, Error> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = u8::take(from)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Error::TooLarge);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::TooLarge)
    }
}

impl Field for u32 {
    fn put(&self, out: &mut BytesMut) {
        u64::from(*self).put(out);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        u32::try_from(u64::take(from)?).map_err(|_| Error::TooLarge)
    }
}

impl Field for u16 {
    fn put(&self, out: &mut BytesMut) {
        u64::from(*self).put(out);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        Self::try_from(u64::take(from)?).map_err(|_| Error::TooLarge)
    }
}

impl Field for u8 {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(*self);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        if from.is_empty() {
            return Err(Error::Truncated);
        }
        Ok(from.get_u8())
    }
}

impl Field for i64 {
    fn put(&self, out: &mut BytesMut) {
        out.put_i64_le(*self);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        <[u8; 8]>::take(from).map(i64::from_le_bytes)
    }
}

impl Field for bool {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::Unknown),
        }
    }
}

impl<const N: usize> Field for [u8; N] {
    fn put(&self, out: &mut BytesMut) {
        out.put_slice(self);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        if from.len() < N {
            return Err(Error::Truncated);
        }
        let mut array = [0; N];
        from.copy_to_slice(&mut array);
        Ok(array)
    }
}

/// Bytes after their length; bounded by the rest of the frame.
impl Field for Bytes {
    fn put(&self, out: &mut BytesMut) {
        (self.len() as u64).put(out);
        out.put_slice(self);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        let len = usize::try_from(u64::take(from)?).map_err(|_| Error::TooLarge)?;
        if len > from.len() {
            return Err(Error::Truncated);
        }
        Ok(from.split_to(len))
    }
}

impl Field for String {
    fn put(&self, out: &mut BytesMut) {
        let mut end = self.len().min(TEXT_MAX);
        while !self.is_char_boundary(end) {
            end -= 1;
        }
        (end as u64).put(out);
        out.put_slice(&self.as_bytes()[..end]);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        let bytes = <Bytes as Field>::take(from)?;
        if bytes.len() > TEXT_MAX {
            return Err(Error::TooLarge);
        }
        String::from_utf8(bytes.into()).map_err(|_| Error::Unknown)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut BytesMut) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        bool::take(from)?.then(|| T::take(from)).transpose()
    }
}

impl<T: Field> Field for Box<T> {
    fn put(&self, out: &mut BytesMut) {
        (**self).put(out);
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        T::take(from).map(Self::new)
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut BytesMut) {
        (self.len() as u64).put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        let count = usize::try_from(u64::take(from)?).map_err(|_| Error::TooLarge)?;
        if count > LIST_MAX {
            return Err(Error::TooLarge);
        }
        // An item takes at least one byte, so a short frame cannot cause a large allocation.
        if count > from.len() {
            return Err(Error::Truncated);
        }
        (0..count).map(|_| T::take(from)).collect()
    }
}

/// A list without its own limit, bounded by the bytes that contain it; for what only edges write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Many<T>(pub Vec<T>);

impl<T> Default for Many<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Field> Field for Many<T> {
    fn put(&self, out: &mut BytesMut) {
        (self.0.len() as u64).put(out);
        self.0.iter().for_each(|item| item.put(out));
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        let count = usize::try_from(u64::take(from)?).map_err(|_| Error::TooLarge)?;
        if count > from.len() {
            return Err(Error::Truncated);
        }
        (0..count).map(|_| T::take(from)).collect::<Result<_, _>>().map(Self)
    }
}

/// The last field of a frame that has been without it before: no byte if it is absent. So a frame without it is the same to every peer, and
/// one with it is refused by a peer that does not know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Last<T>(pub Option<T>);

impl<T> Default for Last<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Field> Field for Last<T> {
    fn put(&self, out: &mut BytesMut) {
        self.0.iter().for_each(|value| value.put(out));
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        (!from.is_empty()).then(|| T::take(from)).transpose().map(Self)
    }
}

/// Declares a struct whose encoding is its fields in order.
#[macro_export]
macro_rules! record {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }
        impl $crate::codec::Field for $name {
            fn put(&self, out: &mut ::bytes::BytesMut) {
                $($crate::codec::Field::put(&self.$field, out);)*
                let _ = out;
            }
            fn take(from: &mut ::bytes::Bytes) -> Result<Self, $crate::codec::Error> {
                let _ = &from;
                Ok(Self { $($field: $crate::codec::Field::take(from)?,)* })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_survive_and_overlong_ones_are_refused() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = BytesMut::new();
            value.put(&mut out);
            let mut bytes = out.freeze();
            assert_eq!(u64::take(&mut bytes), Ok(value));
            assert!(bytes.is_empty());
        }
        assert_eq!(u64::take(&mut Bytes::from_static(&[0xff; 10])), Err(Error::TooLarge));
        assert_eq!(u64::take(&mut Bytes::from_static(&[0x80])), Err(Error::Truncated));
    }

    #[test]
    fn a_list_cannot_promise_more_than_the_frame_holds() {
        assert_eq!(Vec::<u64>::take(&mut Bytes::from_static(&[0x80, 0x08])), Err(Error::Truncated));
        assert_eq!(Vec::<u64>::take(&mut Bytes::from_static(&[0x81, 0x08, 0])), Err(Error::TooLarge));
    }
}
