//! The agent's reports as structured log lines. Each kind is rate-limited separately, since clients and edges can trigger them.
//!
//! Sessions that begin and end in order are at debug level: at the default level an agent with much
//! traffic is silent as long as nothing fails.

use super::{edges::EdgeAddress, events};
use marram_session::agent::{AgentReport, Memory, Target};
use marram_transport::LogLimiter;
use marram_wire::{
    frame::Code,
    id::{Generation, SessionId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};
use tracing::{debug, info, warn};

/// The log lines about which edges are up or down.
pub struct EdgeReports {
    names: Vec<String>,
    /// The addresses of learned edges, by their places behind those of the configured ones.
    learned: BTreeMap<u16, String>,
    /// The last logged reason of each edge that is down.
    /// Shards of one edge are reported apart: one of them can fail alone.
    down: BTreeMap<Target, String>,
    /// One limiter per edge: with many edges there are many lines, and one flapping edge must not suppress the others' lines.
    ups: BTreeMap<Target, LogLimiter>,
    /// A separate limiter, because this line is written only once.
    domains: LogLimiter,
    limiter: LogLimiter,
}

impl EdgeReports {
    /// Nothing reported yet.
    pub fn new(edges: &[EdgeAddress], now: Instant) -> Self {
        let names = edges.iter().map(|edge| edge.name.clone()).collect();
        let (domains, limiter) = (LogLimiter::new(now), LogLimiter::new(now));
        let (learned, down, ups) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { names, learned, down, ups, domains, limiter }
    }

    /// The address of an edge.
    pub fn name(&self, target: Target) -> &str {
        let configured = self.names.get(usize::from(target.edge));
        configured.or_else(|| self.learned.get(&target.edge)).map_or("own", |name| name)
    }

    /// A learned edge is dialled at this address from now on; none if its place is free.
    fn learned(&mut self, edge: u16, address: Option<&str>) {
        let Some(address) = address else {
            // Another edge may get the place.
            self.learned.remove(&edge);
            self.down.retain(|target, _| target.edge != edge);
            return self.ups.retain(|target, _| target.edge != edge);
        };
        self.learned.insert(edge, address.to_owned());
    }

    /// Writes a report of an edge; others are not written here.
    fn write(&mut self, report: &AgentReport, now: Instant) {
        match report {
            AgentReport::EdgeUp { target, name } => self.up(*target, name, now),
            AgentReport::OtherDomain { target, name, other } => self.other_domain(*target, name, other, now),
            AgentReport::EdgeDown { target, reason, suspected } => {
                self.down(*target, reason, *suspected, now);
            }
            AgentReport::EdgeNotFound { target, reason } => {
                self.missing(*target, "learned edge cannot be reached", reason, now);
            }
            AgentReport::EdgeNotAsTold { target, reason, known } => {
                self.not_as_told(*target, reason, *known, now);
            }
            AgentReport::EdgeForgotten { target, reason } => {
                debug!(address = %self.name(*target), %reason, "learned edge is not used any more");
            }
            _ => {}
        }
    }

    /// An edge answered, with its name.
    pub fn up(&mut self, target: Target, name: &str, now: Instant) {
        self.down.remove(&target);
        let limiter = self.ups.entry(target).or_insert_with(|| LogLimiter::new(now));
        if let Some(suppressed) = limiter.pass(now) {
            let address = self.name(target);
            info!(edge = %name, %address, shard = target.shard, suppressed, "edge up");
        }
    }

    /// An edge has another domain secret than the others: sessions cannot move between them, which operators may not expect.
    fn other_domain(&mut self, target: Target, name: &str, other: &str, now: Instant) {
        if let Some(suppressed) = self.domains.pass(now) {
            let address = self.name(target);
            warn!(
                edge = %name, %address, suppressed,
                "it and edge `{other}` have different domain secrets: neither can recover the other's sessions; give \
                 both the same `secret_file`"
            );
        }
    }

    /// Another edge is where a learned one was told to be. Most often it is that one, restarted under another name.
    fn not_as_told(&mut self, target: Target, reason: &str, known: bool, now: Instant) {
        let (address, shard) = (self.name(target).to_owned(), target.shard);
        if known {
            return debug!(%address, shard, %reason, "learned edge is known under another name");
        }
        self.missing(target, "learned edge is another one", reason, now);
    }

    /// A learned edge is not there. Every failed attempt is reported; only a change is logged.
    fn missing(&mut self, target: Target, what: &str, reason: &str, now: Instant) {
        if self.down.insert(target, reason.to_owned()).as_deref() == Some(reason) {
            return;
        }
        if let Some(suppressed) = self.limiter.pass(now) {
            let (address, shard) = (self.name(target), target.shard);
            warn!(%address, shard, %reason, suppressed, "{what}");
        }
    }

    /// An edge is gone or suspected. Every failed attempt is reported; only a change is logged.
    pub fn down(&mut self, target: Target, reason: &str, suspected: bool, now: Instant) {
        if self.down.insert(target, reason.to_owned()).as_deref() == Some(reason) {
            return;
        }
        if let Some(suppressed) = self.limiter.pass(now) {
            let (address, shard) = (self.name(target), target.shard);
            warn!(%address, shard, %reason, suspected, suppressed, "edge down");
        }
    }
}

/// Writes reports to the log, and counts the sessions that are not over.
pub(super) struct Reports {
    /// Reports to be written. A line costs about as much as the start of a session, so it waits until the loop is idle.
    waiting: Vec<AgentReport>,
    /// From the first owner to the end: what a drain waits for.
    sessions: BTreeSet<SessionId>,
    edges: EdgeReports,
    moves: LogLimiter,
    waits: LogLimiter,
    zombies: LogLimiter,
    memory: LogLimiter,
    memory_free: LogLimiter,
    ends: LogLimiter,
}

impl Reports {
    /// Nothing reported yet.
    pub(super) fn new(edges: &[EdgeAddress], now: Instant) -> Self {
        let limiter = || LogLimiter::new(now);
        Self {
            waiting: Vec::new(),
            sessions: BTreeSet::new(),
            edges: EdgeReports::new(edges, now),
            moves: limiter(),
            waits: limiter(),
            zombies: limiter(),
            memory: limiter(),
            memory_free: limiter(),
            ends: limiter(),
        }
    }

    /// Sessions with an end here that are not over.
    pub(super) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// The address of an edge.
    pub(super) fn name(&self, target: Target) -> &str {
        self.edges.name(target)
    }

    /// See [`EdgeReports::learned`]. Reports that wait are about the address that the edge had.
    pub(super) fn learned(&mut self, edge: u16, address: Option<&str>, now: Instant) {
        self.write(now);
        self.edges.learned(edge, address);
    }

    /// Queues a report for [`Self::write`].
    /// Counts at once and writes later: the count must not depend on when the loop is idle.
    pub(super) fn add(&mut self, report: AgentReport) {
        match &report {
            AgentReport::Owned { session, .. } => _ = self.sessions.insert(*session),
            AgentReport::Ended { session, .. } => _ = self.sessions.remove(session),
            _ => {}
        }
        self.waiting.push(report);
    }

    /// Whether there is anything to [`Self::write`].
    pub(super) fn wait(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Writes the queued reports.
    pub(super) fn write(&mut self, now: Instant) {
        let mut waiting = std::mem::take(&mut self.waiting);
        for report in waiting.drain(..) {
            self.write_one(&report, now);
        }
        self.waiting = waiting;
    }

    fn write_one(&mut self, report: &AgentReport, now: Instant) {
        let about = shard_of(report).map_or("", |target| self.name(target));
        events::write(report, about);
        match report {
            AgentReport::EdgeUp { .. }
            | AgentReport::OtherDomain { .. }
            | AgentReport::EdgeDown { .. }
            | AgentReport::EdgeNotFound { .. }
            | AgentReport::EdgeNotAsTold { .. }
            | AgentReport::EdgeForgotten { .. } => self.edges.write(report, now),
            AgentReport::Owned { session, app, generation, target, gap_ns } => {
                self.owned(*session, app, *generation, *target, *gap_ns, now);
            }
            AgentReport::Waiting { session, app, target, code, reason, left_ns } => {
                if let Some(suppressed) = self.waits.pass(now) {
                    let (address, left_s) = (self.name(*target), left_ns / 1_000_000_000);
                    warn!(%session, %app, edge = %address, ?code, %reason, suppressed, "session waits for an edge, \
                        at most {left_s} s more");
                }
            }
            AgentReport::FailingBack { session, target } => {
                let (address, shard) = (self.name(*target), target.shard);
                debug!(%session, %address, shard, "session fails back to its home shard");
            }
            AgentReport::Orphaned { session, reason } => {
                if let Some(suppressed) = self.moves.pass(now) {
                    warn!(%session, %reason, suppressed, "session lost its owner");
                }
            }
            AgentReport::ZombieRefused { session, generation } => {
                if let Some(suppressed) = self.zombies.pass(now) {
                    warn!(%session, %generation, suppressed, "frame of an older generation refused");
                }
            }
            AgentReport::MemoryFull { memory, sessions } => {
                if let Some(suppressed) = self.memory.pass(now) {
                    let Memory { kept, max, slowed, .. } = memory;
                    warn!(
                        kept,
                        max,
                        sessions,
                        slowed,
                        suppressed,
                        "memory full: sessions are slowed, and new ones wait; \
                        to change that, raise `limits.memory`"
                    );
                }
            }
            AgentReport::MemoryFree { memory, sessions } => {
                if let Some(suppressed) = self.memory_free.pass(now) {
                    let Memory { kept, max, slowed_total, .. } = memory;
                    info!(kept, max, sessions, slowed_total, suppressed, "memory has room again");
                }
            }
            AgentReport::Ended { session, code, reason, lingered } => {
                self.ended(*session, *code, reason, *lingered, now);
            }
        }
    }

    /// `gap_ns` is how long the session had no owner; 0 for its first one.
    fn owned(
        &mut self,
        session: SessionId,
        app: &str,
        generation: Generation,
        target: Target,
        gap_ns: u64,
        now: Instant,
    ) {
        let address = self.name(target).to_string();
        let shard = target.shard;
        if gap_ns == 0 {
            debug!(%session, %app, %generation, %address, shard, "session began");
        } else if let Some(suppressed) = self.moves.pass(now) {
            let gap_us = gap_ns / 1_000;
            info!(%session, %app, %generation, %address, shard, gap_us, suppressed, "session recovered");
        }
    }

    /// `lingered`: the linger time was over without an answer from the other end.
    fn ended(&mut self, session: SessionId, code: Code, reason: &str, lingered: bool, now: Instant) {
        if code == Code::Finished && !lingered {
            debug!(%session, "session ended");
        } else if let Some(suppressed) = self.ends.pass(now) {
            warn!(%session, ?code, %reason, lingered, suppressed, "session ended early");
        }
    }
}

/// The shard that a report is about.
fn shard_of(report: &AgentReport) -> Option<Target> {
    match report {
        AgentReport::EdgeUp { target, .. }
        | AgentReport::OtherDomain { target, .. }
        | AgentReport::EdgeDown { target, .. }
        | AgentReport::EdgeNotFound { target, .. }
        | AgentReport::EdgeNotAsTold { target, .. }
        | AgentReport::EdgeForgotten { target, .. }
        | AgentReport::Owned { target, .. }
        | AgentReport::Waiting { target, .. }
        | AgentReport::FailingBack { target, .. } => Some(*target),
        AgentReport::Orphaned { .. }
        | AgentReport::ZombieRefused { .. }
        | AgentReport::MemoryFull { .. }
        | AgentReport::MemoryFree { .. }
        | AgentReport::Ended { .. } => None,
    }
}
