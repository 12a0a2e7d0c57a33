//! Checks of the local invariants of docs/protocol.md, chapter "Invariants": relations between the fields of one state
//! machine that hold after each of its steps. A machine checks its own after each step where [`check_each_step`] was called: in tests,
//! and in the processes that tests start. The simulator looks from outside, in some of its seeds.

use core::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

/// Whether each machine checks its invariants after each step.
static EACH_STEP: AtomicBool = AtomicBool::new(cfg!(any(debug_assertions, test)));

/// An invariant that does not hold: a bug of this machine, whatever its peers sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BrokenInvariant {
    /// Its number in docs/protocol.md, such as `I8`.
    pub number: &'static str,
    /// The condition that is false, as the code has it.
    pub condition: &'static str,
}

impl fmt::Display for BrokenInvariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {} of docs/protocol.md is broken: {}", self.number, self.condition)
    }
}

/// Makes each machine of this process check its invariants after each step from now on. A step then takes as long as the machine
/// has sessions, so nothing that people run does this.
pub fn check_each_step() {
    EACH_STEP.store(true, Ordering::Relaxed);
}

/// Makes the machines of this process check nothing from now on: for tests with so many sessions that all of them cannot be looked at
/// after each step.
pub fn check_no_step() {
    EACH_STEP.store(false, Ordering::Relaxed);
}

/// Checks a machine after its step, where this is turned on.
///
/// # Panics
/// If an invariant does not hold: it is a bug of the machine.
#[track_caller]
pub fn after_step(check: impl FnOnce() -> Result<(), BrokenInvariant>) {
    if EACH_STEP.load(Ordering::Relaxed)
        && let Err(broken) = check()
    {
        panic!("bug: {broken}");
    }
}

/// Returns [`BrokenInvariant`] from the calling function unless the condition holds. Exported for the machines of other
/// crates, so that all report alike.
#[macro_export]
macro_rules! holds {
    ($number:literal, $condition:expr) => {
        if !$condition {
            return Err($crate::invariant::BrokenInvariant {
                number: $number,
                condition: stringify!($condition),
            });
        }
    };
}

pub use holds;
