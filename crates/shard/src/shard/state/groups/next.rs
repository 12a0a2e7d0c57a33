//! The group of a slot that changes its backup while its cells run (docs/protocol-epochs.md, "A slot that changes its backup").
//!
//! ```text
//! begin_next ──▶ all members are fed there, too ──▶ may_go_over ──▶ go_over ──▶ it has confirmed ──▶ the claim names it
//!     (the record names the present backup, which confirms)           (nothing leaves: the record names the former one)
//! ```

use super::{Group, LOOK_NS, Target};
use crate::shard::state::sessions::At;
use alloc::{string::String, vec::Vec};
use marram_wire::id::SessionId;

/// The edge that is to be the next backup, and is fed beside the present one.
#[derive(Debug)]
pub(crate) struct NextBackup {
    pub(crate) target: Target,
    /// The cell that has the move: it stands for all of them.
    pub(crate) leader: SessionId,
    /// Whether the coordinator was asked if it answers.
    has_verified: bool,
}

/// The backup that the record names, while the members wait for the next one.
#[derive(Debug)]
pub(super) struct FormerBackup {
    edge: String,
    /// Where it was fed each cell, which is open until the record does not name it any more: before, it may have to go on.
    at: Vec<(SessionId, At)>,
}

impl Group {
    /// This edge is fed beside the backup from now on, until all members can go over to it.
    pub(crate) fn begin_next(&mut self, target: Target, leader: SessionId) {
        self.next = Some(NextBackup { target, leader, has_verified: false });
    }

    /// The edge that is fed beside the backup.
    pub(crate) fn next(&self) -> Option<&NextBackup> {
        self.next.as_ref()
    }

    /// The backup stays. Returns the edge that was to be the next one.
    pub(crate) fn end_next(&mut self) -> Option<NextBackup> {
        self.next.take()
    }

    /// Whether to look now if all members could go over to the next backup.
    pub(crate) fn looks_at_next(&mut self, now_ns: u64) -> bool {
        let is_time = self.next.is_some() && now_ns >= self.looked_ns.saturating_add(LOOK_NS);
        if is_time {
            self.looked_ns = now_ns;
        }
        is_time
    }

    /// All members could go over to the next backup: whether they may. First the coordinator is asked if it answers, since nothing leaves from
    /// then on until it has answered the claim.
    pub(crate) fn may_go_over(&mut self) -> bool {
        let Some(next) = &mut self.next else { return false };
        if !core::mem::replace(&mut next.has_verified, true) {
            self.verify();
            return false;
        }
        self.may_hand_over()
    }

    /// The members go over to the next backup. The former one, which was fed `at` these, may claim the group until the record names the next
    /// one: it has all that has left, and nothing leaves until that is decided **\[M\]**.
    pub(crate) fn go_over(&mut self, at: Vec<(SessionId, At)>) {
        let Some(next) = self.next.take() else { return };
        if let Some(former) = self.target.replace(next.target) {
            self.former = Some(FormerBackup { edge: former.edge, at });
        }
        self.ended.clear();
        self.placed.0 = self.kind.targets().to_vec();
        (self.switch, self.announced_at) = (Some(self.number + 1), None);
    }

    /// Whether the members have gone over to a backup that no claim names yet, and the record names the former one.
    pub(crate) fn is_going_over(&self) -> bool {
        self.former.is_some() && self.target.is_some()
    }

    /// Whether to wait with a claim: the next backup has not confirmed what it would be named for, and is not lost.
    pub(super) fn waits_for_next(&self) -> bool {
        self.is_going_over() && !self.is_switched()
    }

    /// What the former backup was fed on, once it is known that it cannot go on.
    pub(crate) fn former_left(&mut self) -> Option<Vec<At>> {
        let names = |edge: &str| self.record.as_ref().is_none_or(|it| it.backup.as_deref() == Some(edge));
        let may_go_on = self.former.as_ref().is_none_or(|former| names(&former.edge));
        if may_go_on {
            None
        } else {
            self.former.take().map(|former| former.at.into_iter().map(|(_, at)| at).collect())
        }
    }

    /// Where the former backup was fed cells that have ended since: it must not go on with these.
    pub(crate) fn former_ended(&mut self) -> Vec<At> {
        let members = &self.members;
        let former = self.former.iter_mut();
        former
            .flat_map(|it| it.at.extract_if(.., |(cell, _)| !members.contains(cell)))
            .map(|(_, at)| at)
            .collect()
    }

    /// Not all members could go over to the next backup: the coordinator is asked again when they can.
    pub(crate) fn goes_over_later(&mut self) {
        if let Some(next) = &mut self.next {
            next.has_verified = false;
        }
    }
}
