//! Which edges of the domain there are: this shard tells its agents, so that they reach an edge to which their sessions go, and
//! learns from them and from other edges which ones it can dial to stand by (docs/protocol.md, "Edges that are learned").

use super::{SHARD, Shard};
use crate::api::{Now, ShardOutput, ShardWireId};
use alloc::vec::Vec;
use marram_session::{learned::Teller, trace};
use marram_wire::frame::{EdgeEntry, Edges};

/// What the coordinator says comes from no wire.
const COORDINATOR: Teller = Teller::MAX;

impl Shard {
    fn own_entry(&self) -> EdgeEntry {
        EdgeEntry { name: self.config.edge.clone(), addresses: self.config.addresses.clone() }
    }

    /// Tells all agents, if something has changed.
    pub(super) fn tell_edges(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let own = self.own_entry();
        let Some(edges) = self.edges.news(now.mono_ns, own) else { return };
        let greeted = self.wires.iter().filter(|(_, wire)| wire.host.is_some() && wire.role.is_none());
        for (wire, _) in greeted {
            out.push(ShardOutput::Send { wire, frame: Edges { edges: edges.to_vec() }.into() });
        }
    }

    /// Tells an agent that has greeted.
    pub(super) fn tell_edges_on(&self, wire: ShardWireId, out: &mut Vec<ShardOutput>) {
        let edges = self.edges.told().to_vec();
        if !edges.is_empty() {
            out.push(ShardOutput::Send { wire, frame: Edges { edges }.into() });
        }
    }

    /// This shard has introduced itself to a peer, and tells where it can be reached.
    pub(super) fn tell_itself(&self, wire: ShardWireId, out: &mut Vec<ShardOutput>) {
        let own = self.own_entry();
        if !own.addresses.is_empty() {
            out.push(ShardOutput::Send { wire, frame: Edges { edges: alloc::vec![own] }.into() });
        }
    }

    /// The other side of a wire that was accepted tells of edges. One that has proved to be an edge is believed what it says of
    /// itself; what an agent says is only a place to dial.
    pub(super) fn edges_told(
        &mut self,
        now: Now,
        wire: ShardWireId,
        edges: &[EdgeEntry],
        out: &mut Vec<ShardOutput>,
    ) {
        match self.wires.get(wire).and_then(|wire| wire.role.as_ref()) {
            Some(role) if role.recorder => trace!(SHARD, "ignores Edges of a recorder on wire {}", wire.0),
            Some(role) => {
                if let Some(own) = edges.iter().find(|entry| entry.name == role.name) {
                    self.edges.proved(&own.name, own.addresses.clone());
                }
                self.tell_edges(now, out);
            }
            None => self.learn_peers(now, wire.0, edges, out),
        }
    }

    /// A peer that this shard dialled tells of edges.
    pub(super) fn peer_told(
        &mut self,
        now: Now,
        wire: ShardWireId,
        edges: &[EdgeEntry],
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(peer) = self.peers.as_ref().and_then(|peers| peers.get(wire)) else { return };
        // Another shard of this edge says of it what this one knows.
        let own = edges.iter().find(|entry| entry.name == peer.name()).filter(|_| !peer.is_own());
        // Before its welcome it has no name, and proved nothing of this domain.
        if peer.name().is_empty() {
            return trace!(SHARD, "ignores Edges on wire {} before the welcome", wire.0);
        }
        if let Some(own) = own {
            self.edges.proved(&own.name, own.addresses.clone());
        }
        self.learn_peers(now, wire.0, edges, out);
        self.tell_edges(now, out);
    }

    /// The coordinator knows these edges.
    pub(super) fn registered_edges(&mut self, now: Now, edges: Vec<EdgeEntry>, out: &mut Vec<ShardOutput>) {
        self.learn_peers(now, COORDINATOR, &edges, out);
        self.edges.registered(edges);
        self.tell_edges(now, out);
    }

    fn learn_peers(&mut self, now: Now, teller: Teller, edges: &[EdgeEntry], out: &mut Vec<ShardOutput>) {
        let domain = self.secret.fingerprint();
        let told = self.peers.as_mut().map(|peers| peers.told(now.mono_ns, (teller, domain), edges));
        let evicted = told.into_iter().flatten();
        out.extend(evicted.map(|edge| ShardOutput::Forget { edge }));
    }

    /// A wire is gone on which edges may have been told. `edge` is the name of the edge at its other side, if it was one.
    pub(super) fn teller_gone(&mut self, now: Now, wire: ShardWireId, edge: Option<&str>) {
        if let Some(peers) = &mut self.peers {
            peers.teller_gone(now.mono_ns, wire.0);
        }
        let Some(name) = edge else { return };
        let of_it = |wire: &super::state::wires::Wire| {
            wire.role.as_ref().is_some_and(|role| !role.recorder && role.name == name)
        };
        let accepted = self.wires.iter().any(|(_, wire)| of_it(wire));
        let dialled = self.peers.as_ref().is_some_and(|peers| peers.is_connected(name));
        if !accepted && !dialled {
            self.edges.lost(now.mono_ns, name);
        }
    }

    /// Forgets edges, and tells agents.
    pub(super) fn edges_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        if self.edges.wake_ns().is_some_and(|wake_ns| wake_ns <= now.mono_ns) {
            self.tell_edges(now, out);
        }
        while let Some(peers) = self.peers.as_mut().filter(|peers| peers.is_due(now.mono_ns)) {
            for edge in peers.expired(now.mono_ns) {
                self.forget_peer(now, edge, out);
            }
        }
    }

    fn forget_peer(&mut self, now: Now, edge: u16, out: &mut Vec<ShardOutput>) {
        let wires: Vec<ShardWireId> = self.peers.iter().flat_map(|peers| peers.of_edge(edge)).collect();
        for wire in wires {
            out.push(ShardOutput::CloseWire { wire });
            self.peer_down(now, wire, out);
        }
        if self.peers.as_mut().is_some_and(|peers| peers.forget(edge)) {
            out.push(ShardOutput::Forget { edge });
        }
    }
}
