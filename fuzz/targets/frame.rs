//! One frame's body, as any peer can send it: what decodes must encode to bytes that decode to the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use marram_wire::frame::{Frame, Reader};

fuzz_target!(|data: &[u8]| {
    let Ok(frame) = Frame::decode(Bytes::copy_from_slice(data)) else { return };
    let mut reader = Reader::default();
    reader.buffer.extend_from_slice(&frame.to_bytes());
    assert_eq!(reader.next_frame(), Ok(Some(frame)));
    assert_eq!(reader.next_frame(), Ok(None));
    assert!(reader.buffer.is_empty());
});
