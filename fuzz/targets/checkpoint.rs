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

fuzz_target!(|data: &[u8]| {
    let Some((cut, rest)) = data.split_first_chunk() else { return };
    let (full, delta) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*cut))));
    let chain = [envelope(full), envelope(delta)];
    let alone = Decoded::decode(&chain[..1]);
    if let Ok(both) = Decoded::decode(&chain) {
        let alone = alone.expect("what is built on must be sound by itself");
        assert_eq!(both.image(), alone.image());
    }
});
