//! Copies of a memory's pages, collected in any order: a large memory is copied in pieces, and pages that are written
//! meanwhile are copied again.

use crate::buffers::{SEGMENT_BYTES, Share, Spares};
use crate::limits::PAGE;
use std::ops::Range;

/// Pages of a segment.
const SEGMENT_PAGES: usize = SEGMENT_BYTES / PAGE;

/// Copies of pages. Never more than one of a page, so they take as much as the memory at most.
pub(crate) struct Copied {
    /// By page number: 0, or one more than the place of its copy.
    places: Vec<u32>,
    /// The copies, by place. All segments but the last have [`SEGMENT_PAGES`].
    segments: Vec<Vec<u8>>,
    count: usize,
    /// Pages that are expected in all.
    expected: usize,
    /// The pool of the segments.
    spares: Spares,
    /// What it has of the bytes of all copies.
    share: Share,
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.segments.drain(..).for_each(|segment| self.spares.give(segment));
    }
}

impl Copied {
    /// No copies yet. If more than `expected` pages are added, their buffers move.
    pub(crate) fn new(memory_len: usize, expected: usize, spares: &Spares) -> Self {
        let (places, segments) = (vec![0; memory_len / PAGE], Vec::new());
        let (spares, share) = (spares.clone(), spares.share());
        Self { places, segments, count: 0, expected, spares, share }
    }

    /// Copies a page of `memory`, over its earlier copy if there is one.
    pub(crate) fn copy(&mut self, memory: &[u8], page: u32) {
        let index = page as usize;
        let contents = &memory[index * PAGE..(index + 1) * PAGE];
        if index >= self.places.len() {
            self.places.resize(memory.len() / PAGE, 0);
        }
        if let Some(place) = self.places[index].checked_sub(1) {
            let place = place as usize;
            let at = place % SEGMENT_PAGES * PAGE;
            self.segments[place / SEGMENT_PAGES][at..at + PAGE].copy_from_slice(contents);
            return;
        }
        if self.count.is_multiple_of(SEGMENT_PAGES) {
            let room = self.expected.saturating_sub(self.count).clamp(1, SEGMENT_PAGES);
            self.segments.push(self.spares.take(room * PAGE));
            self.share.grow(room * PAGE);
        }
        let segment = self.segments.last_mut().expect("one was added above");
        segment.extend_from_slice(contents);
        self.count += 1;
        self.places[index] = u32::try_from(self.count).expect("fewer pages than page numbers");
    }

    /// Number of pages.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// All pages with their copies, in order of their numbers.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..).zip(&self.places).filter_map(|(page, place)| {
            let place = place.checked_sub(1)? as usize;
            let at = place % SEGMENT_PAGES * PAGE;
            Some((page, &self.segments[place / SEGMENT_PAGES][at..at + PAGE]))
        })
    }

    /// The numbers of the pages, in order, as runs.
    pub(crate) fn runs(&self) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for (page, _) in (0..).zip(&self.places).filter(|(_, place)| **place > 0) {
            match runs.last_mut() {
                Some(last) if last.end == page => last.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_copy_of_a_page_counts_and_pages_come_in_order() {
        let spares = Spares::default();
        let pages = 2 * SEGMENT_PAGES + 3;
        let mut memory = vec![0_u8; pages * PAGE];
        let mut copied = Copied::new(memory.len(), pages, &spares);
        // Every page but the first, backwards.
        for page in (1..pages).rev() {
            memory[page * PAGE] = 1;
            copied.copy(&memory, u32::try_from(page).unwrap());
        }
        for page in [2, SEGMENT_PAGES, pages - 1] {
            memory[page * PAGE] = 2;
            copied.copy(&memory, u32::try_from(page).unwrap());
        }
        let all = 1..u32::try_from(pages).unwrap();
        assert!(copied.len() == pages - 1 && copied.runs().iter().eq([&all]));
        let mut seen = 1;
        for (page, contents) in copied.pages() {
            assert_eq!(page as usize, seen);
            assert_eq!(contents, &memory[seen * PAGE..(seen + 1) * PAGE]);
            seen += 1;
        }
        assert_eq!(seen, pages);
        // A page of memory that has grown since.
        memory.resize((pages + 2) * PAGE, 7);
        copied.copy(&memory, u32::try_from(pages + 1).unwrap());
        assert_eq!(
            copied.pages().last().map(|(page, contents)| (page as usize, contents[0])),
            Some((pages + 1, 7))
        );
    }
}
