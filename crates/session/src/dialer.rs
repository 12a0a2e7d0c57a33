//! Wires to every shard of every edge, for an agent, a recorder or a standby: dialled with backoff, checked by heartbeats,
//! suspected if they are silent for longer than is normal. Pure: returns actions, and knows frames by name only.

mod answers;
mod lateness;
#[cfg(test)]
mod tests;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use answers::Answers;
use lateness::Lateness;
use marram_wire::random::Random;

/// The destination of a wire: an edge by its index in the agent's list, nearest first if nothing else is known, and a shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Target {
    /// Index in the list of edges.
    pub edge: u16,
    /// The shard of that edge.
    pub shard: u8,
}

/// If more bytes than this were sent since the last answered heartbeat, what is normal for the wire does not count: a session that
/// recovers sends up to 16 MiB of messages at once.
const LOADED: u64 = 1 << 20;
/// A suspected wire is closed after this many heartbeat timeouts of silence.
const GIVE_UP: u64 = 40;
/// A wire that breaks within this time after its welcome is short-lived. The limit is short: a refusal comes within a round
/// trip, and an edge that crashes repeatedly must be found as soon as it is back.
const LASTS_NS: u64 = 250_000_000;
/// Maximum of the counter of short-lived wires in a row.
const HASTY_MAX: u8 = 16;
/// The lateness of this process counts for this many heartbeat timeouts.
const LATE_COUNTS: u64 = 10;
/// An edge that was added and has never answered is dialled with waits that are up to this many times the longest one of others:
/// what was told of it may be wrong.
const UNPROVED_PATIENCE: u64 = 16;
/// A wire that falls silent after other frames than answers is asked after this part of the heartbeat interval: what waits for it
/// may be a client.
const ASK_EARLY: u64 = 4;

/// The number of edges, and the timeouts. All times in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DialerConfig {
    /// Number of edges.
    pub edges: u16,
    /// Interval between heartbeats on a wire.
    pub heartbeat_interval_ns: u64,
    /// Silence after which an edge is suspected at the latest; earlier if its answers usually come sooner.
    pub heartbeat_timeout_ns: u64,
    /// First backoff before an edge is dialled again; doubles, with jitter.
    pub backoff_min_ns: u64,
    /// Maximum backoff.
    pub backoff_max_ns: u64,
}

/// An action for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DialerAction {
    /// Establish a wire to this shard; call [`Dialer::up`] or [`Dialer::failed`].
    Dial(Target),
    /// Send a heartbeat on this wire.
    Ping(u64),
    /// The edge has not answered in time. The wire stays: the edge may only be slow.
    Suspect {
        /// The edge's wire.
        wire: u64,
        /// How long nothing has arrived on it.
        silent_ns: u64,
    },
    /// The edge was silent for so long that the wire is useless: close it, and call [`Dialer::down`].
    Close {
        /// The edge's wire.
        wire: u64,
        /// How long nothing has arrived on it.
        silent_ns: u64,
    },
}

/// The state of a target.
#[derive(Debug)]
enum Dial {
    Waiting { at_ns: u64, backoff_ns: u64 },
    Dialling { backoff_ns: u64 },
    Up(u64),
}

#[derive(Debug)]
struct Wire {
    target: Target,
    /// The last backoff before this wire.
    backoff_ns: u64,
    welcomed_ns: Option<u64>,
    suspected: bool,
    heard_ns: u64,
    pinged_ns: u64,
    /// The first heartbeat since a frame arrived.
    asked_ns: Option<u64>,
    /// Another frame than an answer has arrived since the last heartbeat.
    is_talking: bool,
    answers: Answers,
    /// Bytes that were sent since the last answered heartbeat, and since the last heartbeat, as far as they were counted.
    sent_since_answer: u64,
    sent_since_ping: u64,
}

impl Wire {
    fn new(target: Target, backoff_ns: u64, now_ns: u64) -> Self {
        Self {
            target,
            backoff_ns,
            welcomed_ns: None,
            suspected: false,
            heard_ns: now_ns,
            pinged_ns: now_ns,
            asked_ns: None,
            is_talking: false,
            answers: Answers::default(),
            sent_since_answer: 0,
            sent_since_ping: 0,
        }
    }

