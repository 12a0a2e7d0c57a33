//! Session affinity: sessions fail back to their home shard. A session's home is the shard that it asks first. If each
//! session of an edge is at its home, all shards have equally many. A shard that crashed or was silent for a while has
//! lost its sessions to another shard, which would have twice as many until they end, even though the first one is
//! idle.
//!
//! A session that an operator has moved to a shard of its edge stays there: the shard says so when it asks for the promise.
//!
//! A session fails back as it leaves an edge that drains: it asks its home for a generation, and stays where it is
//! until the home asks for its promise. Sessions move one at a time, and only to a shard that has been healthy for a
//! while.

use super::{Agent, AgentOutput, AgentReport, EndId, Target, WireId, wire_table::Wire};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use marram_wire::random::Random;

/// Each repeated failure doubles the time that a shard has to be healthy, up to this many times the first one.
const WARY_MAX: u64 = 64;
/// A shard that was healthy for this many times the required time is treated as if it had never failed.
const FORGIVEN: u64 = 16;

/// The history of a shard that failed.
#[derive(Debug)]
struct Failed {
    /// When it recovered, or when it failed last.
    since_ns: u64,
    /// Whether it has recovered since.
    well: bool,
    /// How long it has to be healthy, in nanoseconds.
    wary_ns: u64,
}

/// The sessions that are away from home, and the failures of shards.
#[derive(Debug)]
pub(super) struct ShardAffinity {
    after_ns: u64,
    /// By their home shard.
    away: BTreeMap<Target, BTreeSet<EndId>>,
    failed: BTreeMap<Target, Failed>,
    /// When to look for a session that can fail back.
    look_ns: u64,
}

impl ShardAffinity {
    /// Sessions fail back to a shard that has been healthy for `after_ns`.
    pub(super) fn new(after_ns: u64) -> Self {
        Self { after_ns, away: BTreeMap::new(), failed: BTreeMap::new(), look_ns: 0 }
    }

    /// A shard crashed or is silent.
    pub(super) fn failed(&mut self, now_ns: u64, target: Target, random: &mut Random) {
        let after_ns = self.after_ns;
        if let Some(known) = self.failed.get_mut(&target).filter(|known| !known.well) {
            // The same failure, detected in several ways.
            known.since_ns = now_ns;
            return;
        }
        let forgiven_ns =
            |known: &Failed| known.since_ns.saturating_add(known.wary_ns.saturating_mul(FORGIVEN));
        let again = self.failed.get(&target).filter(|known| now_ns < forgiven_ns(known));
        let longest_ns = after_ns.saturating_mul(WARY_MAX);
        let wary_ns = again.map_or(after_ns, |known| known.wary_ns.saturating_mul(2).min(longest_ns));
        // So that the sessions of a thousand agents do not fail back at the same time.
        let jitter_ns = random.below(after_ns / 4 + 1);
        let wary_ns = wary_ns.saturating_add(jitter_ns);
        self.failed.insert(target, Failed { since_ns: now_ns, well: false, wary_ns });
    }

    /// The shard recovered.
    pub(super) fn back(&mut self, now_ns: u64, target: Target) {
        if let Some(failed) = self.failed.get_mut(&target) {
            (failed.since_ns, failed.well) = (now_ns, true);
        }
    }

    /// The shard refused a session or did not answer: its other sessions wait as well.
    pub(super) fn refused(&mut self, now_ns: u64, target: Target) {
        let known = Failed { since_ns: now_ns, well: true, wary_ns: self.after_ns };
        self.failed.entry(target).or_insert(known).since_ns = now_ns;
    }

    fn is_trusted(&self, now_ns: u64, target: Target) -> bool {
        self.failed.get(&target).is_none_or(|failed| failed.since_ns.saturating_add(failed.wary_ns) <= now_ns)
    }

    /// A session is away from its home.
    fn add(&mut self, now_ns: u64, home: Target, id: EndId) {
        if self.away.is_empty() {
            self.look_ns = now_ns.saturating_add(self.after_ns);
        }
        self.away.entry(home).or_default().insert(id);
    }

