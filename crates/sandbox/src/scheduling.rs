//! What the threads of Marram request from the kernel's scheduler. These are hints: only timing depends on them.
//!
//! Linux schedules fair threads by virtual deadline (EEVDF): a thread that requests a shorter slice
//! gets an earlier deadline when it wakes, so it preempts a thread with a longer one, and its share
//! of the processor stays the same. No rights are needed for that, unlike for real-time classes.

/// The shortest time slice that a thread can request, in nanoseconds.
const SHORTEST_NS: u64 = 100_000;
/// The slice of threads that others wait for, in nanoseconds: longer than the shortest, so a thread with that one goes first.
const SHORT_NS: u64 = 500_000;
/// Requests the kernel's default slice.
const USUAL_NS: u64 = 0;
/// Nice increment of background threads: on a core that is shared with a thread that is always busy, such a thread gets a
/// tenth of the time.
const NICE_INCREMENT: i32 = 10;

/// Asks the scheduler to run this thread as soon as it wakes, in short slices. For a thread that others wait for and that is
/// mostly idle. Otherwise, on a machine with one core for both, a thread that seals a checkpoint would run until its share of
/// the core is used up, which is several slices of a guest. Threads and processes that this thread starts inherit the setting.
/// Before Linux 6.12 this has no effect.
pub fn set_latency_sensitive() {
    ask(SHORT_NS, 0);
}

/// As [`set_latency_sensitive`], with a still shorter slice: for a thread that only looks at the clock.
pub(crate) fn set_most_latency_sensitive() {
    ask(SHORTEST_NS, 0);
}

/// Undoes a [`set_latency_sensitive`] that this thread may have inherited: for a thread that computes for long.
pub fn reset_scheduling() {
    ask(USUAL_NS, 0);
}

/// Asks for the CPU time that other threads leave, in long slices: for work that nothing waits for.
pub fn set_background() {
    ask(USUAL_NS, NICE_INCREMENT);
}

/// `turn_ns` is the slice to request, 0 for the kernel's default; `nice` is added to the present
/// value, and lowers the share if it is positive. A thread cannot undo such an increment without
/// rights, so `reset_scheduling` does not undo `set_background`.
fn ask(turn_ns: u64, nice: i32) {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = u32::try_from(size_of::<libc::sched_attr>()).expect("it has a few words");
    // SAFETY: the calls read and write this function's own structure and get its size; 0 is this thread. The standard library
    // has no such call.
    unsafe {
        // Read first, so that the fields that are not set here keep their values.
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0 {
            attributes.sched_runtime = turn_ns;
            attributes.sched_nice += nice;
            // A hint: nothing depends on its success.
            let _ = libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
        }
    }
}
