//! Replication groups of which this shard is the primary (docs/protocol-epochs.md). The sessions of a group share a backup, its
//! epochs and the claim at the coordinator.
//!
//! A group decides by its claims alone. Until one is decided that names the backup, or none, nothing leaves. A claim that may have
//! been written, or not, is asked for again until it is known.

mod next;
mod table;

use super::{asked::AskedClaim, snapshot::Snapshot};
use next::FormerBackup;
pub(crate) use next::NextBackup;
pub(crate) use table::Groups;

use crate::{
    api::{AppVersion, ReplicationPolicy, ShardWireId},
    coordinator::contents::Claimed,
};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};
use marram_session::owner::EpochRelease;
use marram_wire::id::{Generation, SessionId};

const MS: u64 = 1_000_000;
/// A group without sessions is kept for so long: the next one needs no claim.
const EMPTY_NS: u64 = 5_000 * MS;
/// A promoted backup lets its sessions go on before they wait for another one.
const SETTLE_NS: u64 = 1_000 * MS;
/// Pause between two looks at whether all members have a feed with all it needs.
const LOOK_NS: u64 = 5 * MS;
/// A backup that did not confirm is not chosen again for so long.
const AVOIDED_NS: u64 = 5_000 * MS;

/// The edge that is, or is to become, the backup of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    pub(crate) wire: ShardWireId,
    pub(crate) edge: String,
}

/// How often epochs end, and when a primary without a backup runs alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Pace {
    /// The minimum time between two ends of epochs, in nanoseconds; 0 ends one with every message.
    pub(crate) every_ns: u64,
    pub(crate) alone_after_ns: u64,
    /// Whether all members are copied at one moment, and their outputs leave together.
    pub(crate) whole: bool,
}

/// What the sessions of a group have in common beside their backup.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct GroupKind {
    pub(crate) pace: Pace,
    /// The policy that they follow. It may not be in force any more.
    pub(crate) policy: Option<Arc<ReplicationPolicy>>,
}

impl GroupKind {
    /// The edges that are to be the backup rather than others, the best first. All edges may have the same policies, so this one may
    /// be among them.
    pub(crate) fn targets(&self) -> &[String] {
        self.policy.as_ref().map_or(&[], |policy| &policy.targets)
    }

    /// Whether outputs leave before the backup has what produced them.
    pub(crate) fn runs_ahead(&self) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.runs_ahead)
    }

    /// Over how many such groups sessions with the same backup are spread.
    pub(crate) fn groups(&self) -> usize {
        self.policy.as_ref().map_or(1, |policy| policy.groups.max(1) as usize)
    }
}

/// An epoch that has ended and is not confirmed.
#[derive(Debug)]
struct Ended {
    number: u64,
    ended_ns: u64,
    sessions: Vec<SessionId>,
}

/// The epochs that a confirmation is for.
#[derive(Debug, Default)]
pub(crate) struct ConfirmedEpochs {
    /// The members that have something in them.
    pub(crate) members: BTreeSet<SessionId>,
    /// When each of them ended.
    pub(crate) ended_ns: Vec<u64>,
}

