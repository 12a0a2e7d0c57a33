//! What edges say of their sessions and of whose they are, and what a backup hears of a primary.

#![allow(dead_code, reason = "tests with very many keys use none of it")]

use super::{Channel, Frame, SessionRow, ShardInput, ShardWireId, ToShard, World};
use marram_shard::api::{ReplicationRow, Tag};

impl World {
    /// How the sessions that run on an edge are replicated.
    pub(crate) fn replication_at(&mut self, edge: usize) -> Vec<ReplicationRow> {
        self.rows_at(edge).into_iter().filter_map(|row| row.replication).collect()
    }

    /// What an edge lists of its sessions.
    pub(crate) fn rows_at(&mut self, edge: usize) -> Vec<SessionRow> {
        self.rows.clear();
        self.tell(edge, ToShard::List(Tag { tag: 1 }));
        self.settles();
        core::mem::take(&mut self.rows)
    }

    /// Whether an edge claims the group of a client's session.
    pub(crate) fn is_claiming(&self, edge: usize, client: usize) -> bool {
        self.session(client).is_some_and(|session| self.shard(edge).is_claiming(session))
    }

    /// The backup of the session that is fed since last is at this edge, which gets a frame from its primary.
    pub(crate) fn hears_primary(&mut self, edge: usize, frame: impl FnOnce(Channel) -> Frame) {
        let (wire, channel) = self.fed.expect("a session is fed");
        let frame = frame(channel);
        self.reaches(edge, ShardInput::Frame { wire: ShardWireId(wire), frame });
        self.runs(1);
    }
}
