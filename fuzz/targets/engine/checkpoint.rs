//! A cell's checkpoint and a delta on it, as an end returns them after decryption. The first two bytes say where
//! the delta begins, and its version; both get a valid envelope for their bytes, since no input would guess a checksum.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use marram_sandbox::{CheckpointReader, Decoded};

/// `MRCK`, version, length, the first half of BLAKE3.
fn envelope(version: u32, body: &[u8]) -> Vec<u8> {
    let checksum = blake3::hash(body);
    [
        &b"MRCK"[..],
        &version.to_le_bytes(),
        &(body.len() as u64).to_le_bytes(),
        &checksum.as_bytes()[..16],
        body,
    ]
    .concat()
}

/// A chain of two equal stages.
fn chain_of(stage: &[u8]) -> Vec<u8> {
    let stage = [&(stage.len() as u64).to_le_bytes()[..], stage].concat();
    [&b"MRCC\x01\x02"[..], &[7; 32], &stage, &stage].concat()
}

/// Whether they are valid when read as they arrive, in pieces of this size, and contents are taken at once.
fn arrive(chain: &[Vec<u8>], piece: usize) -> bool {
    let mut reading = CheckpointReader::opened();
    for checkpoint in chain {
        for bytes in checkpoint.chunks(piece) {
            if reading.push(Bytes::copy_from_slice(bytes)).is_err() {
                return false;
            }
            reading.take();
        }
        if reading.end().is_err() {
            return false;
        }
    }
    reading.finish().is_ok()
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, rest)) = data.split_first_chunk() else { return };
    let first = u16::from_le_bytes(*cut);
    let (full, delta) = rest.split_at(rest.len().min(usize::from(first & 0x3fff)));
    let version = 1 + u32::from(first >> 15) + 2 * u32::from(first >> 14 & 1);
    let chain = [envelope(1, full), envelope(version, delta)];
    let alone = Decoded::decode(&chain[..1]);
    if let Ok(both) = Decoded::decode(&chain) {
        let alone = alone.expect("what is built on must be sound by itself");
        assert_eq!(both.image(), alone.image());
    }
    // A valid checkpoint is also valid as the second of two stages.
    let staged = [chain_of(&chain[0]), chain_of(&chain[1])];
    let is_sound = Decoded::decode(&chain).is_ok();
    assert_eq!(Decoded::decode(&staged).is_ok(), is_sound);
    // It is also valid in any pieces.
    let piece = 1 + usize::from(cut[0] % 61);
    assert_eq!((arrive(&chain, piece), arrive(&staged, piece)), (is_sound, is_sound));
    // And as a whole checkpoint, with any bytes.
    let _ = Decoded::decode(&[[&b"MRCC\x01"[..], data].concat()]);
});
