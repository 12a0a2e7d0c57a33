//! Where the places in a process's list of edges lead: the configured ones to the edges of the same number, learned ones to where the
//! process was told. One edge may tell what is not so.

use super::{Caller, ShardPosition, World};
use crate::watch::Rare;
use marram_session::agent::{AgentReport, Target};
use marram_shard::api::OWN_EDGE;
use marram_wire::frame::{EdgeEntry, Edges, Frame};
use std::collections::BTreeMap;

/// The learned edges of one process, by place: the address, and when the place was taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct LearnedPlaces {
    places: BTreeMap<u16, (String, u64)>,
    /// When the configured edges first answered, by name.
    configured: BTreeMap<String, u64>,
}

impl LearnedPlaces {
    pub(crate) fn learn(&mut self, now_ns: u64, edge: u16, address: String) {
        self.places.entry(edge).or_insert((String::new(), now_ns)).0 = address;
    }

    pub(crate) fn forget(&mut self, edge: u16) {
        self.places.remove(&edge);
    }

    /// The edge at a place; none if no machine has the address.
    pub(crate) fn edge(&self, edge: u16, edges: usize) -> Option<usize> {
        match self.places.get(&edge) {
            Some((address, _)) => (0..edges).find(|edge| *address == address_of(*edge)),
            None => Some(usize::from(edge)),
        }
    }
}

/// Where others reach an edge.
pub(crate) fn address_of(edge: usize) -> String {
    format!("edge-{edge}")
}

impl World {
    /// The edge that a caller dials; none if no machine has the address.
    pub(crate) fn dialled_edge(&self, caller: Caller, target: Target) -> Option<usize> {
        let edges = self.edges.len();
        match caller {
            Caller::Agent(agent) => self.agents[agent].learned.edge(target.edge, edges),
            Caller::Shard(position) if target.edge == OWN_EDGE => Some(position.edge),
            Caller::Shard(position) => self.shard(position).learned.edge(target.edge, edges),
            Caller::Recorder => Some(usize::from(target.edge)),
        }
    }

    /// A shard dials a learned peer at this address from now on, or forgets it.
    pub(crate) fn shard_learns(&mut self, position: ShardPosition, edge: u16, address: Option<String>) {
        let now_ns = self.queue.now_ns();
        let learned = &mut self.edges[position.edge].shards[position.shard].learned;
        match address {
            Some(address) => learned.learn(now_ns, edge, address),
            None => learned.forget(edge),
        }
    }

    /// An edge that lies says of each other edge that it is somewhere else, and names edges that do not exist.
    pub(crate) fn lie_about_edges(&self, edge: usize, frame: &mut Frame) {
        let liar = self.plan.learning.as_ref().and_then(|learning| learning.liar);
        let Frame::Edges(Edges { edges }) = frame else { return };
        if liar != Some(edge) {
            return;
        }
        for other in 0..self.edges.len() {
            let address = if other % 2 == 0 { address_of(edge) } else { "nowhere".into() };
            edges.retain(|entry| entry.name != address_of(other) || other == edge);
            if other != edge {
                edges.push(EdgeEntry { name: address_of(other), addresses: vec![address] });
            }
        }
        let nowhere =
            |nth: usize| EdgeEntry { name: format!("none-{nth}"), addresses: vec!["nowhere".into()] };
        edges.extend((0..2).map(nowhere));
        edges.push(EdgeEntry { name: "another".into(), addresses: vec![address_of(edge)] });
    }

    /// What an agent says of an edge: one that was configured and had answered is not used a second time under another name.
    pub(crate) fn judge_edge(&mut self, agent: usize, report: &AgentReport) {
        let now_ns = self.queue.now_ns();
        let node = &mut self.agents[agent];
        match report {
            AgentReport::EdgeUp { target, name } if !node.has_learned(*target) => {
                node.learned.configured.entry(name.clone()).or_insert(now_ns);
            }
            AgentReport::EdgeUp { target, name } => {
                let since_ns = node.learned.places.get(&target.edge).map_or(0, |(_, since_ns)| *since_ns);
                let known = node.learned.configured.get(name).is_some_and(|at_ns| *at_ns < since_ns);
                if known {
                    self.violations.push(format!("A{agent} uses {name} as if it were another edge"));
                }
                self.watch.count_if(Rare::EdgeLearned, true);
            }
            AgentReport::Owned { target, .. } => {
                let learned = node.has_learned(*target);
                self.watch.count_if(Rare::LearnedEdgeOwned, learned);
            }
            AgentReport::EdgeNotAsTold { .. } => self.watch.count_if(Rare::EdgeNotAsTold, true),
            _ => {}
        }
    }
}
