//! How far a group is whose sessions are copied at one moment.

use alloc::vec::Vec;
use marram_wire::id::SessionId;

/// The copy of all sessions of a group.
#[derive(Debug)]
pub(crate) enum Snapshot {
    /// None is being made.
    None,
    /// No session begins an entry.
    Halting {
        /// All that were told so.
        halted: Vec<SessionId>,
        /// Those of them that may still run one.
        running: Vec<SessionId>,
    },
    /// All go on, and nothing leaves before the backup has the pages of all.
    Sent {
        /// Those whose pages it may lack.
        missing: Vec<SessionId>,
    },
}

impl Snapshot {
    pub(crate) fn is_under_way(&self) -> bool {
        !matches!(self, Self::None)
    }
}
