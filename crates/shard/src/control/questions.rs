//! Requests that all shards answer, each for its sessions.

use super::{Control, ControlAnswer, ControlOutput, ControlRequest, MetricSample, Question};
use crate::api::{
    CellRow, Counter, DrainCancelled, MoveSession, OwnerPhase, PlanMoves, SessionRow, Tag, Tagged, ToShard,
};
use alloc::{boxed::Box, vec::Vec};
use marram_wire::id::SessionId;

impl Control {
    /// Asks all shards what a request is about.
    pub(super) fn ask_shards(&mut self, tag: u64, request: ControlRequest, out: &mut Vec<ControlOutput>) {
        let message = match request {
            ControlRequest::Kill(session, ref reason) => {
                let kill = crate::api::Kill { tag, session, reason: reason.clone() };
                ToShard::Kill(kill)
            }
            ControlRequest::Record(session, redact) => {
                let record = crate::api::Record { tag, session, redact };
                ToShard::Record(record)
            }
            ControlRequest::PlanMoves(ref wish) => {
                let asked = PlanMoves { tag, wish: wish.clone() };
                ToShard::PlanMoves(asked)
            }
            ControlRequest::Move(session, ref wish) => {
                self.moves.begins(session);
                let asked = MoveSession { tag, session, wish: wish.clone() };
                ToShard::Move(asked)
            }
            ControlRequest::CancelMove(session) => ToShard::CancelMove(Tagged { tag, session }),
            _ => ToShard::List(Tag { tag }),
        };
        self.ask(tag, request, &message, out);
    }

    /// Asks all shards this.
    pub(super) fn ask(
        &mut self,
        tag: u64,
        request: ControlRequest,
        message: &ToShard,
        out: &mut Vec<ControlOutput>,
    ) {
        let waiting: Vec<u8> = self.up.iter().copied().collect();
        let none = waiting.is_empty();
        let question = Question {
            request,
            waiting,
            rows: Vec::new(),
            figures: Vec::new(),
            plans: Vec::new(),
            found: false,
            recorded: None,
            refused: None,
            differences: Vec::new(),
            drain: DrainCancelled { tag, stay: 0, moves: 0, handed_over: 0 },
        };
        self.questions.insert(tag, question);
        self.tell_all(message, out);
        if none {
            self.answer(tag, out);
        }
    }

    /// A shard has answered a question.
    pub(super) fn answered(&mut self, tag: u64, shard: u8, out: &mut Vec<ControlOutput>) {
        let Some(question) = self.questions.get_mut(&tag) else { return };
        question.waiting.retain(|waiting| *waiting != shard);
        if question.waiting.is_empty() {
            self.answer(tag, out);
        }
    }

    /// Answers with what has arrived.
    pub(super) fn answer(&mut self, tag: u64, out: &mut Vec<ControlOutput>) {
        let Some(mut question) = self.questions.remove(&tag) else { return };
        let answer = match question.request {
            ControlRequest::Sessions => ControlAnswer::Sessions(question.rows, question.figures),
            ControlRequest::Inspect(id, store) => match owned(question.rows, id) {
                Some(row) => {
                    let survives = self.survives(&row, store.as_ref());
                    ControlAnswer::Session(Box::new(row), survives)
                }
                None => ControlAnswer::NotFound,
            },
            ControlRequest::Kill(..) | ControlRequest::Move(..) | ControlRequest::CancelMove(_)
                if !question.found =>
            {
                ControlAnswer::NotFound
            }
            ControlRequest::Move(..) | ControlRequest::CancelMove(_) => {
                question.refused.map_or(ControlAnswer::Done, ControlAnswer::Refused)
            }
            ControlRequest::Policies | ControlRequest::ChangePolicies { .. } => {
                let rows = (&question.rows[..], &question.figures[..]);
                let report = self.policy_report(&question.request, rows, question.differences);
                ControlAnswer::Policies(Box::new(report))
            }
            ControlRequest::CancelDrain => ControlAnswer::DrainCancelled(question.drain),
            ControlRequest::PlanMoves(_) => ControlAnswer::MovePlans(question.plans),
            ControlRequest::Moves => {
                let moving = question.rows.into_iter().filter(|row| row.moving.is_some());
                ControlAnswer::Moves(moving.collect(), self.moves.iter().cloned().collect())
            }
            ControlRequest::Record(..) => match question.recorded {
                Some(Ok(file)) => ControlAnswer::Recorded(file),
                Some(Err(why)) => ControlAnswer::Refused(why),
                None => ControlAnswer::NotFound,
            },
            ControlRequest::Counters => {
                let own = [
                    Counter::gauge("shards", self.up.len()),
                    Counter::count("shard_deaths_total", self.restarts),
                    Counter::gauge("apps", self.apps.len()),
                    Counter::gauge("standbys_listed", self.placements.count()),
                    Counter::count("standbys_omitted_total", self.placements.dropped()),
                ];
                question.figures.extend(own.map(|counter| MetricSample { shard: None, counter }));
                ControlAnswer::Counters(question.figures)
            }
            _ => ControlAnswer::Done,
        };
        out.push(ControlOutput::Answer { tag, answer });
    }
}

/// The row of a session: the one of its owner, if it moves between two shards of this edge. That of its cell, if it is a client of one.
fn owned(rows: Vec<SessionRow>, id: SessionId) -> Option<SessionRow> {
    let has_client = |cell: &CellRow| cell.listed.iter().any(|client| client.session == id);
    let of_it = rows.into_iter().filter(|row| row.session == id || row.cell.as_ref().is_some_and(has_client));
    of_it.min_by_key(|row| row.phase == OwnerPhase::Following)
}
