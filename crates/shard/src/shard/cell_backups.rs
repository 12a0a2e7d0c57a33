//! Slots that change their backup while their cells run (docs/protocol-epochs.md, "A slot that changes its backup"): an operator moves the
//! backup of a cell, or a cell to an edge that is not its backup, or policies name another edge.
//!
//! One claim decides about all cells of a slot, so all change together. The next backup is fed beside the present one. When it has all cells,
//! nothing leaves until it has confirmed everything that has left, and the record names it. The former backup is not told before: it may have
//! to go on.

use super::{
    SHARD, Shard, shared,
    state::{
        groups::{Group, Target},
        moves::Move,
        sessions::{At, Session},
        wires::Role,
    },
};
use crate::api::{Destination, Now, ShardOutput, ShardWireId};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};
use marram_session::{
    owner::{Feed, KeeperId, OwnerPhase},
    trace,
};
use marram_wire::{
    frame::{Code, Ended, GroupId, HandGroup},
    id::SessionId,
};

impl Shard {
    /// Why the slot of this cell cannot get this edge as its next backup.
    pub(super) fn can_change_slot(&self, id: SessionId, to: &Destination) -> Result<(), String> {
        if to.edge == self.config.edge {
            return Err(format!(
                "the cell runs on `{}`, which cannot be its own backup: name another edge",
                to.edge
            ));
        }
        if self.drain.has_begun() {
            return Err(
                "the edge is shutting down: a shared cell goes to its backup, and nowhere else".into()
            );
        }
        let name = self.groups.of_session(id);
        let Some((name, group)) = name.and_then(|name| Some((name, self.groups.get(name)?))) else {
            return Err("the cell ended".into());
        };
        if group.kind().pace.whole {
            return Err("the cells of its group are copied together".into());
        }
        if let Some(edge) = self.handed_over_to(name) {
            return Err(format!(
                "the cells of its slot are handed over to `{edge}` already: try again when that is over"
            ));
        }
        // One that no operator asked for gives way.
        if let Some(next) =
            group.next().filter(|next| next.leader != id && !self.rebalance.moves(next.leader))
        {
            let moving = self.sessions.get(next.leader).and_then(|session| session.moving.as_deref());
            let is_of_backup = moving.is_some_and(Move::is_of_backup);
            return Err(format!(
                "{}the cell's slot is being moved to `{}` already, with the cell {}: cancel that move first, or try again when it is over",
                if is_of_backup { "the backup of " } else { "" },
                next.target.edge,
                next.leader
            ));
        }
        if !group.is_backed() {
            return Err("a shared cell moves with its backup, and it has none now: try again".into());
        }
        let Some((_, role)) = self.shard_for_cell(id, &to.edge) else {
            return Err(self.is_not_connected(&Destination::edge(&to.edge)));
        };
        is_on_shard(to, role.shard)
    }

    /// The shard of an edge on which a cell of this shard would be.
    pub(super) fn shard_for_cell(&self, id: SessionId, edge: &str) -> Option<(ShardWireId, Role)> {
        let session = self.sessions.get(id)?;
        let shards = self.wires.shards_of(edge)?;
        let shard = shared::home(session.app(), self.slot_number(session), shards);
        self.wires.of_standby(edge, Some(shard), id)
    }

    /// The move of a cell to an edge that is not its backup begins, or that of its backup: all cells of its slot are fed there.
    pub(super) fn begin_slot_change(
        &mut self,
        now: Now,
        id: SessionId,
        to: &Destination,
        out: &mut Vec<ShardOutput>,
    ) -> Result<KeeperId, String> {
        self.can_change_slot(id, to)?;
        let gone = || String::from("the cell ended");
        let session = self.sessions.get(id).ok_or_else(gone)?;
        if let Some(backup) = session.placing.backup_at(&to.edge) {
            return Ok(backup.id);
        }
        let name = self.groups.of_session(id).ok_or_else(gone)?;
        let (wire, role) = self.shard_for_cell(id, &to.edge).ok_or_else(|| self.is_not_connected(to))?;
        let group = self.groups.get_mut(name).ok_or_else(gone)?;
        trace!(SHARD, "group {}: feeds `{}`, to be its next backup", name[0], role.name);
        group.begin_next(Target { wire, edge: role.name }, id);
        for member in group.members().collect::<Vec<_>>() {
            self.place_at_next(now, member, name, out);
        }
        let placed = self.sessions.get(id).and_then(|session| session.placing.next());
        let keeper = placed.map(|placed| placed.id);
        if keeper.is_none() {
            self.end_slot_change(now, name, out);
        }
        keeper.ok_or_else(|| format!("the connection to `{to}` broke"))
    }

