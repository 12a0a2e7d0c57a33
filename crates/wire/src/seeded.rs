//! Repeatable numbers for simulations, tests, benchmarks and the demo. Not for secrets: [`crate::random`] is for those.

/// A generator of numbers that depend only on its seed: `SplitMix64` (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
/// Generators", 2014).
///
/// The algorithm is fixed, since saved seeds of the simulation stand for histories: a sum of 64 bits grows by
/// `0x9e3779b97f4a7c15`, and each draw mixes it. Every seed is good; its period is 2^64.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// Equal seeds give equal numbers.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Less than `bound`. Small numbers are more probable by at most `bound` in 2^64.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// An index into a list of `count`.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("less than a usize")
    }

    /// True with this probability in percent.
    pub const fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Fills a buffer: a word for each eight bytes, the lowest byte first.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Seeded;

    /// The numbers of the authors' program for the seed 1234567.
    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        let mut seeded = Seeded::new(1_234_567);
        let numbers = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(numbers.map(|_: u64| seeded.word()), numbers);
    }

    #[test]
    fn a_buffer_is_filled_with_words() {
        let (mut seeded, mut same) = (Seeded::new(1), Seeded::new(1));
        let mut buffer = [0; 11];
        seeded.fill(&mut buffer);
        assert_eq!(buffer[..8], same.word().to_le_bytes());
        assert_eq!(buffer[8..], same.word().to_le_bytes()[..3]);
    }
}
