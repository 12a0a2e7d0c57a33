//! Wires to every shard of every edge, for an agent, a recorder or a standby: dialled with backoff, checked by heartbeats,
//! suspected after a timeout. Pure: returns actions, and knows frames by name only.

use alloc::{collections::BTreeMap, format, string::String, vec::Vec};
use marram_wire::random::Random;

/// The destination of a wire: an edge by its index in the agent's list, nearest first if nothing else is known, and a shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Target {
    /// Index in the list of edges.
    pub edge: u16,
    /// The shard of that edge.
    pub shard: u8,
}

/// A suspected wire is closed after this many heartbeat timeouts of silence.
const GIVE_UP: u64 = 40;
/// A wire that breaks within this time after its welcome is short-lived. The limit is short: a refusal comes within a round
/// trip, and an edge that crashes repeatedly must be found as soon as it is back.
const LASTS_NS: u64 = 250_000_000;
/// Maximum of the counter of short-lived wires in a row.
const HASTY_MAX: u8 = 16;
/// The lateness of this process counts for this many heartbeat timeouts.
const LATE_COUNTS: u64 = 10;

/// The number of edges, and the timeouts. All times in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DialerConfig {
    /// Number of edges.
    pub edges: u16,
    /// Interval between heartbeats on a wire.
    pub heartbeat_interval_ns: u64,
    /// Silence after which an edge is suspected.
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
}

/// The maximum recent delay of this process behind its own deadlines. If it waits for a processor, other processes on the
/// machine wait as well, and their frames may be unread. So other processes get twice this delay as additional time, for both
/// directions (Dadgar, Phillips, Currey: Lifeguard, 2018, section IV.A).
#[derive(Debug, Default)]
struct Lateness {
    late_ns: u64,
    until_ns: u64,
}

impl Lateness {
    /// The process runs now, and should have run at `due_ns`.
    fn note(&mut self, now_ns: u64, due_ns: u64, counts_ns: u64) {
        let late_ns = now_ns.saturating_sub(due_ns);
        if late_ns >= self.late_ns || self.until_ns <= now_ns {
            *self = Self { late_ns, until_ns: now_ns.saturating_add(counts_ns) };
        }
    }

    fn grace_ns(&self) -> u64 {
        self.late_ns.saturating_mul(2)
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
}

impl Dialer {
    /// Dials the first shard of each edge at once; the edge's welcome contains the number of its shards.
    #[must_use]
    pub fn new(config: DialerConfig, now_ns: u64) -> Self {
        let first = |edge| (Target { edge, shard: 0 }, Dial::Waiting { at_ns: now_ns, backoff_ns: 0 });
        let lateness = Lateness::default();
        let dials = (0..config.edges).map(first).collect();
        Self { config, lateness, dials, wires: BTreeMap::new(), hasty: BTreeMap::new() }
    }