    /// Has the next backup of a slot keep one of its cells, if it does not.
    pub(super) fn place_at_next(
        &mut self,
        now: Now,
        id: SessionId,
        name: GroupId,
        out: &mut Vec<ShardOutput>,
    ) {
        let next = self.groups.get(name).and_then(Group::next);
        let Some(wire) = next.map(|next| next.target.wire) else { return };
        let lacks = |session: &&Session| session.placing.next().is_none() && session.may_be_placed();
        let Some(session) = self.sessions.get(id).filter(lacks) else { return };
        let feed = Feed::of_backup(session.owner.policy().form);
        let role = self.wires.get(wire).and_then(|wire| wire.role.clone());
        if let Some(role) = role {
            self.place_next(now, id, (wire, role, feed), out);
        }
    }

    /// Goes on with the slot of this group, if it changes its backup.
    pub(super) fn slot_change_due(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        let Some(group) = self.groups.looked_at(name) else { return };
        let ended = group.former_ended();
        let left = group.former_left();
        self.tell_former_backup(ended, Code::Finished, out);
        if let Some(at) = left {
            self.former_backup_left(now, name, at, out);
        }
        // With the cell that had the move the time is gone in which the next edge should have claimed them.
        let is_handed = self.groups.get(name).is_some_and(Group::is_handed);
        if is_handed && self.handed_over_to(name).is_none() {
            self.lose_backup(now, name, "the cell with which the others moved has ended", out);
        }
        if self.groups.looked_at(name).is_some_and(|group| group.looks_at_next(now.mono_ns)) {
            self.go_over_if_ready(now, name, out);
        }
    }

    /// The record does not name the former backup any more, which forgets what it has.
    fn former_backup_left(&mut self, now: Now, name: GroupId, at: Vec<At>, out: &mut Vec<ShardOutput>) {
        self.tell_former_backup(at, Code::Finished, out);
        self.all_go_on(now, name, out);
        for id in self.members_of(name) {
            // Clients learn of the next one.
            self.tell_standby(now, id, out);
            self.move_on(now, id, out);
            if self.drain.hands_over() {
                self.move_out(now, id);
            }
        }
        self.look_at_held(name);
    }

    /// A former backup forgets what it was fed at these; if another edge has claimed the group, it learns from the store whose backup it is.
    pub(super) fn tell_former_backup(&self, at: Vec<At>, code: Code, out: &mut Vec<ShardOutput>) {
        // An edge to which no cell can be handed on does not know the code. It learns from its own claim.
        let is_known = |wire| match code {
            Code::HandedOn => self.wires.may_hand_group(wire),
            _ => self.wires.has(wire),
        };
        for (wire, channel) in at.into_iter().filter(|(wire, _)| is_known(*wire)) {
            let reason = match code {
                Code::HandedOn => "another edge has claimed the cell's group",
                _ => "the slot has another backup, or the cell has ended",
            };
            let ended = Ended { channel, code, reason: reason.into() };
            out.push(ShardOutput::Send { wire, frame: ended.into() });
        }
    }

    /// Clients that wait for a cell of this group look again.
    pub(super) fn look_at_held(&mut self, name: GroupId) {
        let slot = self.members_of(name).first().and_then(|cell| self.slot_of(*cell));
        slot.into_iter().for_each(|slot| self.held.slot_changed(slot));
    }

