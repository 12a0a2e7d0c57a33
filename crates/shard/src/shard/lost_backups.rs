//! Groups that lose their backup, or hand their cells over to it: nothing leaves until a claim is decided (docs/protocol-epochs.md, "Which
//! outputs leave").

use super::{Shard, report::note, state::groups::Group};
use crate::api::{NoteLevel, Now, ShardOutput, ShardWireId};
use alloc::{format, string::String, vec::Vec};
use marram_wire::{frame::GroupId, id::SessionId};

impl Shard {
    /// The connection to the backup of a group is lost, or it is of no use: no output leaves until a claim says that it is no backup
    /// any more. Until then it may claim the group, and keeps what it has.
    pub(super) fn lose_backup(&mut self, now: Now, name: GroupId, why: &str, out: &mut Vec<ShardOutput>) {
        let is_trial = self.groups.get(name).is_some_and(Group::is_trying_target);
        let lost = self.drop_backup(now, name, out).filter(|(_, count)| *count > 0);
        let Some((edge, count)) = lost else { return };
        let (level, text) = match is_trial {
            true => {
                (NoteLevel::Info, format!("`{edge}` does not become the backup of {count} sessions: {why}"))
            }
            false => (NoteLevel::Warning, format!("{count} sessions have lost their backup `{edge}`: {why}")),
        };
        note(level, None, text, out);
    }

    /// The edge to which the cells of a group are handed over goes on with them, as planned: it is no backup any more. As above nothing leaves
    /// until a claim is decided.
    pub(super) fn backup_goes_on(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        let Some((edge, count)) = self.drop_backup(now, name, out) else { return };
        let text = format!("hands {count} shared cells over to `{edge}`, which goes on with them");
        note(NoteLevel::Info, None, text, out);
    }

    /// A group has no target any more. Returns the edge that was it, and how many sessions the group has; none if it had no target.
    fn drop_backup(
        &mut self,
        now: Now,
        name: GroupId,
        out: &mut Vec<ShardOutput>,
    ) -> Option<(String, usize)> {
        self.give_up_slot_change(now, name, "the present backup was lost meanwhile", out);
        let group = self.groups.get_mut(name)?;
        let target = group.target.clone()?;
        group.lose_target(now.mono_ns);
        let members: Vec<SessionId> = group.members().collect();
        for id in members.iter().copied() {
            self.give_up_change(now, id, "the session's backup was lost meanwhile", out);
        }
        self.retell_group(now, name, out);
        self.look_at_held(name);
        Some((target.edge, members.len()))
    }

    /// The claim says that a group has no backup: the one that it had forgets its sessions, and another one is fed.
    pub(super) fn without_backup(&mut self, now: Now, name: GroupId, out: &mut Vec<ShardOutput>) {
        let Some(group) = self.groups.get(name).filter(|group| group.may_aim()) else { return };
        for id in group.members().collect::<Vec<_>>() {
            let keeper = self.sessions.get(id).and_then(|it| it.placing.backup()).map(|placed| placed.id);
            if let Some(keeper) = keeper {
                self.remove_replica(now, id, keeper, out);
            }
        }
        self.aim(now, name, out);
    }

    /// A keeper's wire is gone.
    pub(super) fn backup_wire_lost(&mut self, now: Now, wire: ShardWireId, out: &mut Vec<ShardOutput>) {
        for name in self.groups.names() {
            let target = self.groups.get(name).and_then(|group| group.target.as_ref());
            if target.is_some_and(|target| target.wire == wire) {
                self.lose_backup(now, name, "the connection broke", out);
            }
        }
    }
}
