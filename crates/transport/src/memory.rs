//! Freed memory, and the system that lent it. Only the allocator of glibc is known here.
//!
//! To free 300 MiB takes the kernel about 20 ms, and a loop that serves sessions does nothing else meanwhile. Such buffers
//! are freed by a thread of their own ([`free_elsewhere`]).

use bytes::Bytes;
use std::{
    sync::{
        OnceLock,
        mpsc::{Sender, channel},
    },
    thread,
};

/// Smaller buffers are freed at once: it takes two milliseconds, or the allocator keeps them.
const ELSEWHERE_MIN: usize = 32 << 20;
/// The kernel gets memory back in pieces of so many bytes: it may change no mapping of the process while it takes one.
const PIECE: usize = 2 << 20;
/// Of the thread, which nothing waits for: others first.
const NICE: i32 = 10;

/// A buffer on its way to the thread.
type Buffer = Box<dyn AsMut<[u8]> + Send>;

/// Returns free memory to the kernel. For use after rare work that takes much memory, such as compiling.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back() {
    // SAFETY: `malloc_trim` may be called at any time from any thread; it touches nothing that is in use. There is no safe
    // interface to it.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other allocators are left alone.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() {}

/// Frees a buffer on another thread if it is large and nothing else uses it, at once otherwise.
pub fn free_elsewhere(buffer: Bytes) {
    if buffer.len() >= ELSEWHERE_MIN
        && let Ok(buffer) = buffer.try_into_mut()
    {
        hand_over(Box::new(buffer));
    }
}

/// Shares a buffer; if it is large, another thread frees it, wherever its last user drops it.
#[must_use]
pub fn freed_elsewhere(buffer: Vec<u8>) -> Bytes {
    if buffer.capacity() < ELSEWHERE_MIN {
        return buffer.into();
    }
    Bytes::from_owner(FreedElsewhere(buffer))
}

/// Is freed by the thread.
struct FreedElsewhere(Vec<u8>);

impl AsRef<[u8]> for FreedElsewhere {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for FreedElsewhere {
    fn drop(&mut self) {
        hand_over(Box::new(std::mem::take(&mut self.0)));
    }
}

/// Gives a buffer to the thread, which starts with the first one. Without a thread it is freed here.
fn hand_over(buffer: Buffer) {
    static THREAD: OnceLock<Option<Sender<Buffer>>> = OnceLock::new();
    let start = || {
        let (sender, buffers) = channel::<Buffer>();
        let run = move || {
            // A hint: only timing depends on it.
            let _ = rustix::process::nice(NICE);
            for mut buffer in buffers {
                (*buffer).as_mut().chunks_mut(PIECE).for_each(forget);
            }
        };
        thread::Builder::new().name("free".into()).spawn(run).ok().map(|_| sender)
    };
    if let Some(sender) = THREAD.get_or_init(start) {
        let _ = sender.send(buffer);
    }
}

/// Gives the whole pages of a piece back to the kernel. Its contents are lost.
fn forget(piece: &mut [u8]) {
    let page = rustix::param::page_size();
    let range = piece.as_mut_ptr_range();
    // Inwards: the rest of a page may belong to others.
    let (start, end) = ((range.start as usize).next_multiple_of(page), range.end as usize & !(page - 1));
    if end > start {
        // SAFETY: the pages lie within an exclusive borrow of bytes of private memory, which may have any contents. It may fail, and
        // then they are freed with the buffer. No safe wrapper is in the tree.
        let _ = unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_are_shared_and_freed_whatever_their_size() {
        for size in [0, 1, ELSEWHERE_MIN - 1, ELSEWHERE_MIN, ELSEWHERE_MIN + 5] {
            let shared = freed_elsewhere(vec![7; size]);
            let part = shared.slice(size / 2..);
            drop(shared);
            assert!(part.len() == size - size / 2 && part.iter().all(|byte| *byte == 7));
            free_elsewhere(part);
            free_elsewhere(vec![1; size].into());
        }
    }

    #[test]
    fn only_whole_pages_are_forgotten() {
        let page = rustix::param::page_size();
        let mut memory = vec![7_u8; 4 * page];
        let start = memory.as_ptr() as usize % page;
        forget(&mut memory[1..4 * page - 1]);
        let kept = memory.iter().filter(|byte| **byte == 7).count();
        assert!(kept >= 2, "the first and the last byte are not in the piece");
        assert!(kept < 3 * page, "whole pages within it are gone, from {start}");
    }
}
