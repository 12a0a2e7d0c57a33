//! Bugs of Marram itself: a state of one session that no peer, guest, disk or operator can bring about.
//!
//! [`bug!`](crate::bug!) panics in tests, in the processes that tests start and in the simulator, and names the invariant. Elsewhere
//! it counts the bug, and the machine that has found it ends that one session: the other sessions of the process continue.

use crate::trace::{self, TraceContext};
use core::{
    fmt,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// Whether a bug panics.
static PANICS: AtomicBool = AtomicBool::new(cfg!(any(debug_assertions, test)));
/// Bugs since the process started.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A bug that did not panic: the machine must end the session that has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bug {
    /// The invariant that does not hold.
    pub invariant: &'static str,
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a bug of Marram has ended the session, report it: {}", self.invariant)
    }
}

/// Makes every bug panic from now on, in any build: for tests and the simulator.
pub fn panic_on_bugs() {
    PANICS.store(true, Ordering::Relaxed);
}

/// How many bugs were found since the process started.
#[must_use]
pub fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// A bug was found: called by [`bug!`](crate::bug!). `values` are those that contradict the invariant.
///
/// # Panics
/// In builds with debug assertions, in this crate's own tests, and after [`panic_on_bugs`].
#[cold]
#[track_caller]
pub fn found(invariant: &'static str, values: fmt::Arguments<'_>) -> Bug {
    assert!(!PANICS.load(Ordering::Relaxed), "bug: {invariant}{values}");
    COUNT.fetch_add(1, Ordering::Relaxed);
    let place = core::panic::Location::caller();
    trace::emit_always(&TraceContext::NOWHERE, format_args!("BUG at {place}: {invariant}{values}"));
    Bug { invariant }
}

/// Reports a state that only our own code can bring about: `bug!("an invariant, as a sentence", value, ...)`. Panics in
/// tests and the simulator. Elsewhere it counts the bug and is a [`Bug`](crate::bug::Bug), with which the caller ends the
/// session.
#[macro_export]
macro_rules! bug {
    ($invariant:literal $(, $value:expr)* $(,)?) => {
        $crate::bug::found($invariant, format_args!(concat!("" $(, "; ", stringify!($value), " = {:?}")*) $(, $value)*))
    };
}

#[cfg(test)]
mod tests {
    #[test]
    #[should_panic(expected = "bug: no output is acknowledged before it was sent; sent = 3; 2 + 2 = 4")]
    fn a_bug_names_its_invariant_and_the_values_that_contradict_it() {
        let sent = 3;
        crate::bug!("no output is acknowledged before it was sent", sent, 2 + 2);
    }
}
