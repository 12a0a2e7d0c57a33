//! Which two ends each session has: those of its first promise. A delayed first hello can make another server's agent take the session up, and
//! an end that promises with that one would leave its first peer without a session.

use super::lists::End;
use marram_wire::id::HostId;
use std::collections::{BTreeMap, btree_map::Entry};

/// The agent of the other end, by the first promise of each end; none in a session with one end.
#[derive(Debug, Default)]
pub(super) struct Pairs(BTreeMap<End, Option<HostId>>);

impl Pairs {
    /// An end promises an owner that has this as its other end. Returns what is wrong.
    pub(super) fn promised(&mut self, end: End, peer: Option<HostId>) -> Option<String> {
        match self.0.entry(end) {
            Entry::Vacant(entry) => {
                entry.insert(peer);
                None
            }
            Entry::Occupied(entry) => (*entry.get() != peer).then(|| {
                let first = entry.get();
                format!("an end of {} with {first:?} as its peer promises an owner that has {peer:?}", end.1)
            }),
        }
    }

    /// An agent's process died, with its ends.
    pub(super) fn agent_died(&mut self, agent: usize) {
        self.0.retain(|(of, ..), _| *of != agent);
    }
}
