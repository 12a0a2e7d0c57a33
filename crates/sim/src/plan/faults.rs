//! The faults of a seed and their times. The first fault waits until a session runs, the others for the first one.
//!
//! ```text
//! time ->  set-up   session runs ..... first fault ........ others: After(ns), or On(moment)
//!                   moments are counted from here on  '- starts their clocks
//! ```
//! `mild` faults are those that every session with two live ends must survive; a *lethal* one may
//! end sessions, so after it the oracle accepts codes that it would refuse otherwise
//! (`world::causes`). All faults heal by themselves (`world::faults`).

use super::{Absence, MS, RenewalStep, S, US};
use crate::random::Random;

/// A moment that can be observed from outside and at which a fault hurts most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Moment {
    /// A message is sent, in either direction, in a session whose owner all ends have accepted.
    Message,
    /// An end asks for a generation.
    Hello,
    /// An edge asks an end for its promise.
    Promise,
    /// An end promises to accept a generation.
    Promised,
    /// A cell is restored from checkpoints.
    Restore,
    /// A cell runs a handler that an earlier owner's cell ran before.
    Replay,
    /// An edge sends the chosen log to an end.
    Chosen,
    /// A checkpoint leaves an edge.
    Checkpoint,
    /// An end has stored a checkpoint.
    Stored,
    /// An end may drop the log that a checkpoint covers.
    Truncate,
    /// A program ends its output.
    EndOfInput,
    /// An owner begins to feed the edge to which its session moves.
    MoveFed,
    /// An owner tells that edge to take the session over.
    HandedOver,
    /// An edge that has claimed a hall tells its backup to go on with the copy that it has.
    KeptOn,
    /// An owner announces a claim that names a backup after one that named none.
    NextBackup,
    /// An owner tells its next backup in which group the session will be.
    NextGroup,
    /// The backup of a session has moved.
    BackupMoved,
    /// Everything was received in both directions.
    Finish,
    /// An end is ready to forget the session.
    Finished,
}

impl Moment {
    /// About in the order in which they occur in a session's life, without those of moves and backups, which few seeds have.
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

/// At a moment, after skipping some of its kind, and after a delay.
/// A moment that never occurs leaves its fault waiting; only the first fault is then injected all
/// the same, when everything has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct On {
    /// The kind.
    pub moment: Moment,
    /// How many to skip.
    pub skip: u64,
    /// The delay after that, in nanoseconds.
    pub delay_ns: u64,
}

/// When a fault other than the first one occurs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// This many nanoseconds after the first one.
    After(u64),
    /// At a moment after the first one.
    On(On),
}

/// Of a move: to an edge that is not the backup of the session, whichever that is.
pub const PAST_BACKUP: u64 = 3;

/// The edge that a fault hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultTarget {
    /// This one.
    Edge(usize),
    /// The edge where the moment was observed; otherwise as [`FaultTarget::Owner`].
    Here,
    /// The edge with the newest generation of the session that was last observed.
    Owner,
    /// The edge so many places behind that of [`FaultTarget::Owner`].
    Behind(usize),
    /// The edge that an owner last named as its standby; otherwise as [`FaultTarget::Owner`].
    Standby,
    /// The edge to which a session was last moved; otherwise as [`FaultTarget::Owner`].
    MoveTarget,
}

