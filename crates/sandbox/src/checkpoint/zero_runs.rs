//! Run-length coding of differences of pages. They are mostly zeros, of which LZ4 needs a byte for every 255.
//!
//! ```text
//! ( zeros 2 | bytes 2 | the bytes )*
//! ```
//! The size of what it stands for is known, so there is no end mark.

use crate::bytes_io::Reader;

/// The most zeros, or bytes, that one entry has.
const COUNT_MAX: usize = u16::MAX as usize;
/// Fewer zeros than this are cheaper as a part of the bytes around them.
const ZEROS_MIN: usize = 5;

/// Appends the code of these bytes.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    let mut left = bytes;
    while !left.is_empty() {
        let zeros = left.iter().take(COUNT_MAX).take_while(|byte| **byte == 0).count();
        let behind = &left[zeros..];
        let (coded, rest) = behind.split_at(until_zeros(behind));
        put_count(out, zeros);
        put_count(out, coded.len());
        out.extend_from_slice(coded);
        left = rest;
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    let count = u16::try_from(count).expect("at most COUNT_MAX");
    out.extend_from_slice(&count.to_le_bytes());
}

/// How many bytes come before the next zeros that are worth an entry.
fn until_zeros(bytes: &[u8]) -> usize {
    let mut zeros = 0;
    for (at, byte) in bytes.iter().take(COUNT_MAX).enumerate() {
        zeros = if *byte == 0 { zeros + 1 } else { 0 };
        if zeros == ZEROS_MIN {
            return at + 1 - ZEROS_MIN;
        }
    }
    bytes.len().min(COUNT_MAX)
}

fn take_count(reader: &mut Reader<'_>) -> Option<usize> {
    reader.array().map(|count| usize::from(u16::from_le_bytes(count)))
}

/// Decodes into exactly `size` bytes.
pub(super) fn decode(code: &[u8], size: usize) -> Result<Vec<u8>, &'static str> {
    let wrong = "a run of zeros is wrong";
    let mut reader = Reader::new(code);
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let (zeros, coded) = (take_count(&mut reader).ok_or(wrong)?, take_count(&mut reader).ok_or(wrong)?);
        if zeros + coded == 0 || zeros + coded > size - bytes.len() {
            return Err(wrong);
        }
        bytes.resize(bytes.len() + zeros, 0);
        bytes.extend_from_slice(reader.take(coded).ok_or(wrong)?);
    }
    if reader.is_empty() { Ok(bytes) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(bytes: &[u8]) -> Vec<u8> {
        let mut code = Vec::new();
        encode(bytes, &mut code);
        assert_eq!(decode(&code, bytes.len()).as_deref(), Ok(bytes));
        code
    }

    #[test]
    fn zeros_cost_nothing_and_few_of_them_make_no_entry() {
        assert_eq!(coded(&[]), []);
        assert_eq!(coded(&[7]), [0, 0, 1, 0, 7]);
        assert_eq!(coded(&[0, 7, 0, 0, 0, 0, 8]), [1, 0, 6, 0, 7, 0, 0, 0, 0, 8]);
        assert_eq!(coded(&[7, 0, 0, 0, 0, 0, 8]), [0, 0, 1, 0, 7, 5, 0, 1, 0, 8]);
        assert_eq!(coded(&[0; 3]), [3, 0, 0, 0]);
        assert_eq!(coded(&[0; COUNT_MAX + 9]), [255, 255, 0, 0, 9, 0, 0, 0]);
        assert_eq!(coded(&[9; COUNT_MAX + 1]).len(), COUNT_MAX + 1 + 2 * 4);
        let mut sparse = vec![0; 1 << 16];
        sparse[1_000] = 1;
        sparse[40_000] = 2;
        assert_eq!(coded(&sparse).len(), 2 * 5 + 4);
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let mut sparse = vec![0; 100];
        (sparse[10], sparse[50]) = (1, 2);
        let code = coded(&sparse);
        for end in 0..code.len() {
            assert!(decode(&code[..end], 100).is_err(), "{end}");
        }
        assert!(decode(&code, 99).is_err() && decode(&code, 101).is_err());
        assert!(decode(&[0; 4], 4).is_err(), "an entry of nothing");
        assert!(decode(&[255; 4], 4).is_err(), "more than there is room for");
    }
}
