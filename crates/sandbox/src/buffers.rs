//! Large buffers without one page fault per 4 KiB: page faults are most of the cost of a full checkpoint.
//!
//! Three kinds of advice to the kernel are wrapped here: huge pages for memory that is written
//! completely, populating many pages in one call, and giving pages back. All are hints; on a kernel
//! that refuses them the program is slower and does the same.
//!
//! This module does not know what is in a buffer. It never clears contents, so a buffer that
//! returns through [`Spares`] may keep old bytes behind its length; `clear` makes them unreachable
//! from safe code.

use crate::limits::PAGE;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a huge page on the target machines; on other machines the advice has no effect.
const HUGE: usize = 2 << 20;
/// The allocator serves buffers below this size from its own pool without page faults.
const LARGE: usize = 128 << 10;
/// Size of the buffers that a large copy consists of: small enough to be made ahead one by one, and kept for the next copy.
pub(crate) const SEGMENT_BYTES: usize = 2 << 20;
/// Most bytes of spare buffers that are kept for later snapshots.
const SPARE_BYTES_MAX: usize = 64 << 20;

/// An empty buffer with capacity for `len` bytes, in huge pages if it is large enough.
pub(crate) fn roomy(len: usize) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(len);
    if len >= 2 * HUGE {
        prefer_huge_pages(buffer.spare_capacity_mut());
    }
    buffer
}

/// Asks the kernel for huge pages under `target` where whole ones fit. Use it only for memory that will be written
/// completely: the first write to a huge page allocates all of it.
pub(crate) fn prefer_huge_pages<T>(target: &mut [T]) {
    advise(target, HUGE, Advice::HugePages);
}

/// Asks the kernel for small pages under `target` from now on, also where [`prefer_huge_pages`] was called. Existing pages stay.
pub(crate) fn prefer_small_pages(target: &mut [u8]) {
    advise(target, PAGE, Advice::SmallPages);
}

/// Kinds of advice; none of them changes contents or access.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Advice {
    HugePages = libc::MADV_HUGEPAGE,
    SmallPages = libc::MADV_NOHUGEPAGE,
    /// Since Linux 5.14. Unlike a write to each page, it faults the whole range in with one system
    /// call.
    Populate = libc::MADV_POPULATE_WRITE,
}

/// Advises the kernel about the pages of this size that lie within `target`.
fn advise<T>(target: &mut [T], page: usize, advice: Advice) {
    // Rounded inwards: a page that is only partly in `target` belongs to a neighbour, and advice
    // would reach it.
    let Range { start, end } = target.as_mut_ptr_range();
    let start = (start as usize).next_multiple_of(page);
    let end = end as usize & !(page - 1);
    if end > start {
        // SAFETY: the range lies within an exclusive borrow, and no `Advice` changes contents or access. It may fail, and then
        // only speed is lost; no safe wrapper is in the tree.
        let _ = unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice as libc::c_int) };
    }
}

/// Maps all whole pages under `target` in one call, before they are overwritten.
pub(crate) fn populate(target: &mut [u8]) {
    // The call may fail (before Linux 5.14); then writing causes the page faults.
    advise(target, PAGE, Advice::Populate);
}

/// Gives the pages under a cell's `memory` back to the kernel. The memory then has the image's contents and zeros again.
pub(crate) fn discard(memory: &mut [u8]) {
    let start = memory.as_ptr() as usize;
    // A memory of a pool slot begins on a page; a memory that the engine allocated otherwise need
    // not, and is left alone.
    if !memory.is_empty() && start.is_multiple_of(PAGE) {
        // SAFETY: the range is an exclusive borrow of a cell's linear memory, a private mapping of its image or of nothing,
        // whose pages may have any contents. What this does is what the pool does when it cleans a slot.
        let _ = unsafe { libc::madvise(start as *mut libc::c_void, memory.len(), libc::MADV_DONTNEED) };
    }
}

/// Buffers of finished checkpoints, kept for the next ones. The cell's thread and the encoding threads share them.
/// A checkpoint's buffer is allocated by the thread of the cells and released by the sealer's
/// thread. Without this pool each checkpoint would fault its buffer in during the pause, and the
/// allocator would give it back to the kernel afterwards.
#[derive(Clone, Default)]
pub(crate) struct Spares {
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
    in_copies: Arc<AtomicUsize>,
}

