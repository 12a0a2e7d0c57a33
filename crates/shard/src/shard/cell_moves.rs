//! Moves of shared cells: a cell goes to its backup, and nowhere else (docs/protocol-epochs.md, "A cell that is handed over"). With it go all
//! cells of its slot, since one claim decides about them.
//!
//! The backup claims the cell's group, as if this edge had died. From the hand-over on this owner is one that may have been replaced: it
//! releases what the backup confirms, which confirms nothing once it claims, and the next claim of the group says which of both goes on.

use super::{
    Shard,
    cell_backups::is_on_shard,
    keys::Wanted,
    state::{groups::Group, moves::Move},
};
use crate::api::{Destination, Now, ShardOutput};
use alloc::{format, string::String, vec::Vec};
use marram_session::owner::KeeperId;
use marram_wire::{
    frame::{Code, GroupId, Hello},
    id::SessionId,
};

impl Shard {
    /// Why a shared cell cannot be moved to this edge.
    pub(super) fn can_move_cell(&self, id: SessionId, to: &Destination) -> Result<(), String> {
        if !self.is_shared_cell(id) {
            return Err(
                "the app has cell = \"shared\" and protect = \"none\": its cell stays on this edge".into()
            );
        }
        if to.edge == self.config.edge {
            return Err(format!(
                "a shared cell is on the shard that its app's name and its key select: {}",
                self.config.shard
            ));
        }
        let group = self.groups.of_session(id).and_then(|name| self.groups.get(name));
        let backup = group.filter(|group| group.is_backed()).and_then(|group| group.claimed_backup());
        let Some(backup) = backup else {
            return Err("a shared cell moves to its backup, and it has none now: try again".into());
        };
        if backup != to.edge {
            // It goes there by way of its backup, which moves first.
            return self.can_change_slot(id, to);
        }
        let shard = self.sessions.get(id).and_then(|it| it.placing.backup()).map(|placed| placed.role.shard);
        shard.map_or(Ok(()), |shard| is_on_shard(to, shard))
    }

    /// A cell's move to its backup begins: the group's record is verified. While the coordinator does not answer, the backup could not claim
    /// it either, and the cell would stand still.
    pub(super) fn begin_cell_move(
        &mut self,
        now: Now,
        id: SessionId,
        out: &mut Vec<ShardOutput>,
    ) -> Result<KeeperId, String> {
        let session = self.sessions.get(id).ok_or("the cell ended")?;
        let moving = session.moving.as_deref().ok_or("the cell ended")?;
        let (to, is_of_backup) = (moving.to.clone(), moving.is_of_backup());
        if !is_of_backup {
            self.can_move_cell(id, &to)?;
        }
        let backup = session.placing.backup_at(&to.edge).filter(|_| !is_of_backup);
        let Some(keeper) = backup.map(|placed| placed.id) else {
            return self.begin_slot_change(now, id, &to, out);
        };
        let name = self.groups.of_session(id);
        // With another cell of its slot, the backup claims it already.
        if name.is_none_or(|name| self.handed_over_to(name).is_none())
            && let Some(group) = name.and_then(|name| self.groups.get_mut(name))
        {
            group.verify();
        }
        Ok(keeper)
    }

    /// Whether a cell that moves may be handed over now.
    pub(super) fn may_hand_over_cell(&self, id: SessionId) -> bool {
        let group = self.groups.of_session(id).and_then(|name| self.groups.get(name));
        group.is_some_and(|group| group.may_hand_over())
    }

    /// Whether a shared cell is handed over, alone or with another one of its slot, and it is not known yet which edge goes on.
    pub(super) fn is_cell_handed_over(&self, id: SessionId) -> bool {
        self.is_shared_cell(id)
            && self.groups.of_session(id).and_then(|name| self.handed_over_to(name)).is_some()
    }

    /// The edge to which the cells of this group are handed over, if they are.
    pub(super) fn handed_over_to(&self, name: GroupId) -> Option<&str> {
        let cell = self.groups.get(name)?.handed_over?;
        let is_it = |moving: &&Move| moving.is_handed_over() && !moving.is_of_backup();
        let moving = self.sessions.get(cell)?.moving.as_deref().filter(is_it);
        moving.map(|moving| &moving.to.edge[..])
    }

    /// This cell was handed over, and with it all cells of its slot. The others run on until they are replaced; what the backup does not
    /// confirm has not left.
    pub(super) fn handed_over(&mut self, id: SessionId) {
        if let Some(group) = self.groups.of_session(id).and_then(|name| self.groups.get_mut(name)) {
            group.handed_over = Some(id);
        }
    }

