//! A cell's checkpoint and a delta on it, as an end hands them back and unsealing lets them pass. The first two bytes
//! say where the delta begins; both get the envelope that their bytes need, since no input would guess a checksum.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use marram_sandbox::{CheckpointReader, Decoded};

/// `MRCK`, version 1, length, the first half of BLAKE3.
fn envelope(body: &[u8]) -> Vec<u8> {
    let checksum = blake3::hash(body);
    [&b"MRCK"[..], &1_u32.to_le_bytes(), &(body.len() as u64).to_le_bytes(), &checksum.as_bytes()[..16], body]
        .concat()
}

/// A chain of two stages that are alike.
fn chain_of(stage: &[u8]) -> Vec<u8> {
    let stage = [&(stage.len() as u64).to_le_bytes()[..], stage].concat();
    [&b"MRCC\x01\x02"[..], &[7; 32], &stage, &stage].concat()
}

/// Whether they are sound when they are read as they arrive, in pieces of this size, and what is there is taken at once.
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
    let (full, delta) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*cut))));
    let chain = [envelope(full), envelope(delta)];
    let alone = Decoded::decode(&chain[..1]);
    if let Ok(both) = Decoded::decode(&chain) {
        let alone = alone.expect("what is built on must be sound by itself");
        assert_eq!(both.image(), alone.image());
    }
    // As the second of two stages, what is sound is as sound as alone.
    let staged = [chain_of(&chain[0]), chain_of(&chain[1])];
    let is_sound = Decoded::decode(&chain).is_ok();
    assert_eq!(Decoded::decode(&staged).is_ok(), is_sound);
    // So it is however it arrives.
    let piece = 1 + usize::from(cut[0] % 61);
    assert_eq!((arrive(&chain, piece), arrive(&staged, piece)), (is_sound, is_sound));
    // And as the whole, whatever the bytes are.
    let _ = Decoded::decode(&[[&b"MRCC\x01"[..], data].concat()]);
});
