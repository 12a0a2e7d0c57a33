//! Checks of the local invariants of docs/protocol.md, chapter "Invariants": relations between the fields of one state
//! machine that hold after each of its steps. The simulator checks them after every step, debug builds after every step
//! of an agent or a shard.

use core::fmt;

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