    /// When the next heartbeat is due.
    fn ping_ns(&self, config: &DialerConfig) -> u64 {
        let interval_ns = config.heartbeat_interval_ns;
        let regular_ns = self.pinged_ns.saturating_add(interval_ns);
        let early_ns = self.heard_ns.max(self.pinged_ns).saturating_add(interval_ns / ASK_EARLY);
        if self.is_talking { regular_ns.min(early_ns) } else { regular_ns }
    }

    /// When the edge is to be suspected if nothing arrives: when its answer takes longer than is normal for this wire, unless much was sent
    /// to it, and at the latest after the configured silence.
    fn suspect_ns(&self, config: &DialerConfig, grace_ns: u64) -> u64 {
        let timeout_ns = config.heartbeat_timeout_ns;
        let latest_ns = self.heard_ns.saturating_add(timeout_ns);
        // A heartbeat waits behind what was sent before it, and the edge has to read all of that first.
        let is_loaded = self.sent_since_answer > LOADED;
        let normal_ns = self.asked_ns.zip(self.answers.patience_ns(timeout_ns)).filter(|_| !is_loaded);
        let normal_ns =
            normal_ns.map_or(u64::MAX, |(asked_ns, patience_ns)| asked_ns.saturating_add(patience_ns));
        latest_ns.min(normal_ns).saturating_add(grace_ns)
    }

    /// When the wire is to be closed if nothing arrives.
    fn close_ns(&self, config: &DialerConfig, grace_ns: u64) -> u64 {
        self.heard_ns.saturating_add(config.heartbeat_timeout_ns * GIVE_UP).saturating_add(grace_ns)
    }
}

/// The wires. The caller chooses their ids and never reuses one.
#[derive(Debug)]
pub struct Dialer {
    config: DialerConfig,
    lateness: Lateness,
    dials: BTreeMap<Target, Dial>,
    wires: BTreeMap<u64, Wire>,
    /// Number of wires in a row that were welcomed and short-lived.
    hasty: BTreeMap<Target, u8>,
    /// Edges that were added and have not answered.
    unproved: BTreeSet<u16>,
}

impl Dialer {
    /// Dials the first shard of each edge at once; the edge's welcome contains the number of its shards.
    #[must_use]
    pub fn new(config: DialerConfig, now_ns: u64) -> Self {
        let first = |edge| (Target { edge, shard: 0 }, Dial::Waiting { at_ns: now_ns, backoff_ns: 0 });
        let lateness = Lateness::default();
        let dials = (0..config.edges).map(first).collect();
        let (wires, hasty, unproved) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { config, lateness, dials, wires, hasty, unproved }
    }

    /// Adds an edge, which is dialled at this time.
    pub fn add(&mut self, at_ns: u64, edge: u16) {
        self.unproved.insert(edge);
        self.dials.entry(Target { edge, shard: 0 }).or_insert(Dial::Waiting { at_ns, backoff_ns: 0 });
    }

    /// Adds one shard of an edge, which is dialled at this time. Its other shards are not, as long as its welcomes do not announce
    /// them.
    pub fn add_shard(&mut self, at_ns: u64, target: Target) {
        self.dials.entry(target).or_insert(Dial::Waiting { at_ns, backoff_ns: 0 });
    }

    /// An edge that was added has not answered as it should: it is dialled as seldom as one that never answered.
    pub fn distrust(&mut self, edge: u16) {
        self.unproved.insert(edge);
    }

    /// Whether an edge is being dialled, so that an answer comes.
    #[must_use]
    pub fn is_dialling(&self, edge: u16) -> bool {
        let of_it = self.dials.iter().filter(|(target, _)| target.edge == edge);
        { of_it }.any(|(_, dial)| matches!(dial, Dial::Dialling { .. }))
    }

