//! The shard's local invariants, by their numbers in docs/protocol.md: relations between its tables after each step.
//! One relation that does not hold is a bug of the shard, whatever agents, peers and keepers sent. Each structure of
//! the state checks itself; what relates several of them is here.

use super::{Shard, state::wires::Bound};
use marram_session::{holds, invariant::BrokenInvariant, owner::Feed};

impl Shard {
    /// Checks I36, I39, I43, I47 and I48 of docs/protocol.md, and the invariants of all owners. Takes as long as there are sessions
    /// and wires, so only tests and the simulator call it.
    ///
    /// # Errors
    /// If one does not hold.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        self.sessions.invariants()?;
        holds!("I43", self.sessions.over_replay_budget().is_none());
        self.wires.invariants()?;
        self.link_invariants()?;
        self.keeper_invariants()?;
        let counted =
            self.sessions.iter().flat_map(|(_, session)| core::iter::repeat_n(session, session.counts));
        self.tenants.invariants(counted.map(|session| (session.place, session.app())))?;
        self.apps.invariants()?;
        self.shared.invariants(|cell| self.sessions.of_cell(cell).is_some())?;
        self.waiting.invariants(|wire| self.wires.has(wire))?;
        self.held.invariants(|wire| self.wires.has(wire))?;
        holds!("I39", self.waiting.len() == 0 || !self.may_recover());
        let moving = self.sessions.iter();
        self.plans.invariants()?;
        self.moves.invariants(
            moving.map(|(id, session)| (id, session.moving.as_deref(), session.placing.is_limited())),
        )?;
        let moves = |id| self.sessions.get(id).is_some_and(|session| session.moving.is_some());
        self.rebalance.invariants(moves)?;
        self.groups.invariants()?;
        self.backups.invariants()?;
        self.slots.invariants()?;
        self.edges.invariants()?;
        self.peers.as_ref().map_or(Ok(()), |peers| peers.invariants())?;
        self.refused.invariants()?;
        self.stops.invariants()?;
        // The list of effects is lent to each call of an owner, and comes back empty.
        holds!("I39", self.effects.is_empty());
        Ok(())
    }

    /// A session's links and its feed, and the channels of both kinds of wires.
    fn link_invariants(&self) -> Result<(), BrokenInvariant> {
        for (id, session) in self.sessions.iter() {
            for (port, (wire, channel)) in session.links() {
                let bound = self.wires.get(wire).and_then(|wire| wire.bound(channel));
                let generation = session.owner.generation_of(port);
                let is_it = |generation| bound == Some(Bound { session: id, port, generation });
                holds!("I36", generation.is_some_and(is_it));
            }
            let fed = |at| self.peers.as_ref().and_then(|peers| peers.fed_on(at)) == Some(id);
            holds!("I36", session.feeder.is_none_or(fed));
        }
        for (id, wire) in self.wires.iter() {
            for (channel, bound) in wire.channels() {
                let session = self.sessions.get(bound.session);
                let link = session.and_then(|session| session.link(bound.port));
                holds!("I36", link == Some((id, channel)));
            }
        }
        // A wire is either dialled or accepted.
        let dialled = self.peers.iter().flat_map(|peers| peers.wires());
        holds!("I39", !{ dialled }.any(|wire| self.wires.has(wire)));
        Ok(())
    }

    /// The keepers that the shard has chosen for its sessions, and what recorders owe it.
    fn keeper_invariants(&self) -> Result<(), BrokenInvariant> {
        let role = |wire| self.wires.get(wire).and_then(|wire| wire.role.as_ref());
        let mut placed = alloc::vec::Vec::new();
        for (id, session) in self.sessions.iter() {
            placed.extend(session.placing.invariants(&session.owner)?.iter().map(|placed| (id, placed)));
        }
        for (id, placed) in &placed {
            let moving = self.sessions.get(*id).and_then(|session| session.moving.as_deref());
            let moves_there = moving.is_some_and(|moving| moving.keeper() == Some(placed.id));
            // A backup stays what it is while a session moves there, or changes its group.
            let is_taken = moves_there && placed.feed.is_backup();
            // The cells of a slot change their backup with one of them, which moves.
            let group = self.groups.of_session(*id).and_then(|name| self.groups.get(name));
            let next = group.and_then(|group| group.next()).filter(|_| placed.is_next);
            let is_led = next.is_some_and(|next| next.target.wire == placed.at.0);
            let is_taken = is_taken || is_led;
            holds!("I47", (placed.feed == Feed::Moved || placed.is_next) == moves_there || is_taken);
        }
        holds!("I36", placed.iter().all(|(_, placed)| role(placed.at.0) == Some(&placed.role)));
        let recalls = (self.recalls.asked(), self.recalls.owed());
        self.keepers.invariants(placed.into_iter(), recalls, |wire| role(wire).is_some())
    }
}
