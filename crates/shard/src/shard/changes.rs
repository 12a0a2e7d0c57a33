//! Sessions that change their replication group while they run (docs/protocol-epochs.md, "Groups that change"): an operator moves a
//! session's backup, edges are rebalanced, or policies say something else of some of a group's sessions.
//!
//! Such a change is a move of the session's backup (`moves.rs`). The next backup is fed beside the present one. Once it has a copy, outputs
//! are held until it has confirmed, in its own group, everything that has left. Then the session joins that group.

use super::{
    SHARD, Shard,
    state::{groups::Target, moves::Move, sessions::Session},
};
use crate::api::{Destination, Now, ShardOutput};
use alloc::{format, string::String, vec::Vec};
use marram_session::{
    owner::{Feed, KeeperId, OwnerPhase},
    trace,
};
use marram_wire::{frame::GroupId, id::SessionId};

impl Shard {
    /// Why an operator cannot move the backup of a session to this edge.
    pub(super) fn can_move_backup(&self, id: SessionId, to: &Destination) -> Result<(), String> {
        let Some(session) = self.sessions.get(id) else { return Err("the session is not here".into()) };
        if !session.owner.has_backup() {
            return Err("the app has no backup: its manifest says nothing of protect = \"epoch\"".into());
        }
        if session.owner.is_shared_cell() {
            return match session.placing.backup_at(&to.edge) {
                Some(_) => Err(format!("`{to}` is the cell's backup already")),
                None => self.can_change_slot(id, to),
            };
        }
        if to.edge == self.config.edge {
            return Err(format!(
                "the session runs on `{}`, which cannot be its own backup: name another edge",
                to.edge
            ));
        }
        if session.placing.at_destination(to).is_some_and(|placed| placed.feed.is_backup()) {
            return Err(format!("`{to}` is the session's backup already"));
        }
        self.can_change_group(id)?;
        if session.owner.phase() != OwnerPhase::Running {
            return Err(format!("the session is not running ({}): try again", session.owner.phase().name()));
        }
        match self.wires.of_standby(&to.edge, to.shard, id) {
            Some(_) => Ok(()),
            None => Err(self.is_not_connected(to)),
        }
    }

    /// Why a session cannot change its group now.
    pub(super) fn can_change_group(&self, id: SessionId) -> Result<(), String> {
        let group = self.groups.of_session(id).and_then(|name| self.groups.get(name));
        if group.is_some_and(|group| group.kind().pace.whole) {
            return Err("the sessions of its group are copied together".into());
        }
        let session = self.sessions.get(id);
        let is_to_run_ahead =
            |session: &Session| self.group_kind_of(session).is_some_and(|kind| kind.runs_ahead());
        if session.is_some_and(|session| session.owner.has_run_ahead() || is_to_run_ahead(session)) {
            return Err(
                "outputs of the session do not wait for its backup (`waits = false`), which stays".into()
            );
        }
        if group.is_some_and(|group| group.is_backed()) { Ok(()) } else { Err(NO_BACKUP_NOW.into()) }
    }

    /// The move of a session's backup begins: the next one is fed beside it. One that is the backup has all that it needs: then only the
    /// group changes.
    pub(super) fn begin_change(
        &mut self,
        now: Now,
        id: SessionId,
        out: &mut Vec<ShardOutput>,
    ) -> Result<KeeperId, String> {
        self.can_change_group(id)?;
        let gone = || String::from("the session ended");
        let session = self.sessions.get(id).ok_or_else(gone)?;
        let to = session.moving.as_deref().map(|moving| moving.to.clone()).ok_or_else(gone)?;
        if let Some(placed) = session.placing.at_destination(&to).filter(|placed| placed.feed.is_backup()) {
            return Ok(placed.id);
        }
        let feed = Feed::of_backup(session.owner.policy().form);
        let (wire, role) = self
            .wires
            .of_standby(&to.edge, to.shard, id)
            .ok_or_else(|| format!("`{to}` is not connected to this shard any more"))?;
        let placed = self.place_next(now, id, (wire, role, feed), out);
        placed.ok_or_else(|| format!("the connection to `{to}` broke"))
    }

    /// The backup of a session moves: once the next one has a copy, its group is found, or begun and claimed.
    pub(super) fn change_on(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        if !self.may_change(id) {
            return;
        }
        if let Some(next) = self.groups.next_of(id) {
            return self.groups.look_again(alloc::vec![next]);
        }
        let Some((kind, target)) = self.sessions.get(id).and_then(|session| {
            let keeper = session.moving.as_deref()?.fed()?;
            let at = session.placing.replica(keeper)?;
            let target = Target { wire: at.at.0, edge: at.role.name.clone() };
            Some((self.group_kind_of(session)?, target))
        }) else {
            return;
        };
        let found = self.groups.find(&kind, Some(&target), kind.groups());
        if found.is_some() && found == self.groups.of_session(id) {
            return self.move_over(now, id, None, out);
        }
        let name = found.unwrap_or_else(|| {
            let name = self.random.bytes();
            self.groups.begin(name, (kind, Some(target), false), now.mono_ns);
            name
        });
        self.groups.await_member(name, id);
    }

