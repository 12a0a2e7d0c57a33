//! Large buffers without a page fault for every 4 KiB: what a full checkpoint costs is mostly faults.

use crate::limits::PAGE;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a huge page on the machines that matter; elsewhere the advice is merely useless.
const HUGE: usize = 2 << 20;
/// Buffers below this come from the allocator's own stock without faulting.
const LARGE: usize = 128 << 10;
/// Buffers that are kept for the next snapshot, and the most that one of them may hold.
const SPARES_MAX: usize = 4;
const SPARE_BYTES_MAX: usize = 16 << 20;

/// An empty buffer with room for `len` bytes, in huge pages where it is large enough.
pub(crate) fn roomy(len: usize) -> Vec<u8> {
    let buffer = Vec::with_capacity(len);
    let start = (buffer.as_ptr() as usize).next_multiple_of(HUGE);
    let end = buffer.as_ptr() as usize + buffer.capacity();
    if len >= 2 * HUGE && end > start {
        // SAFETY: the range lies within the allocation that `buffer` owns, and this advice changes neither contents nor
        // access. It may fail, and then pages are small; safe code would take 512 times the faults.
        let _ = unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
    buffer
}

/// Makes the pages under `target`, which is about to be overwritten whole, present in one call.
pub(crate) fn populate(target: &mut [u8]) {
    let start = (target.as_ptr() as usize).next_multiple_of(PAGE);
    let end = (target.as_ptr() as usize + target.len()) & !(PAGE - 1);
    if end > start {
        // SAFETY: the range lies within an exclusive borrow, and the call only faults its pages in, as writing would. It
        // may fail (before Linux 5.14), and then writing faults them in.
        let _ = unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_POPULATE_WRITE) };
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

    /// Keeps a buffer, or a smaller one's place, for later.
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        if !(LARGE..=SPARE_BYTES_MAX).contains(&buffer.capacity()) {
            return;
        }
        buffer.clear();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < SPARES_MAX {
            kept.push(buffer);
        } else if let Some(smallest) = kept.iter_mut().min_by_key(|kept| kept.capacity())
            && smallest.capacity() < buffer.capacity()
        {
            *smallest = buffer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spares_are_bounded_and_come_back_empty() {
        let spares = Spares::default();
        for n in 1..10 {
            let mut buffer = Vec::with_capacity(n * LARGE);
            buffer.push(1);
            spares.give(buffer);
        }
        spares.give(Vec::with_capacity(2 * SPARE_BYTES_MAX));
        spares.give(Vec::with_capacity(1));
        let kept: Vec<_> = (0..5).map(|_| spares.take(LARGE)).collect();
        assert_eq!(kept.iter().filter(|buffer| buffer.capacity() >= 6 * LARGE).count(), 4);
        assert!(kept.iter().all(Vec::is_empty));
    }

    #[test]
    fn advised_memory_keeps_its_contents() {
        let mut buffer = roomy(3 * HUGE);
        buffer.resize(3 * HUGE, 7);
        populate(&mut buffer[5..2 * HUGE]);
        assert!(buffer.iter().all(|byte| *byte == 7));
    }
}