    /// Whether a shard is dialled, or about to be, that could be reached when it was dialled last.
    #[must_use]
    pub fn is_trying(&self) -> bool {
        { self.dials.values() }.any(|dial| {
            matches!(dial, Dial::Waiting { backoff_ns: 0, .. } | Dial::Dialling { backoff_ns: 0 })
        })
    }

    /// Forgets an edge that has no wire and is not being dialled. Returns whether it did: otherwise the answer to a dial would be
    /// taken for that of another edge.
    pub fn remove(&mut self, edge: u16) -> bool {
        let of_it = |target: &Target| target.edge == edge;
        let waits = |dial: &Dial| matches!(dial, Dial::Waiting { .. });
        if !self.dials.iter().all(|(target, dial)| !of_it(target) || waits(dial)) {
            return false;
        }
        self.dials.retain(|target, _| !of_it(target));
        self.hasty.retain(|target, _| !of_it(target));
        self.unproved.remove(&edge);
        true
    }

    /// A wire is up.
    pub fn up(&mut self, now_ns: u64, wire: u64, target: Target) {
        let backoff_ns = match self.dials.insert(target, Dial::Up(wire)) {
            Some(Dial::Dialling { backoff_ns }) => backoff_ns,
            _ => 0,
        };
        self.wires.insert(wire, Wire::new(target, backoff_ns, now_ns));
    }

    /// A wire could not be established.
    pub fn failed(&mut self, now_ns: u64, target: Target, random: &mut Random) {
        let backoff_ns = match self.dials.get(&target) {
            Some(Dial::Dialling { backoff_ns } | Dial::Waiting { backoff_ns, .. }) => *backoff_ns,
            _ => 0,
        };
        self.back_off(now_ns, target, backoff_ns, random);
    }

    /// Doubles the backoff, with jitter so that a thousand keepers do not reconnect at the same time.
    fn back_off(&mut self, now_ns: u64, target: Target, backoff_ns: u64, random: &mut Random) {
        let patience = if self.unproved.contains(&target.edge) { UNPROVED_PATIENCE } else { 1 };
        let longest = self.config.backoff_max_ns.max(self.config.backoff_min_ns) * patience;
        let wait_ns = (backoff_ns * 2).clamp(self.config.backoff_min_ns, longest);
        let jitter_ns = random.below(wait_ns / 2 + 1);
        let at_ns = now_ns + wait_ns / 2 + jitter_ns;
        self.dials.insert(target, Dial::Waiting { at_ns, backoff_ns: wait_ns });
    }

    /// A wire broke; returns its target. After a welcome the target is dialled again at once, and only a second failure backs
    /// off. An edge that accepts wires and closes them, or welcomes them and then refuses, is dialled with growing backoff, not
    /// in a tight loop.
    pub fn down(&mut self, now_ns: u64, wire: u64, random: &mut Random) -> Option<Target> {
        let Wire { target, backoff_ns, welcomed_ns, .. } = self.wires.remove(&wire)?;
        if !matches!(self.dials.get(&target), Some(Dial::Up(up)) if *up == wire) {
            return Some(target);
        }
        let Some(welcomed_ns) = welcomed_ns else {
            self.back_off(now_ns, target, backoff_ns, random);
            return Some(target);
        };
        let hasty = self.hasty.entry(target).or_default();
        let lasted = now_ns.saturating_sub(welcomed_ns) >= LASTS_NS;
        *hasty = if lasted { 0 } else { hasty.saturating_add(1).min(HASTY_MAX) };
        let again = hasty.saturating_sub(1);
        self.dials.insert(target, Dial::Waiting { at_ns: now_ns, backoff_ns: 0 });
        for _ in 0..again {
            self.failed(now_ns, target, random);
        }
        Some(target)
    }

