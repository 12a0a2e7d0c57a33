//! Earlier versions of pages, for the deltas that go to one backup: a page that was written back to what it was is not sent
//! again, and one that changed a little is sent as the difference to what the backup has.
//!
//! ```text
//! delta on base:  the page is what it was       nothing
//!                 a version is known            page XOR version, and a digest of such versions
//!                 none is                       the whole page
//! ```
//! What is known is what the reader of the last delta has, so it is of use only for a delta on exactly that one. For any other
//! base everything is forgotten: a copy that was lost on its way to the encoder costs bytes, and never makes a wrong page.
//!
//! This is the checkpoint compression of Remus (Cully et al., NSDI 2008, 5.1), with a limit for what it may keep.

use super::pages::Writer;
use super::{CheckpointId, Copied};
use crate::limits::{PAGE, VERSIONS_BYTES_MAX, VERSIONS_BYTES_MIN, VERSIONS_MEMORY_PART};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A page of which more than this many bytes differ is sent whole: the difference would hardly be smaller.
const DIFFERENT_BYTES_MAX: usize = PAGE / 2;

/// What became of the pages that were written between two checkpoints of a backup, since the start. The numbers of the last
/// three add up to the first.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageCounts {
    /// Pages that were written.
    pub written: u64,
    /// Pages that were sent whole, or as zeros.
    pub whole: u64,
    /// Pages of which the difference to what the backup has was sent.
    pub differences: u64,
    /// Pages that were not sent, because they had been written back to what they were.
    pub unchanged: u64,
}

/// What all cells of a shard keep together, and what became of their pages.
#[derive(Clone, Default)]
pub(crate) struct VersionPool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    bytes: AtomicUsize,
    /// Whole pages, differences, and unchanged ones.
    counts: [AtomicU64; 3],
}

impl VersionPool {
    /// Bytes of all versions that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn counts(&self) -> PageCounts {
        let [whole, differences, unchanged] =
            [0, 1, 2].map(|index| self.0.counts[index].load(Ordering::Relaxed));
        PageCounts { written: whole + differences + unchanged, whole, differences, unchanged }
    }

    fn count(&self, counts: [u64; 3]) {
        for (counter, count) in self.0.counts.iter().zip(counts) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Room for one more page. False if the shard keeps as much as it may.
    fn take(&self) -> bool {
        let more = |bytes: usize| Some(bytes + PAGE).filter(|bytes| *bytes <= VERSIONS_BYTES_MAX);
        self.0.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give(&self, pages: usize) {
        self.0.bytes.fetch_sub(pages * PAGE, Ordering::Relaxed);
    }
}

/// Earlier versions of a stage's pages. Shared by the stage and its copies that are being encoded; one is encoded at a time.
#[derive(Clone)]
pub(crate) struct Versions(Arc<Mutex<Kept>>);

impl fmt::Debug for Versions {
    /// The contents are a session's secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Versions").finish_non_exhaustive()
    }
}

struct Kept {
    /// The delta whose reader has these versions.
    of: Option<CheckpointId>,
    /// Counts deltas.
    now: u64,
    pages: BTreeMap<u32, Version>,
    /// The pages by when they were written last.
    by_use: BTreeSet<(u64, u32)>,
    pool: VersionPool,
}

struct Version {
    used: u64,
    contents: Box<[u8]>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.pool.give(self.pages.len());
    }
}

impl Versions {
    /// Nothing is known yet.
    pub(crate) fn new(pool: &VersionPool) -> Self {
        let (pages, by_use, pool) = (BTreeMap::new(), BTreeSet::new(), pool.clone());
        Self(Arc::new(Mutex::new(Kept { of: None, now: 0, pages, by_use, pool })))
    }

    /// What a reader that has exactly `base` must be sent of the pages that were written since. It has `id` then.
    pub(super) fn changes<'a>(
        &self,
        written: &'a Copied,
        (base, id): (CheckpointId, CheckpointId),
        memory_len: usize,
    ) -> Writer<'a> {
        // After a panic in the middle of this, `of` is none, and everything is forgotten.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.of.take() != Some(base) {
            kept.forget();
        }
        let writer = kept.changes(written, memory_len);
        kept.of = Some(id);
        writer
    }
}

