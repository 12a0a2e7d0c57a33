//! The replicas of one session other than its ends: which keeper has one, which standby control knows of, and when to
//! search again for a keeper that is missing.

use super::{sessions::At, wires::Role};
use crate::{
    api::{Destination, KeeperKind, KeeperProgress, KeeperRow, Protect},
    coordinator::contents::Stands,
};
use alloc::{string::String, vec::Vec};
use marram_session::{
    holds,
    invariant::BrokenInvariant,
    owner::{Feed, KeeperId, Owner, OwnerPhase, ReplicaProgress},
};
use marram_wire::{frame::Code, id::Generation, limits::REPLAYED_EVERY};

const MS: u64 = 1_000_000;
/// First wait before a session is placed again with a keeper that dropped it; doubles.
const AGAIN_MIN_NS: u64 = 100 * MS;
const AGAIN_MAX_NS: u64 = 30_000 * MS;

/// One replica of a session at a keeper.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    /// The keeper, as the session's owner names it.
    pub(crate) id: KeeperId,
    pub(crate) at: At,
    pub(crate) role: Role,
    /// What it does with what it is fed.
    pub(crate) feed: Feed,
    /// Whether it is fed beside the session's backup, and is to be the next one.
    pub(crate) is_next: bool,
    /// While the session moves there: what the edge did with what it is fed as the session's standby, which it still is. None if it was none.
    pub(crate) stood_by: Option<Feed>,
}

impl Placed {
    /// Whether an edge stands by here, other than one that the session's move needs and that was no standby before.
    fn stands_by(&self) -> bool {
        let is_for_move = self.feed == Feed::Moved && self.stood_by.is_none();
        !self.role.recorder && !is_for_move && !self.is_next
    }

    /// Whether the session's outputs wait for it now.
    fn is_backup(&self) -> bool {
        self.feed.is_backup() && !self.is_next
    }
}

/// A session's need for keepers.
#[derive(Debug, Default)]
pub(crate) struct Placing {
    /// At most one at a recorder, one at a standby, and one at the edge to which the session moves, or which is to be its next backup.
    placed: Vec<Placed>,
    /// When to search again for missing keepers.
    pub(super) again_ns: Option<u64>,
    /// How long the last wait was; 0 once a keeper has stored a checkpoint.
    backoff_ns: u64,
    /// Whether an edge has refused to be its backup, so that another one was asked instead.
    asked_another: bool,
    /// Whether keepers were searched for since the last generation.
    pub(super) looked: bool,
    /// Whether the copy for the next backup waits for bandwidth, of a cell whose slot changes its backup with another one.
    is_limited: bool,
    /// The standby that was reported to control, and its generation.
    listed: Option<(KeeperId, Generation)>,
}

/// Whether a keeper has everything for a takeover, except what is in flight.
fn is_ready(owner: &Owner, keeper: KeeperId) -> bool {
    owner.keepers().any(|replica| replica.keeper == keeper && replica.ready)
}

impl Placing {
    /// A keeper has the session now. If that is only for a move, others that are missing are still searched for.
    pub(crate) fn add(&mut self, placed: Placed) {
        if placed.stands_by() || placed.role.recorder {
            self.again_ns = None;
        }
        self.placed.push(placed);
    }

    /// A keeper has it no more.
    pub(crate) fn remove(&mut self, keeper: KeeperId) {
        self.placed.retain(|placed| placed.id != keeper);
    }

    /// The replica at this keeper.
    pub(crate) fn replica(&self, keeper: KeeperId) -> Option<&Placed> {
        self.placed.iter().find(|placed| placed.id == keeper)
    }

    /// The channel of a keeper.
    pub(crate) fn at(&self, keeper: KeeperId) -> Option<At> {
        self.placed.iter().find(|placed| placed.id == keeper).map(|placed| placed.at)
    }

    /// Whether a recorder keeps it.
    pub(crate) fn has_recorder(&self) -> bool {
        self.placed.iter().any(|placed| placed.role.recorder)
    }

    /// Whether an edge stands by for it, perhaps one to which it moves since.
    pub(crate) fn has_standby(&self) -> bool {
        self.placed.iter().any(Placed::stands_by)
    }

    /// The backup of a session whose outputs wait for one.
    pub(crate) fn backup(&self) -> Option<&Placed> {
        self.placed.iter().find(|placed| placed.is_backup())
    }

    /// The backup, if it is at this edge.
    pub(crate) fn backup_at(&self, edge: &str) -> Option<&Placed> {
        self.backup().filter(|placed| placed.role.name == edge)
    }

    /// The replica that is to be its next backup.
    pub(crate) fn next(&self) -> Option<&Placed> {
        self.placed.iter().find(|placed| placed.is_next)
    }

    /// The copy for the next backup waits for bandwidth from now on. False if it does already.
    pub(crate) fn limit_begins(&mut self) -> bool {
        !core::mem::replace(&mut self.is_limited, true)
    }

