//! What goes wrong in a seed, and when. The first fault waits until a session runs, the others for the first one.

use super::{MS, S, US};
use crate::random::Random;

/// Something that can be seen from outside and at which a strike hurts most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Moment {
    /// A message travels, either way, in a session whose owner all ends have accepted.
    Message,
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
    const ALL: [Self; 13] = [
        Self::Message,
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

/// At a moment, after so many of its kind, and so much later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct On {
    /// The kind.
    pub moment: Moment,
    /// How many are let pass.
    pub skip: u64,
    /// Then, in nanoseconds.
    pub delay_ns: u64,
}

/// When a fault that is not the first one strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// So many nanoseconds after the first one.
    After(u64),
    /// At a moment behind the first one.
    On(On),
}

/// Which edge is struck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultTarget {
    /// This one.
    Edge(usize),
    /// Where the moment was seen; otherwise as [`FaultTarget::Owner`].
    Here,
    /// That of the newest generation of the session that was seen last.
    Owner,
}

/// What goes wrong. Durations in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The machine dies and comes back empty. If `loud`, its kernel says so to its peers.
    CrashEdge {
        /// Where.
        place: FaultTarget,
        /// Whether peers are told.
        loud: bool,
        /// How long it is away.
        for_ns: u64,
    },
    /// One shard's process dies; the supervisor starts another.
    CrashShard {
        /// Where.
        place: FaultTarget,
    },
    /// Every process of the edge stands still, then goes on where it stood.
    FreezeEdge {
        /// Where.
        place: FaultTarget,
        /// How long.
        for_ns: u64,
    },
    /// All wires between an agent and an edge break; both sides learn of it, not at once.
    CutWires {
        /// Whose.
        agent: usize,
        /// Where.
        place: FaultTarget,
    },
    /// As above, but one side is not told: it believes in a wire that is gone.
    CutOneSide {
        /// Whose.
        agent: usize,
        /// Where.
        place: FaultTarget,
        /// Who learns of it.
        agent_told: bool,
    },
    /// Nothing gets through in one or both directions.
    Silence {
        /// Whose.
        agent: usize,
        /// Where.
        place: FaultTarget,
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
        place: FaultTarget,
        /// When it is restarted.
        for_ns: u64,
    },
    /// The edge's wall clock jumps.
    JumpClock {
        /// Where.
        place: FaultTarget,
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
        place: FaultTarget,
    },
}

impl FaultKind {
    /// The same, of another agent.
    #[must_use]
    pub fn on(mut self, other: usize) -> Self {
        if let Self::CutWires { agent, .. }
        | Self::CutOneSide { agent, .. }
        | Self::Silence { agent, .. }
        | Self::FreezeAgent { agent, .. } = &mut self
        {
            *agent = other;
        }
        self
    }
}

/// One thing that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault<W> {
    /// When.
    pub when: W,
    /// What.
    pub kind: FaultKind,
}

impl<W> Fault<W> {
    /// Whether sessions may be lost by it although every rule is kept.
    #[must_use]
    pub fn is_lethal(&self) -> bool {
        matches!(self.kind, FaultKind::CrashAgent { .. } | FaultKind::Kill { .. })
    }
}

/// The first fault: where a program's message was seen, so that it strikes a session that runs, anywhere between its first
/// message and its last. `messages` are about how many there will be. In a few seeds it strikes a session that is being opened.
pub(super) fn first(random: &mut Random, agents: usize, messages: u64) -> Fault<On> {
    const OPENING: [Moment; 4] = [Moment::Hello, Moment::Promise, Moment::Promised, Moment::Chosen];
    let opening = random.percent(1);
    let moment = if opening { random.pick(&OPENING) } else { Moment::Message };
    let skip = random.below(if opening { 2 } else { messages.max(1) });
    let delay_ns = if random.percent(80) { 0 } else { random.magnitude(US, MS) };
    let kind = mild(random, agents, FaultTarget::Here);
    Fault { when: On { moment, skip, delay_ns }, kind }
}

/// The faults behind the first one; they may wait for their moment.
pub(super) fn draw(random: &mut Random, clients: usize, servers: usize, edges: usize) -> Vec<Fault<When>> {
    let agents = clients + servers;
    let mut after_ns = 0;
    let mut faults = Vec::new();
    for _ in 0..random.below(8) {
        let triggered = random.percent(60);
        let when = if triggered {
            let delay_ns = if random.percent(50) { 0 } else { random.magnitude(US, 5 * MS) };
            When::On(On { moment: random.pick(&Moment::ALL), skip: random.below(4), delay_ns })
        } else {
            // Often close upon the one before, so that it falls into the recovery from that.
            let gap_ns =
                if random.percent(60) { random.magnitude(10 * US, 20 * MS) } else { random.below(S) };
            after_ns += gap_ns;
            When::After(after_ns)
        };
        let place = place(random, edges, triggered);
        faults.push(Fault { when, kind: mild(random, agents, place) });
    }
    if random.percent(6) {
        let kind = if random.percent(70) {
            FaultKind::CrashAgent { agent: random.index(agents) }
        } else {
            FaultKind::Kill { place: FaultTarget::Owner }
        };
        let when = if random.percent(50) {
            When::After(random.magnitude(100 * US, 600 * MS))
        } else {
            let (moment, skip) = (random.pick(&Moment::ALL), random.below(4));
            When::On(On { moment, skip, delay_ns: random.below(MS) })
        };
        faults.push(Fault { when, kind });
    }
    faults
}

fn place(random: &mut Random, edges: usize, triggered: bool) -> FaultTarget {
    match random.below(10) {
        0..2 => FaultTarget::Edge(random.index(edges)),
        2..6 if triggered => FaultTarget::Here,
        _ => FaultTarget::Owner,
    }
}

/// A fault that every session of two living ends must outlive.
fn mild(random: &mut Random, agents: usize, place: FaultTarget) -> FaultKind {
    let agent = random.index(agents);
    let for_ns = random.magnitude(MS, 1_500 * MS);
    match random.below(100) {
        0..28 => FaultKind::CrashEdge { place, loud: random.percent(70), for_ns },
        28..38 => FaultKind::CrashShard { place },
        38..58 => FaultKind::FreezeEdge { place, for_ns },
        58..70 => FaultKind::CutWires { agent, place },
        70..80 => FaultKind::CutOneSide { agent, place, agent_told: random.percent(50) },
        80..90 => {
            let up = random.percent(60);
            FaultKind::Silence { agent, place, up, down: !up || random.percent(50), for_ns }
        }
        90..94 => FaultKind::Drain { place, for_ns: for_ns + S },
        94..97 => {
            let by = i64::try_from(random.magnitude(MS, 1_000 * S)).unwrap_or(0);
            FaultKind::JumpClock { place, by_ns: if random.percent(50) { by } else { -by } }
        }
        _ => FaultKind::FreezeAgent { agent, for_ns },
    }
}
