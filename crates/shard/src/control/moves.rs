//! Moves that are over: operators ask for their result after the session has left.

use crate::api::MoveOver;
use alloc::collections::VecDeque;
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::id::SessionId;

/// Moves that are remembered after their end; the oldest are forgotten first.
pub const MOVES_REMEMBERED: usize = 4_096;

/// The moves that are over, the newest last: of each session the last one.
#[derive(Debug, Default)]
pub(super) struct PastMoves {
    over: VecDeque<MoveOver>,
}

impl PastMoves {
    /// A new move of this session begins: its last one does not matter any more.
    pub(super) fn begins(&mut self, session: SessionId) {
        self.over.retain(|over| over.session != session);
    }

    /// A move is over.
    pub(super) fn ended(&mut self, over: MoveOver) {
        self.begins(over.session);
        if self.over.len() >= MOVES_REMEMBERED {
            self.over.pop_front();
        }
        self.over.push_back(over);
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &MoveOver> {
        self.over.iter()
    }

    /// Checks I40 of docs/protocol.md, as far as it concerns past moves.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I40", self.over.len() <= MOVES_REMEMBERED);
        Ok(())
    }
}