    /// It does not wait. Returns whether it did.
    pub(crate) fn limit_ends(&mut self) -> bool {
        core::mem::take(&mut self.is_limited)
    }

    /// Whether it waits.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Whether that has everything.
    pub(crate) fn has_ready_backup(&self, owner: &Owner) -> bool {
        self.backup().is_some_and(|placed| is_ready(owner, placed.id))
    }

    /// The edge that stands by for it, ready or not.
    pub(crate) fn standby_edge(&self) -> Option<&str> {
        self.placed.iter().find(|placed| placed.stands_by()).map(|placed| placed.role.name.as_str())
    }

    /// The replica at this edge, if it has one.
    pub(crate) fn at_edge(&self, name: &str) -> Option<&Placed> {
        self.placed.iter().find(|placed| !placed.role.recorder && placed.role.name == name)
    }

    /// The replica at this edge or shard, if it has one.
    pub(crate) fn at_destination(&self, to: &Destination) -> Option<&Placed> {
        let is_there = |placed: &&Placed| {
            let Role { name, recorder, shard, .. } = &placed.role;
            !recorder && *name == to.edge && to.shard.is_none_or(|named| named == *shard)
        };
        self.placed.iter().find(is_there)
    }

    /// The session moves to the edge of this replica, its standby, which stays that. False if the replica is warm and has no checkpoint, nor is
    /// sent one; if it is none of a standby; or if it is gone.
    pub(crate) fn moves_to(&mut self, keeper: KeeperId, owner: &Owner) -> bool {
        let is_able = |placed: &Placed| match placed.feed {
            Feed::Replayed => true,
            Feed::Kept => !placed.role.recorder && owner.is_fed(keeper),
            Feed::Moved | Feed::Backup | Feed::WarmBackup => false,
        };
        let placed = self.placed.iter_mut().find(|placed| placed.id == keeper);
        let Some(placed) = placed.filter(|placed| is_able(placed)) else { return false };
        placed.stood_by = Some(core::mem::replace(&mut placed.feed, Feed::Moved));
        true
    }

    /// The session does not move to this replica any more. False if that is of no use then: it is at no standby.
    pub(crate) fn moves_no_more_to(&mut self, keeper: KeeperId) -> bool {
        let placed = self.placed.iter_mut().find(|placed| placed.id == keeper);
        let stood_by = placed.and_then(|placed| Some((placed.stood_by.take()?, placed)));
        stood_by.is_some_and(|(feed, placed)| {
            placed.feed = feed;
            true
        })
    }

    /// Whether the session moves to this replica, which is warm: it has stood by, and holds what it is fed.
    pub(crate) fn moves_to_warm(&self, keeper: KeeperId) -> bool {
        self.replica(keeper).is_some_and(|placed| placed.stood_by == Some(Feed::Kept))
    }

    /// Whether this edge has the session's state already.
    pub(crate) fn is_kept_at(&self, to: &Destination, owner: &Owner) -> bool {
        self.at_destination(to).is_some_and(|placed| placed.feed.is_replayed() || is_ready(owner, placed.id))
    }

    /// This replica is the backup from now on. Returns the former one, which is to be removed; none if this was it.
    pub(crate) fn change_backup(&mut self, keeper: KeeperId) -> Option<KeeperId> {
        let former = self.backup().map(|placed| placed.id).filter(|former| *former != keeper);
        for placed in self.placed.iter_mut().filter(|placed| placed.id == keeper) {
            placed.is_next = false;
        }
        former
    }

    /// The keepers that the app's setting does not ask for: standbys that it does without, or of the other kind.
    pub(crate) fn unwanted(&self, protect: Protect) -> Vec<KeeperId> {
        let wanted = |placed: &Placed| match protect {
            Protect::Warm => placed.feed == Feed::Kept,
            Protect::Hot => placed.feed == Feed::Replayed,
            Protect::Epoch => placed.feed.is_backup(),
            _ => false,
        };
        // One to which the session moves is needed for that.
        let may_go = |placed: &&Placed| placed.stands_by() && placed.feed != Feed::Moved;
        let unwanted = self.placed.iter().filter(may_go).filter(|placed| !wanted(placed));
        unwanted.map(|placed| placed.id).collect()
    }

    /// Whether a search for keepers has to wait.
    pub(crate) fn rests(&self, now_ns: u64) -> bool {
        self.again_ns.is_some_and(|again_ns| again_ns > now_ns)
    }

    /// When that ends.
    pub(crate) fn rests_until_ns(&self) -> Option<u64> {
        self.again_ns
    }

    /// Its group has another target: the wait was for the former one.
    pub(crate) fn rests_no_more(&mut self) {
        self.again_ns = None;
    }

    /// An edge refuses to be its backup. Whether another one is asked now: once, since there may be many that refuse.
    pub(crate) fn may_ask_another(&mut self) -> bool {
        !core::mem::replace(&mut self.asked_another, true)
    }

