//! The ballast: incompressible words. Does not know messages.
//!
//! Words are drawn from the seed in the command and not from the host's generator: the same
//! commands make the same state, on every edge and in every run.

use std::hint::black_box;

/// Bytes of a word.
const WORD_SIZE: u64 = 8;
/// Words of 4 KiB, the unit in which checkpoints find out what has changed.
const PAGE_WORDS: u64 = 512;

/// The words that it holds.
#[derive(Default)]
pub(crate) struct State {
    /// Made by [`xorshift`] from one another, so that no compression finds anything in them.
    words: Vec<u64>,
    /// In bytes, as it was asked for: not rounded up.
    size: u64,
}

impl State {
    /// `size` bytes, rounded up to words, made from a seed.
    pub(crate) fn filled(size: u64, seed: u64) -> Self {
        let mut word = seed.max(1);
        let count =
            usize::try_from(size.div_ceil(WORD_SIZE)).expect("the memory quota ends a larger state first");
        let mut words = Vec::with_capacity(count);
        words.resize_with(count, || {
            word = xorshift(word);
            word
        });
        Self { words, size }
    }

    /// Bytes held.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Depends on every bit and on the order of the words. 0 without words.
    pub(crate) fn checksum(&self) -> u64 {
        self.words.iter().fold(0, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Changes one word in each of `count` pages from page `first` on, cyclically; returns the
    /// checksum of the new words. The word is the page's first.
    pub(crate) fn touch(&mut self, count: u64, first: u64) -> u64 {
        self.on_pages(count, first, |word| *word = xorshift((*word).max(1)))
    }

    /// Writes to the same words, and then what they were; returns their checksum.
    pub(crate) fn write_back(&mut self, count: u64, first: u64) -> u64 {
        self.on_pages(count, first, |word| {
            let was = *word;
            // Not left out by the compiler.
            *black_box(&mut *word) = !was;
            *black_box(word) = was;
        })
    }

    /// Does this to the first word of each of these pages; returns the checksum of the words after it.
    fn on_pages(&mut self, count: u64, first: u64, mut change: impl FnMut(&mut u64)) -> u64 {
        let pages = (self.words.len() as u64).div_ceil(PAGE_WORDS);
        let mut sum = 0_u64;
        for page in 0..count.min(pages) {
            let index = (first % pages + page) % pages * PAGE_WORDS;
            let index = usize::try_from(index).expect("below the number of words");
            change(&mut self.words[index]);
            sum = sum.rotate_left(5) ^ self.words[index];
        }
        sum
    }
}

/// Marsaglia's xorshift; never 0 unless it starts there.
const fn xorshift(mut word: u64) -> u64 {
    word ^= word << 13;
    word ^= word >> 7;
    word ^ word << 17
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_changes_as_many_words_as_pages() {
        let cases = [(1, 0, 1), (3, 24, 3), (25, 0, 25), (1_000, 3, 25), (0, 0, 0)];
        for (count, first, expected) in cases {
            let before = State::filled(100_000, 3);
            let mut after = State::filled(100_000, 3);
            after.touch(count, first);
            let changed = before.words.iter().zip(&after.words).filter(|(a, b)| a != b).count();
            assert_eq!(changed, expected, "{count} from {first}");
        }
    }

    #[test]
    fn what_is_written_back_is_what_it_was() {
        let (before, mut after) = (State::filled(100_000, 3), State::filled(100_000, 3));
        assert_ne!(after.write_back(7, 20), 0);
        assert_eq!(before.words, after.words);
    }

    #[test]
    fn an_empty_state_has_nothing_to_touch() {
        assert_eq!(State::default().touch(5, 5), 0);
    }

    #[test]
    fn words_differ() {
        let mut words = State::filled(80_000, 0).words;
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 10_000);
    }
}
