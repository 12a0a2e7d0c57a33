//! Groups that divide, or change their backup, since policies say something else of some or all of their sessions: they are others, or other
//! figures of a session are measured. Each of these sessions
//! changes its group as when an operator moves its backup (`changes.rs`): a few at a time, and again later if that does not succeed.

use super::{
    Shard,
    state::{groups::Group, moves::Move, sessions::Session},
};
use crate::api::{Destination, Now};
use alloc::{collections::BTreeSet, string::String, vec::Vec};
use marram_wire::{frame::GroupId, id::SessionId};

const MS: u64 = 1_000_000;
/// Pause between two searches for sessions whose group is not what policies say; doubles while there are some.
const AGAIN_MIN_NS: u64 = 1_000 * MS;
const AGAIN_MAX_NS: u64 = 60_000 * MS;
/// Changes that wait for their turn, at most: moves that operators ask for come behind them.
const WAITING_MAX: usize = 64;

/// Members of groups that are looked at behind the events that came together, if policies have not changed: so many, and those of a last
/// group. The others come so much later.
const MEMBERS_MAX: usize = 1_024;
const REST_NS: u64 = 10 * MS;

/// When to search for sessions that are to change their groups.
#[derive(Debug, Default)]
pub(super) struct Regroup {
    /// In all groups; none if there are none.
    at_ns: Option<u64>,
    wait_ns: u64,
    /// In groups of sessions that match another policy although policies have not changed, and when.
    some: BTreeSet<GroupId>,
    some_at_ns: u64,
    some_wait_ns: u64,
    /// A second behind the last search in some groups.
    some_earliest_ns: u64,
    /// Groups that the last search did not come to, and when it goes on.
    rest: BTreeSet<GroupId>,
    rest_at_ns: u64,
}

/// Where to search now.
enum Searched {
    All,
    Some(BTreeSet<GroupId>),
}

impl Regroup {
    /// Policies have changed.
    pub(super) fn begin(&mut self, now_ns: u64) {
        (self.at_ns, self.wait_ns) = (Some(now_ns), AGAIN_MIN_NS / 2);
    }

    /// A session of this group matches another policy.
    fn look(&mut self, now_ns: u64, name: GroupId) {
        self.look_at([name].into(), now_ns.max(self.some_earliest_ns));
    }

    /// Sessions of these groups have not changed yet, and none has begun to.
    fn look_again(&mut self, now_ns: u64, names: BTreeSet<GroupId>) {
        if !names.is_empty() {
            self.some_wait_ns = (2 * self.some_wait_ns).clamp(AGAIN_MIN_NS, AGAIN_MAX_NS);
            self.look_at(names, now_ns.saturating_add(self.some_wait_ns));
        }
    }

    /// Searches in these, and in those that wait, at this time or when that is planned already.
    fn look_at(&mut self, names: BTreeSet<GroupId>, at_ns: u64) {
        self.some_at_ns = if self.some.is_empty() { at_ns } else { self.some_at_ns.min(at_ns) };
        self.some.extend(names);
    }

    pub(super) fn due_ns(&self) -> Option<u64> {
        let some_at_ns = (!self.some.is_empty()).then_some(self.some_at_ns);
        let rest_at_ns = (!self.rest.is_empty()).then_some(self.rest_at_ns);
        [self.at_ns, some_at_ns, rest_at_ns].into_iter().flatten().min()
    }

    /// Groups are not looked at more than about once a second, but when policies change.
    fn take_due(&mut self, now_ns: u64) -> Option<Searched> {
        if self.at_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
            self.some.clear();
            self.rest.clear();
            return Some(Searched::All);
        }
        if !self.rest.is_empty() && self.rest_at_ns <= now_ns {
            return Some(Searched::Some(core::mem::take(&mut self.rest)));
        }
        if self.some.is_empty() || self.some_at_ns > now_ns {
            return None;
        }
        self.some_earliest_ns = now_ns.saturating_add(AGAIN_MIN_NS);
        Some(Searched::Some(core::mem::take(&mut self.some)))
    }

    /// These were not looked at: there was too much to do.
    fn rest(&mut self, now_ns: u64, names: BTreeSet<GroupId>) {
        self.rest.extend(names);
        self.rest_at_ns = now_ns.saturating_add(REST_NS);
    }

    /// Some sessions have not changed yet.
    fn again(&mut self, now_ns: u64) {
        self.wait_ns = (2 * self.wait_ns).clamp(AGAIN_MIN_NS, AGAIN_MAX_NS);
        let next_ns = now_ns.saturating_add(self.wait_ns);
        self.at_ns = Some(self.at_ns.map_or(next_ns, |at_ns| at_ns.min(next_ns)));
    }
}

