//! What operators ask about moves before they begin one.

use super::{destination::Destination, parts::parts};
use alloc::{string::String, vec::Vec};
use marram_wire::{id::SessionId, record};

record! {
    /// Where sessions are to move, and what may be done for it.
    MoveWish {
        /// The edge or shard.
        to: Destination,
        /// Whether the move replaces one of the session to another edge that is under way.
        replace: bool,
        /// Whether it is begun also if no edge is known that could stand by for the session afterwards, though its app asks for that.
        force: bool,
        /// Whether the sessions stay, and their backup moves there.
        backup: bool,
    }
}

impl MoveWish {
    /// A move there, of sessions that are not being moved.
    #[must_use]
    pub fn to(to: Destination) -> Self {
        Self { to, replace: false, force: false, backup: false }
    }
}

record! {
    /// A question which sessions could move.
    PlanMoves {
        /// Chosen by the asker; the answer repeats it.
        tag: u64,
        /// How they would move.
        wish: MoveWish,
    }
}

record! {
    /// What a move of a session would be.
    MovePlan {
        /// The session.
        session: SessionId,
        /// Its app.
        app: String,
        /// Bytes of its state that would be copied, as far as that is known: as in the last full checkpoint and the changes since.
        bytes: Option<u64>,
        /// Why it would not move; empty if it would.
        why: String,
    }
}

record! {
    /// Plans of this shard's sessions.
    Planned {
        /// As in the request.
        tag: u64,
        /// At most [`marram_wire::limits::LIST_MAX`].
        plans: Vec<MovePlan>,
        /// Whether nothing more comes.
        last: bool,
    }
}

impl Planned {
    /// The whole answer, split into as many messages as necessary.
    pub fn messages(tag: u64, plans: Vec<MovePlan>) -> impl Iterator<Item = Self> {
        parts(plans).map(move |(plans, last)| Self { tag, plans, last })
    }
}