/// What one copy has of the bytes of all copies; they are off the sum when it is dropped.
pub(crate) struct Share {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Share {
    pub(crate) fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Spares {
    /// The share of a new copy.
    pub(crate) fn share(&self) -> Share {
        Share { all: self.in_copies.clone(), bytes: 0 }
    }

    /// An empty buffer with capacity for `len` bytes.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        if len >= LARGE {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            // First fit is largest first, since `give` keeps the list in that order.
            if let Some(at) = kept.iter().position(|buffer| buffer.capacity() >= len) {
                return kept.remove(at);
            }
        }
        roomy(len)
    }

    /// Keeps a buffer for later use. The largest buffers are kept: they save the most page faults.
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        // Below this size the allocator itself has a buffer without page faults, and keeping ours
        // would only cost memory.
        if buffer.capacity() < LARGE {
            return;
        }
        buffer.clear();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.partition_point(|other| other.capacity() >= buffer.capacity());
        kept.insert(at, buffer);
        let mut left = SPARE_BYTES_MAX;
        let too_many = kept.extract_if(.., |buffer| {
            let fits = buffer.capacity() <= left;
            left -= if fits { buffer.capacity() } else { 0 };
            !fits
        });
        let too_many: Vec<_> = too_many.collect();
        // Freed without the lock, for which the cells' thread may wait.
        drop(kept);
        drop(too_many);
    }
}

/// Buffers for copies of large cells, which a helper thread prepares.
///
/// A buffer that was never written to costs its first writer the time in which kernel and hypervisor find memory for it,
/// up to 5 ms for 2 MiB. That must not be the thread of the cells.
#[derive(Clone)]
pub struct CopyBuffers(pub(crate) Spares);

impl CopyBuffers {
    /// Buffers that [`Self::warm`] makes at once.
    const AT_ONCE: usize = 4;

    /// Buffers that are ready.
    #[must_use]
    pub fn ready(&self) -> usize {
        let kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().filter(|buffer| buffer.capacity() >= SEGMENT_BYTES).count()
    }

    /// Bytes of all copies that are being made or wait to be encoded.
    #[must_use]
    pub fn in_copies(&self) -> usize {
        self.0.in_copies.load(Ordering::Relaxed)
    }

    /// Takes a buffer; makes one if none is ready.
    #[must_use]
    pub fn take(&self) -> Vec<u8> {
        self.0.take(SEGMENT_BYTES)
    }

    /// Makes some buffers and writes to all of their pages. Takes milliseconds.
    pub fn warm(&self) {
        for _ in 0..Self::AT_ONCE {
            let mut buffer = roomy(SEGMENT_BYTES);
            // Not zeros: the compiler would ask the allocator for them, and that writes nothing.
            buffer.resize(SEGMENT_BYTES, 1);
            self.0.give(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_buffers_are_those_that_a_copy_takes() {
        let buffers = CopyBuffers(Spares::default());
        assert_eq!(buffers.ready(), 0);
        buffers.warm();
        assert_eq!(buffers.ready(), CopyBuffers::AT_ONCE);
        let segment = buffers.take();
        assert!(segment.is_empty() && segment.capacity() >= SEGMENT_BYTES);
        assert_eq!(buffers.ready(), CopyBuffers::AT_ONCE - 1);
    }

    #[test]
    fn spares_are_bounded_and_come_back_empty() {
        let spares = Spares::default();
        let sixteenth = SPARE_BYTES_MAX / 16;
        for n in [1, 16, 3, 4, 5, 6, 17, 0] {
            let mut buffer = Vec::with_capacity((n * sixteenth).max(1));
            buffer.push(1);
            spares.give(buffer);
        }
        assert_eq!(
            spares.kept.lock().unwrap().iter().map(Vec::capacity).collect::<Vec<_>>(),
            [16 * sixteenth]
        );
        let large = spares.take(2 * sixteenth);
        assert!(large.is_empty() && large.capacity() == 16 * sixteenth);
        for n in [1, 5, 3] {
            spares.give(Vec::with_capacity(n * sixteenth));
        }
        assert_eq!(spares.take(4 * sixteenth).capacity(), 5 * sixteenth);
        assert_eq!(spares.take(4 * sixteenth).capacity(), 4 * sixteenth);
        assert_eq!(spares.kept.lock().unwrap().len(), 2);
    }

    #[test]
    fn advised_memory_keeps_its_contents() {
        let mut buffer = roomy(3 * HUGE);
        buffer.resize(3 * HUGE, 7);
        populate(&mut buffer[5..2 * HUGE]);
        assert!(buffer.iter().all(|byte| *byte == 7));
    }
}
