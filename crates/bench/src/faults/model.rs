//! The expected data: the cell's state as its client computes it, and a stream in which each byte depends on its position.
//!
//! A position in the stream can be read off any eight bytes of it: a word is a mark and its own
//! number. So a difference can be named: bytes were lost or repeated if the stream continues at
//! another place, and changed otherwise.

use crate::ballast::xorshift;

/// Bytes of a page of the cell's state, in words.
const PAGE_WORDS: usize = 512;
/// Marks the words of a stream; the rest of a word is its position.
const MARK: u64 = 0xc35a << 48;
/// How far from its expected position a piece of a stream is searched, in bytes.
const SEARCH: u64 = 4 << 20;

/// The state of the cell `ballast`, updated command by command. Computes what
/// `cells/testing/ballast` computes; a change there needs one here.
pub(super) struct Model {
    words: Vec<u64>,
}

impl Model {
    /// A state of `pages` whole pages, generated from a seed.
    ///
    /// The same seed fills the cell, by its command `B`, so the contents need not be sent.
    pub(super) fn filled(pages: usize, seed: u64) -> Self {
        let mut word = seed.max(1);
        let mut next = || {
            word = xorshift(word);
            word
        };
        Self { words: (0..pages * PAGE_WORDS).map(|_| next()).collect() }
    }

    /// Bytes of the state, as the cell reports them.
    pub(super) fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    pub(super) fn pages(&self) -> u64 {
        (self.words.len() / PAGE_WORDS) as u64
    }

    /// The cell's own checksum over all words; both must be changed together.
    pub(super) fn checksum(&self) -> u64 {
        self.words.iter().fold(0, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Executes the command `T` and returns its answer.
    ///
    /// Writes to the first word of `count` pages from page `first` on, cyclically, and answers with
    /// a digest of the new words.
    pub(super) fn touch(&mut self, count: u64, first: u64) -> u64 {
        let pages = self.pages();
        (0..count.min(pages)).fold(0_u64, |sum, page| {
            let index = usize::try_from((first % pages + page) % pages).unwrap_or(0) * PAGE_WORDS;
            self.words[index] = xorshift(self.words[index].max(1));
            sum.rotate_left(5) ^ self.words[index]
        })
    }
}

/// The byte at a position. Words are big-endian, so that the mark comes first.
fn byte(at: u64) -> u8 {
    (MARK | (at / 8)).to_be_bytes()[usize::try_from(at % 8).unwrap_or(0)]
}

/// A piece of the stream.
pub(super) fn stream(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(byte).collect()
}

/// The differences between received and expected data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Wrong {
    /// Bytes, or answers, that did not arrive.
    pub(super) lost: u64,
    /// Bytes, or answers, that arrived twice.
    pub(super) repeated: u64,
    /// Bytes, or answers, with the wrong contents.
    pub(super) changed: u64,
}

impl Wrong {
    /// Sums up what several checks found.
    pub(super) fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.changed += other.changed;
    }

    pub(super) fn any(self) -> bool {
        self != Self::default()
    }
}

/// Compares the bytes received at a position of the stream with the expected ones.
///
/// `None` if they are equal. After a difference only the first one is classified: all bytes behind
/// it are shifted anyway. The search is bounded by [`SEARCH`], more than any buffer on the path
/// holds.
pub(super) fn compare(from: u64, heard: &[u8]) -> Option<Wrong> {
    let offset = (from..).zip(heard).position(|(at, heard)| byte(at) != *heard)?;
    let (at, rest) = (from + offset as u64, &heard[offset..]);
    // Enough bytes to identify a position; there are fewer at the end of what was received.
    let known = &rest[..rest.len().min(24)];
    let is_at = |place: u64| (place..).zip(known).all(|(at, heard)| byte(at) == *heard);
    let mut wrong = Wrong { changed: 1, ..Wrong::default() };
    for distance in 1..=SEARCH {
        if is_at(at + distance) {
            wrong = Wrong { lost: distance, ..Wrong::default() };
            break;
        }
        if distance <= at && is_at(at - distance) {
            wrong = Wrong { repeated: distance, ..Wrong::default() };
            break;
        }
    }
    Some(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_errors_in_a_stream_are_distinguished() {
        let heard = |skip: std::ops::Range<usize>, again: std::ops::Range<usize>| {
            let whole = stream(800, 1_000);
            [&whole[..skip.start], &whole[again], &whole[skip.end..]].concat()
        };
        assert_eq!(compare(800, &heard(0..0, 0..0)), None);
        assert_eq!(compare(800, &heard(400..403, 0..0)), Some(Wrong { lost: 3, ..Wrong::default() }));
        assert_eq!(
            compare(800, &heard(400..400, 300..400)),
            Some(Wrong { repeated: 100, ..Wrong::default() })
        );
        let mut flipped = stream(800, 100);
        flipped[50] ^= 4;
        assert_eq!(compare(800, &flipped), Some(Wrong { changed: 1, ..Wrong::default() }));
    }

    #[test]
    fn the_model_is_order_sensitive() {
        let (mut one, mut other) = (Model::filled(4, 7), Model::filled(4, 7));
        assert_eq!((one.bytes(), one.pages()), (16 << 10, 4));
        assert_eq!(one.touch(2, 0), other.touch(2, 0));
        let again = other.touch(2, 0);
        assert_ne!(one.touch(2, 1), again);
        assert_ne!(one.checksum(), other.checksum());
    }
}
