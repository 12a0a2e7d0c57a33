//! The file of a session at a recorder: what decodes must encode to a file that decodes to the same. The input is the
//! records' contents, each after its length in two bytes; lengths and checksums of the file are made valid, since no input would
//! guess them.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use marram_node::recorder::file;
use marram_wire::{frame::Frame, id::SessionId};

const SESSION: SessionId = SessionId([7; 16]);

fn with_checksums(mut data: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    file::put_head(SESSION, &mut out);
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let (body, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        let (length, offset) = (u32::try_from(body.len()).expect("two bytes' worth"), out.len() as u64);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&SESSION.0).update(&offset.to_le_bytes()).update(body);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(&hasher.finalize().as_bytes()[..8]);
        out.extend_from_slice(body);
        data = rest;
    }
    out.to_vec()
}

fuzz_target!(|data: &[u8]| {
    if let Ok(content) = file::decode(&with_checksums(data)) {
        let frames: Vec<Frame> = content.frames.into_iter().map(|(_, frame)| frame).collect();
        let again = file::decode(&file::encode(SESSION, &frames)).expect("it was just written");
        assert!(again.frames.into_iter().map(|(_, frame)| frame).eq(frames));
    }
    let _ = file::decode(data).map_err(|broken| broken.to_string());
});
