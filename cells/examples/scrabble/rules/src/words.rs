//! The list of valid words. Does not know the board.

/// Path of the list in a cell's image.
const PATH: &str = "/etc/words";
/// The shortest and the longest word.
const LENGTH_MIN: usize = 2;
const LENGTH_MAX: usize = 15;
/// Words per block: adjacent in the alphabet, so with similar beginnings.
const BLOCK: usize = 32;

/// Words in alphabetical order, in one piece of memory: every session starts from a copy of it.
pub struct Words {
    text: Vec<u8>,
    words: Vec<Word>,
    /// For each block, the letters that all of its words have: without these, none of them can be laid.
    common: Vec<u32>,
    /// No list: every word is valid.
    are_all: bool,
}

/// A word's offset in the text, and its set of letters.
struct Word {
    start: u32,
    mask: u32,
}

/// A set of letters, one bit each.
#[must_use]
pub fn mask(letters: &[u8]) -> u32 {
    letters.iter().fold(0, |mask, letter| mask | 1 << (letter.to_ascii_lowercase() - b'a'))
}

impl Words {
    /// Reads the list of a cell's image. For a cell's `Default`, so that deployment refuses an app without words.
    ///
    /// # Panics
    /// If the image has no list, or no word is in it.
    #[must_use]
    pub fn from_image() -> Self {
        let list = std::fs::read_to_string(PATH);
        let list = list.unwrap_or_else(|error| panic!("the app brings no word list as {PATH}: {error}"));
        let words = Self::new(&list);
        assert!(!words.is_empty(), "{PATH} has no words of {LENGTH_MIN} to {LENGTH_MAX} letters from a to z");
        words
    }

    /// Reads a list, one word per line. Invalid words (names, apostrophes, accents, a single letter) are left out.
    #[must_use]
    pub fn new(list: &str) -> Self {
        let is_word = |line: &&str| {
            (LENGTH_MIN..=LENGTH_MAX).contains(&line.len())
                && line.bytes().all(|byte| byte.is_ascii_lowercase())
        };
        let mut sorted: Vec<&str> = list.lines().map(str::trim).filter(is_word).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut text = Vec::new();
        let mut words = Vec::with_capacity(sorted.len());
        for word in sorted {
            let start = u32::try_from(text.len()).expect("an app's files are smaller");
            words.push(Word { start, mask: mask(word.as_bytes()) });
            text.extend_from_slice(word.as_bytes());
        }
        let letters = |block: &[Word]| block.iter().fold(u32::MAX, |common, word| common & word.mask);
        let common = words.chunks(BLOCK).map(letters).collect();
        Self { text, words, common, are_all: false }
    }

    /// Accepts every word, for a program that leaves this check to others.
    #[must_use]
    pub const fn all() -> Self {
        Self { text: Vec::new(), words: Vec::new(), common: Vec::new(), are_all: true }
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    fn at(&self, index: usize) -> &[u8] {
        let end = self.words.get(index + 1).map_or(self.text.len(), |next| next.start as usize);
        &self.text[self.words[index].start as usize..end]
    }

    /// Words with no other letters than these, except for `blanks` different ones; in alphabetical order.
    pub fn of(&self, letters: u32, blanks: u32) -> impl Iterator<Item = &[u8]> {
        let may = move |needed: u32| (needed & !letters).count_ones() <= blanks;
        let blocks = self.common.iter().enumerate().filter(move |(_, common)| may(**common));
        let within = move |block: usize| block * BLOCK..self.words.len().min((block + 1) * BLOCK);
        let indices = blocks.flat_map(move |(block, _)| within(block));
        indices.filter(move |index| may(self.words[*index].mask)).map(|index| self.at(index))
    }

    /// Whether a word is valid; in lower case.
    #[must_use]
    pub fn contains(&self, word: &[u8]) -> bool {
        if self.are_all {
            return true;
        }
        let (mut low, mut high) = (0, self.words.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.at(middle).cmp(word) {
                core::cmp::Ordering::Equal => return true,
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_cleaned_sorted_and_searched() {
        let words = Words::new("zoo\ncat\r\nAnn\na\ncat\ncat's\ncafé\n\nincomprehensibilities\nact\n");
        let all: Vec<_> = words.of(u32::MAX, 0).collect();
        assert_eq!(all, [b"act", b"cat", b"zoo"]);
        assert!([b"act", b"cat", b"zoo"].iter().all(|word| words.contains(*word)));
        assert!(["", "ca", "cats", "ann", "zzz", "aaa"].iter().all(|word| !words.contains(word.as_bytes())));
        assert!(Words::new("\n").is_empty());
        assert_eq!(mask(b"aCa"), 0b101);
    }

    #[test]
    fn words_are_found_by_their_letters_in_every_block() {
        let mut list: Vec<String> = Vec::new();
        for first in b"abc" {
            list.extend(
                (b'a'..=b'z')
                    .flat_map(|a| (b'a'..=b'e').map(move |b| [*first, a, b]))
                    .map(|word| String::from_utf8(word.to_vec()).unwrap()),
            );
        }
        let words = Words::new(&list.join("\n"));
        for (letters, blanks) in [(mask(b"abx"), 0), (mask(b"abx"), 1), (mask(b"z"), 2), (0, 3), (0, 0)] {
            let fits = |word: &&String| (mask(word.as_bytes()) & !letters).count_ones() <= blanks;
            let expected: Vec<&[u8]> = list.iter().filter(fits).map(|word| word.as_bytes()).collect();
            assert_eq!(words.of(letters, blanks).collect::<Vec<_>>(), expected, "{letters:b} {blanks}");
        }
    }
}
