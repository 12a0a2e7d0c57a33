//! Random bits for identifiers, openers, challenges and jitter, from entropy that the shell supplies.

/// A keyed generator: the same entropy gives the same bits, so a simulation can be replayed.
pub struct Random {
    key: [u8; 32],
    drawn: u64,
}

impl core::fmt::Debug for Random {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Random")
    }
}

impl Random {
    /// A generator with this entropy, which must not be used for another one.
    #[must_use]
    pub fn new(entropy: [u8; 32]) -> Self {
        Self { key: entropy, drawn: 0 }
    }

    /// Fresh random bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.drawn.to_le_bytes());
        self.drawn += 1;
        let mut bytes = [0; N];
        hasher.finalize_xof().fill(&mut bytes);
        bytes
    }

    /// A fresh random number.
    pub fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// A fresh random number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.number() % limit }
    }
}
