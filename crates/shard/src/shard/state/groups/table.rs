//! The table of all groups, and which of them are to be looked at.

use super::{AVOIDED_NS, Claimed, Group, GroupKind, SETTLE_NS, Target};
use crate::api::{AppVersion, GroupClaim};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use core::ops::Bound::{Excluded, Unbounded};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{frame::GroupId, id::SessionId};

/// All groups of which this shard is the primary. There may be thousands, so what is done after any event looks only at those that have
/// changed or are due.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    by_name: BTreeMap<GroupId, Group>,
    /// Of each session that is in one.
    of_session: BTreeMap<SessionId, GroupId>,
    /// Of each session that is about to join another one.
    next_of: BTreeMap<SessionId, GroupId>,
    /// Counts the questions.
    tags: u64,
    /// Those that may have changed since they were looked at, or whose members are being copied together.
    changed: BTreeSet<GroupId>,
    /// When to look at each of the others, if it is known.
    due: BTreeSet<(u64, GroupId)>,
}

impl Groups {
    /// Of a shard with this entropy: an answer to a question of its former life is taken for none of this one.
    pub(crate) fn counting_from(entropy: [u8; 32]) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = entropy;
        Self { tags: u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> 1, ..Self::default() }
    }

    pub(crate) fn get(&self, name: GroupId) -> Option<&Group> {
        self.by_name.get(&name)
    }

    /// To change it: it is looked at next.
    pub(crate) fn get_mut(&mut self, name: GroupId) -> Option<&mut Group> {
        let group = self.by_name.get_mut(&name)?;
        if let Some(due_ns) = group.listed_ns.take() {
            self.due.remove(&(due_ns, name));
        }
        self.changed.insert(name);
        Some(group)
    }

    /// Something that is not here has changed for these: they are looked at next, if they are here.
    pub(crate) fn look_again(&mut self, names: Vec<GroupId>) {
        for name in names {
            self.get_mut(name);
        }
    }

    /// For the look at it, which is under way.
    pub(crate) fn looked_at(&mut self, name: GroupId) -> Option<&mut Group> {
        self.by_name.get_mut(&name)
    }

    /// Those to look at now, in the order of their names; each is passed to [`Self::rest`] behind its look.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> BTreeSet<GroupId> {
        let mut names = core::mem::take(&mut self.changed);
        while let Some((due_ns, name)) = self.due.first().copied().filter(|(due_ns, _)| *due_ns <= now_ns) {
            self.due.remove(&(due_ns, name));
            if let Some(group) = self.by_name.get_mut(&name) {
                group.listed_ns = None;
            }
            names.insert(name);
        }
        names
    }

    /// A group was looked at. If that has changed it, it is looked at again.
    pub(crate) fn rest(&mut self, name: GroupId, confirm_ns: u64) {
        if self.changed.contains(&name) {
            return;
        }
        let Some(group) = self.by_name.get_mut(&name) else { return };
        if group.snapshot.is_under_way() {
            self.changed.insert(name);
            return;
        }
        group.listed_ns = group.due_ns(confirm_ns);
        self.due.extend(group.listed_ns.map(|due_ns| (due_ns, name)));
    }

    /// Those that may have something due at this time.
    fn candidates(&self, now_ns: u64) -> BTreeSet<GroupId> {
        let due = self.due.iter().take_while(|(due_ns, _)| *due_ns <= now_ns).map(|(_, name)| *name);
        self.changed.iter().copied().chain(due).collect()
    }

    fn insert(&mut self, name: GroupId, group: Group) {
        self.end(name);
        self.by_name.insert(name, group);
        self.changed.insert(name);
    }

    pub(crate) fn names(&self) -> Vec<GroupId> {
        self.by_name.keys().copied().collect()
    }

    pub(crate) fn of_session(&self, session: SessionId) -> Option<GroupId> {
        self.of_session.get(&session).copied()
    }

    /// The first sessions behind this one, or of all, that are in groups: so many at most.
    pub(crate) fn sessions_after(&self, last: Option<SessionId>, count: usize) -> Vec<SessionId> {
        let behind = (last.map_or(Unbounded, Excluded), Unbounded);
        self.of_session.range(behind).take(count).map(|(session, _)| *session).collect()
    }

    /// A group of this kind and with this target that takes more sessions. None if there are fewer than `count`, over which they are spread.
    pub(crate) fn find(&self, kind: &GroupKind, target: Option<&Target>, count: usize) -> Option<GroupId> {
        let fits = |group: &Group| {
            let stays = !group.is_leaving() && group.contested.is_none() && !group.is_slot;
            // Sessions that begin are better in a group of their own than in one whose backup is not certain.
            stays && !group.is_tried() && group.kind == *kind && group.target.as_ref() == target
        };
        // Of more groups, as a former policy wanted, the others get no more sessions.
        let found = self.by_name.iter().filter(|(_, group)| fits(group)).take(count.max(1));
        let is_spread = found.clone().count() >= count;
        let smallest = found.min_by_key(|(_, group)| group.members.len()).map(|(name, _)| *name);
        smallest.filter(|_| is_spread)
    }

    /// How many members a group has more than its policy says: all of them if it is none of so many groups with this kind and target, else
    /// what is above an equal share.
    pub(crate) fn excess(&self, name: GroupId) -> usize {
        let Some(group) = self.by_name.get(&name) else { return 0 };
        let is_alike = |other: &Group| {
            let stays = !other.is_slot && !other.is_leaving() && !other.is_tried();
            stays && other.kind == group.kind && other.target == group.target
        };
        let alike = self.by_name.iter().filter(|(_, other)| is_alike(other));
        let members: usize = alike.clone().map(|(_, other)| other.members.len()).sum();
        let (count, mut among) = (group.kind.groups(), alike.map(|(name, _)| *name));
        let is_among = among.by_ref().take(count).any(|other| other == name);
        if is_among {
            group.members.len().saturating_sub(members.div_ceil(count))
        } else {
            group.members.len()
        }
    }

    /// A new group, for a session that begins or one that `has_released` something.
    pub(crate) fn begin(
        &mut self,
        name: GroupId,
        (kind, target, has_released): (GroupKind, Option<Target>, bool),
        now_ns: u64,
    ) {
        let mut group = Group::new(kind, target, now_ns);
        if has_released {
            group.switch = None;
        }
        self.insert(name, group);
    }

    /// A group without a backup for a session that this edge does not keep: one of this kind that avoids it as well and may run alone by
    /// then. No other edge may ever have been its backup since its last claim: the session may have released something.
    pub(crate) fn refuge(
        &self,
        kind: &GroupKind,
        edge: &str,
        (now_ns, alone_at_ns): (u64, u64),
    ) -> Option<GroupId> {
        let fits = |group: &Group| {
            let is_able = !group.is_leaving() && !group.may_be_another_edges();
            let is_alone = group.target.is_none() && !group.may_name_backup();
            let waits = !group.may_aim_at(edge, now_ns) && group.alone_at_ns <= alone_at_ns;
            group.is_refuge && is_able && is_alone && waits && group.kind == *kind
        };
        self.by_name.iter().find(|(_, group)| fits(group)).map(|(name, _)| *name)
    }

    /// Begins such a group, which avoids an edge until a time, and may run alone from another one on.
    pub(crate) fn begin_refuge(
        &mut self,
        name: GroupId,
        (kind, edge): (GroupKind, &str),
        (now_ns, avoids_until_ns, alone_at_ns): (u64, u64, u64),
    ) {
        let mut group = Group { is_refuge: true, alone_at_ns, ..Group::new(kind, None, now_ns) };
        group.avoid(edge, avoids_until_ns);
        self.insert(name, group);
    }

    /// A group for the cell of a slot, which is to name it: a new one, or one that has this record, of a cell that is lost.
    pub(crate) fn begin_slot(
        &mut self,
        name: GroupId,
        (kind, target, version): (GroupKind, Option<Target>, AppVersion),
        record: Option<Claimed>,
        now_ns: u64,
    ) {
        let (renews, version) = (record.is_some(), Some(version));
        let group = Group { is_slot: true, version, renews, record, ..Group::new(kind, target, now_ns) };
        self.insert(name, group);
    }

    /// The groups of slots.
    pub(crate) fn of_slots(&self) -> Vec<GroupId> {
        self.by_name.iter().filter(|(_, group)| group.is_slot).map(|(name, _)| *name).collect()
    }

    /// The store may have lost what it knew of slots: their groups are claimed again. Returns these.
    pub(crate) fn renew_slots(&mut self) -> Vec<GroupId> {
        let names = self.of_slots();
        for name in &names {
            self.get_mut(*name).into_iter().for_each(Group::renew);
        }
        names
    }

    /// This shard was the backup of this group, and has claimed it: it runs alone, since its sessions have waited long enough. The
    /// former primary is dead, or cannot be reached, unless it `was_handed_over`.
    pub(crate) fn promoted(
        &mut self,
        name: GroupId,
        (kind, former, was_handed_over): (GroupKind, String, bool),
        record: Claimed,
        now_ns: u64,
    ) {
        let mut group = Group::new(kind, None, now_ns);
        (group.record, group.alone_at_ns) = (Some(record), now_ns);
        let avoided_ns = if was_handed_over { SETTLE_NS } else { AVOIDED_NS };
        group.avoid(&former, now_ns.saturating_add(avoided_ns));
        group.looked_ns = now_ns.saturating_add(SETTLE_NS);
        self.insert(name, group);
    }

    /// A session joins a group.
    pub(crate) fn join(&mut self, name: GroupId, session: SessionId, now_ns: u64) {
        self.leave(session, now_ns);
        if let Some(group) = self.get_mut(name) {
            group.members.insert(session);
            group.empty_ns = None;
            self.of_session.insert(session, name);
        }
    }

    /// A session is over, or in another group.
    pub(crate) fn leave(&mut self, session: SessionId, now_ns: u64) {
        let name = self.of_session.remove(&session);
        if let Some(group) = name.and_then(|name| self.get_mut(name)) {
            group.members.remove(&session);
            group.due.remove(&session);
            group.over.remove(&session);
            group.continued.remove(&session);
            // What it had in them, its next backup confirms.
            group.ended.iter_mut().for_each(|ended| ended.sessions.retain(|member| *member != session));
            if group.members.is_empty() {
                group.empty_ns = Some(now_ns);
            }
        }
    }

    /// A session of another group is about to join this one. Until then that stays, with or without members.
    pub(crate) fn await_member(&mut self, name: GroupId, session: SessionId) {
        self.await_no_more(session);
        if let Some(group) = self.get_mut(name) {
            group.awaited.insert(session, None);
            self.next_of.insert(session, name);
        }
    }

    /// The group that a session is about to join.
    pub(crate) fn next_of(&self, session: SessionId) -> Option<GroupId> {
        self.next_of.get(&session).copied()
    }

    /// A session joins the group that awaits it once its backup has confirmed this epoch.
    pub(crate) fn joins_after(&mut self, session: SessionId, number: u64) {
        let group = self.next_of(session).and_then(|name| self.get_mut(name));
        if let Some(awaited) = group.and_then(|group| group.awaited.get_mut(&session)) {
            *awaited = Some(number);
        }
    }

    /// A session is not about to join another group, or has joined it.
    pub(crate) fn await_no_more(&mut self, session: SessionId) {
        let name = self.next_of.remove(&session);
        if let Some(group) = name.and_then(|name| self.get_mut(name)) {
            group.awaited.remove(&session);
        }
    }

    /// A group is another edge's, or over. Returns the sessions that it had.
    pub(crate) fn end(&mut self, name: GroupId) -> Vec<SessionId> {
        let Some(group) = self.by_name.remove(&name) else { return Vec::new() };
        for session in group.awaited.keys() {
            self.next_of.remove(session);
        }
        self.changed.remove(&name);
        if let Some(due_ns) = group.listed_ns {
            self.due.remove(&(due_ns, name));
        }
        for member in &group.members {
            self.of_session.remove(member);
        }
        group.members.into_iter().collect()
    }

    /// A number for a question.
    pub(crate) fn tag(&mut self) -> u64 {
        self.tags += 1;
        self.tags
    }

    /// The claim that a group needs now, if it needs one. `opener` gives a number that makes a generation unique.
    pub(crate) fn next_claim(
        &mut self,
        now_ns: u64,
        name: GroupId,
        edge: &str,
        opener: impl FnOnce() -> u64,
    ) -> Option<GroupClaim> {
        if !self.get(name)?.wants_claim(now_ns) {
            return None;
        }
        let numbers = (self.tag(), opener());
        let group = self.get_mut(name)?;
        let (of_slot, (tag, from, to)) = (group.is_slot, group.next_claim(now_ns, edge, || numbers)?);
        Some(GroupClaim { tag, group: name, of_slot, from, to })
    }

    /// The group that waits for the answer with this tag.
    pub(crate) fn of_tag(&self, tag: u64) -> Option<GroupId> {
        let waits = |group: &Group| group.asked.as_ref().is_some_and(|asked| asked.has_tag(tag));
        self.by_name.iter().find(|(_, group)| waits(group)).map(|(name, _)| *name)
    }

    /// Groups of which an epoch is to end.
    pub(crate) fn ending(&self, now_ns: u64) -> Vec<GroupId> {
        let ends = |group: &Group| group.epoch_ends_ns().is_some_and(|ends_ns| now_ns >= ends_ns);
        let is_it = |name: &GroupId| self.by_name.get(name).is_some_and(ends);
        self.candidates(now_ns).into_iter().filter(is_it).collect()
    }

    /// Groups of which all members are being copied.
    pub(crate) fn copied_together(&self) -> Vec<GroupId> {
        let is_it = |group: &Group| group.snapshot.is_under_way();
        self.changed.iter().copied().filter(|name| self.by_name.get(name).is_some_and(is_it)).collect()
    }

    /// When something is due.
    pub(crate) fn due_ns(&self, confirm_ns: u64) -> Option<u64> {
        let changed = self.changed.iter().filter_map(|name| self.by_name.get(name)?.due_ns(confirm_ns)).min();
        let listed = self.due.first().map(|(due_ns, _)| *due_ns);
        changed.into_iter().chain(listed).min()
    }

    /// Checks I51 of docs/protocol.md, as far as it concerns the groups alone.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        for (session, name) in &self.of_session {
            holds!("I51", self.by_name.get(name).is_some_and(|group| group.members.contains(session)));
        }
        for (session, name) in &self.next_of {
            holds!("I51", self.by_name.get(name).is_some_and(|group| group.awaited.contains_key(session)));
            holds!("I51", self.of_session.get(session) != Some(name));
        }
        for (name, group) in &self.by_name {
            let is_changed = self.changed.contains(name);
            holds!("I51", !(is_changed && group.listed_ns.is_some()));
            holds!("I51", group.listed_ns.is_none_or(|due_ns| self.due.contains(&(due_ns, *name))));
            holds!("I51", group.due.is_subset(&group.members) && group.over.is_subset(&group.members));
            let has_only_members =
                |sessions: &Vec<SessionId>| sessions.iter().all(|it| group.members.contains(it));
            holds!("I51", group.ended.iter().all(|ended| has_only_members(&ended.sessions)));
            // One that this edge has won without any cell has no version.
            holds!("I51", group.is_slot || group.version.is_none());
            holds!("I51", group.members.is_empty() == group.empty_ns.is_some());
            holds!(
                "I51",
                group.confirmed <= group.number && group.ended.iter().all(|it| it.number > group.confirmed)
            );
            holds!("I51", group.target.is_some() || (group.switch.is_none() && group.ended.is_empty()));
        }
        holds!(
            "I51",
            self.due.len() == self.by_name.values().filter(|group| group.listed_ns.is_some()).count()
        );
        Ok(())
    }
}
