//! The shard's local invariants, by their numbers in docs/protocol.md: relations between its tables after each step. One relation that
//! does not hold is a bug of the shard, whatever agents, peers and keepers sent.

use super::{Bound, Session, Shard, index};
use crate::api::ShardWireId;
use alloc::collections::{BTreeMap, BTreeSet};
use marram_session::{
    holds,
    invariant::BrokenInvariant,
    owner::{OwnerPhase, ReplicaProgress},
};
use marram_wire::id::{Port, SessionId};

impl Shard {
    /// Checks I36 and I39 of docs/protocol.md, and the invariants of all owners. Takes as long as there are sessions and wires, so
    /// only debug builds and the simulator call it.
    ///
    /// # Errors
    /// If one does not hold.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        for (id, session) in &self.sessions {
            session.owner.invariants()?;
            self.session_invariants(*id, session)?;
            self.replica_invariants(*id, session)?;
        }
        self.wire_invariants()?;
        self.reference_invariants()?;
        self.admission_invariants()?;
        self.recalls_invariants()?;
        self.peer_invariants()?;
        self.shared.invariants(&self.cells)?;
        // The list of effects is lent to each call of an owner, and comes back empty.
        holds!("I39", self.effects.is_empty());
        Ok(())
    }

    /// What a session says of itself, and what the shard's tables say of it.
    fn session_invariants(&self, id: SessionId, session: &Session) -> Result<(), BrokenInvariant> {
        let generation = session.owner.generation();
        for port in [Port::CLIENT, Port::SERVER] {
            let Some((wire, channel)) = session.links[index(port)] else { continue };
            let bound = self.wires.get(&wire).and_then(|wire| wire.channels.get(&channel));
            let is_its_own = |it: &Bound| it.session == id && it.port == port && it.generation == generation;
            holds!("I36", bound.is_some_and(is_its_own));
        }
        holds!("I36", session.timer_ns.is_none_or(|due_ns| self.timers.contains(&(due_ns, id))));
        holds!("I36", session.cells.iter().all(|cell| self.cells.get(cell) == Some(&id)));
        holds!("I36", session.owner.cell().is_none_or(|cell| session.cells.contains(&cell)));
        // Only a standby has two cells, for as long as a whole checkpoint arrives.
        holds!("I39", session.cells.len() <= 1 + usize::from(session.owner.standing_by().is_some()));
        holds!("I36", session.recovering == (!session.fresh && session.owner.recovering()));
        let stands_by = session.owner.phase() == OwnerPhase::Following;
        if let Some((wire, channel)) = session.feeder {
            let fed = self.peers.as_ref().and_then(|peers| peers.fed_on(wire, channel));
            holds!("I36", fed == Some(id));
            holds!("I39", stands_by && session.feed_lost_ns.is_none());
        }
        holds!("I39", session.adrift_ns.is_some() == session.owner.incomplete());
        Ok(())
    }

    /// The keepers that the shard has chosen for a session, and those that its owner knows.
    fn replica_invariants(&self, id: SessionId, session: &Session) -> Result<(), BrokenInvariant> {
        let mut kinds = [0_u8; 2];
        for placed in session.placing.placed() {
            let (at, keeper) = placed.at();
            let role = self.wires.get(&at.0).and_then(|wire| wire.role.as_ref());
            holds!("I36", role == Some(placed.role()));
            holds!("I36", self.keepers.channels.get(&at) == Some(&(id, Some(keeper))));
            let known = |replica: ReplicaProgress| replica.keeper == keeper;
            holds!("I36", session.owner.keepers().any(known));
            kinds[usize::from(placed.role().recorder)] += 1;
        }
        // One recorder and one standby for each session (docs/protocol-keepers.md, chapter 15).
        holds!("I39", kinds.iter().all(|count| *count <= 1));
        let known = session.owner.keepers().count();
        holds!("I36", known == usize::from(kinds[0]) + usize::from(kinds[1]));
        Ok(())
    }

    /// Wires, the agents that they come from, and what their channels are bound to.
    fn wire_invariants(&self) -> Result<(), BrokenInvariant> {
        for (id, wire) in &self.wires {
            for (channel, bound) in &wire.channels {
                let session = self.sessions.get(&bound.session);
                let link = session.and_then(|session| session.links[index(bound.port)]);
                holds!("I36", link == Some((*id, *channel)));
            }
            holds!("I36", wire.host.is_none_or(|host| self.hosts.contains_key(&host)));
            // Sessions and replicas do not share a wire: a keeper can hold no end.
            holds!("I39", wire.role.is_none() || wire.channels.is_empty());
            holds!("I39", wire.host.is_some() || (wire.role.is_none() && wire.channels.is_empty()));
        }
        for (host, wire) in &self.hosts {
            holds!("I36", self.wires.get(wire).is_some_and(|wire| wire.host == Some(*host)));
        }
        Ok(())
    }

    /// Tables whose entries name a session.
    fn reference_invariants(&self) -> Result<(), BrokenInvariant> {
        for (due_ns, id) in &self.timers {
            let session = self.sessions.get(id);
            holds!("I36", session.is_some_and(|session| session.timer_ns == Some(*due_ns)));
        }
        for (cell, id) in &self.cells {
            holds!("I39", cell.0 <= self.cells_made);
            holds!("I36", self.sessions.get(id).is_some_and(|session| session.cells.contains(cell)));
        }
        for (at, (id, keeper)) in &self.keepers.channels {
            holds!("I36", self.wires.get(&at.0).is_some_and(|wire| wire.role.is_some()));
            let Some(keeper) = keeper else { continue };
            let session = self.sessions.get(id);
            let names = |session: &Session| {
                session.placing.placed().iter().any(|placed| placed.at() == (*at, *keeper))
            };
            holds!("I36", session.is_some_and(names));
        }
        Ok(())
    }

    /// Who may begin: recoveries, hellos that wait for one, tenants, and what is remembered of refused sessions.
    fn admission_invariants(&self) -> Result<(), BrokenInvariant> {
        let recovering = self.sessions.values().filter(|session| session.recovering).count();
        holds!("I36", self.recoveries == recovering);
        let limit = self.config.recoveries_max as usize;
        holds!("I39", self.waiting.is_empty() || (limit > 0 && self.recoveries >= limit));
        let mut ends = BTreeSet::new();
        for (wire, hello) in &self.waiting {
            holds!("I36", self.wires.contains_key(wire));
            holds!("I39", ends.insert((hello.session, hello.server)));
        }
        holds!("I39", self.draining || !self.drained);
        let counted = self.sessions.values().filter(|session| session.counted);
        self.tenants.invariants(counted.map(|session| (session.place, &session.owner.policy().app[..])))?;
        for (name, app) in &self.apps {
            holds!("I39", app.name == *name && self.images.contains_key(&app.image));
        }
        self.missing_images.invariants(&self.images)?;
        self.refused.invariants()?;
        holds!("I39", self.stops_told.len() <= super::record::STOPS_TOLD);
        Ok(())
    }

    /// What recorders owe this shard.
    fn recalls_invariants(&self) -> Result<(), BrokenInvariant> {
        let recalls = &self.keepers.recalls;
        for (id, at) in recalls.asked() {
            holds!("I36", self.keepers.channels.get(&at) == Some(&(id, None)));
        }
        let mut awaited = BTreeMap::new();
        awaited.extend(recalls.asked().chain(recalls.owed()).map(|(id, at)| (at, id)));
        for (at, (id, keeper)) in &self.keepers.channels {
            holds!("I36", keeper.is_some() || awaited.get(at) == Some(id));
        }
        Ok(())
    }

    /// Wires that this shard dialled are not among those that it accepted.
    fn peer_invariants(&self) -> Result<(), BrokenInvariant> {
        let Some(peers) = &self.peers else { return Ok(()) };
        let accepted = |wire: ShardWireId| self.wires.contains_key(&wire);
        holds!("I39", !peers.wires().any(accepted));
        Ok(())
    }
}
