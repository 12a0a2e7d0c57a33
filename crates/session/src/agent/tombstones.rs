//! Sessions that ended here at their server's end: a delayed first hello must not begin them again.

use crate::{holds, invariant::BrokenInvariant};
use alloc::collections::{BTreeSet, VecDeque};
use marram_wire::id::SessionId;

/// Maximum of sessions that ended here and that a delayed first hello must not reopen.
pub(crate) const TOMBSTONES_MAX: usize = 100_000;

/// The sessions, each until no first hello of it can be in flight any more.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    /// With the time until which each is remembered, in the order in which they were added. Times need not be in order:
    /// one that expires early is forgotten late.
    queue: VecDeque<(u64, SessionId)>,
    /// The same sessions.
    ids: BTreeSet<SessionId>,
}

impl Tombstones {
    /// A session has ended. Of one that ended twice, the first time counts.
    pub(crate) fn add(&mut self, until_ns: u64, session: SessionId) {
        if self.ids.insert(session) {
            self.queue.push_back((until_ns, session));
        }
    }

    /// Whether a session has ended here.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.ids.contains(&session)
    }

    /// Forgets those that expired, and the oldest above the limit.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        while let Some((until_ns, session)) = self.queue.front().copied() {
            if until_ns > now_ns && self.queue.len() <= TOMBSTONES_MAX {
                return;
            }
            self.queue.pop_front();
            self.ids.remove(&session);
        }
    }

    /// Checks I36 of docs/protocol.md, as far as it concerns tombstones. A debug build does this after each step, so
    /// only small tables are compared one by one.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I36", self.queue.len() == self.ids.len() && self.ids.len() <= TOMBSTONES_MAX);
        let is_small = self.queue.len() <= 64;
        holds!("I36", !is_small || self.queue.iter().all(|(_, session)| self.ids.contains(session)));
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> &VecDeque<(u64, SessionId)> {
        assert!(self.queue.iter().all(|(_, session)| self.ids.contains(session)));
        &self.queue
    }
}
