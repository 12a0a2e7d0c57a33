//! Ends of sessions that are protected only while they move, and that gave up because no edge had all of it: none that they could have
//! asked at that time may turn out to have it.

use marram_wire::{frame::Promise, id::SessionId};
use std::collections::BTreeMap;

/// An end: the session, and whether it is the server's.
type EndOf = (SessionId, bool);

/// What ends said of edges that asked for their promise.
#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    /// The ends that refused an edge since they last had an owner, by agent.
    refused: BTreeMap<(usize, SessionId), EndOf>,
    /// How many wires there had been when an end gave up: those that came later were not there to be asked on.
    gave_up: BTreeMap<EndOf, usize>,
}

impl Abandoned {
    /// An end of an agent refused an edge that had not all of the session.
    pub(super) fn refused(&mut self, agent: usize, session: SessionId, server: bool) {
        self.refused.insert((agent, session), (session, server));
    }

    /// An end of this agent has an owner.
    pub(crate) fn owned(&mut self, agent: usize, session: SessionId) {
        self.refused.remove(&(agent, session));
    }

    /// An end of this agent is over, with this reason. Whether it gave up, with so many wires until then.
    pub(crate) fn ended(&mut self, agent: usize, session: SessionId, reason: &str, wires: usize) -> bool {
        let gave_up = reason.contains("no other edge has all of it");
        let end = self.refused.remove(&(agent, session)).filter(|_| gave_up);
        end.is_some_and(|end| self.gave_up.insert(end, wires).is_none())
    }

    /// An edge asks for the promise of an end. An error if it has a live cell, and the end could have waited for it.
    pub(super) fn asked(&self, wire: usize, promise: &Promise) -> Result<(), String> {
        let end = (promise.session, !promise.server.is_empty());
        match self.gave_up.get(&end).filter(|wires| wire < **wires && promise.live.is_some()) {
            Some(_) => Err(format!(
                "an end of {:?} gave up, and {} has a live cell, which was not asked",
                promise.session, promise.generation
            )),
            None => Ok(()),
        }
    }
}
