//! Moves that the world's operator asks for, and their results.

use super::{Event, World};
use crate::watch::Rare;
use marram_session::owner::OwnerPhase;
use marram_shard::{
    api::{MoveOver, MoveWish, SessionRow},
    control::{ControlAnswer, ControlInput, ControlRequest},
};

/// Tag of a question which sessions an edge has: the edge by which they are to move is added, and 4 if the moves are cancelled, 8 if
/// they replace others.
pub(super) const MOVE_TAG: u64 = 1 << 36;
/// Tag of a request to move a session, and to cancel that.
const MOVED_TAG: u64 = 1 << 37;
const CANCEL_TAG: u64 = 1 << 38;
/// Tag of a question what the moves would be.
const PLAN_TAG: u64 = 1 << 39;
/// What a refusal says, in part. Any other one would be an error.
const EXPLAINED: [&str; 6] = [
    "already",
    "try again",
    "not connected",
    "being recorded",
    "keep.witness = \"strict\"",
    "asks for a standby",
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
    /// Asks an edge for its sessions: each of them is then moved `by` edges further, or the moves are cancelled after a time.
    pub(super) fn ask_to_move(&mut self, edge: usize, by: u64, cancel_ns: Option<u64>, replaces: bool) {
        self.ask_control(edge, 0, MOVE_TAG + by + 8 * u64::from(replaces), ControlRequest::Sessions);
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
        let (by, cancels, replaces) = (asked % 4, asked & 4 != 0, asked & 8 != 0);
        let to = (edge + usize::try_from(by).expect("a small number")) % self.edges.len();
        if !cancels {
            let wish = MoveWish { replace: replaces, ..MoveWish::to(&format!("edge-{to}")) };
            self.ask_control(edge, 0, PLAN_TAG, ControlRequest::PlanMoves(wish));
        }
        for row in rows.iter().filter(|row| row.phase != OwnerPhase::Following) {
            if cancels {
                self.ask_control(edge, 0, CANCEL_TAG, ControlRequest::CancelMove(row.session));
            } else {
                self.watch.move_to(to);
                let wish =
                    MoveWish { replace: replaces, force: by == 1, ..MoveWish::to(&format!("edge-{to}")) };
                let request = ControlRequest::Move(row.session, wish);
                self.ask_control(edge, 0, MOVED_TAG, request);
            }
        }
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

    /// A move is over.
    pub(super) fn move_over(&mut self, over: &MoveOver) {
        let is_moved = over.why.is_empty();
        self.watch.count_if(Rare::Moved, is_moved);
        self.watch.count_if(Rare::MoveFailed, !is_moved);
        let is_bare = self.causes.bare.contains(&over.session);
        self.watch.count_if(Rare::BareMoved, is_bare && is_moved);
        self.watch.count_if(Rare::BareNotMoved, is_bare && !is_moved);
    }
}