    /// The members of a group go over to its next backup, if that has all of them.
    fn go_over_if_ready(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        if self.groups.get(name).is_some_and(|group| group.stands_too_long(now.mono_ns)) {
            return self.give_up_slot_change(
                now,
                name,
                "its slot's cells did not all stand still in time",
                out,
            );
        }
        let members = self.members_of(name);
        for id in members.iter().copied() {
            self.place_at_next(now, id, name, out);
        }
        let Some(leader) = self.groups.get(name).and_then(Group::next).map(|next| next.leader) else {
            return;
        };
        if !members.contains(&leader) {
            return self.end_slot_change(now, name, out);
        }
        let is_able = |id: &SessionId| {
            let session = self.sessions.get(*id)?;
            let next = session.placing.next()?.id;
            let has_begun = session.owner.log_bytes().0 > 0;
            let may_copy = session.owner.may_copy() || !has_begun;
            // Its present backup goes on with it, if this edge is lost before the next one knows that it is to.
            let is_backed = !has_begun || session.placing.has_ready_backup(&session.owner);
            Some(may_copy && is_backed && session.owner.could_be_backup(next))
        };
        let are_able = members.iter().all(|id| is_able(id) == Some(true));
        if !are_able || self.handed_over_to(name).is_some() {
            self.groups.looked_at(name).into_iter().for_each(Group::goes_over_later);
            return self.cells_go_on(now, name, out);
        }
        let hands_on = self.hands_on(name, leader);
        if self.groups.get_mut(name).is_some_and(Group::may_go_over)
            && (!hands_on || self.stand_still(now, name, &members, out))
        {
            self.go_over(now, (name, leader), &members, out);
            if hands_on {
                self.hand_group(now, (name, leader), out);
            }
        }
    }

    /// Whether the cells of a group are handed over to the edge that is fed beside their backup, which stays the backup: the leader moves there
    /// itself, and both edges know how.
    fn hands_on(&self, name: GroupId, leader: SessionId) -> bool {
        let moving = self.sessions.get(leader).and_then(|session| session.moving.as_deref());
        let group = self.groups.get(name);
        let wires = group.and_then(|group| Some([group.next()?.target.wire, group.target.as_ref()?.wire]));
        moving.is_some_and(|moving| !moving.is_of_backup())
            && wires.is_some_and(|wires| wires.into_iter().all(|wire| self.wires.may_hand_group(wire)))
    }

    /// No cell of a group begins an entry. True if all stand between two, and the backup has confirmed all before **\[M\]**: then it is where the
    /// next primary will be. What is on its way to it could come behind what that one says.
    fn stand_still(
        &mut self,
        now: Now,
        name: GroupId,
        members: &[SessionId],
        out: &mut Vec<ShardOutput>,
    ) -> bool {
        self.groups.get_mut(name).into_iter().for_each(|group| group.stands_still(now.mono_ns));
        let mut are_still = true;
        for id in members {
            self.with_owner(now, *id, out, |owner, effects| are_still &= owner.stands_still(effects));
        }
        let log_end = |id: &SessionId| Some((*id, self.sessions.get(*id)?.owner.log_bytes().0));
        let at: BTreeMap<SessionId, u64> = members.iter().filter_map(log_end).collect();
        let Some(group) = self.groups.get(name).filter(|_| are_still) else { return false };
        if let Some(number) = group.stood_still(&at) {
            return group.has_confirmed(number);
        }
        self.end_epoch(now, name, true, out);
        if let Some(group) = self.groups.get_mut(name) {
            group.stands_at(at);
        }
        false
    }

    /// The cells of a group that were to be handed over go on here.
    fn cells_go_on(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        if self.groups.looked_at(name).is_some_and(Group::goes_on) {
            self.all_go_on(now, name, out);
        }
    }

    fn all_go_on(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        for id in self.members_of(name) {
            self.with_owner(now, id, out, |owner, effects| owner.go_on(now, effects));
        }
    }

    /// All cells of a group have gone over to the edge that is to go on with them, which is told to claim it. Its backup stays.
    fn hand_group(&mut self, now: Now, (name, leader): (GroupId, SessionId), out: &mut Vec<ShardOutput>) {
        let within_ns = self.confirm_ns();
        let Some(group) = self.groups.get_mut(name) else { return };
        let Some((wire, (generation, backup))) = group.target.as_ref().map(|it| it.wire).zip(group.hand())
        else {
            return;
        };
        let cells = u32::try_from(group.member_count()).unwrap_or(u32::MAX);
        let hand = HandGroup { group: name, generation, backup, cells };
        out.push(ShardOutput::Send { wire, frame: hand.into() });
        if let Some(moving) = self.sessions.get_mut(leader).and_then(|session| session.moving.as_deref_mut())
        {
            moving.hand_over(now.mono_ns, within_ns);
            self.handed_over(leader);
            self.sessions.rearm(now.mono_ns, leader);
        }
        // Clients are led there.
        self.look_at_held(name);
    }

