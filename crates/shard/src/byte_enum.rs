//! Enumerations that are one byte in a message.

/// An enumeration whose variants are listed in the order of their bytes, from 0.
macro_rules! byte_enum {
    ($name:ident { $($variant:ident),* }) => {
        impl marram_wire::codec::Field for $name {
            fn put(&self, out: &mut ::bytes::BytesMut) {
                (*self as u8).put(out);
            }
            fn take(from: &mut ::bytes::Bytes) -> Result<Self, marram_wire::codec::Error> {
                let byte = u8::take(from)?;
                [$(Self::$variant),*].get(usize::from(byte)).copied().ok_or(marram_wire::codec::Error::Unknown)
            }
        }
    };
}
pub(crate) use byte_enum;
