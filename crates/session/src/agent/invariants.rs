//! The agent's local invariants, by their numbers in docs/protocol.md. Each structure of the state checks itself; what
//! relates several of them is here.

use super::{Agent, EndId, sessions::Session, wire_table::Bound};
use crate::{
    end::EndPhase,
    invariant::{BrokenInvariant, holds},
};

impl Agent {
    /// Checks I36 and I48 of docs/protocol.md, and the invariants of all ends.
    ///
    /// # Errors
    /// If one does not hold.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        self.sessions.invariants()?;
        for (id, session) in self.sessions.iter() {
            self.session_invariants(id, session)?;
        }
        self.connections.invariants(|id, connection| {
            self.sessions.get(id).is_some_and(|session| session.local.id == Some(connection))
        })?;
        self.wires.invariants(|id, at| self.sessions.get(id).is_some_and(|session| session.uses(at)))?;
        self.learning.invariants()?;
        for (home, id) in self.affinity.away() {
            holds!("I36", self.sessions.get(id).is_some_and(|session| session.home == Some(home)));
        }
        self.tombstones.invariants()?;
        let counted = self.sessions.iter().map(|(_, session)| session.counted).sum();
        self.budget.invariants(counted, self.sessions.len())?;
        for id in self.budget.slowed() {
            holds!("I44", self.sessions.get(id).is_some_and(|session| session.local.paused));
        }
        // The list of effects is lent to each call of an end, and comes back empty.
        holds!("I36", self.effects.is_empty() && self.acts.is_empty());
        Ok(())
    }

    fn session_invariants(&self, id: EndId, session: &Session) -> Result<(), BrokenInvariant> {
        holds!("I36", session.attached.is_some() == (session.end.phase() != EndPhase::Detached));
        holds!("I36", session.is_orphaned() == (session.end.phase() != EndPhase::Owned));
        if let Some(attached) = session.attached {
            let generation = session.end.promised();
            holds!("I36", self.wires.bound(attached) == Some(Bound { session: id, generation }));
        }
        holds!("I44", session.is_counted());
        let connection = session.local.id;
        holds!("I36", connection.is_none_or(|connection| self.connections.end(connection) == Some(id)));
        holds!("I36", session.home.is_none_or(|home| self.affinity.is_away(home, id)));
        Ok(())
    }
}
