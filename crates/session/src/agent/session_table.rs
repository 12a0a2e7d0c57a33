//! The sessions of an agent and their timers. A session is due at one time at most, and is in the table of timers for
//! exactly that time (I36 of docs/protocol.md).

use super::{AgentConfig, EndId, sessions::Session};
use crate::{bug, holds, invariant::BrokenInvariant};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::ops::Bound;
use marram_wire::random::Random;

/// The sessions, by end: an agent may have both ends of a session.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_id: BTreeMap<EndId, Session>,
    /// When sessions are due.
    timers: BTreeSet<(u64, EndId)>,
}

impl Sessions {
    pub(crate) fn get(&self, id: EndId) -> Option<&Session> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: EndId) -> Option<&mut Session> {
        self.by_id.get_mut(&id)
    }

    /// A session that exists as long as what refers to it: the caller has just looked it up, or a timer, a connection
    /// or a channel names it.
    pub(crate) fn known(&self, id: EndId) -> Option<&Session> {
        let session = self.by_id.get(&id);
        if session.is_none() {
            bug!("I36: an agent acts only on sessions that it has", id);
        }
        session
    }

    /// As [`Sessions::known`].
    pub(crate) fn known_mut(&mut self, id: EndId) -> Option<&mut Session> {
        let session = self.by_id.get_mut(&id);
        if session.is_none() {
            bug!("I36: an agent acts only on sessions that it has", id);
        }
        session
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// All sessions, in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EndId, &Session)> {
        self.by_id.iter().map(|(id, session)| (*id, session))
    }

    /// The session after this one in the order of their ids, or the first one.
    pub(crate) fn after(&self, id: Option<EndId>) -> Option<EndId> {
        let from = id.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_id.range((from, Bound::Unbounded)).next().map(|(id, _)| *id)
    }

    /// A session begins. The caller makes sure that this end has none.
    pub(crate) fn insert(&mut self, id: EndId, session: Session) {
        self.by_id.insert(id, session);
    }

    /// A session has ended, and is not due any more.
    pub(crate) fn remove(&mut self, id: EndId) -> Option<Session> {
        let session = self.by_id.remove(&id)?;
        if let Some(timer_ns) = session.timer_ns {
            self.timers.remove(&(timer_ns, id));
        }
        Some(session)
    }

    /// Makes the session due at `at_ns`, or earlier if it is due earlier already: a timer that comes too early only
    /// looks.
    pub(crate) fn arm(&mut self, id: EndId, at_ns: u64) {
        let Some(session) = self.known_mut(id) else { return };
        if session.timer_ns.is_some_and(|timer_ns| timer_ns <= at_ns) {
            return;
        }
        if let Some(timer_ns) = session.timer_ns.replace(at_ns) {
            self.timers.remove(&(timer_ns, id));
        }
        self.timers.insert((at_ns, id));
    }

    /// Appends all sessions that are due. Their timers are not armed any more.
    ///
    /// Those that have been without an owner for longest come first. Many lose theirs at one moment: these come in a random order,
    /// another one each time. In the order of their ids, the same sessions would be the last to be recovered whenever an edge dies.
    pub(crate) fn take_due(&mut self, now_ns: u64, random: &mut Random, due: &mut Vec<EndId>) {
        let mut is_any_orphaned = false;
        while let Some((_, id)) = self.timers.first().copied().filter(|(due_ns, _)| *due_ns <= now_ns) {
            self.timers.pop_first();
            if let Some(session) = self.by_id.get_mut(&id) {
                session.timer_ns = None;
                is_any_orphaned |= session.is_orphaned();
            }
            due.push(id);
        }
        if is_any_orphaned && due.len() > 1 {
            let turn: [u8; 16] = random.bytes();
            due.sort_by_cached_key(|id| {
                let orphaned_ns = self.by_id.get(id).and_then(Session::orphaned_ns);
                let place = u128::from_be_bytes(id.session.0) ^ u128::from_be_bytes(turn);
                (orphaned_ns, place, id.server)
            });
        }
    }

    /// When the next session is due.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        self.timers.first().map(|(due_ns, _)| *due_ns)
    }

    /// The session asks for a generation at this time, unless an edge asks first.
    pub(crate) fn lead_at(&mut self, id: EndId, at_ns: u64) {
        if let Some(session) = self.by_id.get_mut(&id) {
            session.lead_ns = Some(at_ns);
            self.arm(id, at_ns);
        }
    }

    /// Makes the session due when it may not be without an owner any longer.
    pub(crate) fn arm_deadline(&mut self, now_ns: u64, id: EndId, config: &AgentConfig) {
        let deadline_ns = self.by_id.get(&id).and_then(|session| session.deadline_ns(config));
        if let Some(deadline_ns) = deadline_ns {
            self.arm(id, deadline_ns.max(now_ns));
        }
    }

    /// Everything that was due is done: arms the timer for the next time.
    pub(crate) fn rearm(&mut self, id: EndId, config: &AgentConfig) {
        let Some(session) = self.known(id) else { return };
        let deadline_ns = session.deadline_ns(config).filter(|_| session.attached.is_none());
        let next = [session.lead_ns, session.connect_by_ns, deadline_ns].into_iter().flatten().min();
        if let Some(next_ns) = next {
            self.arm(id, next_ns);
        }
    }

    /// Whether the session cannot be recovered without its owner, because nothing is kept.
    pub(crate) fn is_lost_with_its_owner(&self, id: EndId) -> bool {
        self.by_id.get(&id).is_some_and(|session| !session.end.keeps())
    }

    /// Checks I36 of docs/protocol.md, as far as it relates sessions and timers, and the invariants of all ends.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        for (id, session) in &self.by_id {
            session.end.invariants()?;
            holds!("I36", session.timer_ns.is_none_or(|due_ns| self.timers.contains(&(due_ns, *id))));
        }
        for (due_ns, id) in &self.timers {
            let session = self.by_id.get(id);
            holds!("I36", session.is_some_and(|session| session.timer_ns == Some(*due_ns)));
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn timers(&self) -> &BTreeSet<(u64, EndId)> {
        &self.timers
    }
}
