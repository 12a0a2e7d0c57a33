//! A small seeded generator: the only source of randomness in a simulation. Not for secrets.
//!
//! There is one generator for each purpose, all derived from the seed: adding a draw for one
//! purpose leaves the others as they were. That keeps saved seeds meaningful. No other source of
//! randomness may be used in this crate: `batch` runs some seeds twice to find one.

use marram_wire::seeded::Seeded;

/// Draws numbers; equal seeds draw equal numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(Seeded);

impl Random {
    /// A separate generator for `purpose`, so that more draws for one purpose do not change the others.
    #[must_use]
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut random = Self(Seeded::new(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93)));
        random.draw();
        random
    }

    /// 64 random bits.
    pub(crate) fn draw(&mut self) -> u64 {
        self.0.word()
    }

    /// Less than `bound`, which must not be 0. The bias is far below what a simulation can notice.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// From `low` to `high`, each order of magnitude as likely as the next. `low` must not be 0.
    /// Draws a number of bits first, then the bits: for times and sizes whose small values matter
    /// as much as large ones.
    pub(crate) fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        let bits = |value: u64| u64::from(u64::BITS - value.leading_zeros());
        let width = self.between(bits(low), bits(high));
        let value = (1 << (width - 1)) | self.below(1 << (width - 1));
        value.clamp(low, high)
    }

    /// True with this probability in percent.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.0.percent(percent)
    }

    /// An index into a list of `count`, which must not be 0.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        self.0.index(count)
    }

    /// One of a list, which must not be empty.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// Fills a fixed number of bytes.
    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }

    /// Fills a buffer.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) {
        self.0.fill(buffer);
    }
}
