//! Large buffers without a page fault for every 4 KiB: what a full checkpoint costs is mostly faults.

use crate::limits::PAGE;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a huge page on the machines that matter; elsewhere the advice is merely useless.
const HUGE: usize = 2 << 20;
/// Buffers below this come from the allocator's own stock without faulting.
const LARGE: usize = 128 << 10;
/// Bytes that are kept in buffers for the next snapshots.
const SPARE_BYTES_MAX: usize = 64 << 20;

/// An empty buffer with room for `len` bytes, in huge pages where it is large enough.
pub(crate) fn roomy(len: usize) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(len);
    if len >= 2 * HUGE {
        prefer_huge_pages(buffer.spare_capacity_mut());
    }
    buffer
}

/// Has the kernel put huge pages under `target` where whole ones fit. For memory that all of is about to be written: a
/// huge page is there as a whole from its first byte on.
pub(crate) fn prefer_huge_pages<T>(target: &mut [T]) {
    advise(target, HUGE, Advice::HugePages);
}

/// Has small pages put under `target` from now on, also where [`prefer_huge_pages`] asked for others. Pages that are there stay.
pub(crate) fn prefer_small_pages(target: &mut [u8]) {
    advise(target, PAGE, Advice::SmallPages);
}

/// What changes neither contents nor access.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Advice {
    HugePages = libc::MADV_HUGEPAGE,
    SmallPages = libc::MADV_NOHUGEPAGE,
    Populate = libc::MADV_POPULATE_WRITE,
}

/// Advises the kernel about the pages of this size that lie within `target`.
fn advise<T>(target: &mut [T], page: usize, advice: Advice) {
    let Range { start, end } = target.as_mut_ptr_range();
    let start = (start as usize).next_multiple_of(page);
    let end = end as usize & !(page - 1);
    if end > start {
        // SAFETY: the range lies within an exclusive borrow, and no `Advice` changes contents or access. It may fail, and then
        // only speed is lost; no safe wrapper is in the tree.
        let _ = unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice as libc::c_int) };
    }
}

/// Makes the whole pages under `target`, which is about to be overwritten, present in one call.
pub(crate) fn populate(target: &mut [u8]) {
    // It may fail (before Linux 5.14), and then writing faults them in.
    advise(target, PAGE, Advice::Populate);
}

/// Gives the pages under a cell's `memory` back to the kernel: it has the image's contents again, and zeros.
pub(crate) fn discard(memory: &mut [u8]) {
    let start = memory.as_ptr() as usize;
    if !memory.is_empty() && start.is_multiple_of(PAGE) {
        // SAFETY: the range is an exclusive borrow of a cell's linear memory, a private mapping of its image or of nothing,
        // whose pages may have any contents. What this does is what the pool does when it cleans a slot.
        let _ = unsafe { libc::madvise(start as *mut libc::c_void, memory.len(), libc::MADV_DONTNEED) };
    }
}

/// Buffers that went through a checkpoint and wait for the next. Shared by a cell's thread and those that encode.
#[derive(Clone, Default)]
pub(crate) struct Spares(Arc<Mutex<Vec<Vec<u8>>>>);

impl Spares {
    /// An empty buffer with room for `len` bytes.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        if len >= LARGE {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = kept.iter().position(|buffer| buffer.capacity() >= len) {
                return kept.swap_remove(at);
            }
        }
        roomy(len)
    }

    /// Keeps a buffer for later. The largest ones stay: they cost the most faults.
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() < LARGE {
            return;
        }
        buffer.clear();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(buffer);
        kept.sort_unstable_by_key(|buffer| std::cmp::Reverse(buffer.capacity()));
        let mut left = SPARE_BYTES_MAX;
        kept.retain(|buffer| {
            let fits = buffer.capacity() <= left;
            left -= if fits { buffer.capacity() } else { 0 };
            fits
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spares_are_bounded_and_come_back_empty() {
        let spares = Spares::default();
        let sixteenth = SPARE_BYTES_MAX / 16;
        for n in [1, 16, 3, 4, 5, 6, 17, 0] {
            let mut buffer = Vec::with_capacity((n * sixteenth).max(1));
            buffer.push(1);
            spares.give(buffer);
        }
        assert_eq!(spares.0.lock().unwrap().iter().map(Vec::capacity).collect::<Vec<_>>(), [16 * sixteenth]);
        let large = spares.take(2 * sixteenth);
        assert!(large.is_empty() && large.capacity() == 16 * sixteenth);
        for n in [1, 5, 3] {
            spares.give(Vec::with_capacity(n * sixteenth));
        }
        assert_eq!(spares.take(4 * sixteenth).capacity(), 5 * sixteenth);
        assert_eq!(spares.take(4 * sixteenth).capacity(), 4 * sixteenth);
        assert_eq!(spares.0.lock().unwrap().len(), 2);
    }

    #[test]
    fn advised_memory_keeps_its_contents() {
        let mut buffer = roomy(3 * HUGE);
        buffer.resize(3 * HUGE, 7);
        populate(&mut buffer[5..2 * HUGE]);
        assert!(buffer.iter().all(|byte| *byte == 7));
    }
}
