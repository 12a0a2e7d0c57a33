//! Groups that divide, or change their backup, since policies say something else of some or all of their sessions. Each of these sessions
//! changes its group as when an operator moves its backup (`changes.rs`): a few at a time, and again later if that does not succeed.

use super::{
    Shard,
    state::{groups::Group, moves::Move, sessions::Session},
};
use crate::api::{Destination, Now};
use alloc::{string::String, vec::Vec};
use marram_wire::{frame::GroupId, id::SessionId};

const MS: u64 = 1_000_000;
/// Pause between two searches for sessions whose group is not what policies say; doubles while there are some.
const AGAIN_MIN_NS: u64 = 1_000 * MS;
const AGAIN_MAX_NS: u64 = 60_000 * MS;
/// Changes that wait for their turn, at most: moves that operators ask for come behind them.
const WAITING_MAX: usize = 64;

/// When to search for sessions that are to change their groups.
#[derive(Debug, Default)]
pub(super) struct Regroup {
    /// None if there are none.
    at_ns: Option<u64>,
    wait_ns: u64,
}

impl Regroup {
    /// Policies have changed.
    pub(super) fn begin(&mut self, now_ns: u64) {
        (self.at_ns, self.wait_ns) = (Some(now_ns), AGAIN_MIN_NS / 2);
    }

    pub(super) fn due_ns(&self) -> Option<u64> {
        self.at_ns
    }

    fn is_due(&mut self, now_ns: u64) -> bool {
        self.at_ns.take_if(|at_ns| *at_ns <= now_ns).is_some()
    }

    /// Some sessions have not changed yet.
    fn again(&mut self, now_ns: u64) {
        self.wait_ns = (2 * self.wait_ns).clamp(AGAIN_MIN_NS, AGAIN_MAX_NS);
        self.at_ns = Some(now_ns.saturating_add(self.wait_ns));
    }
}

impl Shard {
    /// Lets sessions change their groups that are in others than policies say.
    pub(super) fn regroup_due(&mut self, now: Now) {
        if !self.regroup.is_due(now.mono_ns) || self.drain.has_begun() {
            return;
        }
        let (mut some_left, mut has_begun) = (false, false);
        for name in self.groups.names() {
            self.follow_policies(name);
            some_left |= self.regroup_slot(now, name);
            let Some(group) = self.groups.get(name).filter(|it| !it.is_slot && !it.kind().pace.whole) else {
                continue;
            };
            let leave = self.leave_group(name, group);
            some_left |= !leave.is_empty();
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
                    session.moving = Some(Move::of_backup(to, now.mono_ns).into());
                    self.moves.wait(id);
                    has_begun = true;
                }
            }
        }
        if has_begun {
            self.regroup.begin(now.mono_ns.saturating_add(AGAIN_MIN_NS));
        } else if some_left {
            self.regroup.again(now.mono_ns);
        }
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
