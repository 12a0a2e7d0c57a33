//! The memory of a cell beside its machines, and the checkpoints that have only those words of it which have changed.
//!
//! An event writes one word, and each word half as often as the one before it. So most of what changed since an earlier copy has
//! not changed since a later one: pages that leave it out, or come in half, leave words that are not those of the cell's last event.
//! Only cells of sessions with a backup have a memory.
//!
//! ```text
//! pages  | 3 | length 8 | which words 8 | these words, 8 each | state behind the memory | ballast |
//! ```
//! Nothing in it tells what it builds on, as with whole pages of a real memory.

/// Words of a memory. Event `n` writes the word of the number of zeros with which `n` ends in binary.
const WORDS: usize = 16;
/// Begins sections that have only what changed of the memory.
pub(super) const PAGES: u8 = 3;

/// A cell's memory.
#[derive(Clone, Debug)]
pub(super) struct Memory([u64; WORDS]);

impl Memory {
    /// Of a cell that has consumed no event.
    pub(super) fn new() -> Self {
        Self([0; WORDS])
    }

    /// An event, the first of which is 1, writes its number.
    pub(super) fn write(&mut self, event: u64) {
        let word = (event.trailing_zeros() as usize).min(WORDS - 1);
        self.0[word] = event;
    }

    /// Whether it is that of a cell which has consumed so many events.
    pub(super) fn is_after(&self, events: u64) -> bool {
        let last_of = |word: usize| {
            let first = 1_u64 << word;
            let every = if word == WORDS - 1 { first } else { 2 * first };
            if events < first { 0 } else { (events - first) / every * every + first }
        };
        self.0.iter().enumerate().all(|(word, written)| *written == last_of(word))
    }

    pub(super) fn save(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Splits it off a state.
    pub(super) fn load(state: &[u8]) -> Option<(Self, &[u8])> {
        let (words, rest) = state.split_at_checked(WORDS * 8)?;
        let mut memory = Self::new();
        for (word, bytes) in memory.0.iter_mut().zip(words.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().ok()?);
        }
        Some((memory, rest))
    }

    /// Takes the words that pages have, of which the first bytes are enough. Returns what is behind these words.
    pub(super) fn take<'a>(&mut self, pages: &'a [u8]) -> Option<&'a [u8]> {
        let (which, mut rest) = pages.split_first_chunk::<8>()?;
        let which = u64::from_le_bytes(*which);
        let written = self.0.iter_mut().enumerate().filter(|(at, _)| which & 1 << at != 0);
        for (_, word) in written {
            let (bytes, behind) = rest.split_first_chunk::<8>()?;
            (*word, rest) = (u64::from_le_bytes(*bytes), behind);
        }
        Some(rest)
    }
}

/// What changed from one state to another: the words of memory that differ, and all behind the memory.
pub(super) fn pages(before: &[u8], now: &[u8]) -> Option<Vec<u8>> {
    let ((before, _), (memory, behind)) = (Memory::load(before)?, Memory::load(now)?);
    let (mut which, mut words) = (0_u64, Vec::new());
    for at in (0..WORDS).filter(|at| memory.0[*at] != before.0[*at]) {
        which |= 1 << at;
        words.extend_from_slice(&memory.0[at].to_le_bytes());
    }
    Some([&which.to_le_bytes()[..], &words, behind].concat())
}

/// The state that such pages make of one.
pub(super) fn advance(before: &[u8], pages: &[u8]) -> Option<Vec<u8>> {
    let (mut memory, _) = Memory::load(before)?;
    let behind = memory.take(pages)?;
    Some([&memory.save(), behind].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_is_that_of_its_last_event() {
        let mut memory = Memory::new();
        for event in 1..100_000 {
            assert!(memory.is_after(event - 1) && !memory.is_after(event), "before {event}");
            memory.write(event);
        }
        assert!(memory.is_after(99_999));
    }

    #[test]
    fn pages_lead_from_what_they_were_made_against_and_from_nothing_else() {
        let state = |events: u64| {
            let mut memory = Memory::new();
            (1..=events).for_each(|event| memory.write(event));
            [memory.save(), events.to_le_bytes().to_vec()].concat()
        };
        for (earlier, base, now) in [(0, 5, 6), (10, 40, 43), (0, 1, 1)] {
            let pages = pages(&state(base), &state(now)).expect("it has a memory");
            assert_eq!(advance(&state(base), &pages), Some(state(now)));
            assert_ne!(advance(&state(earlier), &pages), Some(state(now)));
        }
    }
}
