//! Run-length coding of differences of pages. They are mostly zeros, of which LZ4 needs a byte for every 255.
//!
//! ```text
//! short   ( zeros | bytes )* the bytes of all entries
//! wide    ( zeros 2 | bytes 2 | the bytes )*
//! ```
//! The size of what it stands for is known, so there is no end mark. The counts of a short code are variable-length integers. They
//! stand together since those of pages that changed at one place are alike, and LZ4 then needs hardly a byte for each; bytes that
//! changed are often random. The wide code is read, and not written any more.

use crate::bytes_io::Reader;
use bytes::{BufMut, Bytes, BytesMut};
use marram_wire::codec::Field;

/// Fewer zeros than this are cheaper as a part of the bytes around them.
const ZEROS_MIN: usize = 3;
/// Zeros that are examined together.
const STRIDE: usize = 32;

/// Appends the short code of these bytes.
pub(super) fn encode(bytes: &[u8], out: &mut BytesMut) {
    let (mut left, mut changed) = (bytes, BytesMut::new());
    while !left.is_empty() {
        let zeros = leading_zeros(left);
        let behind = &left[zeros..];
        let (coded, rest) = behind.split_at(until_zeros(behind));
        (zeros as u64).put(out);
        (coded.len() as u64).put(out);
        changed.put_slice(coded);
        left = rest;
    }
    out.unsplit(changed);
}

fn leading_zeros(bytes: &[u8]) -> usize {
    let strides = bytes.chunks_exact(STRIDE).take_while(|stride| **stride == [0; STRIDE]).count();
    let rest = &bytes[strides * STRIDE..];
    strides * STRIDE + rest.iter().take_while(|byte| **byte == 0).count()
}

/// How many bytes come before the next zeros that are worth an entry.
fn until_zeros(bytes: &[u8]) -> usize {
    let mut zeros = 0;
    for (at, byte) in bytes.iter().enumerate() {
        zeros = if *byte == 0 { zeros + 1 } else { 0 };
        if zeros == ZEROS_MIN {
            return at + 1 - ZEROS_MIN;
        }
    }
    bytes.len()
}

const WRONG: &str = "a run of zeros is wrong";

/// Decodes a short code into exactly `size` bytes.
pub(super) fn decode(mut code: Bytes, size: usize) -> Result<Vec<u8>, &'static str> {
    let (mut entries, mut left) = (Vec::new(), size);
    while left > 0 {
        let (zeros, coded) = take_counts(&mut code, left)?;
        left -= zeros + coded;
        entries.push((zeros, coded));
    }
    // Zeros are there already.
    let (mut bytes, mut changed) = (vec![0; size], &code[..]);
    let mut left = &mut bytes[..];
    for (zeros, coded) in entries {
        let (target, rest) = left[zeros..].split_at_mut(coded);
        let (from, others) = changed.split_at_checked(coded).ok_or(WRONG)?;
        target.copy_from_slice(from);
        (left, changed) = (rest, others);
    }
    if changed.is_empty() { Ok(bytes) } else { Err(WRONG) }
}

/// An entry for some of `left` bytes.
fn take_counts(code: &mut Bytes, left: usize) -> Result<(usize, usize), &'static str> {
    let mut count = || u32::take(code).ok().and_then(|count| usize::try_from(count).ok()).ok_or(WRONG);
    let (zeros, coded) = (count()?, count()?);
    if zeros + coded == 0 || zeros + coded > left { Err(WRONG) } else { Ok((zeros, coded)) }
}

fn take_wide_count(reader: &mut Reader<'_>) -> Option<usize> {
    reader.array().map(|count| usize::from(u16::from_le_bytes(count)))
}

/// Decodes a wide code into exactly `size` bytes.
pub(super) fn decode_wide(code: &[u8], size: usize) -> Result<Vec<u8>, &'static str> {
    let mut reader = Reader::new(code);
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let (zeros, coded) =
            (take_wide_count(&mut reader).ok_or(WRONG)?, take_wide_count(&mut reader).ok_or(WRONG)?);
        if zeros + coded == 0 || zeros + coded > size - bytes.len() {
            return Err(WRONG);
        }
        bytes.resize(bytes.len() + zeros, 0);
        bytes.extend_from_slice(reader.take(coded).ok_or(WRONG)?);
    }
    if reader.is_empty() { Ok(bytes) } else { Err(WRONG) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(bytes: &[u8]) -> Vec<u8> {
        let mut code = BytesMut::new();
        encode(bytes, &mut code);
        assert_eq!(decode(code.clone().freeze(), bytes.len()).as_deref(), Ok(bytes));
        code.to_vec()
    }

    #[test]
    fn zeros_cost_nothing_and_few_of_them_make_no_entry() {
        assert_eq!(coded(&[]), []);
        assert_eq!(coded(&[7]), [0, 1, 7]);
        assert_eq!(coded(&[0, 7, 0, 0, 8]), [1, 4, 7, 0, 0, 8]);
        assert_eq!(coded(&[7, 0, 0, 0, 8]), [0, 1, 3, 1, 7, 8]);
        assert_eq!(coded(&[0; 3]), [3, 0]);
        assert_eq!(coded(&[9; 1 << 16]).len(), (1 << 16) + 1 + 3);
        let mut sparse = vec![0; 1 << 16];
        sparse[1_000] = 1;
        sparse[40_000] = 2;
        assert_eq!(coded(&sparse).len(), (2 + 1) + (3 + 1) + (2 + 1) + 2 + 1);
    }

    #[test]
    fn all_short_patterns_come_back() {
        for pattern in 0..1 << 12_u32 {
            let bytes: Vec<u8> = (0..12).map(|bit| u8::from(pattern >> bit & 1 == 1)).collect();
            coded(&bytes);
            // Zeros around the strides in which they are examined.
            coded(&[&[0; STRIDE - 3][..], &bytes, &[0; 2 * STRIDE]].concat());
        }
    }

    #[test]
    fn wide_codes_are_read() {
        assert_eq!(decode_wide(&[1, 0, 2, 0, 7, 8, 5, 0, 0, 0], 8), Ok(vec![0, 7, 8, 0, 0, 0, 0, 0]));
    }

    /// Decodes a code of one of the two kinds.
    type Decode = fn(&[u8], usize) -> Result<Vec<u8>, &'static str>;

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let mut sparse = vec![0; 100];
        (sparse[10], sparse[50]) = (1, 2);
        let wide = [10, 0, 1, 0, 1, 39, 0, 1, 0, 2, 49, 0, 0, 0];
        let kinds: [(Vec<u8>, Decode); 2] = [
            (coded(&sparse), |code, size| decode(Bytes::copy_from_slice(code), size)),
            (wide.to_vec(), decode_wide),
        ];
        for (code, decode) in kinds {
            assert_eq!(decode(&code, 100), Ok(sparse.clone()));
            for end in 0..code.len() {
                assert!(decode(&code[..end], 100).is_err(), "{end}");
            }
            assert!(decode(&code, 99).is_err() && decode(&code, 101).is_err());
            assert!(decode(&[0; 4], 4).is_err(), "an entry of nothing");
            assert!(decode(&[255; 4], 4).is_err(), "more than there is room for");
            assert!(decode(&[&code[..], &[0]].concat(), 100).is_err(), "too much");
        }
        let most = u32::MAX.to_le_bytes();
        assert!(decode(Bytes::copy_from_slice(&[&most[..], &[15], &most, &[15]].concat()), 9).is_err());
    }
}