/// What was found in a group.
#[derive(Default)]
struct Regrouped {
    /// Whether a session is to leave it.
    is_left: bool,
    /// Whether one has begun to.
    has_begun: bool,
}

impl Shard {
    /// Lets sessions change their groups that are in others than policies say.
    pub(super) fn regroup_due(&mut self, now: Now) {
        match self.regroup.take_due(now.mono_ns) {
            _ if self.drain.has_begun() => {}
            None => {}
            Some(Searched::All) => self.regroup_all(now),
            Some(Searched::Some(names)) => self.regroup_some(now, names),
        }
    }

    fn regroup_all(&mut self, now: Now) {
        let mut all = Regrouped::default();
        for name in self.groups.names() {
            let found = self.regroup(now, name);
            all.is_left |= found.is_left;
            all.has_begun |= found.has_begun;
        }
        if all.has_begun {
            self.regroup.begin(now.mono_ns.saturating_add(AGAIN_MIN_NS));
        } else if all.is_left {
            self.regroup.again(now.mono_ns);
        }
    }

    fn regroup_some(&mut self, now: Now, mut names: BTreeSet<GroupId>) {
        let (mut members, mut left) = (0, BTreeSet::new());
        while members < MEMBERS_MAX
            && let Some(name) = names.pop_first()
        {
            members += self.groups.get(name).map_or(0, Group::member_count);
            let found = self.regroup(now, name);
            if found.has_begun {
                self.regroup.some_wait_ns = AGAIN_MIN_NS / 2;
                self.regroup.look(now.mono_ns, name);
            } else if found.is_left {
                left.insert(name);
            }
        }
        self.regroup.look_again(now.mono_ns, left);
        self.regroup.rest(now.mono_ns, names);
    }

    /// Looks for a group of this session soon, if the one that it is in is another than its policy says. Returns whether it is.
    pub(super) fn regroup_if_other(&mut self, now: Now, id: SessionId) -> bool {
        let Some(name) = self.groups.of_session(id) else { return false };
        let session = self.sessions.get(id);
        let is_other = self
            .groups
            .get(name)
            .is_some_and(|group| session.is_some_and(|it| self.follows_another(it, group)));
        if is_other {
            self.regroup.look(now.mono_ns, name);
        }
        is_other
    }

    /// The backup of a session has moved. Meanwhile the session may match another policy, or its policy name another edge than when that
    /// began. Where an operator wants the backup, it stays. What has failed is tried again later and later.
    pub(super) fn regroup_changed(&mut self, now: Now, id: SessionId, moving: &Move) {
        if moving.is_of_policy() {
            self.groups.of_session(id).into_iter().for_each(|name| self.regroup.look(now.mono_ns, name));
        }
    }

    /// Whether the policies in force say of a session that it is to be in a group of another kind.
    pub(super) fn follows_another(&self, session: &Session, group: &Group) -> bool {
        self.group_kind_of(session).is_some_and(|kind| kind != *group.kind())
    }

    /// A group follows the policy of all of its sessions, or those of another one begin to leave it.
    fn regroup(&mut self, now: Now, name: GroupId) -> Regrouped {
        self.follow_policies(name);
        let is_left = self.regroup_slot(now, name);
        let Some(group) = self.groups.get(name).filter(|it| !it.is_slot && !it.kind().pace.whole) else {
            return Regrouped { is_left, has_begun: false };
        };
        let leave = self.leave_group(name, group);
        // Without a target none leaves now.
        let is_other = |id| self.sessions.get(id).is_some_and(|it| self.follows_another(it, group));
        let waits = group.target.is_none() && group.members().any(is_other);
        let mut found = Regrouped { is_left: waits || !leave.is_empty(), has_begun: false };
        let is_able = group.is_backed();
        if leave.is_empty() && group.is_placed_as_before() {
            self.groups.get_mut(name).into_iter().for_each(Group::is_placed_now);
        }
        for (id, to) in leave.into_iter().filter(|_| is_able) {
            if self.moves.counts().1 >= WAITING_MAX {
                break;
            }
            if self.sessions.get(id).is_some_and(|it| it.moving.is_none() && it.owner.may_copy())
                && self.can_change_group(id).is_ok()
                && let Some(session) = self.sessions.get_mut(id)
            {
                session.moving = Some(Move::of_policy(to, now.mono_ns).into());
                self.moves.wait(id);
                found.has_begun = true;
            }
        }
        found
    }