    fn go_over(
        &mut self,
        now: Now,
        (name, leader): (GroupId, SessionId),
        members: &[SessionId],
        out: &mut Vec<ShardOutput>,
    ) {
        trace!(SHARD, "group {}: goes over to its next backup", name[0]);
        let at = |id: &SessionId| Some((*id, self.sessions.get(*id)?.placing.backup()?.at));
        let at = members.iter().filter_map(at).collect();
        if let Some(group) = self.groups.get_mut(name) {
            group.go_over(at);
        }
        // Nothing leaves from here on.
        self.retell_group(now, name, out);
        for id in members.iter().copied() {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            let Some(next) = session.placing.next().map(|placed| placed.id) else { continue };
            let former = session.placing.change_backup(next);
            let at = former.and_then(|former| session.placing.at(former));
            self.with_owner(now, id, out, |owner, effects| {
                owner.hold_for_change(next, name, effects);
                owner.change_backup(next, effects);
                if let Some(former) = former {
                    owner.set_aside(former);
                }
            });
            if let Some((former, at)) = former.zip(at) {
                // It is told when it is known that it cannot go on.
                self.keepers.close(at);
                self.sessions.get_mut(id).into_iter().for_each(|it| it.placing.remove(former));
                self.move_lost(now, id, (former, false, "the slot has another backup now"), out);
            }
            self.tell_group(now, id, name, out);
        }
        self.end_epoch(now, name, true, out);
        let within_ns = self.confirm_ns();
        let moving = self.sessions.get_mut(leader).and_then(|session| session.moving.as_deref_mut());
        if let Some(moving) = moving.filter(|moving| moving.is_of_backup()) {
            moving.hand_over(now.mono_ns, within_ns);
            self.sessions.rearm(now.mono_ns, leader);
        }
    }

    /// The backup of a slot stays: the edge that was to be the next one forgets its cells.
    pub(super) fn end_slot_change(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        let next = self.groups.get_mut(name).and_then(Group::end_next);
        let Some(next) = next else { return };
        if next.is_still() {
            self.all_go_on(now, name, out);
        }
        for id in self.members_of(name) {
            let keeper = self.sessions.get(id).and_then(|it| it.placing.next()).map(|placed| placed.id);
            if let Some(keeper) = keeper {
                self.remove_replica(now, id, keeper, out);
            }
        }
    }

    /// The slot of this group cannot change its backup now: the move for which it would have done so ends.
    pub(super) fn give_up_slot_change(
        &mut self,
        now: Now,
        name: GroupId,
        why: &str,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(leader) = self.groups.get(name).and_then(Group::next).map(|next| next.leader) else {
            return;
        };
        self.give_up_move(now, leader, why, out);
        self.end_slot_change(now, name, out);
    }

    /// The move of this cell ends: the slot's backup stays, if it has not changed yet.
    pub(super) fn stop_slot_change(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let name = self.groups.of_session(id);
        let next = name.and_then(|name| self.groups.get(name)?.next());
        if let Some(name) = name.filter(|_| next.is_some_and(|next| next.leader == id)) {
            self.end_slot_change(now, name, out);
        }
    }

    /// A cell lost a replica. If that was to be its next backup, its slot does not change.
    pub(super) fn next_backup_lost(
        &mut self,
        now: Now,
        id: SessionId,
        why: &str,
        out: &mut Vec<ShardOutput>,
    ) {
        let name = self.groups.of_session(id).filter(|_| self.is_shared_cell(id));
        let lacks = self.sessions.get(id).is_some_and(|session| session.placing.next().is_none());
        if let Some(name) = name.filter(|_| lacks) {
            self.give_up_slot_change(now, name, why, out);
        }
    }

