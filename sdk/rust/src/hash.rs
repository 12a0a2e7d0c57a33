//! A hasher without random keys, for maps that exist before the session does. It does not protect against keys that a client
//! chooses to collide: use a `BTreeMap` for those.

use core::hash::{BuildHasher, Hasher};

/// Odd, half of its bits set, no pattern: 2^64 over the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Builds [`FixedHasher`]s with the same initial state, so that a map can be created while the app is deployed.
///
/// ```
/// use std::collections::HashMap;
/// use marram_sdk::FixedState;
///
/// let mut counts: HashMap<&str, u32, FixedState> = HashMap::default();
/// counts.insert("one", 1);
/// assert_eq!(counts["one"], 1);
/// ```
#[derive(Clone, Copy, Default, Debug)]
pub struct FixedState;

impl BuildHasher for FixedState {
    type Hasher = FixedHasher;

    fn build_hasher(&self) -> FixedHasher {
        FixedHasher { state: 0x2545_f491_4f6c_dd1d }
    }
}

/// Multiplies and folds 64 bits at a time; the same on every machine.
#[derive(Clone, Debug)]
pub struct FixedHasher {
    state: u64,
}

impl FixedHasher {
    /// Folds the 128-bit product; the addition keeps a state of zero from staying there.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves are what is folded")]
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(MULTIPLIER);
        self.state = (product as u64 ^ (product >> 64) as u64).wrapping_add(MULTIPLIER);
    }
}

impl Hasher for FixedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        self.mix(bytes.len() as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::BTreeSet, format};

    #[test]
    fn the_same_key_hashes_alike_and_others_differ() {
        let hash = |key: &str| FixedState.hash_one(key);
        assert_eq!(hash("a"), hash("a"));
        let distinct: BTreeSet<u64> = (0..10_000).map(|n| hash(&format!("key {n}"))).collect();
        assert_eq!(distinct.len(), 10_000);
    }

    #[test]
    fn padding_is_not_confused_with_zeros() {
        let hash = |bytes: &[u8]| {
            let mut hasher = FixedState.build_hasher();
            hasher.write(bytes);
            hasher.finish()
        };
        assert_ne!(hash(b"a"), hash(b"a\0"));
    }
}