    /// The session is at its home, or will not fail back.
    fn remove(&mut self, home: Target, id: EndId) {
        if let Some(ids) = self.away.get_mut(&home) {
            ids.remove(&id);
            if ids.is_empty() {
                self.away.remove(&home);
            }
        }
    }

    /// The sessions that are away, with their homes.
    pub(super) fn away(&self) -> impl Iterator<Item = (Target, EndId)> {
        self.away.iter().flat_map(|(home, ids)| ids.iter().map(|id| (*home, *id)))
    }

    /// Whether a session is away from this home.
    pub(super) fn is_away(&self, home: Target, id: EndId) -> bool {
        self.away.get(&home).is_some_and(|ids| ids.contains(&id))
    }

    /// When to look again, if any session is away.
    pub(super) fn wake_ns(&self) -> Option<u64> {
        (!self.away.is_empty()).then_some(self.look_ns)
    }
}

impl Agent {
    /// Records whether a session that has an owner now is at its home.
    pub(super) fn note_home(&mut self, now_ns: u64, id: EndId, wire: WireId) {
        self.forget_home(id);
        let Some(session) = self.sessions.get(id) else { return };
        // One that is kept only while it moves cannot be recovered by another owner once the move is over.
        let keeps = session.end.terms().is_some_and(|terms| terms.keeps.anything());
        // Only clients' sessions fail back, and only those that another owner can recover.
        let may = keeps && !id.server && !session.assigned;
        let Some(wire) = self.wires.get(wire).filter(|_| may) else { return };
        let home = Target { edge: wire.target.edge, shard: wire.home(id.session) };
        // If an edge restarts with fewer shards, the wires of the missing shards lead to others.
        let shard = wire.welcome.as_ref().map_or(wire.target.shard, |welcome| welcome.shard);
        if home.shard != shard
            && let Some(session) = self.sessions.get_mut(id)
        {
            session.home = Some(home);
            self.affinity.add(now_ns, home, id);
        }
    }

    /// A session that is away has ended, or does not fail back.
    pub(super) fn forget_home(&mut self, id: EndId) {
        if let Some(home) = self.sessions.get_mut(id).and_then(|session| session.home.take()) {
            self.affinity.remove(home, id);
        }
    }

    /// Whether a session has a usable owner, so that it need not look for another one.
    pub(super) fn is_settled(&self, id: EndId) -> bool {
        let attached = self.sessions.get(id).and_then(|session| session.attached);
        attached.is_some_and(|(wire, _)| self.wires.is_usable(wire))
    }

    /// Sends one session to its home, if that is due and possible: one per heartbeat interval.
    pub(super) fn fail_back(&mut self, now_ns: u64, out: &mut Vec<AgentOutput>) {
        if self.affinity.wake_ns().is_none_or(|look_ns| look_ns > now_ns) {
            return;
        }
        self.affinity.look_ns = now_ns + self.config.heartbeat_interval_ns;
        if self.draining {
            return;
        }
        let is_ready = |(wire, at): &(WireId, &Wire)| {
            self.wires.is_usable(*wire) && self.affinity.is_trusted(now_ns, at.target)
        };
        let found = self.wires.iter().filter(is_ready).find_map(|(wire, at)| {
            let away = self.affinity.away.get(&at.target)?;
            let free = |id: &&EndId| {
                let session = self.sessions.get(**id);
                self.is_settled(**id) && session.is_some_and(|session| session.asking.is_none())
            };
            away.iter().find(free).map(|id| (*id, wire, at.target))
        });
        if let Some((id, wire, target)) = found {
            out.push(AgentOutput::Report(AgentReport::FailingBack { session: id.session, target }));
            self.ask(now_ns, id, wire, out);
        }
    }
}

#[cfg(test)]
impl ShardAffinity {
    /// The sessions that are away, with their homes.
    pub(super) fn all(&self) -> BTreeSet<(Target, EndId)> {
        assert!(
            self.away.values().all(|ids| !ids.is_empty()),
            "a home shard that no session is away from is forgotten"
        );
        self.away().collect()
    }
}