    /// A wire is up.
    pub fn up(&mut self, now_ns: u64, wire: u64, target: Target) {
        let backoff_ns = match self.dials.insert(target, Dial::Up(wire)) {
            Some(Dial::Dialling { backoff_ns }) => backoff_ns,
            _ => 0,
        };
        let (heard_ns, pinged_ns) = (now_ns, now_ns);
        self.wires.insert(
            wire,
            Wire { target, backoff_ns, welcomed_ns: None, suspected: false, heard_ns, pinged_ns },
        );
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
        let longest = self.config.backoff_max_ns.max(self.config.backoff_min_ns);
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

    /// A frame arrived on a wire. True if its edge was suspected until now.
    pub fn heard(&mut self, now_ns: u64, wire: u64) -> bool {
        let Some(wire) = self.wires.get_mut(&wire) else { return false };
        wire.heard_ns = now_ns;
        core::mem::take(&mut wire.suspected)
    }

    /// An edge has announced the number of its shards: the others are dialled too.
    pub fn welcomed(&mut self, now_ns: u64, wire: u64, shards: u8) {
        let Some(wire) = self.wires.get_mut(&wire) else { return };
        wire.welcomed_ns.get_or_insert(now_ns);
        let edge = wire.target.edge;
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
            if wire.pinged_ns + self.config.heartbeat_interval_ns <= now_ns {
                wire.pinged_ns = now_ns;
                out.push(DialerAction::Ping(*id));
            }
            let silent_ns = now_ns.saturating_sub(wire.heard_ns);
            let patience_ns = self.config.heartbeat_timeout_ns;
            if silent_ns >= (patience_ns * GIVE_UP).saturating_add(grace_ns) {
                out.push(DialerAction::Close { wire: *id, silent_ns });
            } else if !wire.suspected && silent_ns >= patience_ns.saturating_add(grace_ns) {
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
            let timeouts = if wire.suspected { GIVE_UP } else { 1 };
            let patience_ns = (self.config.heartbeat_timeout_ns * timeouts).saturating_add(grace_ns);
            let ping_ns = wire.pinged_ns + self.config.heartbeat_interval_ns;
            wire.heard_ns.saturating_add(patience_ns).min(ping_ns)
        });
        dials.chain(wires).min()
    }
}

/// The message about an edge that does not answer.
pub(crate) fn silence(silent_ns: u64) -> String {
    format!("no frame from the edge for {} ms", silent_ns / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const FIRST: Target = Target { edge: 0, shard: 0 };
    const SECOND: Target = Target { edge: 0, shard: 1 };

    fn dialer() -> Dialer {
        let config = DialerConfig {
            edges: 1,
            heartbeat_interval_ns: 50 * MS,
            heartbeat_timeout_ns: 200 * MS,
            backoff_min_ns: 10 * MS,
            backoff_max_ns: 80 * MS,
        };
        Dialer::new(config, 0)
    }

    fn due(dialer: &mut Dialer, now_ns: u64) -> Vec<DialerAction> {
        let mut out = Vec::new();
        dialer.due(now_ns, &mut out);
        out
    }

    /// Runs the dialer until this time, with each timeout handled exactly when it is due.
    fn until(dialer: &mut Dialer, end_ns: u64) -> Vec<DialerAction> {
        let mut acts = Vec::new();
        while let Some(now_ns) = dialer.wake_ns().filter(|now_ns| *now_ns <= end_ns) {
            dialer.due(now_ns, &mut acts);
            if matches!(acts.last(), Some(DialerAction::Close { .. })) {
                break;
            }
        }
        acts
    }

    /// Dials the only edge eight times, each time with this failure. Returns how long it waits until each retry.
    fn waits(mut fail: impl FnMut(&mut Dialer, &mut Random, u64, u64)) -> (Vec<u64>, Dialer) {
        let (mut dialer, mut random) = (dialer(), Random::new([1; 32]));
        let (mut now_ns, mut waits) = (0, Vec::new());
        for wire in 0..8 {
            assert_eq!(due(&mut dialer, now_ns), [DialerAction::Dial(FIRST)]);
            fail(&mut dialer, &mut random, now_ns, wire);
            let wake_ns = dialer.wake_ns().expect("it is tried again");
            waits.push(wake_ns - now_ns);
            now_ns = wake_ns;
        }
        (waits, dialer)
    }

    #[test]
    fn every_shard_is_dialled_once_and_again_when_its_wire_breaks() {
        let (mut dialer, mut random) = (dialer(), Random::new([1; 32]));
        assert_eq!(due(&mut dialer, 0), [DialerAction::Dial(FIRST)]);
        assert_eq!(due(&mut dialer, MS), []);
        dialer.up(MS, 7, FIRST);
        dialer.welcomed(MS, 7, 2);
        assert_eq!(due(&mut dialer, MS), [DialerAction::Dial(SECOND)]);
        assert_eq!(dialer.down(2 * MS, 7, &mut random), Some(FIRST));
        assert_eq!(due(&mut dialer, 2 * MS), [DialerAction::Dial(FIRST)]);
        assert_eq!(dialer.down(2 * MS, 7, &mut random), None);
    }

    #[test]
    fn an_unreachable_edge_is_dialled_ever_less_often() {
        let (waits, _) = waits(|dialer, random, now_ns, _| dialer.failed(now_ns, FIRST, random));
        assert!(waits[0] <= 10 * MS && waits[7] >= 40 * MS && waits[7] <= 80 * MS, "{waits:?}");
    }

    #[test]
    fn an_edge_that_closes_new_wires_is_not_dialled_in_a_loop() {
        let (waits, _) = waits(|dialer, random, now_ns, wire| {
            dialer.up(now_ns, wire, FIRST);
            dialer.down(now_ns, wire, random);
        });
        let now_ns: u64 = waits.iter().sum();
        assert!(now_ns > 100 * MS, "{now_ns}");
    }

    #[test]
    fn an_edge_that_closes_welcomed_wires_is_dialled_at_once_only_the_first_time() {
        let (waits, mut dialer) = waits(|dialer, random, now_ns, wire| {
            dialer.up(now_ns, wire, FIRST);
            dialer.welcomed(now_ns, wire, 1);
            dialer.down(now_ns, wire, random);
        });
        assert_eq!(waits[0], 0);
        assert!((5 * MS..=10 * MS).contains(&waits[1]) && waits[7] >= 40 * MS, "{waits:?}");
        let now_ns = waits.iter().sum();
        due(&mut dialer, now_ns);
        dialer.up(now_ns, 9, FIRST);
        dialer.welcomed(now_ns, 9, 1);
        let broke_ns = now_ns + LASTS_NS;
        dialer.down(broke_ns, 9, &mut Random::new([1; 32]));
        assert_eq!(dialer.wake_ns(), Some(broke_ns), "it lasted");
    }

    #[test]
    fn the_silent_are_suspected_and_given_up_much_later() {
        let mut dialer = dialer();
        due(&mut dialer, 0);
        dialer.up(0, 7, FIRST);
        assert_eq!(due(&mut dialer, 50 * MS), [DialerAction::Ping(7)]);
        assert!(!dialer.heard(60 * MS, 7));
        let acts = until(&mut dialer, 260 * MS);
        assert_eq!(acts.last(), Some(&DialerAction::Suspect { wire: 7, silent_ns: 200 * MS }));
        assert!(dialer.is_suspected(7));
        assert!(dialer.heard(270 * MS, 7) && !dialer.heard(270 * MS, 7), "once");
        let dead_ns = 270 * MS + 200 * MS * GIVE_UP;
        let acts = until(&mut dialer, dead_ns);
        assert_eq!(acts.last(), Some(&DialerAction::Close { wire: 7, silent_ns: 200 * MS * GIVE_UP }));
    }

    #[test]
    fn silence_in_which_this_process_had_no_turn_itself_says_nothing() {
        let mut dialer = dialer();
        due(&mut dialer, 0);
        dialer.up(0, 7, FIRST);
        // The heartbeat was due after 50 ms; the process runs after 300.
        assert_eq!(due(&mut dialer, 300 * MS), [DialerAction::Ping(7)]);
        let acts = until(&mut dialer, 699 * MS);
        assert!(!dialer.is_suspected(7), "{acts:?}");
        until(&mut dialer, 700 * MS);
        assert!(dialer.is_suspected(7), "a timeout, and twice what it was late");
    }

    #[test]
    fn a_process_that_was_stopped_for_long_suspects_again_soon() {
        let mut dialer = dialer();
        due(&mut dialer, 0);
        dialer.up(0, 7, FIRST);
        let woke_ns = 5_000 * MS;
        due(&mut dialer, woke_ns);
        assert!(!dialer.is_suspected(7));
        until(&mut dialer, woke_ns + 200 * MS * LATE_COUNTS + 50 * MS);
        assert!(dialer.is_suspected(7));
    }

    #[test]
    fn lateness_is_forgotten_in_time() {
        let mut dialer = dialer();
        due(&mut dialer, 0);
        dialer.up(0, 7, FIRST);
        due(&mut dialer, 300 * MS);
        let long_after_ns = 300 * MS + 200 * MS * LATE_COUNTS;
        while dialer.wake_ns().is_some_and(|wake_ns| wake_ns <= long_after_ns) {
            let now_ns = dialer.wake_ns().expect("it is due");
            dialer.heard(now_ns, 7);
            due(&mut dialer, now_ns);
        }
        dialer.heard(long_after_ns, 7);
        until(&mut dialer, long_after_ns + 199 * MS);
        assert!(!dialer.is_suspected(7));
        until(&mut dialer, long_after_ns + 200 * MS);
        assert!(dialer.is_suspected(7));
    }
}