    /// A frame arrived on a wire; `stamp` is the time of the heartbeat which it answers, if it is an answer. True if the edge was
    /// suspected until now.
    pub fn heard(&mut self, now_ns: u64, wire: u64, stamp: Option<u64>) -> bool {
        let Some(wire) = self.wires.get_mut(&wire) else { return false };
        wire.heard_ns = now_ns;
        wire.asked_ns = None;
        match stamp {
            // 0 if the edge has made up a later time.
            Some(stamp) => {
                wire.answers.note(now_ns, now_ns.saturating_sub(stamp), self.config.heartbeat_timeout_ns);
                wire.sent_since_answer = wire.sent_since_ping;
            }
            None => wire.is_talking = true,
        }
        core::mem::take(&mut wire.suspected)
    }

    /// So many bytes were sent on a wire. Small amounts need not be counted.
    pub fn sent(&mut self, wire: u64, bytes: u64) {
        if let Some(wire) = self.wires.get_mut(&wire) {
            for sent in [&mut wire.sent_since_answer, &mut wire.sent_since_ping] {
                *sent = sent.saturating_add(bytes);
            }
        }
    }

    /// An edge has announced the number of its shards: the others are dialled too.
    pub fn welcomed(&mut self, now_ns: u64, wire: u64, shards: u8) {
        let Some(wire) = self.wires.get_mut(&wire) else { return };
        wire.welcomed_ns.get_or_insert(now_ns);
        let edge = wire.target.edge;
        self.unproved.remove(&edge);
        for shard in 0..shards {
            self.dials
                .entry(Target { edge, shard })
                .or_insert(Dial::Waiting { at_ns: now_ns, backoff_ns: 0 });
        }
    }

    /// The target of a wire.
    #[must_use]
    pub fn target(&self, wire: u64) -> Option<Target> {
        self.wires.get(&wire).map(|wire| wire.target)
    }

    /// Whether a wire's edge has not answered in time.
    #[must_use]
    pub fn is_suspected(&self, wire: u64) -> bool {
        self.wires.get(&wire).is_some_and(|wire| wire.suspected)
    }

    /// Handles timeouts; call it also after each event.
    pub fn due(&mut self, now_ns: u64, out: &mut Vec<DialerAction>) {
        let Some(due_ns) = self.wake_ns().filter(|due_ns| *due_ns <= now_ns) else { return };
        self.lateness.note(now_ns, due_ns, self.config.heartbeat_timeout_ns * LATE_COUNTS);
        let grace_ns = self.lateness.grace_ns();
        for (target, dial) in &mut self.dials {
            if let Dial::Waiting { at_ns, backoff_ns } = *dial
                && at_ns <= now_ns
            {
                *dial = Dial::Dialling { backoff_ns };
                out.push(DialerAction::Dial(*target));
            }
        }
        for (id, wire) in &mut self.wires {
            if wire.ping_ns(&self.config) <= now_ns {
                wire.pinged_ns = now_ns;
                wire.is_talking = false;
                wire.sent_since_ping = 0;
                wire.asked_ns.get_or_insert(now_ns);
                out.push(DialerAction::Ping(*id));
            }
            let silent_ns = now_ns.saturating_sub(wire.heard_ns);
            if wire.close_ns(&self.config, grace_ns) <= now_ns {
                out.push(DialerAction::Close { wire: *id, silent_ns });
            } else if !wire.suspected && wire.suspect_ns(&self.config, grace_ns) <= now_ns {
                wire.suspected = true;
                out.push(DialerAction::Suspect { wire: *id, silent_ns });
            }
        }
    }

    /// The time of the next timeout.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        let dials = self.dials.values().filter_map(|dial| match dial {
            Dial::Waiting { at_ns, .. } => Some(*at_ns),
            _ => None,
        });
        let grace_ns = self.lateness.grace_ns();
        let wires = self.wires.values().map(|wire| {
            let end_ns = if wire.suspected {
                wire.close_ns(&self.config, grace_ns)
            } else {
                wire.suspect_ns(&self.config, grace_ns)
            };
            end_ns.min(wire.ping_ns(&self.config))
        });
        dials.chain(wires).min()
    }
}

/// The message about an edge that does not answer.
pub(crate) fn silence(silent_ns: u64) -> String {
    format!("no frame from the edge for {} ms", silent_ns / 1_000_000)
}