    /// The time is over in which the backup of a cell should have taken it over: it is lost as a backup, and the claim that follows says
    /// which edge goes on. False if that does not come in time, or this is no such session.
    pub(super) fn cell_not_taken(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) -> bool {
        let name = self.groups.of_session(id).filter(|_| self.is_cell_handed_over(id));
        let Some(name) = name.filter(|name| self.groups.get(*name).is_some_and(|it| it.target.is_some()))
        else {
            return false;
        };
        if let Some(moving) = self.sessions.get_mut(id).and_then(|session| session.moving.as_deref_mut()) {
            moving.wait_longer(now.mono_ns);
        }
        self.lose_backup(now, name, "it did not take the cell over in time", out);
        true
    }

    /// The coordinator does not answer: cells of this group are not handed over.
    pub(super) fn cells_stay(&mut self, now: Now, name: GroupId, why: &str, out: &mut Vec<ShardOutput>) {
        if self.groups.get(name).is_some_and(Group::is_going_over) {
            return;
        }
        for id in self.moving_cells(name).collect::<Vec<_>>() {
            if !self.is_cell_handed_over(id) {
                self.give_up_move(now, id, &format!("the coordinator does not answer: {why}"), out);
            }
        }
    }

    /// A claim on this group is won: cells that move are handed over, and those that were handed over go on here.
    pub(super) fn cells_move_on(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        let goes_on = self.groups.get(name).is_some_and(|group| !group.names_backup());
        for id in self.moving_cells(name).collect::<Vec<_>>() {
            match self.is_cell_handed_over(id) {
                true if goes_on => {
                    let why = "its backup did not take it over in time, and it goes on here";
                    self.move_over(now, id, Some(why), out);
                }
                true => {}
                false => self.move_on(now, id, out),
            }
        }
    }

    /// An operator moves this cell: a pass that moves its slot to an edge which has joined, with another cell, leaves the slot alone.
    pub(super) fn leave_slot_to_operator(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(name) = self.groups.of_session(id).filter(|_| self.is_shared_cell(id)) else { return };
        let others = |cell: &SessionId| *cell != id && self.rebalance.moves(*cell);
        for cell in self.moving_cells(name).filter(others).collect::<Vec<_>>() {
            if !self.is_cell_handed_over(cell) {
                self.give_up_move(now, cell, "an operator moves another cell of its slot", out);
                self.rebalance.leave_slot(name);
            }
        }
    }

    fn moving_cells(&self, name: GroupId) -> impl Iterator<Item = SessionId> {
        let moves = |id: &SessionId| {
            self.is_shared_cell(*id) && self.sessions.get(*id).is_some_and(|session| session.moving.is_some())
        };
        self.groups.get(name).into_iter().flat_map(|group| group.members()).filter(moves)
    }

    /// The primary of a session that this shard is fed hands it over: of a shared cell the group is claimed.
    pub(super) fn cell_handed_over(&mut self, id: SessionId) {
        if self.is_shared_cell(id) {
            self.backups.hand_over(id);
        }
    }

    /// The coordinator does not answer to a claim on this group, which may be written: clients that wait here ask elsewhere, and a primary that
    /// has handed it over is told, so that it claims the group itself.
    pub(super) fn cells_not_claimed(
        &mut self,
        now: Now,
        name: GroupId,
        why: &str,
        out: &mut Vec<ShardOutput>,
    ) {
        let cell = self.backups.get(name).and_then(|group| group.sessions().first().copied());
        if let Some(slot) = cell.and_then(|cell| self.slot_of(cell)) {
            let held = self.held.take_slot(slot);
            self.reject_held(now, held, why, out);
        }
        let group = self.backups.get(name).filter(|group| group.was_handed_over());
        for id in group.map(|group| group.sessions()).unwrap_or_default() {
            let why = format!("the coordinator does not answer this edge: {why}");
            self.refuse_feed(now, id, (Code::Busy, &why), out);
        }
    }

    /// Whether a client's hello is looked at while the edge stops: its shared cell is elsewhere, or about to be.
    pub(super) fn may_ask_for_cell(&self, hello: &Hello) -> bool {
        let Some(Ok(wanted)) = self.app_of_cells(hello).map(|app| Wanted::by(hello, app)) else {
            return false;
        };
        let moves = |id: SessionId| {
            let name = self.groups.of_session(id);
            name.is_some_and(|name| self.moving_cells(name).next().is_some())
        };
        self.cell_here(wanted).is_none_or(moves)
    }
}
