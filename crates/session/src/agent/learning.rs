//! The edges of the domain that an agent's edges tell it of. They come after the configured ones, never instead of them, and must
//! prove the same name and domain as the entry says. The agent tells its edges of one another in the same way.
//!
//! ```text
//! Edges on a wire ─▶ LearnedEdges ─▶ Learn (where) and Dial ─▶ Welcome ─ name and domain match ─▶ a wire like others
//!                                                                   '─ they do not ─▶ Goodbye; the next address, later
//! ```

use super::{AGENT, Agent, AgentConfig, AgentOutput, AgentReport, Target, WireId};
use crate::{
    invariant::{BrokenInvariant, holds},
    learned::{LearnedEdges, NotAsTold, Told},
    trace,
};
use alloc::{collections::BTreeMap, string::ToString, vec::Vec};
use marram_wire::{
    frame::{EdgeEntry, Edges, Goodbye, Welcome},
    limits::EDGES_TOLD_MAX,
};

/// An edge of a domain.
type Entry = ([u8; 8], EdgeEntry);

/// What an agent knows of edges beyond its configuration.
#[derive(Debug)]
pub(super) struct Learning {
    edges: LearnedEdges,
    /// What each edge has told of itself, by its place.
    own: BTreeMap<u16, Entry>,
    /// What the edges were told of one another last.
    told: Vec<Entry>,
}

impl Learning {
    /// Knows nothing yet.
    pub(super) fn new(config: &AgentConfig) -> Self {
        let edges = LearnedEdges::new(config.learn, config.edges, &config.addresses);
        Self { edges, own: BTreeMap::new(), told: Vec::new() }
    }

    /// When to look for edges to forget.
    pub(super) fn wake_ns(&self) -> Option<u64> {
        self.edges.wake_ns()
    }

    /// Whether what an edge said of itself is of no use: another one answers in its place now.
    fn is_other(&self, edge: u16, welcome: &Welcome) -> bool {
        let is_it = |(domain, own): &Entry| *domain == welcome.domain && own.name == welcome.edge;
        self.own.get(&edge).is_some_and(|own| !is_it(own))
    }

    /// What is known about the edge in a place is over.
    fn forget(&mut self, edge: u16) {
        self.edges.forget(edge);
        self.own.remove(&edge);
    }

    /// Checks I48 of docs/protocol.md.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        self.edges.invariants()?;
        holds!("I48", self.edges.is_enabled() || (self.own.is_empty() && self.told.is_empty()));
        holds!("I48", self.told.len() <= EDGES_TOLD_MAX);
        Ok(())
    }
}

impl Agent {
    /// An edge tells of itself and of others.
    pub(super) fn edges_told(&mut self, now_ns: u64, id: WireId, edges: Edges, out: &mut Vec<AgentOutput>) {
        let welcome = self.wires.get(id).and_then(|wire| Some((wire.target.edge, wire.welcome.as_ref()?)));
        let Some((teller, welcome)) = welcome.filter(|_| self.learning.edges.is_enabled()) else {
            return trace!(AGENT, "ignores Edges on wire {}", id.0);
        };
        let (name, domain) = (welcome.edge.clone(), welcome.domain);
        let learning = &mut self.learning;
        if let Some(own) = edges.edges.iter().take(EDGES_TOLD_MAX).find(|entry| entry.name == name) {
            learning.own.insert(teller, (domain, own.clone()));
        }
        let wires = &self.wires;
        let in_use = |edge| wires.has_edge(edge) || wires.is_dialling(edge);
        let teller = (u64::from(teller), domain);
        let Told { evicted, new } = learning.edges.told(now_ns, teller, &edges.edges, in_use);
        for edge in evicted {
            learning.own.remove(&edge);
            self.wires.remove_edge(edge);
            out.push(AgentOutput::Forget { edge });
        }
        // By then, configured edges have answered as well: an edge that is one of them need not be dialled twice.
        let dial_ns = now_ns.saturating_add(self.config.heartbeat_timeout_ns);
        for edge in new {
            self.wires.add_edge(dial_ns, edge);
        }
        self.tell_edges(out);
    }

    /// An edge has answered. False if it is not the one that was told: then its wire is closed.
    pub(super) fn is_as_told(
        &mut self,
        now_ns: u64,
        id: WireId,
        welcome: &Welcome,
        out: &mut Vec<AgentOutput>,
    ) -> bool {
        let Some(target) = self.wires.known(id).map(|wire| wire.target) else { return false };
        let Err(NotAsTold { reason, is_known }) = self.learning.edges.answered(now_ns, target.edge, welcome)
        else {
            if self.learning.is_other(target.edge, welcome) {
                self.learning.own.remove(&target.edge);
            }
            return true;
        };
        // What is wrong need not be tried often, even if it was right before.
        self.wires.distrust(target.edge);
        out.push(AgentOutput::Send { wire: id, frame: Goodbye { reason: reason.clone() }.into() });
        out.push(AgentOutput::CloseWire { wire: id, reason: reason.clone() });
        out.push(AgentOutput::Report(AgentReport::EdgeNotAsTold {
            target,
            reason: reason.clone(),
            known: is_known,
        }));
        self.drop_wire(now_ns, id, &reason, out);
        false
    }

