//! The running-key code for the demo's files: each byte's key depends on every byte before it, so that any lost,
//! repeated or misordered byte corrupts the rest.
//!
//! It makes faults visible; it is not encryption. Never use it to keep a secret.
//!
//! The key is a 64-bit state `s`. Its top byte scrambles the next plain byte, `cipher = plain ^ (s >> 56)`, and then
//! `s = (s ^ cipher) * M` with `M` odd. That step is a bijection of `s`, so two states that differ once differ
//! forever.
#![no_std]
#![forbid(unsafe_code)]

/// The key of the demo's files.
pub const DEMO_KEY: u64 = 0x6d61_7272_616d_0001;

/// Odd, so that multiplication is invertible; its high bits carry a difference in the lowest byte to the top at once.
const MULTIPLIER: u64 = 0xd134_2543_de82_ef95;

/// A running key. Use one per stream; each call continues after the previous one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunningKey {
    state: u64,
}

impl RunningKey {
    /// The key at the start of a stream.
    #[must_use]
    pub const fn new(key: u64) -> Self {
        Self { state: key }
    }

    /// Scrambles the next bytes of the stream in place.
    pub fn encode(&mut self, bytes: &mut [u8]) {
        let mut state = self.state;
        for byte in bytes {
            *byte ^= key_byte(state);
            state = step(state, *byte);
        }
        self.state = state;
    }

    /// Restores the next bytes of the stream in place.
    pub fn decode(&mut self, bytes: &mut [u8]) {
        let mut state = self.state;
        for byte in bytes {
            let cipher = *byte;
            *byte ^= key_byte(state);
            state = step(state, cipher);
        }
        self.state = state;
    }
}

/// The top byte, which depends on all lower bits of the state before.
const fn key_byte(state: u64) -> u8 {
    state.to_be_bytes()[0]
}

fn step(state: u64, cipher: u8) -> u64 {
    (state ^ u64::from(cipher)).wrapping_mul(MULTIPLIER)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::{vec, vec::Vec};

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|n| n.wrapping_mul(31).to_le_bytes()[0]).collect()
    }

    fn encoded(plain: &[u8]) -> Vec<u8> {
        let mut bytes = plain.to_vec();
        RunningKey::new(DEMO_KEY).encode(&mut bytes);
        bytes
    }

    #[test]
    fn decoding_inverts_encoding_however_the_stream_is_cut() {
        let plain = sample(1_000);
        for piece in [1, 7, 64, 999, 1_000] {
            let mut bytes = encoded(&plain);
            let mut key = RunningKey::new(DEMO_KEY);
            bytes.chunks_mut(piece).for_each(|chunk| key.decode(chunk));
            assert_eq!(bytes, plain, "pieces of {piece}");
        }
    }

    #[test]
    fn zeros_do_not_stay_zeros() {
        let bytes = encoded(&vec![0; 4_096]);
        let zeros = bytes.iter().filter(|byte| **byte == 0).count();
        assert!(zeros < 64, "{zeros} of 4096");
    }

    /// How many of the last bytes are decoded correctly when the stream is damaged in its middle.
    fn right_after(damage: impl FnOnce(&mut Vec<u8>)) -> usize {
        let plain = sample(4_096);
        let mut bytes = encoded(&plain);
        damage(&mut bytes);
        RunningKey::new(DEMO_KEY).decode(&mut bytes);
        plain.iter().rev().zip(bytes.iter().rev()).take(1_024).filter(|(a, b)| a == b).count()
    }

    #[test]
    fn one_wrong_byte_spoils_the_rest() {
        type Case = (&'static str, fn(&mut Vec<u8>));
        let cases: [Case; 4] = [
            ("flipped", |bytes| bytes[2_048] ^= 1),
            ("lost", |bytes| _ = bytes.remove(2_048)),
            ("repeated", |bytes| bytes.insert(2_048, bytes[2_048])),
            ("swapped", |bytes| bytes.swap(2_048, 2_049)),
        ];
        for (name, damage) in cases {
            let right = right_after(damage);
            assert!(right < 32, "{name}: {right} of 1024 right by chance");
        }
    }
}
