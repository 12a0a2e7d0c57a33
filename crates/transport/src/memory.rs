//! Freed memory, and the system that lent it. Only the allocator of glibc is known here.

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