/// One group.
#[derive(Debug)]
pub(crate) struct Group {
    kind: GroupKind,
    /// The edges among which its target was chosen first, and the groups over which its sessions were spread: as its policy was then.
    placed: (Vec<String>, usize),
    pub(crate) target: Option<Target>,
    next: Option<NextBackup>,
    former: Option<FormerBackup>,
    /// Whether the target was told to claim it: it goes on with the cells then, and the former backup stays the backup.
    is_handed: bool,
    /// Members of which the target has a copy from the owner before, and was not told to go on with it.
    continued: BTreeSet<SessionId>,
    /// Whether the target is the backup that it had when this edge claimed it beside that.
    has_kept: bool,
    /// As the store had it when it was last known.
    record: Option<Claimed>,
    /// Of a slot's: the identity of the store that has the record, if it is known.
    store: Option<[u8; 16]>,
    /// The same of a record that was found to be missing. Until it is known why, nothing leaves.
    missing_in: Option<[u8; 16]>,
    asked: Option<AskedClaim<Option<Claimed>>>,
    /// Whether it is to be claimed although the record says what it should: the store may have lost that, or it is of a former life.
    renews: bool,
    /// Whether the coordinator is to be asked if the record is as it is known, and answers at all.
    verifies: bool,
    /// The highest count of a claim that is known.
    count: u64,
    /// Epochs with this number or a higher one have everything that left unconfirmed: once one of them is confirmed, the target may
    /// become the backup.
    switch: Option<u64>,
    /// Once an epoch with this number or a higher one is confirmed, the target knows of a claim that names it.
    announced_at: Option<u64>,
    confirmed: u64,
    /// When the newest epoch ended that was confirmed.
    pub(crate) confirmed_ns: u64,
    number: u64,
    ended_ns: u64,
    ended: VecDeque<Ended>,
    members: BTreeSet<SessionId>,
    /// Whether its members match several policies, of which one lets outputs wait.
    is_divided: bool,
    /// Sessions of other groups that are about to join it, each with the epoch whose confirmation it waits for.
    awaited: BTreeMap<SessionId, Option<u64>>,
    /// When to look at it, as the table of groups has it.
    listed_ns: Option<u64>,
    /// The member with whose move all were last handed over to the backup.
    pub(crate) handed_over: Option<SessionId>,
    /// Members of which something is in no epoch.
    due: BTreeSet<SessionId>,
    /// From when on it may run alone, if its claim names no backup.
    alone_at_ns: u64,
    /// Edges that are not chosen as the target, and until when.
    avoids: BTreeMap<String, u64>,
    /// Whether it was begun for sessions that an edge did not keep, while it keeps others.
    is_refuge: bool,
    empty_ns: Option<u64>,
    /// Whether it is a slot's: it takes no other session.
    pub(crate) is_slot: bool,
    /// Of a slot's, the version of the app whose cells it has.
    pub(crate) version: Option<AppVersion>,
    /// Members that are over, and end as soon as others are left.
    over: BTreeSet<SessionId>,
    /// Whether its record stays although it is empty, since its slot names it.
    pub(crate) stays: bool,
    /// The last epoch that another edge ended in this group, which it may have claimed.
    contested: Option<(ShardWireId, u64)>,
    /// As the members were told.
    told: EpochRelease,
    /// When it was looked last whether all members could go over to the target.
    looked_ns: u64,
    /// How far the copy of all members is.
    pub(crate) snapshot: Snapshot,
}

impl Group {
    fn new(kind: GroupKind, target: Option<Target>, now_ns: u64) -> Self {
        let switch = target.as_ref().map(|_| 0);
        Self {
            placed: (kind.targets().to_vec(), kind.groups()),
            alone_at_ns: now_ns.saturating_add(kind.pace.alone_after_ns),
            kind,
            target,
            next: None,
            former: None,
            is_handed: false,
            continued: BTreeSet::new(),
            has_kept: false,
            record: None,
            store: None,
            missing_in: None,
            asked: None,
            renews: false,
            verifies: false,
            count: 0,
            // No session has released anything yet.
            switch,
            announced_at: None,
            confirmed: 0,
            confirmed_ns: 0,
            number: 0,
            ended_ns: 0,
            ended: VecDeque::new(),
            members: BTreeSet::new(),
            is_divided: false,
            awaited: BTreeMap::new(),
            listed_ns: None,
            handed_over: None,
            due: BTreeSet::new(),
            avoids: BTreeMap::new(),
            is_refuge: false,
            empty_ns: Some(now_ns),
            is_slot: false,
            version: None,
            over: BTreeSet::new(),
            stays: false,
            contested: None,
            told: EpochRelease::Held,
            looked_ns: 0,
            snapshot: Snapshot::None,
        }
    }

