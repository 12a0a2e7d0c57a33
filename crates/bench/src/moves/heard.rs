//! What was heard of a numbered sequence: what is missing, came twice, came late, or follows from another state.
//!
//! It knows no sockets. The sequence is that of a cell that numbers nothing itself: each item carries the number that its sender gave it, and
//! a word of the cell's state that depends on every item before it.

use std::collections::BTreeSet;

/// Most items that may be missing at a time: a larger number is no number of this sequence.
const MISSING_MAX: u64 = 1_000_000;

/// Counts of what was not as it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wrong {
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    /// They came after a later one.
    pub(crate) reordered: u64,
    /// The cell's state was another than the one after exactly the items before.
    pub(crate) changed: u64,
}

impl Wrong {
    pub(crate) fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.reordered += other.reordered;
        self.changed += other.changed;
    }
}

/// One sequence, from number 0 on.
pub(super) struct Heard {
    next: u64,
    /// The cell's word after the item before `next`.
    word: u64,
    /// The cell's word after an item, from the word before it and the item's number.
    step: fn(u64, u64) -> u64,
    /// Whether items may be dropped on their way to the cell, so that nothing says which of them the word after a gap includes.
    drops: bool,
    missing: BTreeSet<u64>,
    wrong: Wrong,
}

impl Heard {
    pub(super) fn new(word: u64, step: fn(u64, u64) -> u64) -> Self {
        Self { next: 0, word, step, drops: false, missing: BTreeSet::new(), wrong: Wrong::default() }
    }

    /// Of which items may be dropped on their way to the cell: the word after a gap is not judged.
    pub(super) fn with_drops(word: u64, step: fn(u64, u64) -> u64) -> Self {
        Self { drops: true, ..Self::new(word, step) }
    }

    /// An item arrived. True if it is the next one, or a later one.
    pub(super) fn hear(&mut self, number: u64, word: u64) -> bool {
        if number < self.next {
            let late = self.missing.remove(&number);
            self.wrong.reordered += u64::from(late);
            self.wrong.repeated += u64::from(!late);
            return false;
        }
        if number - self.next > MISSING_MAX {
            self.wrong.changed += 1;
            return false;
        }
        let is_judged = !self.drops || number == self.next;
        for skipped in self.next..number {
            self.missing.insert(skipped);
            self.word = (self.step)(self.word, skipped);
        }
        let expected = (self.step)(self.word, number);
        self.wrong.changed += u64::from(is_judged && word != expected);
        // After a difference, what follows is judged by what the cell has.
        (self.word, self.next) = (word, number + 1);
        true
    }

    /// Number of the next item.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// What is wrong if `sent` items were sent, and no more arrive.
    pub(super) fn wrong(&self, sent: u64) -> Wrong {
        let lost = self.missing.len() as u64 + sent.saturating_sub(self.next);
        Wrong { lost, ..self.wrong }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(word: u64, number: u64) -> u64 {
        word * 3 + number + 1
    }

    /// What is wrong after these numbers of five, with the words that a cell that saw all of them has.
    fn after(numbers: &[u64]) -> Wrong {
        let mut heard = Heard::new(1, step);
        for number in numbers {
            heard.hear(*number, (0..=*number.min(&5)).fold(1, step));
        }
        heard.wrong(5)
    }

    #[test]
    fn what_is_missing_comes_twice_or_late_is_told_apart() {
        let none = Wrong::default();
        assert_eq!(after(&[0, 1, 2, 3, 4]), none);
        assert_eq!(after(&[0, 1, 2]), Wrong { lost: 2, ..none });
        assert_eq!(after(&[0, 2, 3, 4]), Wrong { lost: 1, ..none });
        assert_eq!(after(&[0, 1, 1, 2, 3, 4]), Wrong { repeated: 1, ..none });
        assert_eq!(after(&[0, 2, 1, 3, 4]), Wrong { reordered: 1, ..none });
        assert_eq!(after(&[0, 1, 2, 3, 4, u64::MAX]), Wrong { changed: 1, ..none });
    }

    #[test]
    fn another_state_is_counted_once() {
        let mut heard = Heard::new(1, step);
        let words = [step(1, 0), 77, step(77, 2)];
        for (number, word) in (0..).zip(words) {
            assert!(heard.hear(number, word));
        }
        assert_eq!((heard.wrong(3), heard.next()), (Wrong { changed: 1, ..Wrong::default() }, 3));
    }
    #[test]
    fn after_a_gap_of_items_that_may_be_dropped_no_word_is_wrong() {
        for (mut heard, changed) in [(Heard::with_drops(1, step), 0), (Heard::new(1, step), 1)] {
            let first = step(1, 0);
            // Item 1 never reached the cell.
            heard.hear(0, first);
            heard.hear(2, step(first, 2));
            heard.hear(3, step(step(first, 2), 3));
            assert_eq!(heard.wrong(4), Wrong { lost: 1, changed, ..Wrong::default() });
        }
    }
}
