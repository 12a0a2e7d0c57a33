//! Drain: the edge stops, and its sessions leave it (docs/protocol.md, "Moves, drain and fail-back").
//!
//! Sessions that can be moved move to other edges, as if an operator had asked for each. The ends of the others ask for another edge
//! once no session moves any more. What neither can nor needs to leave, such as sessions without protection, stays until it ends or the
//! process does. The process does not wait for shared cells that have a backup and could not be handed over: that goes on as if the edge had died.

use super::{
    Shard,
    report::note,
    state::{drain::Drain, groups::Group, moves::Move},
};
use crate::api::{
    Destination, DrainCancelled, DrainRow, FromShard, NoteLevel, Now, Protect, ShardOutput, Tag,
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use marram_session::owner::OwnerPhase;
use marram_wire::{
    frame::{self, GroupId},
    id::SessionId,
};

impl Shard {
    /// The edge stops. A shard is told once; one that was started since, at its start.
    pub(super) fn begin_drain(&mut self, now: Now, tag: u64, out: &mut Vec<ShardOutput>) {
        if self.drain.has_begun() {
            return;
        }
        let until_ns = now.mono_ns + u64::from(self.config.hand_over_ms) * 1_000_000;
        self.drain = Drain::HandsOver { tag, until_ns };
        // Their owners look for other standbys.
        self.drop_standbys(now, out);
        self.tell_drain(false, out);
        for name in self.groups.of_slots() {
            self.give_up_slot_change(now, name, "the edge is shutting down", out);
        }
        // Shared cells first: many clients wait for each.
        let (cells, others): (Vec<_>, Vec<_>) =
            self.sessions.ids().into_iter().partition(|id| self.is_shared_cell(*id));
        for id in cells.into_iter().chain(others) {
            self.give_up_change(now, id, "the edge is shutting down", out);
            self.move_out(now, id);
        }
    }

    /// The edge stays. Sessions that have not been handed over stay with it, and it takes new ones. What agents or other edges have begun
    /// meanwhile goes on. Edges that ask for a standby ask this one again by themselves, after a wait.
    pub(super) fn cancel_drain(&mut self, now: Now, tag: u64, out: &mut Vec<ShardOutput>) {
        let mut cancelled = DrainCancelled { tag, stay: 0, moves: 0, handed_over: 0 };
        if self.drain.has_begun() {
            // First: a move that ends is not followed by one to the next edge.
            self.drain = Drain::No;
            for id in self.sessions.ids() {
                let moving = self.sessions.get(id).and_then(|session| session.moving.as_deref());
                if moving.is_some_and(Move::is_of_drain) && !self.is_handed_over(id) {
                    cancelled.moves += 1;
                    self.give_up_move(now, id, "the edge stays: its drain was cancelled", out);
                }
            }
            self.welcome_again(out);
            // Policies may have changed meanwhile.
            self.regroup.begin(now.mono_ns);
        }
        for (id, _) in self.sessions.iter().filter(|(_, session)| !session.is_following()) {
            let count =
                if self.is_handed_over(id) { &mut cancelled.handed_over } else { &mut cancelled.stay };
            *count += 1;
        }
        out.push(ShardOutput::Control(FromShard::DrainCancelled(cancelled)));
    }

    /// Whether a session is handed over and has not left yet: itself, or with another cell of its slot.
    fn is_handed_over(&self, id: SessionId) -> bool {
        let moving = self.sessions.get(id).and_then(|session| session.moving.as_deref());
        moving.is_some_and(|moving| moving.is_handed_over() && !moving.is_of_backup())
            || self.is_cell_handed_over(id)
    }

    /// Moves a session to another edge, if one can take it.
    pub(super) fn move_out(&mut self, now: Now, id: SessionId) {
        let edges = self.edges_for(id).map(Destination::edge);
        let edges = edges.filter(|edge| self.may_move(id, edge).is_ok()).collect();
        if let Some(moving) = Move::to_one_of(edges, now.mono_ns)
            && let Some(session) = self.sessions.get_mut(id)
        {
            session.moving = Some(moving.into());
            self.moves.wait(id);
        }
    }

    /// The edges that a session could move to, the best one first: its standby, then by the ring that chooses standbys.
    fn edges_for(&self, id: SessionId) -> impl Iterator<Item = &str> {
        let standby = self.sessions.get(id).and_then(|session| session.placing.standby_edge());
        let ring = self.keepers.edges_for(id, &self.config.edge);
        standby.into_iter().chain(ring.filter(move |edge| Some(*edge) != standby))
    }

    /// A move has failed. While the edge stops, the next edge is asked for the session. False if there is none.
    pub(super) fn moves_elsewhere(
        &mut self,
        now: Now,
        id: SessionId,
        moving: &Move,
        why: &str,
        out: &mut Vec<ShardOutput>,
    ) -> bool {
        let others = moving.others.iter().filter(|edge| self.may_move(id, edge).is_ok()).cloned().collect();
        let next = Move::to_one_of(others, moving.asked_ns).filter(|_| self.drain.hands_over());
        let (Some(next), Some(session)) = (next, self.sessions.get_mut(id)) else { return false };
        let text = format!("not moved to `{}`: {why}; next is `{}`", moving.to, next.to);
        note(NoteLevel::Info, Some(id), text, out);
        session.moving = Some(next.into());
        self.left_moves(id, moving.took_ns(now.mono_ns));
        self.moves.wait(id);
        self.sessions.rearm(now.mono_ns, id);
        true
    }

    /// Goes on with a drain, after any event: the last session may have moved, left or ended in it.
    pub(super) fn drain_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let goes_over = |name: &GroupId| self.groups.get(*name).is_some_and(Group::is_going_over);
        let none_moves = self.moves.counts() == (0, 0)
            && !(self.drain.hands_over()
                && (self.groups.of_slots().iter().any(goes_over) || self.some_open_that_only_moves_save()));
        if self.drain.due_ns().is_some_and(|until_ns| none_moves || until_ns <= now.mono_ns) {
            if let Drain::HandsOver { tag, .. } = self.drain {
                self.drain = Drain::Leaves { tag };
            }
            self.tell_drain(true, out);
        }
        if let Drain::Leaves { tag } = self.drain
            && self.sessions.ids().iter().all(|id| self.goes_on_at_its_backup(*id))
        {
            self.drain = Drain::Done;
            out.push(ShardOutput::Control(FromShard::Drained(Tag { tag })));
        }
    }

    /// Whether a session opens now that no other edge could open again, since nothing of it is kept outside this edge, but that could move.
    fn some_open_that_only_moves_save(&self) -> bool {
        self.sessions.iter().any(|(id, session)| {
            let owner = &session.owner;
            !owner.policy().keeps.anything()
                && !owner.policy().shared
                && matches!(owner.phase(), OwnerPhase::Promising | OwnerPhase::Restoring)
                && self.edges_for(id).next().is_some()
        })
    }

    /// Whether a session need not leave, and cannot: a shared cell whose backup goes on when this edge has stopped.
    fn goes_on_at_its_backup(&self, id: SessionId) -> bool {
        let group = self.groups.of_session(id).and_then(|name| self.groups.get(name));
        let moves = self.sessions.get(id).is_some_and(|session| session.moving.is_some());
        self.is_shared_cell(id) && !moves && group.is_some_and(|group| group.is_backed())
    }

    fn tell_drain(&self, leave: bool, out: &mut Vec<ShardOutput>) {
        let drain = |(wire, _)| ShardOutput::Send { wire, frame: frame::Drain { leave }.into() };
        out.extend(self.wires.iter().map(drain));
    }

    /// Tells agents that the edge stays. A keeper is told nothing: it ignores that an edge drains.
    fn welcome_again(&self, out: &mut Vec<ShardOutput>) {
        let agents = self.wires.iter().filter(|(_, wire)| wire.host.is_some() && wire.role.is_none());
        out.extend(agents.map(|(id, wire)| ShardOutput::Send { wire: id, frame: self.welcome(wire).into() }));
    }

    /// How a session would leave if the edge stopped now. None for one that this edge stands by for.
    pub(super) fn drain_row(&self, id: SessionId, protect: Protect) -> Option<DrainRow> {
        if self.sessions.is_following(id) {
            return None;
        }
        let may_move = |edge: &str| self.may_move(id, &Destination::edge(edge));
        let to = self.edges_for(id).find(|edge| may_move(edge).is_ok()).map(ToString::to_string);
        let why = match (&to, self.edges_for(id).next()) {
            (Some(_), _) => String::new(),
            (None, Some(edge)) => may_move(edge).err().unwrap_or_default(),
            (None, None) => "no other edge is connected to this one that could take it".to_string(),
        };
        // The edge to which it moves needs another one that stands by.
        let asks = matches!(protect, Protect::Warm | Protect::Hot | Protect::Epoch);
        let unprotected = asks && self.edges_for(id).nth(1).is_none();
        Some(DrainRow { to, why, unprotected })
    }
}