    pub(crate) fn kind(&self) -> &GroupKind {
        &self.kind
    }

    /// All members follow another policy from now on. The next epoch ends when that says. Which backup the group has, and what may
    /// leave, does not change: a target `is_kept` if that policy would choose the same one.
    pub(crate) fn follow(&mut self, kind: GroupKind, is_kept: bool) {
        if is_kept {
            self.placed.0 = kind.targets().to_vec();
        }
        (self.kind, self.is_divided) = (kind, false);
    }

    /// Its members match several policies. If outputs wait by one of them, they wait for all until the group has one policy again.
    pub(crate) fn divide(&mut self, waits: bool) {
        self.is_divided = waits;
    }

    /// Whether it has the backup and the members that a former policy gave it, and its own would give it others.
    pub(crate) fn is_placed_as_before(&self) -> bool {
        self.placed.0 != self.kind.targets() || self.placed.1 != self.kind.groups()
    }

    /// It has what its policy would give it, but for members that are about to leave it.
    pub(crate) fn is_placed_now(&mut self) {
        self.placed = (self.kind.targets().to_vec(), self.kind.groups());
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.members.iter().copied()
    }

    pub(crate) fn member_count(&self) -> usize {
        self.members.len()
    }

    /// Sessions of other groups that are about to join it, each with the epoch whose confirmation it waits for.
    pub(crate) fn awaited(&self) -> Vec<(SessionId, Option<u64>)> {
        self.awaited.iter().map(|(session, number)| (*session, *number)).collect()
    }

    /// Its backup has this epoch, and all before.
    pub(crate) fn has_confirmed(&self, number: u64) -> bool {
        number <= self.confirmed
    }

    /// The number of the last epoch.
    pub(crate) fn last_epoch(&self) -> u64 {
        self.number
    }

    /// A member is a cell that is over.
    pub(crate) fn is_over_now(&mut self, cell: SessionId) {
        if self.members.contains(&cell) {
            self.over.insert(cell);
        }
    }

    /// Whether a cell is over and may end now: it is not the last one, and it is known whose the group is.
    pub(crate) fn may_end_one(&self) -> bool {
        !self.over.is_empty() && self.members.len() > 1 && !self.is_in_doubt()
    }

    /// The next one of these.
    pub(crate) fn next_over(&mut self) -> Option<SessionId> {
        if self.may_end_one() { self.over.pop_first() } else { None }
    }

    /// Whether everything that may have left is at the target.
    fn is_switched(&self) -> bool {
        self.switch.is_some_and(|switch| switch <= self.confirmed)
    }

    /// The backup that the next claim should name.
    fn backup(&self) -> Option<&str> {
        self.target.as_ref().filter(|_| self.is_switched()).map(|target| target.edge.as_str())
    }

    /// The target, if the present claim names it.
    pub(crate) fn claimed_backup(&self) -> Option<&str> {
        let named = self.record.as_ref()?.backup.as_deref()?;
        self.target.as_ref().map(|target| target.edge.as_str()).filter(|target| *target == named)
    }

    /// The generation of the claim that names the target, whether or not it is known to be written.
    pub(crate) fn announced(&self) -> Option<Generation> {
        let target = self.target.as_ref()?.edge.as_str();
        let asked = self.asked.as_ref().and_then(|asked| asked.to.as_ref());
        let mut claims = asked.into_iter().chain(&self.record);
        claims.find(|claim| claim.backup.as_deref() == Some(target)).map(|claim| claim.generation)
    }

