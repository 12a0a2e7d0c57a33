//! A backup goes on: the sessions of a group whose claim this edge has won are owned here.

use super::{
    Shard,
    report::note,
    state::groups::{GroupKind, Target},
};
use crate::{
    api::{AppVersion, NoteLevel, Now, ShardOutput, ShardWireId},
    coordinator::contents::Claimed,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::ToString,
    vec::Vec,
};
use marram_wire::{
    frame::{Backup, Code, GroupId, HandGroup, Reject},
    id::SessionId,
    key::CellKey,
};

impl Shard {
    /// This edge was the backup of a group, and has claimed it: its sessions are owned here from now on, without a backup.
    pub(super) fn promote(&mut self, now: Now, name: GroupId, claimed: Claimed, out: &mut Vec<ShardOutput>) {
        let primary = self.backups.get(name).map_or_else(Default::default, |group| group.primary.clone());
        let was_handed_over = self.backups.get(name).is_some_and(|group| group.was_handed_over());
        let of_slot = self.backups.get(name).is_some_and(|group| group.is_slot);
        let mut sessions = self.backups.won(name);
        let is_slot = sessions.iter().any(|id| self.is_shared_cell(*id));
        if is_slot {
            sessions = self.last_cells_of(now, sessions, out);
        }
        let kind = sessions.iter().find_map(|id| self.group_kind_of(self.sessions.get(*id)?));
        let Some(kind) = kind else {
            if let Some(backup) = &claimed.backup {
                // That one has copies, and may claim them from this claim: it stays as that of an edge which is lost.
                let text =
                    format!("has claimed shared cells that `{backup}` backs, and has lost its own copies");
                return note(NoteLevel::Warning, None, text, out);
            }
            // Its last session has left meanwhile. What its former primary does in it is not confirmed, and its record is removed.
            let promoted = (GroupKind::default(), primary, was_handed_over);
            self.groups.promoted(name, promoted, claimed, now.mono_ns);
            self.groups.get_mut(name).into_iter().for_each(|group| group.is_slot = of_slot);
            return;
        };
        let first = sessions.first().filter(|_| is_slot).and_then(|id| self.sessions.get(*id));
        let version = first.map(|it| AppVersion { app: it.app().to_string(), image: it.owner.image() });
        let text = format!("takes {} sessions over from `{primary}`, whose backup it was", sessions.len());
        note(NoteLevel::Info, None, text, out);
        self.counters.promotions += 1;
        let backup = claimed.backup.clone();
        self.groups.promoted(name, (kind, primary, was_handed_over), claimed, now.mono_ns);
        if let Some(backup) = backup {
            self.keep_backup(name, &backup, &sessions, out);
        }
        if let Some(group) = self.groups.get_mut(name) {
            (group.is_slot, group.version) = (is_slot, version);
            group.retell(now.mono_ns);
        }
        for id in sessions {
            // What another edge has measured is not known here.
            self.sessions.get_mut(id).into_iter().for_each(|session| session.traffic = None);
            self.groups.join(name, id, now.mono_ns);
            self.tell_group(now, id, name, out);
            if is_slot {
                self.refuse_feed(now, id, (Code::Waiting, "it goes on with the cell"), out);
            } else {
                self.with_owner(now, id, out, |owner, effects| {
                    owner.has_claimed();
                    owner.promote(now, effects);
                });
            }
        }
        if is_slot {
            self.slot_promoted(now, (name, was_handed_over), out);
        }
        self.aim(now, name, out);
    }

    /// The primary of a slot's group hands it over to this edge, which is to claim it beside its backup. All cells that the primary has are
    /// fed here. This edge may have been the backup before, and have copies of others from then. If it has lost one of them, it does not claim:
    /// its primary and the backup have all.
    pub(super) fn group_handed(
        &mut self,
        now: Now,
        wire: ShardWireId,
        hand: &HandGroup,
        out: &mut Vec<ShardOutput>,
    ) {
        let HandGroup { group, generation, backup, cells } = hand;
        let Some(primary) = self.peer_name(wire) else { return };
        self.drop_former_cells(now, (*group, wire), out);
        let fed =
            self.backups.get(*group).filter(|group| group.is_fed_by(wire)).map(|group| group.sessions());
        let fed = fed.unwrap_or_default();
        if fed.len() as u64 == u64::from(*cells) {
            let record = Claimed { generation: *generation, primary, backup: Some(backup.clone()) };
            return self.backups.handed(*group, wire, record);
        }
        for id in fed {
            self.refuse_standby(now, id, "this edge has lost another cell of the slot", out);
        }
    }

