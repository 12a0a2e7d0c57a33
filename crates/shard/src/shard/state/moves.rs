//! Moves of this shard's sessions to other edges: which are under way, and which wait until one of them is over.

use crate::api::{MoveRow, MoveStage};
use alloc::{collections::VecDeque, string::String, vec::Vec};
use core::iter;
use marram_session::{holds, invariant::BrokenInvariant, owner::KeeperId};
use marram_wire::id::SessionId;

const MS: u64 = 1_000_000;
/// Moves under way on one shard: each may send the whole state of a cell. Others wait.
pub const MOVES_MAX: usize = 8;
/// How long a move may take until it is handed over. One that takes longer does not come to an end: the session changes faster
/// than it can be sent, or its ends are too slow to keep a checkpoint.
const MOVE_NS: u64 = 120_000 * MS;
/// How long the ends may take to promise the other edge, after the session was handed over. They need a round trip.
const HANDED_OVER_NS: u64 = 5_000 * MS;

/// How far a move is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It has not begun: other moves are under way.
    Waiting,
    /// The edge is fed by this replica until it has all that it needs.
    Fed(KeeperId),
    /// The edge was told to take the session over.
    HandedOver(KeeperId),
}

/// The move of one session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    /// The edge.
    pub(crate) to: String,
    /// Edges to try next if that one does not take it, while this edge stops.
    pub(crate) others: Vec<String>,
    /// When it was asked for.
    pub(crate) asked_ns: u64,
    stage: Stage,
    until_ns: Option<u64>,
}

impl Move {
    /// A move that waits.
    pub(crate) fn new(to: String, now_ns: u64) -> Self {
        Self { to, others: Vec::new(), asked_ns: now_ns, stage: Stage::Waiting, until_ns: None }
    }

    /// A move to the first of these edges that takes the session. None if there is no edge.
    pub(crate) fn to_one_of(mut edges: Vec<String>, now_ns: u64) -> Option<Self> {
        if edges.is_empty() {
            return None;
        }
        let to = edges.remove(0);
        Some(Self { others: edges, ..Self::new(to, now_ns) })
    }

    /// The move to another edge that replaces this one. While this edge stops, the edges that would have been asked come after it.
    pub(crate) fn replaced_by(&self, to: String, stops: bool, now_ns: u64) -> Self {
        let edges = iter::once(&self.to).chain(&self.others);
        let others = edges.filter(|edge| stops && **edge != to).cloned().collect();
        Self { others, ..Self::new(to, now_ns) }
    }

    /// It begins: this replica is at the edge.
    pub(crate) fn begin(&mut self, now_ns: u64, keeper: KeeperId) {
        (self.stage, self.until_ns) = (Stage::Fed(keeper), Some(now_ns + MOVE_NS));
    }

    /// The replica at the edge, once the move has begun.
    pub(crate) fn keeper(&self) -> Option<KeeperId> {
        match self.stage {
            Stage::Waiting => None,
            Stage::Fed(keeper) | Stage::HandedOver(keeper) => Some(keeper),
        }
    }

    /// The replica, if it is still to be told to take the session over.
    pub(crate) fn fed(&self) -> Option<KeeperId> {
        self.keeper().filter(|_| !self.is_handed_over())
    }

    /// The edge was told to take the session over.
    pub(crate) fn hand_over(&mut self, now_ns: u64) {
        if let Some(keeper) = self.fed() {
            (self.stage, self.until_ns) = (Stage::HandedOver(keeper), Some(now_ns + HANDED_OVER_NS));
        }
    }

    /// Whether the edge was told to take the session over.
    pub(crate) fn is_handed_over(&self) -> bool {
        matches!(self.stage, Stage::HandedOver(_))
    }

    /// When it is given up.
    pub(crate) fn until_ns(&self) -> Option<u64> {
        self.until_ns
    }

    /// For listings.
    pub(crate) fn row(&self) -> MoveRow {
        let stage = match self.stage {
            Stage::Waiting => MoveStage::Waiting,
            Stage::Fed(_) => MoveStage::Copying,
            Stage::HandedOver(_) => MoveStage::HandedOver,
        };
        MoveRow { to: self.to.clone(), stage }
    }
}

/// The moves of a shard.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    under_way: usize,
    waiting: VecDeque<SessionId>,
}

impl Moves {
    /// A move waits for its turn.
    pub(crate) fn wait(&mut self, session: SessionId) {
        self.waiting.push_back(session);
    }

    /// The next session to move, if there is room for one more move: it counts as under way from now on.
    pub(crate) fn next(&mut self) -> Option<SessionId> {
        if self.under_way >= MOVES_MAX {
            return None;
        }
        let session = self.waiting.pop_front()?;
        self.under_way += 1;
        Some(session)
    }

    /// A move is over, or will not begin.
    pub(crate) fn over(&mut self, session: SessionId) {
        match self.waiting.iter().position(|waiting| *waiting == session) {
            Some(at) => {
                self.waiting.remove(at);
            }
            None => self.under_way -= 1,
        }
    }

    /// Moves under way, and those that wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.under_way, self.waiting.len())
    }

    /// Checks I47 of docs/protocol.md: `moving` has the moves of all sessions.
    pub(crate) fn invariants<'a>(
        &self,
        moving: impl Iterator<Item = (SessionId, &'a Move)>,
    ) -> Result<(), BrokenInvariant> {
        let (mut under_way, mut waiting) = (0, 0);
        for (id, it) in moving {
            let waits = self.waiting.contains(&id);
            holds!("I47", waits == (it.stage == Stage::Waiting));
            holds!("I47", waits == it.until_ns.is_none());
            under_way += usize::from(!waits);
            waiting += usize::from(waits);
        }
        holds!("I47", under_way == self.under_way && under_way <= MOVES_MAX);
        holds!("I47", waiting == self.waiting.len());
        Ok(())
    }
}
