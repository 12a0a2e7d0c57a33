//! What tests with very many keys need of the world (`tests/many`): agents with many connections, and edges that take what has arrived
//! together.

#![allow(dead_code, reason = "only those tests use it")]

use super::{AgentInput, ConnectionId, Event, Now, ShardOutput, World};
use marram_wire::frame::Code;
use std::collections::BTreeSet;

impl World {
    /// From now on an edge takes all that has arrived before it does what is due.
    pub(crate) fn takes_batches(&mut self) {
        self.takes_batches = true;
    }

    /// The program at this connection of a client's agent is done.
    pub(crate) fn shuts(&mut self, client: usize, number: u64) {
        let connection = ConnectionId(number);
        self.events.push_back(Event::Agent(client, AgentInput::EndOfInput { connection }));
    }

    /// Why a client's agent was refused since it was asked last.
    pub(crate) fn refusals(&mut self, client: usize) -> Vec<(Code, String)> {
        core::mem::take(&mut self.clients[client].refused)
    }

    /// How many connections of a client's agent have ended.
    pub(crate) fn ends(&self, client: usize) -> usize {
        self.clients[client].ends
    }

    /// Sessions that an edge has, with those that it stands by for, and the bytes that it holds for them.
    pub(crate) fn held_at(&self, edge: usize) -> (usize, u64) {
        self.edges[edge].shard.as_ref().map_or((0, 0), |shard| (shard.session_count(), shard.held_bytes()))
    }

    /// Instances of cells at an edge.
    pub(crate) fn instances_at(&self, edge: usize) -> usize {
        self.edges[edge].cells.len()
    }

    /// Handles all events, for edges that are not frozen.
    pub(super) fn settles_in_batches(&mut self) {
        while !self.events.is_empty() {
            let mut edges = BTreeSet::new();
            for event in core::mem::take(&mut self.events) {
                match event {
                    Event::Agent(client, input) => self.agent_steps(client, input),
                    Event::Edge(edge, input) => {
                        edges.insert(edge);
                        self.edge_does(edge, |shard, now, out| shard.handle(now, input, out));
                    }
                }
            }
            for edge in edges {
                self.edge_does(edge, |shard, now, out| {
                    shard.handle(now, super::ShardInput::Wake, out);
                    shard.settle(now, out);
                });
            }
        }
    }

    fn edge_does(&mut self, edge: usize, what: impl FnOnce(&mut super::Shard, Now, &mut Vec<ShardOutput>)) {
        let Some(shard) = &mut self.edges[edge].shard else { return };
        let (mut out, now) = (Vec::new(), Now { mono_ns: self.now_ns, unix_ns: 5_000_000_000 });
        what(shard, now, &mut out);
        out.into_iter().for_each(|out| self.perform(edge, out));
    }
}