    /// Whether a session whose backup moves could join its next group, but for what that group says.
    fn may_change(&self, id: SessionId) -> bool {
        let is_able = |session: &Session| {
            let keeper = session.moving.as_deref().filter(|moving| moving.is_of_backup()).and_then(Move::fed);
            session.owner.may_copy() && keeper.is_some_and(|keeper| session.owner.could_be_backup(keeper))
        };
        self.sessions.get(id).is_some_and(is_able) && self.can_change_group(id).is_ok()
    }

    /// Goes on with the sessions that are about to join a group.
    pub(super) fn changes_due(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        let Some(group) = self.groups.looked_at(name) else { return };
        let (is_backed, awaited) = (group.is_backed(), group.awaited());
        if awaited.is_empty() {
            return;
        }
        let is_lost = group.target.is_none();
        let has_confirmed = |number: Option<u64>| number.is_some_and(|number| group.has_confirmed(number));
        let awaited: Vec<_> =
            awaited.into_iter().map(|(id, number)| (id, number, has_confirmed(number))).collect();
        let mut told = Vec::new();
        for (id, number, is_confirmed) in awaited {
            match number {
                _ if is_lost || (number.is_some() && !is_backed) => {
                    self.give_up_move(now, id, "the next backup was lost", out);
                }
                Some(_) if is_confirmed => self.change_group(now, id, name, out),
                None if is_backed && self.may_change(id) => {
                    self.tell_next_backup(now, id, name, out);
                    told.push(id);
                }
                Some(_) | None => {}
            }
        }
        if told.is_empty() {
            return;
        }
        // Behind everything that has left, since nothing more leaves.
        self.end_epoch(now, name, true, out);
        let number = self.groups.get(name).map_or(0, |group| group.last_epoch());
        told.into_iter().for_each(|id| self.groups.joins_after(id, number));
    }

    /// The next backup learns the session's next group. What this one confirms releases nothing more.
    fn tell_next_backup(&mut self, now: Now, id: SessionId, name: GroupId, out: &mut Vec<ShardOutput>) {
        let within_ns = self.confirm_ns();
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(moving) = session.moving.as_deref_mut() else { return };
        let Some(keeper) = moving.fed() else { return };
        moving.hand_over(now.mono_ns, within_ns);
        self.sessions.rearm(now.mono_ns, id);
        trace!(SHARD, "{id} is about to join group {}", name[0]);
        self.with_owner(now, id, out, |owner, effects| owner.hold_for_change(keeper, name, effects));
    }

    /// The next backup has everything that has left: the session is in its group from now on.
    fn change_group(&mut self, now: Now, id: SessionId, name: GroupId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(keeper) = session.moving.as_deref().and_then(Move::keeper) else { return };
        let former = session.placing.change_backup(keeper);
        self.groups.await_no_more(id);
        self.groups.join(name, id, now.mono_ns);
        trace!(SHARD, "{id} has joined group {}", name[0]);
        self.with_owner(now, id, out, |owner, effects| owner.change_backup(keeper, effects));
        if let Some(former) = former {
            self.remove_replica(now, id, former, out);
        }
        // Its ends learn of the next backup before anything leaves that the former one lacks.
        self.tell_standby(now, id, out);
        self.tell_group(now, id, name, out);
        // Meanwhile it may match another policy.
        self.regroup_if_other(now, id);
        self.move_over(now, id, None, out);
    }

    /// The backup of a session does not move, or has moved. `keeper` is the replica at the edge to which it was to move.
    pub(super) fn change_over(
        &mut self,
        now: Now,
        id: SessionId,
        keeper: Option<KeeperId>,
        out: &mut Vec<ShardOutput>,
    ) {
        self.groups.await_no_more(id);
        self.stop_slot_change(now, id, out);
        let Some(session) = self.sessions.get(id).filter(|session| session.owner.is_changing_group()) else {
            return;
        };
        let backup =
            session.placing.backup().map(|placed| placed.id).filter(|backup| keeper == Some(*backup));
        let group = session.owner.group();
        self.with_owner(now, id, out, |owner, effects| {
            // One that was told of another group is told of this one again.
            if let Some((backup, group)) = backup.zip(group) {
                owner.hold_for_change(backup, group, effects);
            }
            owner.keep_group(effects);
        });
    }

    /// The backup of a session that moves it is about to be asked, or is lost: the move ends.
    pub(super) fn give_up_change(&mut self, now: Now, id: SessionId, why: &str, out: &mut Vec<ShardOutput>) {
        let moving = self.sessions.get(id).and_then(|session| session.moving.as_deref());
        if moving.is_some_and(Move::is_of_backup) {
            self.give_up_move(now, id, why, out);
        }
    }
}

const NO_BACKUP_NOW: &str = "the session has no backup now that its group's claim names: try again";
