//! Moves that the world's operator asks for, and their results.

use super::{Event, World, learning::address_of};
use crate::{
    plan::{Moment, PAST_BACKUP},
    position::ShardPosition,
    watch::Rare,
};
use marram_session::owner::OwnerPhase;
use marram_shard::{
    api::{Destination, KeeperKind, MoveOver, MoveWish, SessionRow},
    control::{ControlAnswer, ControlInput, ControlRequest},
};
use marram_wire::frame::Frame;

/// Tag of a question which sessions an edge has: the number of edges by which they are to move is added (0: to another shard, 3: past their backups), and 4 if the moves are cancelled, 8 if
/// they replace others, 16 if only the backups move.
pub(super) const MOVE_TAG: u64 = 1 << 36;
/// Tag of a request to move a session, and to cancel that.
const MOVED_TAG: u64 = 1 << 37;
const CANCEL_TAG: u64 = 1 << 38;
/// Tag of a question what the moves would be.
const PLAN_TAG: u64 = 1 << 39;
/// What a refusal says, in part. Any other one would be an error.
const EXPLAINED: [&str; 10] = [
    "already",
    "try again",
    "not connected",
    "being recorded",
    "asks for a standby",
    "cell = \"shared\"",
    "a shared cell",
    "copied together",
    "has no backup:",
    "do not wait for its backup",
];
/// The same for what the other edge says, or for its silence.
const EXPLAINED_THERE: [&str; 7] = [
    "did not answer in time",
    "connection to that edge broke",
    "the session ended",
    "shutting down",
    "owned here",
    "recovered here",
    "deployed differently",
];

impl World {
    /// Asks an edge for its sessions: each of them is then moved `by` edges further, or to another shard, or the moves are cancelled after a time.
    pub(super) fn ask_to_move(
        &mut self,
        edge: usize,
        by: u64,
        cancel_ns: Option<u64>,
        (replaces, backup): (bool, bool),
    ) {
        let how = 8 * u64::from(replaces) + 16 * u64::from(backup);
        self.ask_control(edge, 0, MOVE_TAG + by + how, ControlRequest::Sessions);
        if let Some(cancel_ns) = cancel_ns {
            self.ask_control(edge, cancel_ns, MOVE_TAG + by + 4, ControlRequest::Sessions);
        }
    }

    pub(super) fn ask_control(&mut self, edge: usize, after_ns: u64, tag: u64, request: ControlRequest) {
        let life = self.edges[edge].life;
        self.queue.after(after_ns, Event::Control(edge, life, ControlInput::Request { tag, request }));
    }

    /// The sessions of an edge that the operator asked about.
    pub(super) fn move_rows(&mut self, edge: usize, tag: u64, rows: &[SessionRow]) {
        let asked = tag - MOVE_TAG;
        let (by, cancels, replaces, backup) = (asked % 4, asked & 4 != 0, asked & 8 != 0, asked & 16 != 0);
        let to = (edge + usize::try_from(by).expect("a small number")) % self.edges.len();
        if !cancels {
            let wish =
                MoveWish { replace: replaces, backup, ..MoveWish::to(Destination::edge(&address_of(to))) };
            self.ask_control(edge, 0, PLAN_TAG, ControlRequest::PlanMoves(wish));
        }
        for row in rows.iter().filter(|row| row.phase != OwnerPhase::Following) {
            if cancels {
                self.ask_control(edge, 0, CANCEL_TAG, ControlRequest::CancelMove(row.session));
            } else {
                let to = if backup || by == PAST_BACKUP { self.another_backup(edge, to, row) } else { to };
                self.watch.move_to(to);
                let shards = u8::try_from(self.edges[edge].shards.len()).expect("a few shards");
                let shard = (by == 0).then_some((row.shard + 1) % shards);
                let to = Destination { edge: address_of(to), shard };
                let wish = MoveWish { to, replace: replaces, force: by == 1, backup };
                let request = ControlRequest::Move(row.session, wish);
                self.ask_control(edge, 0, MOVED_TAG, request);
            }
        }
    }

    /// The edge that is to be the backup of a session of `edge`: this one, or another one if it is that already.
    fn another_backup(&self, edge: usize, to: usize, row: &SessionRow) -> usize {
        let backup = row.keepers.iter().find(|keeper| keeper.kind == KeeperKind::Backup);
        let is_other = |to: &usize| *to != edge && backup.is_none_or(|backup| backup.name != address_of(*to));
        let edges = self.edges.len();
        (to..to + edges).map(|to| to % edges).find(is_other).unwrap_or(to)
    }

