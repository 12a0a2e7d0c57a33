//! The group of a slot that changes its backup while its cells run (docs/protocol-epochs.md, "A slot that changes its backup").
//!
//! ```text
//! begin_next ──▶ all members are fed there, too ──▶ may_go_over ──▶ go_over ──▶ it has confirmed ──▶ the claim names it
//!     (the record names the present backup, which confirms)           (nothing leaves: the record names the former one)
//! ```

use super::{Group, LOOK_NS, MS, Target};
use crate::shard::state::sessions::At;
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use marram_wire::id::{Generation, SessionId};

/// The cells of a slot wait for so long until all of them stand still. Then they go on where they are: what a cell does, or pages that are on
/// their way, may take longer.
const STILL_NS: u64 = 5_000 * MS;

/// The edge that is to be the next backup, and is fed beside the present one.
#[derive(Debug)]
pub(crate) struct NextBackup {
    pub(crate) target: Target,
    /// The cell that has the move: it stands for all of them.
    pub(crate) leader: SessionId,
    /// Whether the coordinator was asked if it answers.
    has_verified: bool,
    /// Since when the cells stand still, to be handed over as soon as all do.
    still_since_ns: Option<u64>,
    stood: Option<StoodStill>,
}

/// Where all cells stood still.
#[derive(Debug)]
struct StoodStill {
    /// Where the log of each ended.
    at: BTreeMap<SessionId, u64>,
    /// The epoch that ended then.
    number: u64,
    /// The claim of which the backup knows once it has confirmed that epoch.
    claim: Option<Generation>,
}

/// The backup that the record names, while the members wait for the next one.
#[derive(Debug)]
pub(super) struct FormerBackup {
    edge: String,
    /// Where it was fed each cell, which is open until the record does not name it any more: before, it may have to go on.
    at: Vec<(SessionId, At)>,
    /// Whether another edge was told to claim the group with this backup: what that edge goes on with, its backup must have.
    may_be_kept: bool,
}

impl NextBackup {
    /// Whether the cells stand still.
    pub(crate) fn is_still(&self) -> bool {
        self.still_since_ns.is_some()
    }
}

impl Group {
    /// This edge is fed beside the backup from now on, until all members can go over to it.
    pub(crate) fn begin_next(&mut self, target: Target, leader: SessionId) {
        self.next =
            Some(NextBackup { target, leader, has_verified: false, still_since_ns: None, stood: None });
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
            self.former = Some(FormerBackup { edge: former.edge, at, may_be_kept: false });
        }
        self.ended.clear();
        self.placed.0 = self.kind.targets().to_vec();
        (self.switch, self.announced_at) = (Some(self.number + 1), None);
        (self.is_handed, self.has_kept) = (false, false);
    }

    /// Whether the members have gone over to a backup that no claim names yet, and the record names the former one.
    pub(crate) fn is_going_over(&self) -> bool {
        self.former.is_some() && self.target.is_some()
    }

    /// Whether to wait with a claim: the next backup has not confirmed what it would be named for, or claims the group itself; and it is not
    /// lost.
    pub(super) fn waits_for_next(&self) -> bool {
        self.is_going_over() && (self.is_handed || !self.is_switched())
    }

    /// The edge to which the members have gone over is to claim the group, with the backup that the record names. Returns the generation of
    /// the record, and that backup; none if the members have not gone over.
    pub(crate) fn hand(&mut self) -> Option<(Generation, String)> {
        let former = self.former.as_mut().filter(|_| self.target.is_some())?;
        former.may_be_kept = true;
        let generation = self.record.as_ref()?.generation;
        self.is_handed = true;
        Some((generation, former.edge.clone()))
    }

    /// Whether the edge to which the members have gone over was told to claim the group, and has not answered.
    pub(crate) fn is_handed(&self) -> bool {
        self.is_handed
    }

    /// Another edge has claimed the group. Where its former backup was fed, which that claim may name.
    pub(crate) fn take_former(&mut self) -> Vec<At> {
        let former = self.former.take();
        former.map(|former| former.at.into_iter().map(|(_, at)| at).collect()).unwrap_or_default()
    }

    /// What the former backup was fed on, once it is known that it cannot go on.
    pub(crate) fn former_left(&mut self) -> Option<Vec<At>> {
        let names = |edge: &str| self.record.as_ref().is_none_or(|it| it.backup.as_deref() == Some(edge));
        let may_go_on = self.former.as_ref().is_none_or(|former| names(&former.edge));
        if may_go_on { None } else { Some(self.take_former()) }
    }

    /// Where the former backup was fed cells that have ended since: it must not go on with these. Not if it may be kept: the edge that is to
    /// claim the group has these cells, and goes on with them if its claim is won.
    pub(crate) fn former_ended(&mut self) -> Vec<At> {
        let members = &self.members;
        let former = self.former.iter_mut().filter(|it| !it.may_be_kept);
        former
            .flat_map(|it| it.at.extract_if(.., |(cell, _)| !members.contains(cell)))
            .map(|(_, at)| at)
            .collect()
    }

    /// Its cells stand still, to go over to the next backup.
    pub(crate) fn stands_still(&mut self, now_ns: u64) {
        self.next.iter_mut().for_each(|next| _ = next.still_since_ns.get_or_insert(now_ns));
    }

    /// Whether its cells wait for longer than they may until all of them stand still.
    pub(crate) fn stands_too_long(&self, now_ns: u64) -> bool {
        let since_ns = self.next.as_ref().and_then(|next| next.still_since_ns);
        since_ns.is_some_and(|since_ns| now_ns >= since_ns.saturating_add(STILL_NS))
    }

    /// An epoch has ended behind all that they had done when they stood still here.
    pub(crate) fn stands_at(&mut self, at: BTreeMap<SessionId, u64>) {
        let (number, claim) = (self.number, self.generation());
        if let Some(next) = &mut self.next {
            next.stood = Some(StoodStill { at, number, claim });
        }
    }

    /// That epoch, if they stand there, and the record is the same: a later claim was announced behind that epoch, perhaps.
    pub(crate) fn stood_still(&self, at: &BTreeMap<SessionId, u64>) -> Option<u64> {
        let stood = self.next.as_ref()?.stood.as_ref()?;
        (stood.at == *at && stood.claim == self.generation()).then_some(stood.number)
    }

    fn generation(&self) -> Option<Generation> {
        self.record.as_ref().map(|record| record.generation)
    }

    /// They do not go over now. True if they stood still.
    pub(crate) fn goes_on(&mut self) -> bool {
        let Some(next) = &mut self.next else { return false };
        next.stood = None;
        next.still_since_ns.take().is_some()
    }

    /// Not all members could go over to the next backup: the coordinator is asked again when they can.
    pub(crate) fn goes_over_later(&mut self) {
        if let Some(next) = &mut self.next {
            next.has_verified = false;
        }
    }
}
