//! Which two ends each session has: those of its first promise. A delayed first hello can make another server's agent take the session up, and
//! an end that promises with that one would leave its first peer without a session.
//!
//! An end may change its peer only if no owner that it has promised with the former one can choose a log: each of them has rejected the
//! session before it had told an end of one.

use super::{Watch, lists::End};
use marram_wire::{
    frame::Frame,
    id::{Generation, HostId, SessionId},
};
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

/// The agent of the other end, as an end has promised it; none in a session with one end.
#[derive(Debug)]
struct Pair {
    peer: Option<HostId>,
    promised: Vec<Generation>,
}

/// The pairs of all ends.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    of: BTreeMap<End, Pair>,
    /// Generations whose owners have rejected the session, and those with a log.
    rejected: BTreeSet<(SessionId, Generation)>,
    chosen: BTreeSet<(SessionId, Generation)>,
}

impl Pairs {
    /// An end promises this generation, whose owner has this as its other end. Returns what is wrong.
    pub(super) fn promised(
        &mut self,
        end: End,
        generation: Generation,
        peer: Option<HostId>,
    ) -> Option<String> {
        let pair = match self.of.entry(end) {
            Entry::Vacant(entry) => entry.insert(Pair { peer, promised: Vec::new() }),
            Entry::Occupied(entry) => entry.into_mut(),
        };
        let is_over = |of: &Generation| {
            let at = (end.1, *of);
            self.rejected.contains(&at) && !self.chosen.contains(&at)
        };
        let first = pair.peer;
        let wrong = first != peer && !pair.promised.iter().all(is_over);
        pair.peer = peer;
        pair.promised.push(generation);
        wrong.then(|| {
            format!("an end of {} with {first:?} as its peer promises an owner that has {peer:?}", end.1)
        })
    }

    /// An agent's process died, with its ends.
    pub(super) fn agent_died(&mut self, agent: usize) {
        self.of.retain(|(of, ..), _| *of != agent);
    }
}

impl Watch {
    /// An owner tells an end which log it has chosen, or rejects the session.
    pub(super) fn owner_told(&mut self, wire: usize, frame: &Frame) {
        let (channel, told) = match frame {
            Frame::Chosen(chosen) => (chosen.channel, &mut self.pairs.chosen),
            Frame::Reject(reject) => (reject.channel, &mut self.pairs.rejected),
            _ => return,
        };
        let bound = self.channels.get(&(wire, channel));
        told.extend(bound.and_then(|bound| Some((bound.session, bound.generation?))));
    }
}