    /// The answer to a move, or to a cancelled one. Only protected sessions that run can be moved.
    pub(super) fn move_answered(&mut self, edge: usize, tag: u64, answer: &ControlAnswer) {
        match (tag, answer) {
            (MOVED_TAG, ControlAnswer::Done) => self.watch.count_if(Rare::MoveBegun, true),
            (MOVED_TAG, ControlAnswer::Refused(why)) => {
                if !EXPLAINED.iter().any(|part| why.contains(part)) {
                    self.violations.push(format!("E{edge} refuses to move a session: {why}"));
                }
                self.watch.count_if(Rare::MoveRefused, true);
            }
            (PLAN_TAG, ControlAnswer::MovePlans(plans)) => {
                for plan in plans {
                    self.watch.count_if(Rare::MovePlanned, plan.why.is_empty());
                    self.watch.count_if(Rare::PlanRefused, !plan.why.is_empty());
                    let explains = |part: &&str| plan.why.contains(part);
                    if !(plan.why.is_empty() || EXPLAINED.iter().chain(&EXPLAINED_THERE).any(explains)) {
                        let why = &plan.why;
                        self.violations.push(format!("E{edge} would not move a session: {why}"));
                    }
                }
            }
            (CANCEL_TAG, ControlAnswer::Done) => self.watch.count_if(Rare::MoveCancelled, true),
            _ => {}
        }
    }

    /// A session whose owner lives is recovered from what its ends keep only after a fault: a move alone hands over a cell that lives.
    pub(super) fn judge_recovery(&mut self, position: ShardPosition, frame: &Frame) {
        let Frame::Promise(promise) = frame else { return };
        // A handler that is stopped, or an end that lies, has the same consequences as a fault.
        let is_calm = !self.is_disturbed && self.plan.poison.is_none() && self.liar.is_none();
        let has_begun = self.watch.owner_of(promise.session).is_some();
        let goes_home = self.agents.iter().any(|agent| agent.homeward.contains_key(&promise.session));
        // An end that was not told of a log in time asks another edge as for a new session: over slow links without any fault.
        let is_told = !promise.fresh;
        if is_calm && has_begun && is_told && !goes_home && promise.live.is_none() {
            let what = format!("{position} recovers {} though nothing but moves happened", promise.session);
            self.violations.push(what);
        }
    }

    /// A move of a session of this edge is over.
    pub(super) fn move_over(&mut self, edge: usize, over: &MoveOver) {
        let is_moved = over.why.is_empty();
        if over.backup {
            self.watch.count_if(Rare::BackupMoved, is_moved);
            self.watch.count_if(Rare::SlotBackupMoved, is_moved && self.plan.has_hall());
            if is_moved && let Some(position) = self.watch.owner_of(over.session) {
                self.watch.see(Moment::BackupMoved, Some(position));
            }
            return self.watch.count_if(Rare::BackupNotMoved, !is_moved);
        }
        self.judge_rebalanced(edge, over);
        if let Some(shard) = over.to.shard.filter(|_| over.to.edge == address_of(edge)) {
            self.watch.count_if(Rare::MovedWithin, is_moved);
            self.watch.count_if(Rare::NotMovedWithin, !is_moved);
            let to = ShardPosition { edge, shard: usize::from(shard) };
            if is_moved && self.watch.is_assigned(over.session, to) == Some(false) {
                let what = format!(
                    "{to} tells the ends of {}, which moved there, that they may fetch it back",
                    over.session
                );
                self.violations.push(what);
            }
            // It may have left that shard already.
            if is_moved && self.watch.owner_of(over.session) == Some(to) {
                self.assigned.insert(over.session);
            }
        }
        self.watch.count_if(Rare::HallHandedOver, is_moved && self.plan.has_hall());
        self.watch.count_if(Rare::HallStayed, over.why.contains("its backup did not take it over"));
        self.watch.count_if(Rare::Moved, is_moved);
        self.watch.count_if(Rare::MoveFailed, !is_moved);
        let is_strict = self.watch.is_strict(over.session);
        self.watch.count_if(Rare::StrictMoved, is_moved && is_strict);
        let is_witness_away = over.why.contains("cannot ask the witness");
        self.watch.count_if(Rare::MoveUnwitnessed, is_witness_away);
        if over.why.contains("the witness has seen") {
            self.violations.push(format!("E{edge} still moves {}: {}", over.session, over.why));
        }
        let is_bare = self.causes.bare.contains(&over.session);
        self.watch.count_if(Rare::BareMoved, is_bare && is_moved);
        self.watch.count_if(Rare::BareNotMoved, is_bare && !is_moved);
    }
}
