//! Reading and writing lengths and numbers in the formats of this crate: little-endian, checked at every step.
//!
//! Used for everything that this crate stores or sends: apps, images, checkpoints. The wire formats
//! have their own reader in `marram_wire::codec`. There are no variable-length integers and no
//! padding, so one value has one encoding and can be hashed.
//!
//! This module does not know limits: the caller compares a length or a count with its limit before
//! it loops or allocates.

/// Reads from the front of a slice. If too few bytes are left, a method returns `None` and reads nothing.
#[derive(Clone)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Takes exactly `len` bytes. The result borrows from the input, so nothing is copied or
    /// allocated here, whatever the length says.
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    /// As [`Self::take`], for a length that the type gives.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Bytes after a 32-bit length.
    /// A length that is larger than what is left takes nothing, not even the length itself: the
    /// caller sees one failure.
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let mut ahead = self.clone();
        let len = ahead.u32()?;
        let bytes = ahead.take(usize::try_from(len).ok()?)?;
        *self = ahead;
        Some(bytes)
    }

    /// All remaining bytes.
    /// The last field of a format has no length of its own: the length of the whole is checked
    /// outside.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// A decoder must end with this, else two different inputs would decode to equal values and
    /// have different digests.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes a 32-bit length, then the bytes.
///
/// # Panics
/// If there are 4 GiB or more: the limits of all callers are lower.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, u32::try_from(bytes.len()).expect("limits keep every counted field below 4 GiB"));
    out.extend_from_slice(bytes);
}