    /// This edge has claimed a slot's group beside its backup, which has the same copies as this edge: it is told that it is this edge's backup,
    /// and later of each cell to go on with its copy. If it is not connected, the group has lost its backup.
    fn keep_backup(&mut self, name: GroupId, backup: &str, cells: &[SessionId], out: &mut Vec<ShardOutput>) {
        let wire = cells.first().and_then(|cell| self.shard_for_cell(*cell, backup)).map(|(wire, _)| wire);
        let wire = wire.filter(|wire| self.wires.may_hand_group(*wire));
        let continued = cells.iter().copied().filter(|cell| self.has_run(*cell)).collect();
        let Some((wire, group)) = wire.zip(self.groups.get_mut(name)) else { return };
        group.keeps_backup(Target { wire, edge: backup.to_string() }, continued);
        let generation = group.announced();
        let told = generation.map(|generation| Backup { group: name, generation });
        out.extend(told.map(|frame| ShardOutput::Send { wire, frame: frame.into() }));
    }

    /// Whether the backup of a session's group has a copy from the owner before, and was not told to go on with it yet; for inspection.
    #[must_use]
    pub fn is_continued(&self, session: SessionId) -> bool {
        let name = self.groups.of_session(session);
        name.and_then(|name| self.groups.get(name)).is_some_and(|group| group.is_continued(session))
    }

    /// Whether this edge has claimed a session's group beside its backup, which is its backup still; for inspection.
    #[must_use]
    pub fn has_kept_backup(&self, session: SessionId) -> bool {
        let name = self.groups.of_session(session);
        name.and_then(|name| self.groups.get(name)).is_some_and(|group| group.has_kept_backup())
    }

    /// Another edge has claimed a group of which this edge is the backup, and stays it: it goes on with the cells, and feeds them here from
    /// where they are. It has said so over this wire, or the store has: then it may have died since, and be connected in its next life.
    pub(super) fn follows_heir(
        &mut self,
        now: Now,
        name: GroupId,
        claim: &Claimed,
        wire: Option<ShardWireId>,
        out: &mut Vec<ShardOutput>,
    ) -> bool {
        let Some(cells) = self.backups.has_heir(now.mono_ns, name, (claim, wire)) else { return false };
        let text = format!(
            "stays the backup of {} shared cells, which `{}` goes on with",
            cells.len(),
            claim.primary
        );
        if !cells.is_empty() {
            note(NoteLevel::Info, None, text, out);
        }
        for id in cells {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            session.feeder = None;
            session.feed_lost_ns = Some(now.mono_ns);
            self.with_owner(now, id, out, |owner, effects| owner.feed_lost(effects));
        }
        true
    }

    /// The primary of a session that this shard backs says that another edge has claimed the group. False if this is no such session.
    pub(super) fn primary_left(&mut self, now: Now, id: SessionId) -> bool {
        let name =
            self.backups.of_session(id).filter(|_| self.is_shared_cell(id) && self.backups.may_claim(id));
        if let (Some(name), Some(session)) = (name, self.sessions.get_mut(id)) {
            session.feed_lost_ns = Some(now.mono_ns);
            self.backups.primary_left(now.mono_ns, name);
        }
        name.is_some()
    }

