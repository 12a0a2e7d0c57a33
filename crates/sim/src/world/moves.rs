//! Moves that the world's operator asks for, and their results.

use super::{Event, World};
use crate::{position::ShardPosition, watch::Rare};
use marram_session::owner::OwnerPhase;
use marram_shard::{
    api::{MoveOver, SessionRow},
    control::{ControlAnswer, ControlInput, ControlRequest},
};
use marram_wire::frame::Frame;

/// Tag of a question which sessions an edge has: the edge by which they are to move is added, and 4 if the moves are cancelled, 8 if
/// they replace others.
pub(super) const MOVE_TAG: u64 = 1 << 36;
/// Tag of a request to move a session, and to cancel that.
const MOVED_TAG: u64 = 1 << 37;
const CANCEL_TAG: u64 = 1 << 38;

impl World {
    /// Asks an edge for its sessions: each of them is then moved `by` edges further, or the moves are cancelled after a time.
    pub(super) fn ask_to_move(&mut self, edge: usize, by: u64, cancel_ns: Option<u64>, replaces: bool) {
        self.ask_control(edge, 0, MOVE_TAG + by + 8 * u64::from(replaces), ControlRequest::Sessions);
        if let Some(cancel_ns) = cancel_ns {
            self.ask_control(edge, cancel_ns, MOVE_TAG + by + 4, ControlRequest::Sessions);
        }
    }

    fn ask_control(&mut self, edge: usize, after_ns: u64, tag: u64, request: ControlRequest) {
        let life = self.edges[edge].life;
        self.queue.after(after_ns, Event::Control(edge, life, ControlInput::Request { tag, request }));
    }

    /// The sessions of an edge that the operator asked about.
    pub(super) fn move_rows(&mut self, edge: usize, tag: u64, rows: &[SessionRow]) {
        let asked = tag - MOVE_TAG;
        let (by, cancels, replaces) = (asked % 4, asked & 4 != 0, asked & 8 != 0);
        let to = (edge + usize::try_from(by).expect("a small number")) % self.edges.len();
        for row in rows.iter().filter(|row| row.phase != OwnerPhase::Following) {
            if cancels {
                self.ask_control(edge, 0, CANCEL_TAG, ControlRequest::CancelMove(row.session));
            } else {
                self.watch.move_to(to);
                let request = ControlRequest::Move(row.session, format!("edge-{to}"), replaces);
                self.ask_control(edge, 0, MOVED_TAG, request);
            }
        }
    }

    /// The answer to a move, or to a cancelled one. Only protected sessions that run can be moved.
    pub(super) fn move_answered(&mut self, edge: usize, tag: u64, answer: &ControlAnswer) {
        match (tag, answer) {
            (MOVED_TAG, ControlAnswer::Done) => self.watch.count_if(Rare::MoveBegun, true),
            (MOVED_TAG, ControlAnswer::Refused(why)) => {
                let explained =
                    ["already", "try again", "not connected", "being recorded", "keep.witness = \"strict\""];
                if !explained.iter().any(|part| why.contains(part)) {
                    self.violations.push(format!("E{edge} refuses to move a session: {why}"));
                }
                self.watch.count_if(Rare::MoveRefused, true);
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
        if is_calm && has_begun && !goes_home && promise.live.is_none() {
            let what = format!("{position} recovers {} though nothing but moves happened", promise.session);
            self.violations.push(what);
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
