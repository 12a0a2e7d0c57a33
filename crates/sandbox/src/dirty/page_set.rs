//! A set of page numbers, as a bitmap: a memory of 300 MiB takes 10 KiB.

use super::uffd::push_run;
use std::ops::Range;

/// A set of page numbers.
#[derive(Clone, Default, Debug)]
pub(crate) struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    /// Adds consecutive pages.
    pub(crate) fn add(&mut self, run: Range<u32>) {
        let words = (run.end as usize).div_ceil(64);
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
        for page in run {
            self.words[page as usize / 64] |= 1 << (page % 64);
        }
    }

    /// Adds all pages of another set.
    pub(crate) fn add_all(&mut self, other: &Self) {
        if other.words.len() > self.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Number of pages.
    pub(crate) fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Removes and returns the first page that is not before `from`.
    pub(crate) fn take_from(&mut self, from: u32) -> Option<u32> {
        let first = from as usize / 64;
        let before = !0 << (from % 64);
        let mut words = (first..).zip(self.words.get_mut(first..)?);
        let (index, bit) = words.find_map(|(index, word)| {
            let candidates = if index == first { *word & before } else { *word };
            (candidates != 0).then(|| {
                let bit = candidates.trailing_zeros();
                *word &= !(1 << bit);
                (index, bit)
            })
        })?;
        Some(u32::try_from(index * 64).unwrap_or(u32::MAX) + bit)
    }

    /// The pages, in order, as runs.
    pub(crate) fn runs(&self) -> Vec<Range<u32>> {
        let mut runs = Vec::new();
        for (index, word) in (0_u32..).zip(&self.words).filter(|(_, word)| **word != 0) {
            for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                push_run(&mut runs, index * 64 + bit..index * 64 + bit + 1);
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_gives_back_what_was_added_in_order() {
        let (mut set, mut other) = (PageSet::default(), PageSet::default());
        set.add(70..72);
        set.add(128..129);
        other.add(0..1);
        other.add(63..70);
        set.add_all(&other);
        set.add(5..5);
        assert_eq!(set.runs(), [0..1, 63..72, 128..129]);
        assert_eq!(set.len(), 11);
        let mut taken = Vec::new();
        let mut from = 64;
        while let Some(page) = set.take_from(from) {
            taken.push(page);
            from = page;
        }
        assert_eq!(taken, [64, 65, 66, 67, 68, 69, 70, 71, 128]);
        assert_eq!((set.take_from(1), set.take_from(64), set.take_from(1000)), (Some(63), None, None));
        assert_eq!((set.len(), set.take_from(0)), (1, Some(0)));
    }
}