    /// The members of a group that are to be in another one, each with its backup there.
    fn leave_group(&self, name: GroupId, group: &Group) -> Vec<(SessionId, Destination)> {
        let Some(target) = &group.target else { return Vec::new() };
        let mut excess = self.groups.excess(name);
        let mut leaves = |id: SessionId, session: &Session| {
            // One whose outputs do not wait keeps its backup.
            let kind = self.group_kind_of(session).filter(|kind| !kind.runs_ahead())?;
            let wanted: Option<&String> = self.best_target(id, &kind);
            let to = wanted.unwrap_or(&target.edge);
            let is_one_too_many = excess > 0;
            if kind == *group.kind() && *to == target.edge && !is_one_too_many {
                return None;
            }
            excess = excess.saturating_sub(1);
            Some((id, Destination::edge(to)))
        };
        group.members().filter_map(|id| leaves(id, self.sessions.get(id)?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(searched: Option<Searched>) -> Option<Vec<GroupId>> {
        match searched {
            Some(Searched::Some(names)) => Some(names.into_iter().collect()),
            Some(Searched::All) => panic!("all groups are searched"),
            None => None,
        }
    }

    #[test]
    fn groups_of_sessions_that_are_measured_are_searched_once_a_second() {
        let (a, b) = ([1; 16], [2; 16]);
        let mut regroup = Regroup::default();
        assert_eq!((regroup.due_ns(), some(regroup.take_due(5))), (None, None));
        regroup.look(100, b);
        regroup.look(100, a);
        assert_eq!((regroup.due_ns(), some(regroup.take_due(100))), (Some(100), Some(alloc::vec![a, b])));
        regroup.look(200, a);
        assert_eq!(regroup.due_ns(), Some(100 + AGAIN_MIN_NS));
        assert_eq!(some(regroup.take_due(99 + AGAIN_MIN_NS)), None);
        assert_eq!(some(regroup.take_due(100 + AGAIN_MIN_NS)), Some(alloc::vec![a]));
        // Those for which there was no time come soon.
        regroup.rest(AGAIN_MIN_NS, [b].into());
        assert_eq!(some(regroup.take_due(AGAIN_MIN_NS + REST_NS)), Some(alloc::vec![b]));
        regroup.rest(AGAIN_MIN_NS, BTreeSet::new());
        assert_eq!(regroup.due_ns(), None);
        // Those that cannot change come less and less often, and with the next that are to change.
        let mut now_ns = 10 * AGAIN_MIN_NS;
        for wait_ms in [1_000, 2_000, 4_000] {
            regroup.look_again(now_ns, [b].into());
            now_ns += wait_ms * MS;
            assert_eq!(
                (regroup.due_ns(), some(regroup.take_due(now_ns))),
                (Some(now_ns), Some(alloc::vec![b]))
            );
        }
        regroup.look_again(now_ns, [b].into());
        regroup.look(now_ns + 5, a);
        assert_eq!(some(regroup.take_due(now_ns + AGAIN_MIN_NS)), Some(alloc::vec![a, b]));
    }

    #[test]
    fn all_groups_are_searched_when_policies_change_and_less_often_while_some_cannot_change() {
        let mut regroup = Regroup::default();
        regroup.look(7, [1; 16]);
        regroup.begin(7);
        assert!(matches!(regroup.take_due(7), Some(Searched::All)));
        assert_eq!(regroup.due_ns(), None, "the others are among them");
        let mut now_ns = 7;
        for wait_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000] {
            regroup.again(now_ns);
            assert_eq!(regroup.due_ns(), Some(now_ns + wait_ms * MS));
            now_ns += wait_ms * MS;
            assert!(matches!(regroup.take_due(now_ns), Some(Searched::All)));
        }
        regroup.begin(now_ns + 1);
        regroup.again(now_ns);
        assert_eq!(regroup.due_ns(), Some(now_ns + 1), "the earlier time counts");
    }
}
