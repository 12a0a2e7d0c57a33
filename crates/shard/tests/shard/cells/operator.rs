//! What an operator moves and ends in the tests' world.

use super::world::World;
use marram_session::owner::{Owner, OwnerPhase};
use marram_shard::api::{Destination, Kill, MoveSession, MoveWish, ToShard};
use marram_wire::id::SessionId;

impl World {
    /// An operator moves the cell that runs on an edge, or one of them, to another edge.
    pub(crate) fn moves(&mut self, from: usize, to: &str) {
        self.asks_to_move(from, MoveWish::to(Destination::edge(to)));
    }

    /// An operator moves the backup of the cell that runs on an edge, or of one of them.
    pub(crate) fn moves_backup(&mut self, from: usize, to: &str) {
        self.asks_to_move(from, MoveWish { backup: true, ..MoveWish::to(Destination::edge(to)) });
    }

    fn asks_to_move(&mut self, from: usize, wish: MoveWish) {
        let mut owners = self.shard(from).owners();
        let is_it = |owner: &&Owner| owner.phase() == OwnerPhase::Running;
        let session = owners.find(is_it).expect("it runs a cell").session();
        drop(owners);
        self.asks_to_move_session(session, from, wish);
    }

    /// An operator moves a session from an edge to another one.
    pub(crate) fn moves_session(&mut self, session: SessionId, from: usize, to: &str) {
        self.asks_to_move_session(session, from, MoveWish::to(Destination::edge(to)));
    }

    fn asks_to_move_session(&mut self, session: SessionId, from: usize, wish: MoveWish) {
        self.control(from, ToShard::Move(MoveSession { tag: 1, session, wish }));
    }

    /// An operator ends the cell that runs on this edge.
    pub(crate) fn kills_cell(&mut self, edge: usize) {
        let session = self.shard(edge).owners().next().expect("it has a cell").session();
        self.control(edge, ToShard::Kill(Kill { tag: 1, session, reason: "no more".into() }));
    }

    /// The same of the last cell there.
    pub(crate) fn kills_last_cell(&mut self, edge: usize) {
        let session = self.shard(edge).owners().last().expect("it has a cell").session();
        self.control(edge, ToShard::Kill(Kill { tag: 1, session, reason: "no more".into() }));
    }

    /// The same of the first cell that runs there.
    pub(crate) fn kills_running(&mut self, edge: usize) {
        let runs = |owner: &&Owner| owner.phase() == OwnerPhase::Running;
        let session = self.shard(edge).owners().find(runs).expect("one runs").session();
        self.control(edge, ToShard::Kill(Kill { tag: 1, session, reason: "no more".into() }));
    }
}