    /// Whether the wait for another search has just ended.
    pub(crate) fn is_due(&mut self, now_ns: u64) -> bool {
        self.again_ns.take_if(|again_ns| *again_ns <= now_ns).is_some()
    }

    /// Whether no keeper was searched for in this generation; from now on one was.
    pub(crate) fn begin_search(&mut self) -> bool {
        !core::mem::replace(&mut self.looked, true)
    }

    /// A keeper dropped the session: it is asked again after a wait that grows. Returns the keeper's name, unless this
    /// is not known.
    pub(crate) fn lose(&mut self, now_ns: u64, keeper: KeeperId, code: Code) -> Option<String> {
        let at = self.placed.iter().position(|placed| placed.id == keeper)?;
        let placed = self.placed.swap_remove(at);
        if !placed.stands_by() && !placed.role.recorder {
            return Some(placed.role.name);
        }
        // If it only conflicted with a new generation, it is asked again at once, but not in an endless loop.
        let longer_ns = (self.backoff_ns * 2).clamp(AGAIN_MIN_NS, AGAIN_MAX_NS);
        let wait_ns = if code == Code::Superseded { self.backoff_ns } else { longer_ns };
        self.backoff_ns = longer_ns;
        self.again_ns = Some(now_ns + wait_ns);
        Some(placed.role.name)
    }

    /// A keeper has stored a checkpoint: the next one that drops the session is asked again soon.
    pub(crate) fn stored(&mut self) {
        (self.backoff_ns, self.asked_another) = (0, false);
    }

    /// The edge and shard that could take over now.
    pub(crate) fn standby(&self, owner: &Owner) -> Option<(String, u8)> {
        let standby = self.ready_standby(owner)?;
        Some((standby.role.name.clone(), standby.role.shard))
    }

    fn ready_standby(&self, owner: &Owner) -> Option<&Placed> {
        self.placed.iter().find(|placed| placed.stands_by() && is_ready(owner, placed.id))
    }

    /// What control has to know of the standby, if that has changed; the inner option is none if none could take over.
    pub(crate) fn relist(&mut self, owner: &Owner) -> Option<Option<Stands>> {
        // Most sessions have no keepers.
        if self.placed.is_empty() && self.listed.is_none() {
            return None;
        }
        let standby = self.ready_standby(owner);
        let now = match standby {
            Some(placed) if owner.phase() == OwnerPhase::Running => Some((placed.id, owner.generation())),
            // A generation that may still fail is not reported.
            Some(_) => self.listed,
            None => None,
        };
        let stands = standby.zip(now).map(|(placed, (_, generation))| Stands {
            generation,
            standby: placed.role.name.clone(),
            hot: placed.stood_by.unwrap_or(placed.feed).is_replayed(),
        });
        (core::mem::replace(&mut self.listed, now) != now).then_some(stands)
    }

    /// Whether control knows of a standby.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed.is_some()
    }

    /// The replicas, for listings.
    pub(crate) fn rows(&self, owner: &Owner) -> Vec<KeeperRow> {
        let row = |placed: &Placed| {
            let kind = match placed.feed {
                _ if placed.role.recorder => KeeperKind::Recorder,
                _ if placed.is_next => KeeperKind::Moving,
                Feed::Kept => KeeperKind::Warm,
                Feed::Replayed => KeeperKind::Hot,
                Feed::Moved => KeeperKind::Moving,
                Feed::Backup | Feed::WarmBackup => KeeperKind::Backup,
            };
            let replica = owner.keepers().find(|replica| replica.keeper == placed.id);
            let progress = replica.map(|replica| KeeperProgress {
                ready: replica.ready,
                behind: replica.behind,
                unreplayed: replica.unreplayed.filter(|entries| *entries >= REPLAYED_EVERY),
            });
            KeeperRow { name: placed.role.name.clone(), kind, progress }
        };
        self.placed.iter().map(row).collect()
    }

    /// Checks I36 and I39 of docs/protocol.md, as far as they relate a session's replicas to its owner. Returns the
    /// replicas, to be related to the keepers' channels.
    pub(crate) fn invariants(&self, owner: &Owner) -> Result<&[Placed], BrokenInvariant> {
        for placed in &self.placed {
            let is_known = |replica: ReplicaProgress| replica.keeper == placed.id;
            holds!("I36", owner.keepers().any(is_known));
        }
        holds!("I36", owner.keepers().count() == self.placed.len());
        // One recorder and one standby for each session, and one edge to which it moves, or that is its next backup (docs/protocol-keepers.md, chapter 15).
        let count = |is: fn(&Placed) -> bool| self.placed.iter().filter(|placed| is(placed)).count();
        let (recorders, standbys) = (count(|placed| placed.role.recorder), count(Placed::stands_by));
        holds!("I39", recorders <= 1 && standbys <= 1 && self.placed.len() <= recorders + standbys + 1);
        Ok(&self.placed)
    }
}
