//! The edges of the domain that this shard knows and tells its agents of: itself, those that are registered at the coordinator, and
//! those that have proved an edge's credential on a wire to or from this shard. What agents say of edges is not here.

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{
    frame::EdgeEntry,
    limits::{EDGE_ADDRESSES_MAX, EDGE_FORGET_NS, EDGES_TOLD_MAX},
};

/// An edge that has proved its credential.
#[derive(Debug)]
struct Proved {
    addresses: Vec<String>,
    /// When its last wire was lost; none while there is one.
    lost_ns: Option<u64>,
}

/// What is told, and where it comes from.
#[derive(Debug, Default)]
pub(crate) struct KnownEdges {
    /// As the coordinator has it.
    registered: Vec<EdgeEntry>,
    /// By name.
    proved: BTreeMap<String, Proved>,
    /// What agents were told last.
    told: Vec<EdgeEntry>,
}

impl KnownEdges {
    /// The coordinator knows these.
    pub(crate) fn registered(&mut self, edges: Vec<EdgeEntry>) {
        self.registered = edges;
        self.registered.truncate(EDGES_TOLD_MAX);
    }

    /// An edge that has proved its credential tells where others reach it. A lost one at such an address has restarted under this name.
    pub(crate) fn proved(&mut self, name: &str, mut addresses: Vec<String>) {
        addresses.truncate(EDGE_ADDRESSES_MAX);
        let is_it = |lost: &Proved| lost.addresses.iter().any(|address| addresses.contains(address));
        self.proved.retain(|other, lost| other == name || lost.lost_ns.is_none() || !is_it(lost));
        if addresses.is_empty() {
            self.proved.remove(name);
        } else if self.proved.len() < EDGES_TOLD_MAX || self.proved.contains_key(name) {
            self.proved.insert(name.into(), Proved { addresses, lost_ns: None });
        }
    }

    /// An edge's last wire is lost. It is told of for a while: most edges come back.
    pub(crate) fn lost(&mut self, now_ns: u64, name: &str) {
        if let Some(proved) = self.proved.get_mut(name) {
            proved.lost_ns.get_or_insert(now_ns);
        }
    }

    /// Forgets edges that were lost long ago. Returns what agents are to be told now, if that is new: `own` first.
    pub(crate) fn news(&mut self, now_ns: u64, own: EdgeEntry) -> Option<&[EdgeEntry]> {
        self.proved.retain(|_, proved| proved.forget_ns().is_none_or(|forget_ns| now_ns < forget_ns));
        let mut edges = Vec::new();
        let mut add = |entry: EdgeEntry| {
            let new = edges.iter().all(|other: &EdgeEntry| other.name != entry.name);
            if new && !entry.addresses.is_empty() && edges.len() < EDGES_TOLD_MAX {
                edges.push(entry);
            }
        };
        add(own);
        // What an edge says of itself is newer than what the coordinator has.
        for (name, Proved { addresses, .. }) in &self.proved {
            add(EdgeEntry { name: name.clone(), addresses: addresses.clone() });
        }
        self.registered.iter().cloned().for_each(add);
        if edges == self.told {
            return None;
        }
        self.told = edges;
        Some(&self.told)
    }

    /// What agents were told last.
    pub(crate) fn told(&self) -> &[EdgeEntry] {
        &self.told
    }

    /// When the next edge is forgotten.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        self.proved.values().filter_map(Proved::forget_ns).min()
    }

    /// Checks I48 of docs/protocol.md, as far as it concerns what is told.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I48", self.told.len() <= EDGES_TOLD_MAX && self.proved.len() <= EDGES_TOLD_MAX);
        holds!("I48", self.registered.len() <= EDGES_TOLD_MAX);
        Ok(())
    }
}

impl Proved {
    fn forget_ns(&self) -> Option<u64> {
        self.lost_ns.map(|lost_ns| lost_ns.saturating_add(EDGE_FORGET_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::ToString, vec};

    fn entry(name: &str) -> EdgeEntry {
        EdgeEntry { name: name.to_string(), addresses: vec![alloc::format!("{name}:7400")] }
    }

    fn names(edges: Option<&[EdgeEntry]>) -> Option<Vec<&str>> {
        edges.map(|edges| edges.iter().map(|edge| &edge.name[..]).collect())
    }

    #[test]
    fn an_edge_tells_of_itself_and_of_what_was_proved_or_registered() {
        let mut edges = KnownEdges::default();
        assert_eq!(names(edges.news(0, entry("here"))), Some(vec!["here"]));
        assert_eq!(edges.news(0, entry("here")), None, "it is told already");
        edges.registered(vec![entry("c"), entry("here"), entry("b")]);
        edges.proved("b", vec!["b.example.org:1".to_string()]);
        assert_eq!(names(edges.news(0, entry("here"))), Some(vec!["here", "b", "c"]));
        assert_eq!(edges.told()[1].addresses, ["b.example.org:1"], "it said so itself");
    }

    #[test]
    fn a_lost_edge_is_told_of_for_a_while() {
        let (mut edges, own) = (KnownEdges::default(), EdgeEntry { addresses: Vec::new(), ..entry("here") });
        edges.proved("b", vec!["b:1".to_string()]);
        assert_eq!(names(edges.news(0, own.clone())), Some(vec!["b"]), "nothing can reach this edge itself");
        edges.lost(5, "b");
        assert_eq!(edges.wake_ns(), Some(5 + EDGE_FORGET_NS));
        assert_eq!(edges.news(EDGE_FORGET_NS, own.clone()), None);
        assert_eq!(names(edges.news(5 + EDGE_FORGET_NS, own)), Some(vec![]));
        assert_eq!(edges.wake_ns(), None);
    }

    #[test]
    fn a_lost_edge_that_is_back_under_another_name_is_told_of_under_that_one() {
        let (mut edges, own) = (KnownEdges::default(), entry("here"));
        for name in ["b", "c", "d"] {
            edges.proved(name, vec![alloc::format!("{name}:1")]);
        }
        edges.lost(5, "b");
        edges.lost(5, "c");
        edges.proved("b-2", vec!["b:1".to_string()]);
        // One that is connected says itself where it is.
        edges.proved("d-2", vec!["d:1".to_string()]);
        assert_eq!(names(edges.news(5, own)), Some(vec!["here", "b-2", "c", "d", "d-2"]));
    }
}
