//! The contents of one scratch file, stored as pages without those that are zero, and the set of changed pages.

use crate::limits::PAGE;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One page of contents. Checkpoints that are still being encoded share it; a write then copies it.
pub(crate) type Page = Arc<[u8; PAGE]>;

/// The contents of one scratch file.
#[derive(Clone, Default, Debug)]
pub(crate) struct Arena {
    len: u64,
    pages: BTreeMap<u32, Page>,
    /// Pages written or removed since the last checkpoint, and whether that checkpoint contains them. Never more entries than the
    /// pages that exist now and existed then: a page that came and went in between is forgotten. Otherwise a guest could fill the
    /// host's memory with numbers of pages that it does not keep.
    dirty: BTreeMap<u32, bool>,
}

fn page_of(at: u64) -> u32 {
    u32::try_from(at / PAGE as u64)
        .expect("files are at most SCRATCH_MAX long, and that has 32-bit page numbers")
}

/// The pages that contain the `len` bytes from `at` on.
fn touched(at: u64, len: usize) -> std::ops::Range<u32> {
    match len {
        0 => 0..0,
        _ => page_of(at)..page_of(at + len as u64 - 1) + 1,
    }
}

impl Arena {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Pages that hold memory.
    pub(crate) fn page_count(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn pages(&self) -> impl Iterator<Item = (u32, &Page)> {
        self.pages.iter().map(|(index, page)| (*index, page))
    }

    /// Sets a page to the contents in a checkpoint; `None` for zero.
    pub(crate) fn set_page(&mut self, index: u32, page: Option<Page>) {
        match page {
            Some(page) => self.pages.insert(index, page),
            None => self.pages.remove(&index),
        };
    }

    /// Takes the pages that changed since the last call, with their present contents.
    pub(crate) fn take_dirty(&mut self) -> Vec<(u32, Option<Page>)> {
        let pages_end = self.len.div_ceil(PAGE as u64);
        std::mem::take(&mut self.dirty)
            .into_keys()
            .filter(|index| u64::from(*index) < pages_end)
            .map(|index| (index, self.pages.get(&index).cloned()))
            .collect()
    }

    /// Marks all pages as unchanged, when a checkpoint covers them.
    pub(crate) fn clear_dirty(&mut self) {
        self.dirty.clear();
    }

    /// How many pages writing `len` bytes at `at` would add.
    pub(crate) fn pages_added(&self, at: u64, len: usize) -> usize {
        let touched = touched(at, len);
        touched.len() - self.pages.range(touched).count()
    }

    /// Copies bytes out, up to the end of the file, and returns how many.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> usize {
        let left = self.len.saturating_sub(at);
        let len = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut done = 0;
        while done < len {
            let (index, offset, count) = piece(at + done as u64, len - done);
            match self.pages.get(&index) {
                Some(page) => out[done..done + count].copy_from_slice(&page[offset..offset + count]),
                None => out[done..done + count].fill(0),
            }
            done += count;
        }
        len
    }

    /// Copies bytes in, and extends the file if they end beyond it.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (index, offset, count) = piece(at + done as u64, bytes.len() - done);
            let kept = self.pages.contains_key(&index);
            let page = self.pages.entry(index).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[offset..offset + count].copy_from_slice(&bytes[done..done + count]);
            self.dirty.entry(index).or_insert(kept);
            done += count;
        }
        if !bytes.is_empty() {
            self.len = self.len.max(at + bytes.len() as u64);
        }
    }

    /// Sets the length. Bytes that are cut off are lost: they read as zero if the file is extended again.
    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            let keep = page_of(len.next_multiple_of(PAGE as u64));
            for index in self.pages.split_off(&keep).into_keys() {
                if !*self.dirty.entry(index).or_insert(true) {
                    self.dirty.remove(&index);
                }
            }
            let tail = usize::try_from(len % PAGE as u64).expect("less than a page");
            if tail != 0
                && let Some(page) = self.pages.get_mut(&page_of(len))
            {
                Arc::make_mut(page)[tail..].fill(0);
                self.dirty.entry(page_of(len)).or_insert(true);
            }
        }
        self.len = len;
    }

    /// Sets the length of a file that a checkpoint describes; its pages are set separately.
    pub(crate) fn with_len(mut self, len: u64) -> Self {
        let end = page_of(len.next_multiple_of(PAGE as u64));
        self.pages.split_off(&end);
        self.len = len;
        self
    }
}

/// The page at `at`, the offset in it, and how many of `left` bytes lie in it.
fn piece(at: u64, left: usize) -> (u32, usize, usize) {
    let offset = usize::try_from(at % PAGE as u64).expect("less than a page");
    (page_of(at), offset, left.min(PAGE - offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_cuts_and_overlaps_read_as_they_should() {
        let mut arena = Arena::default();
        let mut plain = vec![0_u8; 0];
        let steps: &[(u64, usize, u8)] =
            &[(0, 10, 1), (4090, 20, 2), (20_000, 1, 3), (5, 5000, 4), (8191, 2, 5)];
        for (at, len, byte) in steps {
            let added = arena.pages_added(*at, *len);
            let before = arena.page_count();
            arena.write(*at, &vec![*byte; *len]);
            assert_eq!(arena.page_count() - before, added);
            let end = usize::try_from(*at).unwrap() + len;
            plain.resize(plain.len().max(end), 0);
            plain[end - len..end].fill(*byte);
        }
        for len in [9000, 4096, 4100, 30_000] {
            arena.set_len(len);
            plain.resize(usize::try_from(len).unwrap(), 0);
            let mut read = vec![9; plain.len() + 10];
            assert_eq!(arena.read(0, &mut read), plain.len());
            assert_eq!(read[..plain.len()], plain);
        }
        assert_eq!(arena.read(40_000, &mut [0; 4]), 0);
    }

    #[test]
    fn dirty_pages_include_those_cut_off_and_grown_again() {
        let mut arena = Arena::default();
        arena.write(0, &[1; 3 * PAGE]);
        assert_eq!(arena.take_dirty().len(), 3);
        assert_eq!(arena.take_dirty().len(), 0);
        arena.set_len(PAGE as u64);
        arena.set_len(3 * PAGE as u64);
        let dirty: Vec<_> =
            arena.take_dirty().into_iter().map(|(index, page)| (index, page.is_some())).collect();
        assert_eq!(dirty, [(1, false), (2, false)]);
    }

    #[test]
    fn pages_that_come_and_go_leave_no_trace() {
        let mut arena = Arena::default();
        arena.write(0, &[1; PAGE]);
        arena.take_dirty();
        for page in 1..1_000 {
            arena.write(page * PAGE as u64, b"x");
            arena.set_len(0);
            assert!(arena.dirty.len() <= 1, "page {page}");
        }
        // A page that the checkpoint has and that no longer exists is reported.
        arena.set_len(PAGE as u64);
        assert_eq!(arena.take_dirty(), [(0, None)]);
    }
}
