//! A cell's checkpoint and a delta on it, as an end hands them back and unsealing lets them pass. The first two bytes
//! say where the delta begins; both get the envelope that their bytes need, since no input would guess a checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marram_sandbox::Decoded;

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
    assert_eq!(Decoded::decode(&staged).is_ok(), Decoded::decode(&chain).is_ok());
    // And as the whole, whatever the bytes are.
    let _ = Decoded::decode(&[[&b"MRCC\x01"[..], data].concat()]);
});
