//! How the process's allocator treats memory that messages and checkpoints come and go in. Knows neither.

/// Freed memory up to this stays with the process, in bytes.
const KEPT: core::ffi::c_int = 256 << 20;
/// Allocations from this size on get a mapping of their own, in bytes.
const MAPPED: core::ffi::c_int = 32 << 20;

/// Keeps freed memory instead of giving it back to the kernel at once.
///
/// An end keeps megabytes of messages and drops them together when a checkpoint covers them. With glibc's defaults each
/// such wave is given back and faulted in again, page by page, which costs about as much as copying the messages.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn tune_malloc() {
    // SAFETY: `mallopt` only sets parameters of the allocator and may be called at any time; it is called once, before
    // there are other threads. There is no safe interface to it.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
    }
}

/// Other allocators are left alone.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn tune_malloc() {}

/// Has all threads share one stock of memory. To be called before there are other threads, by a process of which one thread
/// is busy, and others now and then do work that takes much memory. [`give_back`] gives back all of one stock, but the free
/// end of each further one stays with the process, and that is most of what such work leaves behind. And what one thread
/// allocates and another frees is at hand for both: with stocks of their own, each buffer of a checkpoint that is opened
/// beside a shard's thread is faulted in anew, a seventh of what a recovery with a large state takes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn use_single_arena() {
    // SAFETY: as in `tune_malloc`.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Other allocators are left alone.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn use_single_arena() {}

/// Gives back what is free: for after work that takes much memory and comes seldom, such as compiling.
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
