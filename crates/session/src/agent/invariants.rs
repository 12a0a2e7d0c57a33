//! The agent's local invariants, by their numbers in docs/protocol.md.

use super::{Agent, EndId, sessions::Session};
use crate::{
    end::EndPhase,
    invariant::{BrokenInvariant, holds},
};

impl Agent {
    /// Checks I36 of docs/protocol.md, and the invariants of all ends.
    ///
    /// # Errors
    /// If one does not hold.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        for (id, session) in &self.sessions {
            session.end.invariants()?;
            self.session_invariants(*id, session)?;
        }
        for (connection, id) in &self.connections {
            let session = self.sessions.get(id);
            holds!("I36", session.is_some_and(|session| session.local.id == Some(*connection)));
        }
        for (due_ns, id) in &self.timers {
            let session = self.sessions.get(id);
            holds!("I36", session.is_some_and(|session| session.timer_ns == Some(*due_ns)));
        }
        for (home, id) in self.affinity.away() {
            holds!("I36", self.sessions.get(&id).is_some_and(|session| session.home == Some(home)));
        }
        for (wire, of) in &self.wires {
            for (channel, bound) in &of.channels {
                let session = self.sessions.get(&bound.session);
                holds!("I36", session.is_some_and(|session| session.uses((*wire, *channel))));
            }
        }
        Ok(())
    }

    fn session_invariants(&self, id: EndId, session: &Session) -> Result<(), BrokenInvariant> {
        holds!("I36", session.attached.is_some() == (session.end.phase() != EndPhase::Detached));
        holds!("I36", session.is_orphaned() == (session.end.phase() != EndPhase::Owned));
        if let Some((wire, channel)) = session.attached {
            let bound = self.wires.get(&wire).and_then(|wire| wire.channels.get(&channel));
            holds!(
                "I36",
                bound.is_some_and(|it| it.session == id && it.generation == session.end.promised())
            );
        }
        holds!("I36", session.timer_ns.is_none_or(|due_ns| self.timers.contains(&(due_ns, id))));
        holds!(
            "I36",
            session.local.id.is_none_or(|connection| self.connections.get(&connection) == Some(&id))
        );
        holds!("I36", session.home.is_none_or(|home| self.affinity.is_away(home, id)));
        Ok(())
    }
}
