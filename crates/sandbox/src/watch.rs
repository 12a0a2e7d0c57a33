//! The clock by which cells are charged: one per process, since one cell runs at a time.
//!
//! It is read when a slice ends and when stages become idle, not for each handler in between: a read costs a tenth of a small
//! handler. The time since the last read is charged to the stage that runs at the read. On average each stage is charged in
//! proportion to the time that it uses.
//!
//! ```text
//! slices       |--------1 ms--------|--------1 ms--------|
//! handlers      a  b  a   c ......................(preempted)...  resumed
//! clock read  ^begin        (none between)         ^lap           ^lap
//! ```
//! Within a slice only the count of slices is compared, by [`Watch::is_due`]. A guest that always
//! runs short handlers just before the reads can be charged less than it uses; over many slices
//! that averages out, since it cannot see when the clock is read.

use crate::limits::SLICE_CHARGE_NS_MAX;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// A handle on the clock. Values in a store must be `Send`, so its numbers are atomic. Only the thread of the cells writes
/// them, except for the count of slices.
#[derive(Clone)]
pub(crate) struct Watch(Arc<Numbers>);

/// All orderings are relaxed: the numbers are read by the thread that wrote them, or are only
/// compared for change.
struct Numbers {
    /// Zero of all times.
    base: Instant,
    /// Slices so far, wrapping.
    slices: AtomicU32,
    /// The slice in which the present turn began.
    slice: AtomicU32,
    /// When the clock was last read, in nanoseconds.
    read_ns: AtomicU64,
    /// CPU time of the thread when the current handler was resumed, in nanoseconds; [`NOT_RESUMED`] if the handler began in this
    /// turn.
    /// A handler that ran in an earlier turn has already shown that it is long, so a system call
    /// for it costs little.
    computed_ns: AtomicU64,
}

const NOT_RESUMED: u64 = u64::MAX;

impl Default for Watch {
    fn default() -> Self {
        Self(Arc::new(Numbers {
            base: Instant::now(),
            slices: AtomicU32::new(0),
            slice: AtomicU32::new(0),
            read_ns: AtomicU64::new(0),
            computed_ns: AtomicU64::new(NOT_RESUMED),
        }))
    }
}

impl Watch {
    /// Starts another slice.
    pub(crate) fn tick(&self) {
        self.0.slices.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts a cell's turn; `resumed` if the cell is in the middle of a handler.
    pub(crate) fn begin(&self, resumed: bool) {
        self.0.slice.store(self.0.slices.load(Ordering::Relaxed), Ordering::Relaxed);
        self.0.computed_ns.store(if resumed { computed_ns() } else { NOT_RESUMED }, Ordering::Relaxed);
        self.0.read_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    /// Whether the slice in which this turn began is over. Cheaper than reading a clock.
    pub(crate) fn is_due(&self) -> bool {
        self.0.slices.load(Ordering::Relaxed) != self.0.slice.load(Ordering::Relaxed)
    }

    /// Whether the current handler began in an earlier turn.
    pub(crate) fn is_resumed(&self) -> bool {
        self.0.computed_ns.load(Ordering::Relaxed) != NOT_RESUMED
    }

    /// The time to charge since the clock was last read. From here on the time counts as a handler's first slice.
    ///
    /// Two caps, because two things can go wrong. Wall time may include time in which the machine
    /// ran another process: a first slice is charged at most [`SLICE_CHARGE_NS_MAX`]. But one
    /// instruction, such as a `memory.fill` of 4 GiB, can also compute for longer than that: from
    /// the second slice on, the thread's CPU time is the measure.
    pub(crate) fn lap_ns(&self) -> u64 {
        let now_ns = self.now_ns();
        let lap_ns = now_ns.saturating_sub(self.0.read_ns.load(Ordering::Relaxed));
        self.0.read_ns.store(now_ns, Ordering::Relaxed);
        let before = self.0.computed_ns.load(Ordering::Relaxed);
        self.0.computed_ns.store(NOT_RESUMED, Ordering::Relaxed);
        if before != NOT_RESUMED && lap_ns > SLICE_CHARGE_NS_MAX {
            lap_ns.min(computed_ns().saturating_sub(before))
        } else {
            lap_ns.min(SLICE_CHARGE_NS_MAX)
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.base.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// CPU time of this thread in nanoseconds: time in which the machine ran something else does not count. Costs a system call,
/// so it is read only for handlers that have already used up a slice.
fn computed_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to this function's own timespec. The standard library has no clock for a thread's CPU time.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } != 0;
    debug_assert!(!failed, "every Linux has this clock");
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}