    /// Whether a cell that moves is not handed over now: its backup moves first, or alone.
    pub(super) fn moves_backup_first(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) -> bool {
        let moving = self.sessions.get(id).and_then(|session| session.moving.as_deref());
        let Some((keeper, is_of_backup)) = moving.map(|moving| (moving.keeper(), moving.is_of_backup()))
        else {
            return true;
        };
        let backup = self.sessions.get(id).and_then(|session| session.placing.backup());
        let is_there = backup.is_some_and(|backup| keeper == Some(backup.id));
        if !is_of_backup {
            return !is_there;
        }
        let group = self.groups.of_session(id).and_then(|name| self.groups.get(name));
        if is_there && group.is_some_and(Group::is_backed) {
            self.move_over(now, id, None, out);
        }
        true
    }

    /// Whether the move of a cell's backup is not given up now: copies wait for bandwidth, or nothing leaves until it is decided which edge is
    /// the backup.
    pub(super) fn still_goes_over(&mut self, now: Now, id: SessionId) -> bool {
        let name = self.groups.of_session(id);
        let group = name.and_then(|name| self.groups.get(name));
        let leads = group.and_then(Group::next).is_some_and(|next| next.leader == id);
        // Copies of other cells of the slot wait for bandwidth: each part has its turn in the end.
        let is_limited = |id: SessionId| self.sessions.get(id).is_some_and(|it| it.placing.is_limited());
        let waits = leads && group.is_some_and(|group| group.members().any(is_limited));
        let is_it = waits || group.is_some_and(Group::is_going_over);
        let moving = self.sessions.get_mut(id).and_then(|session| session.moving.as_deref_mut());
        if let Some(moving) = moving.filter(|_| is_it) {
            moving.wait_longer(now.mono_ns);
        }
        is_it
    }

    /// A slot whose policy names another edge that is connected moves its backup there. True if there is such an edge.
    pub(super) fn regroup_slot(&mut self, now: Now, name: GroupId) -> bool {
        let Some(group) = self.groups.get(name).filter(|group| group.is_slot) else { return false };
        let Some(target) = &group.target else { return false };
        let wanted = self.best_target(SessionId(name), group.kind());
        let Some(to) = wanted.filter(|edge| **edge != target.edge).map(|edge| Destination::edge(edge)) else {
            self.groups.get_mut(name).into_iter().for_each(Group::is_placed_now);
            return false;
        };
        let may_lead = |id: &SessionId| {
            let is_still =
                self.sessions.get(*id).is_some_and(|it| it.moving.is_none() && it.owner.may_copy());
            is_still && self.can_change_slot(*id, &to).is_ok()
        };
        let leader = group.members().find(may_lead).filter(|_| group.next().is_none());
        if let Some(session) = leader.and_then(|id| self.sessions.get_mut(id)) {
            session.moving = Some(Move::of_backup(to, now.mono_ns).into());
            self.moves.wait(leader.unwrap_or_default());
        }
        true
    }
}

/// Whether a cell that would be on this shard of an edge may go to that destination.
pub(super) fn is_on_shard(to: &Destination, shard: u8) -> Result<(), String> {
    if to.shard.is_none_or(|named| named == shard) {
        return Ok(());
    }
    Err(format!(
        "at `{}` the cell would be on shard {shard}, which its app's name and its key select",
        to.edge
    ))
}

impl Session {
    /// The replica that is fed for its own move. Its backup has what it needs.
    pub(super) fn moved_by(&self) -> Option<KeeperId> {
        let backup = self.placing.backup().map(|placed| placed.id);
        self.moving.as_deref().and_then(Move::fed).filter(|fed| backup != Some(*fed))
    }

    /// The keeper whose copy of it shares the bandwidth of moves.
    pub(super) fn copied_to(&self) -> Option<KeeperId> {
        self.moved_by().or_else(|| self.placing.next().map(|placed| placed.id))
    }

    /// Whether keepers can be fed now: it runs, or begins.
    pub(super) fn may_be_placed(&self) -> bool {
        let owner = &self.owner;
        // What was fed here has begun, even if its end has nothing of it yet.
        let begins = self.fresh
            && owner.standing_by().is_none()
            && matches!(owner.phase(), OwnerPhase::Promising | OwnerPhase::Detached);
        begins || owner.may_copy()
    }
}
