//! Settings of the process's allocator for memory that messages and checkpoints use. Knows neither messages nor checkpoints.
//!
//! ```text
//! process              setting
//! every one            tune_malloc: keep what was freed, up to 256 MiB
//! supervisor, shard    use_single_arena: what one thread frees another one can use
//! supervisor, shard    give_back after the compiler ran
//! agent                give_back when its sessions keep much less than before
//! ```

pub use marram_transport::give_back;

/// The allocator keeps up to this much freed memory at the end of its heap, in bytes.
const KEPT: core::ffi::c_int = 256 << 20;
/// Allocations of at least this size get a memory mapping of their own, in bytes.
/// Below it freed memory can stay in the heap; a mapping is returned to the kernel when it is
/// freed.
const MAPPED: core::ffi::c_int = 32 << 20;

/// Keeps freed memory instead of giving it back to the kernel at once.
///
/// An end keeps megabytes of messages and frees them together when a checkpoint covers them. With glibc's defaults, the
/// allocator returns each batch to the kernel and page-faults it in again, which costs about as much as copying the messages.
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

/// Makes all threads share one malloc arena. Call it before other threads start, in a process with one busy thread and others
/// that now and then do work that takes much memory. [`give_back`] returns all free memory of the one arena; of each further
/// arena, the process would keep the free end, which is most of what such work leaves behind. Memory that one thread allocates
/// and another frees is also reused by both: with separate arenas, each buffer of a checkpoint that is opened beside a shard's
/// thread is page-faulted in again, which takes a seventh of the time of a recovery with a large state.
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
