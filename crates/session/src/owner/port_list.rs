//! What only a shared cell has beside the sides of its ports.

use super::{end_state::EndState, tape::Tape};
use alloc::vec::Vec;
use marram_wire::id::{Port, SessionId};

/// Clients that are about to join, and what a shared cell keeps beside the sides of its ports.
#[derive(Debug, Default)]
pub(super) struct PortList {
    /// The session of the cell.
    pub(super) cell: SessionId,
    /// The log before this offset is kept elsewhere.
    pub(super) kept: u64,
    /// The ports of servers to which the entry that runs has connected.
    pub(super) connected: Vec<Port>,
    /// Clients whose ports are not open yet: no log has them.
    pub(super) entering: Vec<EndState>,
    /// What was fed and is not replayed.
    pub(super) tape: Tape,
    /// The port whose client leaves with the entry that runs.
    pub(super) leaving: Option<Port>,
    /// Numbers that must not be used again before the log up to these offsets is kept elsewhere: an epoch that is on its way counts by
    /// them.
    pub(super) resting: Vec<(Port, u64)>,
}

impl PortList {
    pub(super) fn held_bytes(&self) -> u64 {
        self.tape.held_bytes() + self.entering.iter().map(EndState::held_bytes).sum::<u64>()
    }

    /// Whether no client may get this number now.
    pub(super) fn uses(&self, port: Port) -> bool {
        let is_entering = self.entering.iter().any(|side| side.port == port);
        is_entering || self.resting.iter().any(|(resting, _)| *resting == port)
    }
}