    /// Which outputs of its sessions may leave.
    pub(crate) fn release(&self, now_ns: u64) -> EpochRelease {
        let target = self.target.as_ref().map(|target| target.edge.as_str());
        // A claim that may be written already names another backup, or lets one promote itself.
        let names_target = |to: &Claimed| to.backup.is_some() && to.backup.as_deref() == target;
        let in_doubt =
            self.asked.as_ref().and_then(|asked| asked.to.as_ref()).is_some_and(|to| !names_target(to));
        match &self.record {
            None => EpochRelease::Held,
            Some(_) if self.missing_in.is_some() => EpochRelease::Held,
            Some(record) if record.backup.is_some() => {
                if !names_target(record) || in_doubt {
                    EpochRelease::Held
                } else if self.may_run_ahead() {
                    EpochRelease::Ahead
                } else {
                    EpochRelease::Confirmed
                }
            }
            Some(_) if in_doubt => EpochRelease::Held,
            Some(_) if self.switch.is_some() => EpochRelease::Confirmed,
            // The claim for a backup that is gone may have been written; or the store has another record.
            Some(_) if self.asked.is_some() || self.renews => EpochRelease::Held,
            Some(_) if now_ns >= self.alone_at_ns => EpochRelease::Alone,
            Some(_) => EpochRelease::Held,
        }
    }

    /// Whether outputs wait for the backup.
    pub(crate) fn waits(&self) -> bool {
        self.is_slot || self.is_divided || !self.kind.runs_ahead()
    }

    /// Whether outputs need not wait for the backup that the claim names: it knows of that claim. One that does not goes on without a claim,
    /// and the ends refuse it then if they have received more.
    fn may_run_ahead(&self) -> bool {
        !self.waits() && self.is_announced()
    }

    /// Whether the target knows of a claim that names it.
    fn is_announced(&self) -> bool {
        self.announced_at.is_some_and(|number| number <= self.confirmed)
    }

