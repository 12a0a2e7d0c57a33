//! An agent keeps within its memory: what a session keeps is counted when something happens to it, those that wait for room are
//! looked at in turn, and all of them when much less is free than before. What is decided is in [`crate::budget`].

use super::{Agent, AgentOutput, AgentReport, ConnectionId, EndId, Memory, sessions::Session};
use crate::{
    budget::{Budget, BudgetChange},
    end::{EndEffect, Share},
};
use alloc::{string::String, vec::Vec};

impl Session {
    /// Counts what the session keeps now, and gives its end the share of it that is due.
    pub(super) fn count_memory(&mut self, budget: &mut Budget<EndId>, out: &mut Vec<EndEffect>) {
        budget.count(&mut self.counted, self.end.held_bytes());
        self.end.allow(budget.share(), budget.window(), out);
    }

    /// Whether it counts for what it keeps.
    pub(super) fn is_counted(&self) -> bool {
        self.counted == Budget::<EndId>::counts(self.end.held_bytes())
    }
}

impl Agent {
    /// What the agent keeps.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.budget.figures()
    }

    /// Charge of the messages that all ends keep, for inspection: what of [`Self::memory`] the agent itself can stop.
    #[must_use]
    pub fn messages_bytes(&self) -> u64 {
        self.sessions.iter().map(|(_, session)| session.end.messages_bytes()).sum()
    }

    /// Whether a new session fits. The shell asks before it accepts a connection: one that has to wait waits in the
    /// kernel.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.budget.has_room()
    }

    /// Whether to read from a stream's connection now. The shell asks before each read, since another session may have
    /// taken the room meanwhile; if the answer is no, it says [`AgentInput::Waits`](super::AgentInput::Waits).
    #[must_use]
    pub fn may_read(&self, connection: ConnectionId) -> bool {
        let share = self.budget.share();
        let session = || self.sessions.get(self.connections.end(connection)?);
        share == Share::of(u64::MAX) || session().is_none_or(|session| session.end.is_readable_with(share))
    }

    /// The shell may not read: the session waits for room.
    pub(super) fn local_waits(&mut self, now_ns: u64, connection: ConnectionId, out: &mut Vec<AgentOutput>) {
        let Some(id) = self.connections.end(connection) else { return };
        let Some(session) = self.sessions.known_mut(id) else { return };
        if !core::mem::replace(&mut session.local.paused, true) {
            out.push(AgentOutput::Reading { connection, on: false });
        }
        self.look_at(now_ns, id, out);
    }

    /// Why this agent begins no session now, if it does not.
    pub(super) fn refuses_new(&self) -> Option<String> {
        if self.draining {
            let why = "the agent is stopping and begins no more sessions; another agent of that server can, or the one after it";
            return Some(why.into());
        }
        (!self.has_room()).then(|| self.no_room())
    }

    /// Why a new session is refused for lack of room.
    pub(super) fn no_room(&self) -> String {
        let Memory { max, kept, .. } = self.memory();
        let sessions = self.sessions.len();
        alloc::format!(
            "the agent keeps {kept} bytes for {sessions} sessions, of {max} that it may (`limits.memory`, or \
             `gates.memory` of an edge); try again later, or raise the limit"
        )
    }

    pub(super) fn begin_session(&mut self, id: EndId, mut session: Session) {
        session.counted = self.budget.add();
        self.sessions.insert(id, session);
    }

    /// After each event: sessions that waited for room may go on, and owners learn how much is left.
    pub(super) fn share_memory(&mut self, now_ns: u64, out: &mut Vec<AgentOutput>) {
        let mut looks = self.budget.looks(now_ns);
        while looks > 0
            && let Some(last) = self.budget.announces()
        {
            let next = self.sessions.after(last);
            self.budget.announced_to(next);
            let share = self.budget.share();
            let over = |id: &EndId| self.sessions.get(*id).is_some_and(|session| session.end.is_over(share));
            if let Some(id) = next.filter(over) {
                self.look_at(now_ns, id, out);
            }
            looks -= 1;
        }
        let waiting = self.budget.figures().slowed;
        for _ in 0..looks.min(waiting) {
            let Some(id) = self.budget.next_slowed() else { break };
            self.look_at(now_ns, id, out);
        }
        let sessions = self.sessions.len();
        let report = self.budget.settle(now_ns).map(|change| match change {
            BudgetChange::Full => AgentReport::MemoryFull { memory: self.memory(), sessions },
            BudgetChange::Free => AgentReport::MemoryFree { memory: self.memory(), sessions },
        });
        out.extend(report.map(AgentOutput::Report));
    }

    fn look_at(&mut self, now_ns: u64, id: EndId, out: &mut Vec<AgentOutput>) {
        let effects = core::mem::take(&mut self.effects);
        self.perform(now_ns, id, effects, out);
    }
}
