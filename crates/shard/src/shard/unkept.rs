//! Sessions that their group's backup does not keep: it is full, lacks the image, or stops (docs/protocol-epochs.md, "A session that the
//! backup does not keep").

use super::{SHARD, Shard};
use crate::api::{Now, ShardOutput, ShardWireId};
use alloc::vec::Vec;
use marram_session::{owner::EpochRelease, trace};
use marram_wire::{frame::GroupId, id::SessionId};

impl Shard {
    /// The backup of a session's group does not keep that session, and has told so before it confirms anything more. One of which nothing
    /// depends on that edge leaves the group, whose other sessions keep their backup; else the group needs an edge that keeps all of its
    /// sessions. Whether it `goes_on` with shared cells that are handed over to it, its claim says; that is no loss.
    pub(super) fn backup_refused(
        &mut self,
        now: Now,
        id: SessionId,
        (wire, goes_on, why): (ShardWireId, bool, &str),
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(name) = self.groups.of_session(id) else { return };
        let target = self.groups.get(name).and_then(|group| group.target.as_ref());
        let Some(edge) = target.filter(|target| target.wire == wire).map(|target| target.edge.clone()) else {
            return;
        };
        if self.may_leave_backup(id, name) && self.leave_backup(now, id, (name, &edge), out) {
            return;
        }
        match goes_on {
            true => self.backup_goes_on(now, name, out),
            false => self.lose_backup(now, name, why, out),
        }
        let until_ns = self.sessions.get(id).and_then(|session| session.placing.rests_until_ns());
        if let Some((group, until_ns)) = self.groups.get_mut(name).zip(until_ns) {
            group.avoid(&edge, until_ns);
        }
        self.aim(now, name, out);
    }

    /// Whether a session that its group's target has refused may leave that group: nothing has left that another edge would have to know
    /// of. It has not begun, or no claim has named a backup since its last one was lost.
    fn may_leave_backup(&self, id: SessionId, name: GroupId) -> bool {
        let Some((session, group)) = self.sessions.get(id).zip(self.groups.get(name)) else { return false };
        let is_tried = group.is_trying_target() && !session.owner.has_run_ahead();
        let is_apart = !group.is_slot && !group.kind().pace.whole && !group.may_be_another_edges();
        is_apart && (is_tried || session.owner.has_not_begun())
    }

    /// A session leaves its group, whose target has refused it: for one with another edge if it has not begun, else for one that has no
    /// backup and asks this edge again later. False if it stays, since it is the only one there.
    fn leave_backup(
        &mut self,
        now: Now,
        id: SessionId,
        (name, edge): (GroupId, &str),
        out: &mut Vec<ShardOutput>,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(id) else { return false };
        let may_ask_another = session.owner.has_not_begun() && session.placing.may_ask_another();
        let rests_until_ns = session.placing.rests_until_ns().unwrap_or(now.mono_ns);
        let Some(kind) = self.sessions.get(id).and_then(|session| self.group_kind_of(session)) else {
            return false;
        };
        let other = self.target_for((id, &kind), None, |other| other != edge).filter(|_| may_ask_another);
        let Some(group) = self.groups.get(name) else { return false };
        if other.is_none() && group.member_count() == 1 {
            return false;
        }
        let alone_at_ns = group.leaver_is_alone_at(now.mono_ns);
        self.give_up_change(now, id, "the session's backup does not keep it", out);
        // What it had in epochs is in none.
        self.with_owner(now, id, out, |owner, effects| owner.release_as(now, EpochRelease::Held, effects));
        if self.sessions.get(id).is_none() {
            return true;
        }
        self.groups.leave(id, now.mono_ns);
        let found = match &other {
            Some(_) => self.groups.find(&kind, other.as_ref(), kind.groups()),
            None => self.groups.refuge(&kind, edge, (now.mono_ns, alone_at_ns)),
        };
        let next = found.unwrap_or_else(|| {
            let next = self.random.bytes();
            if other.is_some() {
                self.groups.begin(next, (kind, other, false), now.mono_ns);
            } else {
                let times = (now.mono_ns, rests_until_ns, alone_at_ns);
                self.groups.begin_refuge(next, (kind, edge), times);
            }
            next
        });
        trace!(SHARD, "{id} leaves group {} for {}: `{edge}` does not keep it", name[0], next[0]);
        self.groups.join(next, id, now.mono_ns);
        self.tell_group(now, id, next, out);
        if self.groups.get(next).is_some_and(|group| group.target.is_some()) {
            self.sessions.get_mut(id).into_iter().for_each(|session| session.placing.rests_no_more());
            self.place(now, id, out);
        }
        true
    }
}
