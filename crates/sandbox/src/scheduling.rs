//! What the threads of Marram ask of the kernel's scheduler. Wishes only: nothing but time depends on them.

/// The shortest turn that a thread can ask for, in nanoseconds.
const SHORTEST_NS: u64 = 100_000;
/// What threads get that others wait for: longer than the shortest, which goes before it.
const SHORT_NS: u64 = 500_000;
/// What a thread gets that does not ask.
const USUAL_NS: u64 = 0;
/// How much humbler a thread is whose work nobody waits for: where it shares a core with one that is busy all the time it
/// has a tenth of it.
const NICE_INCREMENT: i32 = 10;

/// Asks the scheduler to let this thread run as soon as it wakes, in short turns: for one that others wait for and that
/// mostly has little to do. On a machine with one core for both, a checkpoint that is being sealed would else go on until its
/// thread's share of the core is used up, which is several slices of a guest's. Threads and processes that this one starts
/// inherit it. Where the kernel knows no such wish (before Linux 6.12) turns are as long as it makes them.
pub fn set_latency_sensitive() {
    ask(SHORT_NS, 0);
}

/// As [`set_latency_sensitive`], and before those that asked for that: for one that only looks at the clock.
pub(crate) fn set_most_latency_sensitive() {
    ask(SHORTEST_NS, 0);
}

/// Takes back what this thread may have inherited of [`set_latency_sensitive`]: for one that works for long at a time.
pub fn reset_scheduling() {
    ask(USUAL_NS, 0);
}

/// Asks for what others leave, in long turns: for work that nobody waits for.
pub fn set_background() {
    ask(USUAL_NS, NICE_INCREMENT);
}

fn ask(turn_ns: u64, nice: i32) {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut wish: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = u32::try_from(size_of::<libc::sched_attr>()).expect("it has a few words");
    // SAFETY: the calls read and write the structure of our own, whose size they are told; 0 is this thread. The standard
    // library has no such call.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut wish, size, 0) == 0 {
            wish.sched_runtime = turn_ns;
            wish.sched_nice += nice;
            // A wish: nothing depends on it.
            let _ = libc::syscall(libc::SYS_sched_setattr, 0, &raw const wish, 0);
        }
    }
}
