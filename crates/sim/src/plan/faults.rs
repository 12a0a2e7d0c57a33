//! What goes wrong in a seed, and when: at a time, or at a moment that somebody watches out for.

use super::{MS, S, US};
use crate::random::Random;

/// Something that can be seen from outside and at which a strike hurts most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Moment {
    /// An end asks for a generation.
    Hello,
    /// An edge asks an end for its promise.
    Promise,
    /// An end promises.
    Promised,
    /// A cell is restored from checkpoints.
    Restore,
    /// A cell runs a handler that an earlier owner's cell ran before.
    Replay,
    /// An edge gives an end the chosen log.
    Chosen,
    /// A checkpoint leaves an edge.
    Checkpoint,
    /// An end has stored a checkpoint.
    Stored,
    /// An end need not keep what a checkpoint covers.
    Truncate,
    /// A program ends its output.
    EndOfInput,
    /// Everything was received both ways.
    Finish,
    /// An end is ready to forget.
    Finished,
}

impl Moment {
    const ALL: [Self; 12] = [
        Self::Hello,
        Self::Promise,
        Self::Promised,
        Self::Restore,
        Self::Replay,
        Self::Chosen,
        Self::Checkpoint,
        Self::Stored,
        Self::Truncate,
        Self::EndOfInput,
        Self::Finish,
        Self::Finished,
    ];
}

/// When a strike falls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// At this time.
    At(u64),
    /// At a moment, after so many of its kind, and so much later.
    On {
        /// Which.
        moment: Moment,
        /// How many are let pass.
        skip: u64,
        /// Then, in nanoseconds.
        delay_ns: u64,
    },
}

/// Which edge is struck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// This one.
    Edge(usize),
    /// Where the moment was seen; otherwise as [`Place::Owner`].
    Here,
    /// That of the newest generation of the session that was seen last.
    Owner,
}

/// What goes wrong. Durations in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strike {
    /// The machine dies and comes back empty. If `loud`, its kernel says so to its peers.
    CrashEdge {
        /// Where.
        place: Place,
        /// Whether peers are told.
        loud: bool,
        /// How long it is away.
        for_ns: u64,
    },
    /// One shard's process dies; the supervisor starts another.
    CrashShard {
        /// Where.
        place: Place,
    },
    /// Every process of the edge stands still, then goes on where it stood.
    FreezeEdge {
        /// Where.
        place: Place,
        /// How long.
        for_ns: u64,
    },
    /// All wires between an agent and an edge break; both sides learn of it, not at once.
    CutWires {
        /// Whose.
        agent: usize,
        /// Where.
        place: Place,
    },
    /// As above, but one side is not told: it believes in a wire that is gone.
    CutOneSide {
        /// Whose.
        agent: usize,
        /// Where.
        place: Place,
        /// Who learns of it.
        agent_told: bool,
    },
    /// Nothing gets through in one or both directions.
    Silence {
        /// Whose.
        agent: usize,
        /// Where.
        place: Place,
        /// From agent to edge.
        up: bool,
        /// From edge to agent.
        down: bool,
        /// How long.
        for_ns: u64,
    },
    /// The edge is asked to shut down; it is restarted later.
    Drain {
        /// Where.
        place: Place,
        /// When it is restarted.
        for_ns: u64,
    },
    /// The edge's wall clock jumps.
    JumpClock {
        /// Where.
        place: Place,
        /// By how much.
        by_ns: i64,
    },
    /// An agent's process stands still.
    FreezeAgent {
        /// Which.
        agent: usize,
        /// How long.
        for_ns: u64,
    },
    /// An agent's process dies, and its ends and connections with it.
    CrashAgent {
        /// Which.
        agent: usize,
    },
    /// The operator ends a session, if the edge has one.
    Kill {
        /// Where.
        place: Place,
    },
}

/// One thing that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When.
    pub when: When,
    /// What.
    pub strike: Strike,
}

impl Fault {
    /// Whether sessions may be lost by it although every rule is kept.
    #[must_use]
    pub fn is_lethal(&self) -> bool {
        matches!(self.strike, Strike::CrashAgent { .. } | Strike::Kill { .. })
    }
}

/// The first fault always comes at a time while sessions run; the others may wait for their moment.
pub(super) fn draw(random: &mut Random, clients: usize, servers: usize, edges: usize) -> Vec<Fault> {
    let agents = clients + servers;
    let mut at_ns = random.magnitude(5 * MS, 400 * MS);
    let mut faults = vec![Fault { when: When::At(at_ns), strike: mild(random, agents, edges, false) }];
    for _ in 0..random.below(8) {
        let ambush = random.percent(60);
        let when = if ambush {
            let delay_ns = if random.percent(50) { 0 } else { random.magnitude(US, 5 * MS) };
            When::On { moment: random.pick(&Moment::ALL), skip: random.below(4), delay_ns }
        } else {
            // Often close upon the one before, so that it falls into the recovery from that.
            let gap_ns =
                if random.percent(60) { random.magnitude(10 * US, 20 * MS) } else { random.below(S) };
            at_ns += gap_ns;
            When::At(at_ns)
        };
        faults.push(Fault { when, strike: mild(random, agents, edges, ambush) });
    }
    if random.percent(6) {
        let strike = if random.percent(70) {
            Strike::CrashAgent { agent: random.index(agents) }
        } else {
            Strike::Kill { place: Place::Owner }
        };
        let when = if random.percent(50) {
            When::At(random.magnitude(20 * MS, 600 * MS))
        } else {
            When::On { moment: random.pick(&Moment::ALL), skip: random.below(4), delay_ns: random.below(MS) }
        };
        faults.push(Fault { when, strike });
    }
    faults
}

fn place(random: &mut Random, edges: usize, ambush: bool) -> Place {
    match random.below(10) {
        0..2 => Place::Edge(random.index(edges)),
        2..6 if ambush => Place::Here,
        _ => Place::Owner,
    }
}

/// A fault that every session of two living ends must outlive.
fn mild(random: &mut Random, agents: usize, edges: usize, ambush: bool) -> Strike {
    let place = place(random, edges, ambush);
    let agent = random.index(agents);
    let for_ns = random.magnitude(MS, 1_500 * MS);
    match random.below(100) {
        0..28 => Strike::CrashEdge { place, loud: random.percent(70), for_ns },
        28..38 => Strike::CrashShard { place },
        38..58 => Strike::FreezeEdge { place, for_ns },
        58..70 => Strike::CutWires { agent, place },
        70..80 => Strike::CutOneSide { agent, place, agent_told: random.percent(50) },
        80..90 => {
            let up = random.percent(60);
            Strike::Silence { agent, place, up, down: !up || random.percent(50), for_ns }
        }
        90..94 => Strike::Drain { place, for_ns: for_ns + S },
        94..97 => {
            let by = i64::try_from(random.magnitude(MS, 1_000 * S)).unwrap_or(0);
            Strike::JumpClock { place, by_ns: if random.percent(50) { by } else { -by } }
        }
        _ => Strike::FreezeAgent { agent, for_ns },
    }
}
