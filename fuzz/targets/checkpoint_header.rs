//! A decrypted checkpoint: what can be split must join to bytes that split to the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use marram_wire::header::{join, split};

fuzz_target!(|data: &[u8]| {
    let Ok((header, sections)) = split(Bytes::copy_from_slice(data)) else { return };
    let joined = Bytes::from(join(&header, &sections));
    assert_eq!(split(joined), Ok((header, sections)));
});