    /// Reports that an edge is not there, and had not answered: nothing is down that never proved to be what was told.
    pub(super) fn report_missing(&self, target: Target, reason: &str, out: &mut Vec<AgentOutput>) {
        let reason = reason.to_string();
        out.push(AgentOutput::Report(match self.learning.edges.is_unproved(target.edge) {
            true => AgentReport::EdgeNotFound { target, reason },
            false => AgentReport::EdgeDown { target, reason, suspected: false },
        }));
    }

    /// A dial failed, or a wire broke before it was of use: a learned edge is dialled at its next address.
    pub(super) fn next_address(&mut self, target: Target) {
        if !self.wires.has_edge(target.edge) {
            self.learning.edges.failed(target.edge);
        }
    }

    /// The last wire to an edge broke: what it told counts only for a while.
    pub(super) fn teller_gone(&mut self, now_ns: u64, edge: u16, out: &mut Vec<AgentOutput>) {
        if !self.learning.edges.is_enabled() || self.wires.is_welcomed(edge) {
            return;
        }
        self.learning.edges.gone(now_ns, u64::from(edge));
        self.tell_edges(out);
    }

    /// Dials a shard. The shell is told where a learned edge is, if that has changed.
    pub(super) fn dial(&mut self, target: Target, out: &mut Vec<AgentOutput>) {
        let edge = target.edge;
        let moved = self.learning.edges.moved(edge);
        out.extend(moved.map(|address| AgentOutput::Learn { edge, address }));
        out.push(AgentOutput::Dial { target });
    }

    /// Tells the edges of one another, if that has changed: those that this agent has wires to, as they call themselves.
    fn tell_edges(&mut self, out: &mut Vec<AgentOutput>) {
        let is_there = |(edge, _): &(&u16, &Entry)| self.wires.is_welcomed(**edge);
        let mut edges: Vec<Entry> =
            self.learning.own.iter().filter(is_there).map(|(_, own)| own.clone()).collect();
        edges.sort_unstable_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
        edges.dedup_by(|a, b| (a.0, &a.1.name) == (b.0, &b.1.name));
        edges.truncate(EDGES_TOLD_MAX);
        // An edge knows itself.
        if edges == self.learning.told || (edges.len() < 2 && self.learning.told.is_empty()) {
            return;
        }
        self.learning.told = edges;
        let wires: Vec<WireId> = self.wires.iter().map(|(id, _)| id).collect();
        wires.into_iter().for_each(|id| self.tell_edges_on(id, out));
    }

    /// Tells what was told last on this wire too.
    pub(super) fn tell_edges_on(&self, id: WireId, out: &mut Vec<AgentOutput>) {
        let Some(welcome) = self.wires.get(id).and_then(|wire| wire.welcome.as_ref()) else { return };
        if self.learning.told.is_empty() {
            return;
        }
        let of_domain = self.learning.told.iter().filter(|(domain, _)| *domain == welcome.domain);
        let edges = of_domain.map(|(_, entry)| entry.clone()).collect();
        out.push(AgentOutput::Send { wire: id, frame: Edges { edges }.into() });
    }

    /// Forgets learned edges that nothing names any more and no session uses.
    pub(super) fn learning_due(&mut self, now_ns: u64, out: &mut Vec<AgentOutput>) {
        // What a forgotten edge has told of others may be over with it.
        while self.learning.edges.is_due(now_ns) {
            let wires = &self.wires;
            let in_use = |edge| wires.carries_sessions(edge) || wires.is_dialling(edge);
            for edge in self.learning.edges.expired(now_ns, in_use) {
                self.forget_edge(now_ns, edge, out);
            }
        }
    }

    fn forget_edge(&mut self, now_ns: u64, edge: u16, out: &mut Vec<AgentOutput>) {
        let reason = "no edge names this edge any more, or it is one of the configured edges";
        for wire in self.wires.of_edge(edge) {
            out.push(AgentOutput::CloseWire { wire, reason: reason.into() });
            self.drop_wire(now_ns, wire, reason, out);
        }
        if self.wires.remove_edge(edge) {
            let target = Target { edge, shard: 0 };
            out.push(AgentOutput::Report(AgentReport::EdgeForgotten { target, reason: reason.into() }));
            self.learning.forget(edge);
            out.push(AgentOutput::Forget { edge });
        }
    }
}