    /// Whether its claim lets another edge go on.
    pub(crate) fn names_backup(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.backup.is_some())
    }

    /// Whether another edge may have claimed it.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.claimed_backup().is_none() && self.names_backup()
    }

    /// Whether the members must be told something else.
    pub(crate) fn retells(&self, now_ns: u64) -> bool {
        self.release(now_ns) != self.told
    }

    /// What the members must be told, if that has changed.
    pub(crate) fn retell(&mut self, now_ns: u64) -> Option<EpochRelease> {
        let release = self.release(now_ns);
        (core::mem::replace(&mut self.told, release) != release).then_some(release)
    }

    /// What members that come are told.
    pub(crate) fn told(&self) -> EpochRelease {
        self.told
    }

    /// Whether outputs wait for a backup that a claim names: it may take the sessions over.
    pub(crate) fn is_backed(&self) -> bool {
        let is_fed = matches!(self.told, EpochRelease::Confirmed | EpochRelease::Ahead);
        is_fed && self.claimed_backup().is_some()
    }

    /// Whether the members could go over to confirmations of the target, once each has a feed with all it needs.
    fn may_switch(&self) -> bool {
        self.target.is_some() && self.switch.is_none() && self.record.is_some() && self.asked.is_none()
    }

    /// Whether to look now if each has.
    pub(crate) fn looks(&mut self, now_ns: u64) -> bool {
        let is_time = self.may_switch() && now_ns >= self.looked_ns.saturating_add(LOOK_NS);
        if is_time {
            self.looked_ns = now_ns;
        }
        is_time
    }

    /// Whether there is a claim to ask for.
    fn wants_claim(&self, now_ns: u64) -> bool {
        match &self.asked {
            Some(asked) => asked.is_due(now_ns),
            None if self.waits_for_next() => false,
            None => {
                self.is_long_empty(now_ns)
                    || self.renews_now()
                    || self.verifies
                    || self.record.as_ref().is_none_or(|it| it.backup.as_deref() != self.backup())
            }
        }
    }

    /// Whether to claim it again now. First its backup is told of all copies with which it is to go on: of what it was not told under one
    /// claim, it drops its copy with the next. And it must know of the first claim of this edge: else it could not tell from the store's
    /// record that its copies are those of this edge.
    fn renews_now(&self) -> bool {
        self.renews && self.continued.is_empty() && (!self.has_kept || self.is_announced())
    }

    /// Whether the backup is asked now to confirm that it knows of the claim, since it was told of all copies with which it is to go on.
    pub(crate) fn asks_kept_backup(&self) -> bool {
        let is_due = self.announced_at.is_some_and(|number| self.number < number);
        self.has_kept && self.continued.is_empty() && is_due
    }

    fn is_long_empty(&self, now_ns: u64) -> bool {
        self.leaves_ns().is_some_and(|leaves_ns| now_ns >= leaves_ns)
    }

    /// When to remove its key, if no session joins it.
    fn leaves_ns(&self) -> Option<u64> {
        let wait_ns = if self.contested.is_some() { 0 } else { EMPTY_NS };
        self.empty_ns.filter(|_| !self.stays && self.awaited.is_empty()).map(|since_ns| since_ns + wait_ns)
    }

    /// Another edge ends an epoch of this group: the coordinator is asked soon whose it is. Until then that is not confirmed.
    pub(crate) fn contest(&mut self, wire: ShardWireId, number: u64) {
        self.contested = Some((wire, number));
    }

    /// The last epoch that another edge ended in it.
    pub(crate) fn contested(&self) -> Option<(ShardWireId, u64)> {
        self.contested
    }

    /// From now on outputs wait for the target. The next epoch must be confirmed before a claim can name it.
    pub(crate) fn switch(&mut self) {
        self.switch = Some(self.number + 1);
    }

    /// Whether a target can be chosen: it has none, and no claim names one that may still claim it.
    pub(crate) fn may_aim(&self) -> bool {
        self.target.is_none() && self.asked.is_none() && !self.names_backup()
    }

    /// A target, if it has none.
    pub(crate) fn aim(&mut self, target: Target) {
        if self.target.is_none() {
            self.target = Some(target);
            self.placed.0 = self.kind.targets().to_vec();
            (self.switch, self.announced_at) = (None, None);
        }
    }

    /// Whether an edge may be chosen as the target now.
    pub(crate) fn may_aim_at(&self, edge: &str, now_ns: u64) -> bool {
        self.avoids.get(edge).is_none_or(|until_ns| *until_ns <= now_ns)
    }

    /// This edge is not chosen as the target before this time.
    pub(crate) fn avoid(&mut self, edge: &str, until_ns: u64) {
        let avoided_ns = self.avoids.entry(edge.to_string()).or_default();
        *avoided_ns = until_ns.max(*avoided_ns);
    }

    /// Whether a target is fed that nothing depends on: no claim names it, and outputs do not wait for what it confirms.
    pub(crate) fn is_trying_target(&self) -> bool {
        self.target.is_some() && self.switch.is_none() && !self.may_name_backup()
    }

    /// Whether it was begun for sessions that an edge did not keep, and it is not certain that one keeps them now.
    fn is_tried(&self) -> bool {
        self.is_refuge && self.target.is_some() && self.claimed_backup().is_none()
    }

    /// Whether its record is not certain: another edge may have claimed it.
    pub(crate) fn may_be_another_edges(&self) -> bool {
        self.is_missing() || self.contested.is_some() || self.renews
    }

    /// Whether a claim names a backup, or one that may be written does.
    fn may_name_backup(&self) -> bool {
        let asked = self.asked.as_ref().and_then(|asked| asked.to.as_ref());
        self.names_backup() || asked.is_some_and(|to| to.backup.is_some())
    }

    /// From when on a session that leaves it without a backup may run alone. That does not begin again if the edge that it was fed to was no
    /// backup yet.
    pub(crate) fn leaver_is_alone_at(&self, now_ns: u64) -> u64 {
        let again_ns = now_ns.saturating_add(self.kind.pace.alone_after_ns);
        if self.is_trying_target() { self.alone_at_ns } else { again_ns }
    }

    /// Whether an edge that was avoided may be chosen again from now on. True once.
    pub(crate) fn avoids_no_more(&mut self, now_ns: u64) -> bool {
        let count = self.avoids.len();
        self.avoids.retain(|_, until_ns| now_ns < *until_ns);
        self.avoids.len() < count
    }

    /// The connection to the target broke, or it does not confirm.
    pub(crate) fn lose_target(&mut self, now_ns: u64) {
        if let Some(target) = self.target.take() {
            self.avoid(&target.edge, now_ns.saturating_add(AVOIDED_NS));
        }
        (self.switch, self.announced_at, self.next) = (None, None, None);
        (self.is_handed, self.has_kept) = (false, false);
        self.continued.clear();
        self.ended.clear();
        // A target that no claim names was no backup yet: the wait for one goes on, or is over.
        let was_backup =
            self.record.as_ref().is_none_or(|record| record.backup.is_some()) || self.asked.is_some();
        if was_backup {
            self.alone_at_ns = now_ns.saturating_add(self.kind.pace.alone_after_ns);
        }
    }

    /// This edge has claimed it with this backup, which has a copy of each of these as this edge has it: outputs wait for that one. It may
    /// have others, of members that were lost here: when it was told to go on with each of these, the group is claimed again, and with that
    /// claim it drops the others.
    pub(crate) fn keeps_backup(&mut self, target: Target, continued: BTreeSet<SessionId>) {
        self.target = Some(target);
        (self.switch, self.continued, self.has_kept) = (Some(0), continued, true);
        // It is told of the present claim now.
        (self.announced_at, self.renews) = (Some(self.number + 1), true);
    }

    /// Whether the target has a copy of this member, with which it is to be told to go on. True once.
    pub(crate) fn continues(&mut self, member: SessionId) -> bool {
        self.continued.remove(&member)
    }

    /// Whether its backup is the one that it had when this edge claimed it beside that; for inspection.
    pub(crate) fn has_kept_backup(&self) -> bool {
        self.has_kept
    }

    /// Whether the target is to be told so of this member.
    pub(crate) fn is_continued(&self, member: SessionId) -> bool {
        self.continued.contains(&member)
    }

    /// Something of a member is in no epoch.
    pub(crate) fn due(&mut self, session: SessionId) {
        self.due.insert(session);
    }

    /// When an epoch is to end; none if nothing happened in it, or all members are being copied.
    fn epoch_ends_ns(&self) -> Option<u64> {
        let is_open = !self.due.is_empty() && self.target.is_some() && !self.snapshot.is_under_way();
        is_open.then_some(self.ended_ns + self.kind.pace.every_ns)
    }

    /// An epoch ends: its number, and the members that may have something in it.
    pub(crate) fn end_epoch(&mut self, now_ns: u64) -> (u64, Vec<SessionId>) {
        self.number += 1;
        // Epochs that end late do not make the next ones come earlier together.
        let next_ns = self.ended_ns + self.kind.pace.every_ns;
        self.ended_ns = if now_ns < next_ns + self.kind.pace.every_ns { next_ns.min(now_ns) } else { now_ns };
        (self.number, core::mem::take(&mut self.due).into_iter().collect())
    }

    /// That epoch was sent to the target, with something of these.
    pub(crate) fn epoch_sent(&mut self, now_ns: u64, sessions: Vec<SessionId>) {
        self.ended.push_back(Ended { number: self.number, ended_ns: now_ns, sessions });
    }

    /// The target has an epoch, and all before; none if there was no such epoch.
    pub(crate) fn confirm(&mut self, wire: ShardWireId, number: u64) -> Option<ConfirmedEpochs> {
        let is_target = self.target.as_ref().is_some_and(|target| target.wire == wire);
        if !is_target || number > self.number {
            return None;
        }
        self.confirmed = self.confirmed.max(number);
        let mut confirmed = ConfirmedEpochs::default();
        while let Some(ended) = self.ended.pop_front_if(|ended| ended.number <= number) {
            confirmed.members.extend(ended.sessions);
            confirmed.ended_ns.push(ended.ended_ns);
            self.confirmed_ns = ended.ended_ns;
        }
        Some(confirmed)
    }

    /// Since when the target has not confirmed an epoch.
    pub(crate) fn unconfirmed_since_ns(&self) -> Option<u64> {
        self.ended.front().map(|ended| ended.ended_ns)
    }

    /// The claim to ask for now, if there is one: its tag, and what is claimed from and to. `tag` gives a tag, and a number that makes
    /// a generation unique.
    fn next_claim(
        &mut self,
        now_ns: u64,
        edge: &str,
        tag: impl FnOnce() -> (u64, u64),
    ) -> Option<(u64, Option<Claimed>, Option<Claimed>)> {
        if !self.wants_claim(now_ns) {
            return None;
        }
        let ((tag, opener), from) = (tag(), self.record.clone());
        if let Some(asked) = &mut self.asked {
            // The same one until it is known whether it was written.
            asked.ask_again(tag);
            return Some((tag, from, asked.to.clone()));
        }
        let backup = self.backup().map(ToString::to_string);
        if backup.is_some() {
            // It is announced now, behind all epochs so far.
            self.announced_at.get_or_insert(self.number + 1);
        }
        let renews = self.renews_now();
        let is_as_asked = !renews && from.as_ref().is_some_and(|from| from.backup == backup);
        let is_verified = self.verifies && is_as_asked;
        (self.renews, self.verifies) = (self.renews && !renews, false);
        let to = if self.is_long_empty(now_ns) {
            None
        } else if is_verified {
            // The same record: the backup may claim from it at any time, whether or not it hears of this.
            from.clone()
        } else {
            let known = from.as_ref().map_or(0, |from| from.generation.count);
            self.count = self.count.max(known).saturating_add(1);
            let count = self.count;
            Some(Claimed { generation: Generation { count, opener }, primary: edge.to_string(), backup })
        };
        self.asked = Some(AskedClaim::new(tag, to.clone()));
        Some((tag, from, to))
    }

    /// The claim with this tag is decided, for this group, in the store with this identity, if that is known. False if it was not asked for.
    pub(crate) fn won(&mut self, tag: u64, store: Option<[u8; 16]>) -> bool {
        let is_it = self.asked.as_ref().is_some_and(|asked| asked.has_tag(tag));
        if let Some(asked) = self.asked.take_if(|_| is_it) {
            // If it is not known: that which had the record before, or one in its place. No identity comes back.
            (self.record, self.store) = (asked.to, store.or(self.store));
            match store {
                Some(_) => self.missing_in = None,
                // Claimed again, so that it becomes known in which store.
                None => self.renews |= self.missing_in.is_some() && self.record.is_some(),
            }
        }
        is_it
    }

    /// The store has no record of this group any more: it has lost it, and an operator has accepted that, or another edge has claimed the
    /// group since, and its record was removed. The next claim shows which.
    pub(crate) fn forgotten(&mut self, tag: u64) {
        if self.asked.take_if(|asked| asked.has_tag(tag)).is_some() {
            self.missing_in = self.store.take().or(self.missing_in);
            self.record = None;
        }
    }

    /// Whether its record was missing, and it is not known yet why.
    pub(crate) fn is_missing(&self) -> bool {
        self.missing_in.is_some()
    }

    /// The claim with this tag is decided in the store with this identity. True if that one had the record that is missing: a store loses
    /// nothing that is not accepted, which gives it another identity. So the record was removed, and only that of an edge which claimed the
    /// group from this one is.
    pub(crate) fn was_removed(&self, tag: u64, store: Option<[u8; 16]>) -> bool {
        let is_it = self.asked.as_ref().is_some_and(|asked| asked.has_tag(tag));
        is_it && store.is_some() && store == self.missing_in
    }

    /// The store has this record, which is an older one of this edge than was known: the store was put back, and an operator has accepted
    /// that. True if it is so: then the group is claimed from that one. No other edge has claimed it since.
    pub(crate) fn put_back(&mut self, tag: u64, holder: &Claimed, edge: &str) -> bool {
        let is_older = |known: &Claimed| holder.generation.count < known.generation.count;
        let is_it = holder.primary == edge
            && self.record.as_ref().is_some_and(is_older)
            && self.asked.as_ref().is_some_and(|asked| asked.has_tag(tag));
        if is_it {
            self.claim_from(holder);
        }
        is_it
    }

    /// The store has the record with which the backup of a claim of this group has resigned, since it was started again. True if it is so:
    /// then the group is claimed from that one. No other edge has a copy.
    pub(crate) fn was_resigned(&mut self, tag: u64, holder: &Claimed) -> bool {
        let asked = self.asked.as_ref().filter(|asked| asked.has_tag(tag));
        let mut own = asked.and_then(|asked| asked.to.as_ref()).into_iter().chain(&self.record);
        let is_it = asked.is_some() && own.any(|claim| claim.resigned() == *holder);
        if is_it {
            self.claim_from(holder);
        }
        is_it
    }

    /// The store has this record, which another life or edge has not written for itself. Nothing leaves until a claim from it is decided.
    fn claim_from(&mut self, record: &Claimed) {
        (self.asked, self.record, self.renews) = (None, Some(record.clone()), true);
    }

    /// The store may have lost its record: it is claimed again.
    pub(crate) fn renew(&mut self) {
        self.renews = true;
    }

    /// It is about to be handed to its backup: the coordinator is asked whether the record is as it is known. A claim that is under way
    /// tells that as well.
    pub(crate) fn verify(&mut self) {
        self.verifies = self.asked.is_none();
    }

    /// Whether its backup may claim it, from the record that it was told: the coordinator has just answered.
    pub(crate) fn may_hand_over(&self) -> bool {
        self.is_backed() && self.asked.is_none() && !self.renews && !self.verifies
    }

    /// It is not known whether that claim was written.
    pub(crate) fn unanswered(&mut self, now_ns: u64, tag: u64) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.has_tag(tag)) {
            asked.unanswered(now_ns);
        }
    }

    /// Whether it has left the store: nothing is to be done for it any more.
    pub(crate) fn is_over(&self) -> bool {
        let is_empty = self.members.is_empty() && self.awaited.is_empty();
        self.record.is_none() && self.asked.is_none() && is_empty
    }

    /// When something of it is due, if no frame and no answer comes before. `confirm_ns` is how long a backup may take.
    fn due_ns(&self, confirm_ns: u64) -> Option<u64> {
        let epoch = self.epoch_ends_ns();
        let again = self.asked.as_ref().and_then(AskedClaim::again_ns);
        let may_run_alone = self.record.as_ref().is_some_and(|record| record.backup.is_none())
            && self.told == EpochRelease::Held
            && self.asked.is_none()
            && self.switch.is_none();
        let alone = may_run_alone.then_some(self.alone_at_ns);
        let empty = self.leaves_ns().filter(|_| self.asked.is_none());
        let late = self.unconfirmed_since_ns().map(|since_ns| since_ns + confirm_ns);
        let avoids = self.avoids.values().min().copied();
        let looks = self.may_switch() || self.next.is_some();
        let look = looks.then_some(self.looked_ns.saturating_add(LOOK_NS));
        [epoch, again, alone, empty, late, avoids, look].into_iter().flatten().min()
    }
}

impl Group {
    /// Whether its key is being removed.
    fn is_leaving(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.to.is_none())
    }
}

#[cfg(test)]
mod tests;