    /// A slot has one cell of each key. Its primary may have lost one, or ended it, and have begun another one in the same group while this
    /// edge still has a copy of the former: the newer one goes on if it has begun, and the others are dropped.
    fn last_cells_of(
        &mut self,
        now: Now,
        cells: Vec<SessionId>,
        out: &mut Vec<ShardOutput>,
    ) -> Vec<SessionId> {
        let key = |id: &SessionId| self.sessions.get(*id)?.owner.key().cloned();
        let age = |id: &SessionId| {
            let session = self.sessions.get(*id)?;
            Some((session.owner.log_bytes().0 > 0, session.feed_lost_ns.unwrap_or(u64::MAX)))
        };
        let mut last: BTreeMap<Option<CellKey>, SessionId> = BTreeMap::new();
        for id in &cells {
            let newest = last.entry(key(id)).or_insert(*id);
            if age(id) >= age(newest) {
                *newest = *id;
            }
        }
        let last: BTreeSet<SessionId> = last.into_values().collect();
        for id in cells.into_iter().filter(|id| !last.contains(id)) {
            let reason = "its primary has begun the cell again";
            self.with_owner(now, id, out, |owner, effects| {
                owner.step_down(Code::Superseded, reason.to_string(), effects);
            });
        }
        last.into_iter().collect()
    }

    /// A session that this shard stands by for is in this group.
    pub(super) fn backs(
        &mut self,
        now: Now,
        (wire, name): (ShardWireId, GroupId),
        id: SessionId,
        out: &mut Vec<ShardOutput>,
    ) {
        if let Some(primary) = self.peer_name(wire) {
            self.backups.join(name, (wire, &primary), id);
            if self.is_shared_cell(id) {
                self.backups.is_slot(name);
            }
            if self.groups.get(name).is_none() {
                self.refuse_former(now, name, out);
            }
        }
    }

    /// This edge has claimed a group, and does not have it any more. Its former primary may not know that, and have other sessions in it: it is
    /// told that it has lost its backup, and claims the group.
    pub(super) fn refuse_former(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        for id in self.backups.tells_former(now.mono_ns, name) {
            self.refuse_standby(now, id, "this edge has claimed the group meanwhile", out);
        }
    }

    /// The primary of a slot, over this wire, names this edge as its backup, or hands the slot over to it, which it does when all cells that it
    /// has are fed here. What was fed before, and is not now, has ended there meanwhile: to go on with that would be another history.
    pub(super) fn drop_former_cells(
        &mut self,
        now: Now,
        (name, wire): (GroupId, ShardWireId),
        out: &mut Vec<ShardOutput>,
    ) {
        let group = self.backups.get(name).filter(|group| group.is_slot && group.is_fed_by(wire));
        let is_former = |id: &SessionId| {
            if self.backups.is_awaited(*id) {
                return false;
            }
            let feeder = self.sessions.get(*id).and_then(|session| session.feeder);
            feeder.is_none_or(|(at, _)| at != wire)
        };
        let former: Vec<SessionId> =
            group.map(|group| group.sessions()).unwrap_or_default().into_iter().filter(is_former).collect();
        for id in former {
            self.drop_standby(now, id, out);
        }
    }

    /// The feed of a cell ends here, which is over. If this edge waits for the primary to go on with another copy of the same key, that one
    /// was lost there before this cell began: to go on with it would be another history.
    pub(super) fn drop_replaced(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let key = |id: SessionId| self.sessions.get(id).and_then(|session| session.owner.key().cloned());
        let group = self.backups.of_session(id).and_then(|name| self.backups.get(name));
        let is_replaced = |it: &SessionId| *it != id && self.backups.is_awaited(*it) && key(*it) == key(id);
        let replaced: Vec<SessionId> =
            group.map(|group| group.sessions()).unwrap_or_default().into_iter().filter(is_replaced).collect();
        for other in replaced {
            self.drop_standby(now, other, out);
        }
    }

    /// The primary of a shared cell may be alive, and no end tells it that this edge goes on with the cell (`Waiting`), or does not know whether
    /// it may (`Busy`): it is told that its backup is lost, and learns the rest from its own claim.
    pub(super) fn refuse_feed(
        &mut self,
        now: Now,
        id: SessionId,
        (code, why): (Code, &str),
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some((wire, channel)) = session.feeder.take() else { return };
        session.feed_lost_ns = Some(now.mono_ns);
        let reason = why.to_string();
        out.push(ShardOutput::Send { wire, frame: Reject { channel, code, reason }.into() });
        self.with_owner(now, id, out, |owner, effects| owner.feed_lost(effects));
    }
}
