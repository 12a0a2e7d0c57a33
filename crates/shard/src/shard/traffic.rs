//! What is measured of sessions for policies that ask for it: about once a second each of them is looked at, some at a time.
//!
//! A session for which something else holds than before matches another policy, perhaps. Then its group is looked at (`regroup.rs`).

use super::{Shard, state::sessions::Session};
use crate::{
    api::{Now, ReplicationPolicy},
    traffic::{RATE_LOOK_NS, TrafficMeter},
};
use alloc::{boxed::Box, sync::Arc};
use marram_wire::id::SessionId;

/// Sessions that are looked at behind the events that came together, at most. There may be thousands.
pub const LOOKS_MAX: usize = 64;

/// How far the looks at all sessions are.
#[derive(Debug, Default)]
pub(super) struct TrafficLooks {
    /// When to look at the next ones; none if policies ask for nothing.
    at_ns: Option<u64>,
    /// The last one that was looked at, while others are left.
    last: Option<SessionId>,
    began_ns: u64,
}

impl TrafficLooks {
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.at_ns
    }

    fn is_due(&self, now_ns: u64) -> bool {
        self.at_ns.is_some_and(|at_ns| at_ns <= now_ns)
    }

    /// Those up to this one were looked at, or all. Those that are left come behind the next events, and the first ones a second after
    /// they had their turn.
    fn looked(&mut self, now_ns: u64, last: Option<SessionId>) {
        if self.last.is_none() {
            self.began_ns = now_ns;
        }
        self.last = last;
        let next_ns = if last.is_some() { now_ns } else { self.began_ns.saturating_add(RATE_LOOK_NS) };
        self.at_ns = Some(next_ns.max(now_ns));
    }
}

impl Shard {
    /// Policies have changed, and may ask for something else.
    pub(super) fn measure_for_policies(&mut self, now: Now) {
        let is_asked = self.policies.iter().any(|policy| policy.traffic.is_some());
        if !is_asked {
            self.looks = TrafficLooks::default();
            for id in self.sessions.ids() {
                self.sessions.get_mut(id).into_iter().for_each(|session| session.traffic = None);
            }
        } else if self.looks.at_ns.is_none() {
            self.looks.at_ns = Some(now.mono_ns);
        }
    }

    /// How often a running session has matched another policy than its group's, since something else was measured of it.
    #[must_use]
    pub fn policy_crossings(&self) -> u64 {
        self.counters.policy_crossings
    }

    /// Looks at some sessions, if it is time.
    pub(super) fn traffic_due(&mut self, now: Now) {
        if !self.looks.is_due(now.mono_ns) {
            return;
        }
        let ids = self.groups.sessions_after(self.looks.last, LOOKS_MAX);
        let last = ids.get(LOOKS_MAX - 1).copied();
        for id in ids {
            if self.look_at_traffic(now, id) && self.regroup_if_other(now, id) {
                self.counters.policy_crossings += 1;
            }
        }
        self.looks.looked(now.mono_ns, last);
    }

    /// Whether another policy may be for this session than before, since something else is measured. A shared cell is not measured: its group has
    /// the cells of a slot, which have one backup.
    fn look_at_traffic(&mut self, now: Now, id: SessionId) -> bool {
        let Some(Session { owner, traffic, .. }) = self.sessions.get_mut(id) else { return false };
        let Some(app) = self.apps.of_owner(owner).filter(|_| !owner.is_shared_cell()) else { return false };
        let asks = |policy: &&Arc<ReplicationPolicy>| {
            policy.traffic.is_some() && policy.matches(&app.name, owner.origin())
        };
        let mut conditions = self.policies.iter().filter(asks).map(|policy| policy.traffic).peekable();
        if conditions.peek().is_none() {
            return traffic.take().is_some();
        }
        let bytes = owner.totals().payload_bytes;
        let meter = traffic.get_or_insert_with(|| Box::new(TrafficMeter::new(now.mono_ns, bytes)));
        meter.look(now.mono_ns, bytes, conditions)
    }
}
