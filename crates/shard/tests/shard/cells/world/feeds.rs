//! What edges say of their sessions and of whose they are, and what a backup hears of a primary.

#![allow(dead_code, reason = "tests with very many keys use none of it")]

use super::{Channel, Frame, OwnerPhase, Party, SessionRow, ShardInput, ShardWireId, ToShard, World};
use marram_shard::api::{ReplicationRow, Tag};
use std::collections::BTreeSet;

/// What edges were fed, and how.
#[derive(Default)]
pub(crate) struct FeedsSeen {
    /// The wire and the channel of the last feed that has begun.
    last: Option<(u64, Channel)>,
    /// How often a feed has begun.
    pub(crate) feeds: usize,
    /// How many checkpoints were announced to edges that keep sessions.
    pub(crate) copies: usize,
    /// How often a backup was told to go on with the copy that it has.
    pub(crate) kept_on: usize,
    /// Whether it is told of another position than the one where its copy is.
    pub(crate) misplaces: bool,
    /// How often an edge was told to go on with cells beside their backup.
    pub(crate) handed: usize,
    /// Two edges that do not reach each other.
    pub(crate) apart: Option<[usize; 2]>,
    /// Edges that know the first version of wires and no other one.
    pub(crate) old: BTreeSet<usize>,
}

impl FeedsSeen {
    pub(super) fn sent(&mut self, from: Party, wire: u64, frame: &mut Frame) {
        match frame {
            Frame::Greet(greet) if matches!(from, Party::Edge(edge) if self.old.contains(&edge)) => {
                greet.version_newest = 1;
            }
            Frame::Keep(keep) => {
                self.last = Some((wire, keep.channel));
                self.feeds += 1;
            }
            Frame::Base(_) => self.copies += 1,
            Frame::KeepOn(it) => {
                self.kept_on += 1;
                it.keep.log_offset += u64::from(self.misplaces);
            }
            Frame::HandGroup(_) => self.handed += 1,
            _ => {}
        }
    }
}

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

    /// The cells of an edge take so long from now on that none of them comes to an end, until [`Self::hurries`].
    pub(crate) fn dawdles(&mut self, edge: usize) {
        self.edges[edge].dawdles = true;
    }

    /// Only cells that an edge has now take long there.
    pub(crate) fn spares_new(&mut self, edge: usize) {
        self.edges[edge].slow = Some(self.edges[edge].cells.keys().copied().collect());
    }

    pub(crate) fn hurries(&mut self, edge: usize) {
        (self.edges[edge].dawdles, self.edges[edge].slow) = (false, None);
        self.edges[edge].restores_late = false;
        self.thaws(edge);
    }

    /// No cell is restored at an edge from now on, until [`Self::hurries`].
    pub(crate) fn restores_late(&mut self, edge: usize) {
        self.edges[edge].restores_late = true;
    }

    pub(crate) fn is_alive(&self, edge: usize) -> bool {
        self.edges[edge].shard.is_some()
    }

    /// How many sessions an edge keeps for others.
    pub(crate) fn copies_at(&self, edge: usize) -> usize {
        self.shard(edge).owners().filter(|owner| owner.phase() == OwnerPhase::Following).count()
    }

    /// These two edges do not reach each other any more.
    pub(crate) fn parts(&mut self, edges: [usize; 2]) {
        self.feeds.apart = Some(edges);
        let between = |ends: &[Party; 2]| edges.iter().all(|edge| ends.contains(&Party::Edge(*edge)));
        let wires: Vec<u64> =
            self.wires.iter().filter(|(_, ends)| between(ends)).map(|(wire, _)| *wire).collect();
        wires.into_iter().for_each(|wire| self.breaks(wire));
    }

    /// The primary of the session that is fed since last is at this edge, which gets a frame from the edge that it feeds.
    pub(crate) fn hears_keeper(&mut self, edge: usize, frame: impl FnOnce(Channel) -> Frame) {
        let (wire, channel) = self.feeds.last.expect("a session is fed");
        let frame = frame(channel);
        self.reaches(edge, ShardInput::Frame { wire: ShardWireId(wire), frame });
        self.settles();
    }

    /// The backup of the session that is fed since last is at this edge, which gets a frame from its primary.
    pub(crate) fn hears_primary(&mut self, edge: usize, frame: impl FnOnce(Channel) -> Frame) {
        let (wire, channel) = self.feeds.last.expect("a session is fed");
        let frame = frame(channel);
        self.reaches(edge, ShardInput::Frame { wire: ShardWireId(wire), frame });
        self.runs(1);
    }
}
