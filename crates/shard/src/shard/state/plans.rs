//! Questions of operators which sessions could move to an edge: what is known, and what that edge is still to say.

use super::sessions::At;
use crate::api::{MovePlan, MoveWish, ShardWireId};
use alloc::{
    collections::{BTreeMap, VecDeque},
    string::ToString,
    vec::Vec,
};
use marram_session::{holds, invariant::BrokenInvariant};

/// Questions at a time; a further one ends the oldest.
pub const PLANS_MAX: usize = 8;
/// Sessions of one question about which the other edge is asked at a time.
pub const ASKED_MAX: usize = 256;
/// How long the other edge may take to answer a question.
pub const PLAN_NS: u64 = 3_000_000_000;

/// One question.
#[derive(Debug)]
pub(crate) struct PlanQuestion {
    pub(crate) tag: u64,
    pub(crate) wish: MoveWish,
    /// Sessions about which the other edge is to be asked.
    waiting: VecDeque<MovePlan>,
    /// Those about which it was asked, by the channel for the answer.
    asked: BTreeMap<At, MovePlan>,
    /// What is known.
    plans: Vec<MovePlan>,
    until_ns: u64,
}

impl PlanQuestion {
    /// A question. Those plans that have no reason against a move need the other edge's word.
    pub(crate) fn new(now_ns: u64, tag: u64, wish: MoveWish, plans: Vec<MovePlan>) -> Self {
        let (waiting, plans): (Vec<MovePlan>, Vec<MovePlan>) =
            plans.into_iter().partition(|plan| plan.why.is_empty());
        let until_ns = now_ns + PLAN_NS;
        Self { tag, wish, waiting: waiting.into(), asked: BTreeMap::new(), plans, until_ns }
    }

    /// The next session about which the other edge is asked, if there is room for one more.
    pub(crate) fn next(&mut self) -> Option<MovePlan> {
        if self.asked.len() < ASKED_MAX { self.waiting.pop_front() } else { None }
    }

    /// The other edge is asked about this session.
    pub(crate) fn ask(&mut self, at: At, plan: MovePlan) {
        self.asked.insert(at, plan);
    }

    /// It is known whether this session would move: not for this reason, if it is not empty.
    pub(crate) fn know(&mut self, plan: MovePlan, why: &str) {
        self.plans.push(MovePlan { why: why.to_string(), ..plan });
    }

    fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.asked.is_empty()
    }

    /// Nothing more is waited for.
    fn end(&mut self, why: &str) {
        let asked = core::mem::take(&mut self.asked).into_values();
        let open: Vec<MovePlan> = asked.chain(self.waiting.drain(..)).collect();
        open.into_iter().for_each(|plan| self.know(plan, why));
    }
}

/// All questions of a shard.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    /// The oldest first.
    questions: Vec<PlanQuestion>,
}

impl Plans {
    /// A further question.
    pub(crate) fn add(&mut self, question: PlanQuestion) {
        if self.questions.len() >= PLANS_MAX
            && let Some(oldest) = self.questions.first_mut()
        {
            oldest.end("too many other plans were asked for meanwhile: try again");
        }
        self.questions.push(question);
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PlanQuestion> {
        self.questions.iter_mut()
    }

    /// The other edge has answered on this channel: it would not take the session for this reason, if there is one. False if nothing
    /// was asked there.
    pub(crate) fn answered(&mut self, at: At, why: &str) -> bool {
        let mut asked = self.questions.iter_mut();
        let Some((question, plan)) = asked.find_map(|it| it.asked.remove(&at).map(|plan| (it, plan))) else {
            return false;
        };
        question.know(plan, why);
        true
    }

    /// Whether the other edge was asked something on this channel.
    pub(crate) fn has(&self, at: At) -> bool {
        self.questions.iter().any(|question| question.asked.contains_key(&at))
    }

    /// A wire is gone.
    pub(crate) fn drop_wire(&mut self, wire: ShardWireId) {
        for question in &mut self.questions {
            let gone: Vec<MovePlan> =
                question.asked.extract_if(.., |at, _| at.0 == wire).map(|(_, plan)| plan).collect();
            gone.into_iter().for_each(|plan| question.know(plan, "the connection to that edge broke"));
        }
    }

    /// When the next question has waited for long enough.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.questions.iter().map(|question| question.until_ns).min()
    }

    /// Questions that are answered, or have waited for long enough, with their plans.
    pub(crate) fn take_over(&mut self, now_ns: u64) -> Vec<(u64, Vec<MovePlan>)> {
        for question in self.questions.iter_mut().filter(|question| question.until_ns <= now_ns) {
            let why = alloc::format!("the edge `{}` did not answer in time", question.wish.to);
            question.end(&why);
        }
        let over = |question: &mut PlanQuestion| question.is_over();
        self.questions.extract_if(.., over).map(|question| (question.tag, question.plans)).collect()
    }

    /// Checks I47 of docs/protocol.md, as far as it concerns plans.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I47", self.questions.len() <= PLANS_MAX);
        holds!("I47", self.questions.iter().all(|question| question.asked.len() <= ASKED_MAX));
        Ok(())
    }
}