/// Kinds of faults. Durations in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The machine crashes and restarts without state. If `loud`, its kernel closes the connections to its peers.
    CrashEdge {
        /// The edge.
        place: FaultTarget,
        /// Whether peers see their connections closed.
        loud: bool,
        /// Time until the restart.
        for_ns: u64,
    },
    /// One shard's process crashes; the supervisor starts another.
    CrashShard {
        /// The edge.
        place: FaultTarget,
    },
    /// Every process of the edge is paused, then continues with its state.
    FreezeEdge {
        /// The edge.
        place: FaultTarget,
        /// Duration.
        for_ns: u64,
    },
    /// All wires between an agent and an edge break; both sides learn of it after a delay.
    CutWires {
        /// The agent.
        agent: usize,
        /// The edge.
        place: FaultTarget,
    },
    /// As above, but only one side learns of it: the other still considers the wire open.
    CutOneSide {
        /// The agent.
        agent: usize,
        /// The edge.
        place: FaultTarget,
        /// Whether the agent learns of it, and not the edge.
        agent_told: bool,
    },
    /// All frames in one or both directions are lost.
    Silence {
        /// The agent.
        agent: usize,
        /// The edge.
        place: FaultTarget,
        /// Whether from agent to edge.
        up: bool,
        /// Whether from edge to agent.
        down: bool,
        /// Duration.
        for_ns: u64,
    },
    /// The edge is drained and shut down; it is restarted later. If an operator cancels that, it goes on.
    Drain {
        /// The edge.
        place: FaultTarget,
        /// Time until the restart.
        for_ns: u64,
        /// Time until it is cancelled, if it is.
        cancel_ns: Option<u64>,
    },
    /// The edge's wall clock jumps.
    JumpClock {
        /// The edge.
        place: FaultTarget,
        /// The difference in nanoseconds.
        by_ns: i64,
    },
    /// An agent's process is paused.
    FreezeAgent {
        /// The agent.
        agent: usize,
        /// Duration.
        for_ns: u64,
    },
    /// An agent's process crashes; its ends and connections are lost.
    CrashAgent {
        /// The agent.
        agent: usize,
    },
    /// The operator ends a session, if the edge has one.
    Kill {
        /// The edge.
        place: FaultTarget,
    },
    /// The operator moves the sessions of an edge.
    Move {
        /// The edge.
        place: FaultTarget,
        /// How many edges further; 0 is another shard of the same edge, and [`PAST_BACKUP`] an edge that is not its backup.
        by: u64,
        /// The operator cancels what is not handed over after this time.
        cancel_ns: Option<u64>,
        /// Whether it replaces moves that are under way.
        replaces: bool,
        /// Whether the sessions stay, and their backups move there.
        backup: bool,
    },
    /// The coordinator, which is the witness, is away.
    CoordinatorAway {
        /// In which way.
        absence: Absence,
        /// Duration.
        for_ns: u64,
    },
    /// A step of an owner that renews its standby in vain.
    RenewInVain(RenewalStep),
}

impl FaultKind {
    /// The same fault, for another agent.
    /// Faults of edges name no agent and stay as they are.
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

/// A fault and its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault<W> {
    /// Its time.
    pub when: W,
    /// Its kind.
    pub kind: FaultKind,
}

impl<W> Fault<W> {
    /// Whether sessions may be lost by it although every rule is kept.
    #[must_use]
    pub fn is_lethal(&self) -> bool {
        matches!(self.kind, FaultKind::CrashAgent { .. } | FaultKind::Kill { .. })
    }
}

/// The first fault. It waits for a message of a program, so that it hits a running session anywhere between its first and its
/// last message. `messages` is the approximate number of messages. In a few seeds it hits a session
/// that is being opened. The delay moves the fault from the moment itself into what follows on it:
/// replies on their way, a handler that runs.
pub(super) fn first(random: &mut Random, agents: usize, messages: u64) -> Fault<On> {
    const OPENING: [Moment; 4] = [Moment::Hello, Moment::Promise, Moment::Promised, Moment::Chosen];
    let opening = random.percent(1);
    let moment = if opening { random.pick(&OPENING) } else { Moment::Message };
    let skip = random.below(if opening { 2 } else { messages.max(1) });
    let delay_ns = if random.percent(80) { 0 } else { random.magnitude(US, MS) };
    let kind = mild(random, agents, FaultTarget::Here);
    Fault { when: On { moment, skip, delay_ns }, kind }
}

/// The faults after the first one; they may wait for their moment.
///
/// Up to seven mild faults, three of five at a moment, and in 6 of 100 seeds one that is lethal.
/// `clients` and `servers` are numbers of agents.
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
            // Often soon after the previous fault, so that it occurs during the recovery.
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

/// `triggered` faults mostly hit the edge where their moment occurred; others have no such edge.
fn place(random: &mut Random, edges: usize, triggered: bool) -> FaultTarget {
    match random.below(10) {
        0..2 => FaultTarget::Edge(random.index(edges)),
        2..6 if triggered => FaultTarget::Here,
        _ => FaultTarget::Owner,
    }
}

/// A fault that every session with two live ends must survive.
///
/// The weights follow from what the machines do with it: crashes and freezes of edges make
/// recoveries, which is most of the protocol.
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
        90..94 => FaultKind::Drain { place, for_ns: for_ns + S, cancel_ns: None },
        94..97 => {
            let by = i64::try_from(random.magnitude(MS, 1_000 * S)).unwrap_or(0);
            FaultKind::JumpClock { place, by_ns: if random.percent(50) { by } else { -by } }
        }
        _ => FaultKind::FreezeAgent { agent, for_ns },
    }
}