impl Kept {
    fn forget(&mut self) {
        self.pool.give(self.pages.len());
        self.pages.clear();
        self.by_use.clear();
    }

    fn changes<'a>(&mut self, written: &'a Copied, memory_len: usize) -> Writer<'a> {
        self.now += 1;
        // All of them before the first one makes room, or a cell that writes to a few pages more than fit would find none.
        written.pages().for_each(|(page, _)| self.touch(page));
        let pages_max = (memory_len / VERSIONS_MEMORY_PART).max(VERSIONS_BYTES_MIN) / PAGE;
        let (mut writer, mut counts) = (Writer::default(), [0; 3]);
        for (page, contents) in written.pages() {
            let Some(version) = self.pages.get_mut(&page) else {
                self.keep(page, contents, pages_max);
                writer.page(page, Some(contents));
                counts[0] += 1;
                continue;
            };
            let different = version.contents.iter().zip(contents).filter(|(then, now)| then != now).count();
            if different == 0 {
                counts[2] += 1;
                continue;
            }
            if different > DIFFERENT_BYTES_MAX || *contents == [0; PAGE] {
                writer.page(page, Some(contents));
                counts[0] += 1;
            } else {
                let difference = version.contents.iter().zip(contents).map(|(then, now)| then ^ now);
                writer.difference(page, difference.collect(), &version.contents);
                counts[1] += 1;
            }
            version.contents.copy_from_slice(contents);
        }
        self.pool.count(counts);
        writer
    }

    /// A page was written. Nothing if no version of it is known.
    fn touch(&mut self, page: u32) {
        if let Some(version) = self.pages.get_mut(&page) {
            self.by_use.remove(&(version.used, page));
            version.used = self.now;
            self.by_use.insert((version.used, page));
        }
    }

    /// Keeps a page, in place of the one that was not written for the longest time if there is no room. One that was written now is
    /// not replaced.
    fn keep(&mut self, page: u32, contents: &[u8], pages_max: usize) {
        let has_room = self.pages.len() < pages_max && self.pool.take();
        let contents = if has_room {
            contents.into()
        } else {
            let Some(oldest) = self.by_use.first().copied().filter(|(used, _)| *used < self.now) else {
                return;
            };
            self.by_use.remove(&oldest);
            let Some(replaced) = self.pages.remove(&oldest.1) else { return };
            let mut buffer = replaced.contents;
            buffer.copy_from_slice(contents);
            buffer
        };
        self.pages.insert(page, Version { used: self.now, contents });
        self.by_use.insert((self.now, page));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::Spares;
    use crate::checkpoint::Layout;
    use crate::checkpoint::runs::PageKind;
    use crate::limits::WASM_PAGE;
    use bytes::Bytes;

    /// A cell's memory, and what its backup is sent.
    struct Sender {
        memory: Vec<u8>,
        versions: Versions,
        pool: VersionPool,
        last: CheckpointId,
    }

    impl Sender {
        fn new(pages: usize) -> Self {
            let pool = VersionPool::default();
            Self { memory: vec![0; pages * PAGE], versions: Versions::new(&pool), pool, last: [0; 16] }
        }

        fn put(&mut self, page: usize, byte: u8) {
            self.memory[page * PAGE + 100] = byte;
            self.memory[page * PAGE + 200] = !byte;
        }

        /// Sends these pages: how each run goes.
        fn send(&mut self, pages: &[u32]) -> Vec<(std::ops::Range<u32>, PageKind)> {
            let mut copied = Copied::new(self.memory.len(), pages.len(), &Spares::default());
            pages.iter().for_each(|page| copied.copy(&self.memory, *page));
            let (base, mut id) = (self.last, self.last);
            id[0] = id[0].wrapping_add(1);
            self.last = id;
            let writer = self.versions.changes(&copied, (base, id), self.memory.len());
            let mut out = Vec::new();
            writer.write(Layout::Short, &mut out);
            let size = u32::from_le_bytes(out[..4].try_into().unwrap()) as usize;
            let runs = Bytes::copy_from_slice(&out[4..4 + size]);
            crate::checkpoint::runs::read(runs, 1 << 20, Layout::Short).unwrap()
        }

        fn kept(&self) -> Vec<u32> {
            self.versions.0.lock().unwrap().pages.keys().copied().collect()
        }
    }

    #[test]
    fn a_page_goes_whole_then_as_a_difference_and_not_at_all_if_it_is_what_it_was() {
        let mut sender = Sender::new(64);
        (0..3).for_each(|page| sender.put(page, 1));
        assert_eq!(sender.send(&[0, 1, 2]), [(0..3, PageKind::Whole)]);
        sender.put(1, 2);
        assert_eq!(sender.send(&[0, 1, 2]), [(1..2, PageKind::Difference)]);
        assert_eq!(sender.send(&[0, 1, 2]), []);
        sender.put(1, 1);
        assert_eq!(sender.send(&[1]), [(1..2, PageKind::Difference)]);
        // Zeros are cheaper than any difference, and other contents hardly dearer.
        sender.memory[..PAGE].fill(0);
        sender.memory[PAGE..2 * PAGE].fill(9);
        assert_eq!(sender.send(&[0, 1]), [(0..1, PageKind::Zero), (1..2, PageKind::Whole)]);
        sender.put(0, 3);
        assert_eq!(sender.send(&[0]), [(0..1, PageKind::Difference)]);
        let counts = PageCounts { written: 13, whole: 5, differences: 3, unchanged: 5 };
        assert_eq!(sender.pool.counts(), counts);
    }

    #[test]
    fn what_another_delta_left_is_forgotten() {
        let mut sender = Sender::new(64);
        sender.put(0, 1);
        sender.send(&[0]);
        // A copy was lost, and the reader began again with a full checkpoint.
        sender.last[1] = 1;
        sender.put(0, 2);
        assert_eq!(sender.send(&[0]), [(0..1, PageKind::Whole)]);
        sender.put(0, 3);
        assert_eq!(sender.send(&[0]), [(0..1, PageKind::Difference)]);
    }

    #[test]
    fn versions_are_bounded_and_the_page_that_was_not_written_for_the_longest_time_goes() {
        // A tenth of this memory is less than the least that may be kept.
        let least = u32::try_from(VERSIONS_BYTES_MIN / PAGE).unwrap();
        let mut sender = Sender::new(3 * VERSIONS_BYTES_MIN / PAGE);
        let all: Vec<u32> = (0..2 * least).collect();
        sender.send(&all);
        assert_eq!(sender.kept(), all[..least as usize]);
        // Those that are known stay known, however many others are written beside them.
        all.iter().for_each(|page| sender.put(*page as usize, 7));
        assert_eq!(
            sender.send(&all),
            [(0..least, PageKind::Difference), (least..2 * least, PageKind::Whole)]
        );
        sender.send(&all[1..least as usize]);
        sender.send(&[2 * least]);
        assert_eq!(sender.kept(), (1..least).chain([2 * least]).collect::<Vec<_>>());
        assert_eq!(sender.pool.bytes(), VERSIONS_BYTES_MIN);
        drop(sender.versions);
        assert_eq!(sender.pool.bytes(), 0);

        let pages = 20 * WASM_PAGE / PAGE * VERSIONS_MEMORY_PART;
        let mut large = Sender::new(pages);
        let all: Vec<u32> = (0..u32::try_from(pages).unwrap()).collect();
        large.send(&all);
        assert_eq!(large.kept().len(), pages / VERSIONS_MEMORY_PART);
    }

    #[test]
    fn a_shard_keeps_no_more_than_it_may() {
        let pool = VersionPool::default();
        let left = 3;
        for _ in 0..VERSIONS_BYTES_MAX / PAGE - left {
            assert!(pool.take());
        }
        let mut sender = Sender::new(64);
        sender.versions = Versions::new(&pool);
        sender.send(&[0, 1, 2, 3, 4]);
        assert_eq!(sender.kept(), [0, 1, 2]);
        // Its own oldest one makes room.
        sender.send(&[9]);
        assert_eq!(sender.kept(), [1, 2, 9]);
        assert_eq!(pool.bytes(), VERSIONS_BYTES_MAX);
    }
}
