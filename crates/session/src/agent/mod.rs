//! An agent: the ends of many sessions, the wires to the edges, and the choice between them.
//!
//! Pure: sockets and clocks are requested and answered as values ([`AgentInput`], [`AgentOutput`]). A client's agent
//! opens sessions for local connections; a server's agent accepts sessions and connects to the server. Either may start
//! a recovery (docs/protocol.md, "Opening a generation").

mod affinity;
mod api;
mod connections;
mod datagrams;
mod invariants;
mod leads;
mod learning;
mod local;
mod memory;
pub mod proxy;
mod rejections;
pub mod routes;
mod session_table;
mod sessions;
mod spread;
#[cfg(test)]
mod tests;
mod tombstones;
mod wire_table;
mod wires;

pub use crate::dialer::Target;
pub use api::{
    AgentConfig, AgentInput, AgentOutput, AgentReport, AgentServer, ConnectionFailure, ConnectionId, WireId,
};

pub use crate::budget::{MEMORY, MEMORY_MIN, Memory};

use crate::{
    budget::Budget,
    dialer::{self, Dialer, DialerAction},
    end::EndEffect,
    invariant,
    trace::{TraceContext, TraceRole},
};
use affinity::ShardAffinity;
use alloc::vec::Vec;
use connections::Connections;
use learning::Learning;
use local::Local;
use marram_wire::{id::SessionId, random::Random};
use session_table::Sessions;
use spread::Spread;
use tombstones::Tombstones;
use wire_table::Wires;

/// What an agent is in traces that concern no session.
const AGENT: TraceContext = TraceContext::of(TraceRole::Agent);

/// Acknowledgements wait at most this long to be sent with a message.
const ACK_DELAY_NS: u64 = 5_000_000;

/// One end of one session: an agent, such as an edge's gate, may have both ends of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct EndId {
    session: SessionId,
    server: bool,
}

/// The agent. Pass it each event and carry out its outputs. The state is in tables, by subject; what needs more than
/// one subject is decided here.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    random: Random,
    started: bool,
    /// The operator stops the agent: it takes no connection, and its sessions stay where they are.
    draining: bool,
    wires: Wires,
    /// Edges that other edges have told it of.
    learning: Learning,
    /// The sessions that are away from home.
    affinity: ShardAffinity,
    /// The apps whose new sessions go to the least loaded edge.
    spread: Spread,
    sessions: Sessions,
    /// What the sessions may keep.
    budget: Budget<EndId>,
    connections: Connections,
    /// Sessions that ended here at their server's end.
    tombstones: Tombstones,
    /// The first byte of the next session's id: it selects the shard, if there are several.
    turn: u8,
    datagrams_dropped: u64,
    /// The time that the shell was last asked to wake the agent at, unless it is over.
    wake_ns: Option<u64>,
    /// Empty between steps; kept to avoid an allocation for each message.
    effects: Vec<EndEffect>,
    /// As above.
    acts: Vec<DialerAction>,
    /// As above.
    due: Vec<EndId>,
}

impl Agent {
    /// `entropy` seeds session ids and jitter: 32 random bytes.
    #[must_use]
    pub fn new(config: AgentConfig, entropy: [u8; 32]) -> Self {
        Self {
            // Replaced at the first event, which says what time it is.
            wires: Wires::new(Dialer::new(dialer(&config), 0)),
            learning: Learning::new(&config),
            affinity: ShardAffinity::new(config.failback_delay_ns),
            spread: Spread::new(config.spread),
            budget: Budget::new(config.memory_max),
            config,
            random: Random::new(entropy),
            started: false,
            draining: false,
            sessions: Sessions::default(),
            connections: Connections::default(),
            tombstones: Tombstones::default(),
            turn: entropy[0],
            datagrams_dropped: 0,
            wake_ns: None,
            effects: Vec::new(),
            acts: Vec::new(),
            due: Vec::new(),
        }
    }

    /// Takes one event at `now_ns` (monotonic) and appends the actions. The first event should be [`AgentInput::Wake`].
    pub fn step(&mut self, now_ns: u64, input: AgentInput, out: &mut Vec<AgentOutput>) {
        self.wake_ns = self.wake_ns.filter(|wake_ns| *wake_ns > now_ns);
        if !self.started {
            self.started = true;
            let dialer = Dialer::new(dialer(&self.config), now_ns);
            self.wires.start(now_ns, dialer, self.config.edges);
        }
        match input {
            AgentInput::WireUp { wire, target } => self.wire_up(now_ns, wire, target, out),
            AgentInput::DialFailed { target, reason } => self.dial_failed(now_ns, target, reason, out),
            AgentInput::WireDown { wire, reason } => self.wire_down(now_ns, wire, reason, out),
            AgentInput::Frame { wire, frame } => self.frame(now_ns, wire, frame, out),
            AgentInput::Accepted { connection, app, key, datagrams, messages, origin } => {
                let mut local = Local::new(datagrams);
                local.messages |= messages;
                self.accepted(now_ns, connection, (app, key, origin), local, out);
            }
            AgentInput::Connected { connection } => self.connected(now_ns, connection, out),
            AgentInput::ConnectFailed { connection, reason } => {
                self.connect_failed(now_ns, connection, reason, out)
            }
            AgentInput::Received { connection, bytes } => self.local_bytes(now_ns, connection, bytes, out),
            AgentInput::Waits { connection } => self.local_waits(now_ns, connection, out),
            AgentInput::EndOfInput { connection } => self.local_end(now_ns, connection, out),
            AgentInput::Broken { connection } => self.local_broken(now_ns, connection, out),
            AgentInput::Written { connection, bytes } => self.local_written(now_ns, connection, bytes, out),
            AgentInput::Wake => {}
            AgentInput::Drain => self.draining = true,
            AgentInput::CancelDrain => self.draining = false,
        }
        self.wires_due(now_ns, out);
        self.learning_due(now_ns, out);
        self.sessions_due(now_ns, out);
        self.fail_back(now_ns, out);
        self.tombstones.expire(now_ns);
        self.share_memory(now_ns, out);
        self.ask_to_wake(out);
        invariant::after_step(|| self.invariants());
    }

    /// Number of sessions that the agent has.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The end of one session, for inspection: the server's, if `server`.
    #[must_use]
    pub fn end(&self, session: SessionId, server: bool) -> Option<&crate::end::End> {
        self.sessions.get(EndId { session, server }).map(|session| &session.end)
    }

    /// Every session, in the order of its id.
    pub fn session_ids(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.iter().map(|(id, _)| id.session)
    }

    fn sessions_due(&mut self, now_ns: u64, out: &mut Vec<AgentOutput>) {
        loop {
            let mut due = core::mem::take(&mut self.due);
            self.sessions.take_due(now_ns, &mut self.random, &mut due);
            let is_done = due.is_empty();
            for session in due.drain(..) {
                // Another one that was due may have ended it.
                if self.sessions.get(session).is_some() {
                    self.session_due(now_ns, session, out);
                }
            }
            self.due = due;
            if is_done {
                return;
            }
        }
    }

    /// Asks the shell for the next time at which anything is due, unless it was asked for that time.
    fn ask_to_wake(&mut self, out: &mut Vec<AgentOutput>) {
        let due_ns = [
            self.sessions.wake_ns(),
            self.wires.wake_ns(),
            self.learning.wake_ns(),
            self.affinity.wake_ns(),
            self.budget.wake_ns(),
        ];
        let due_ns = due_ns.into_iter().flatten().min();
        if let Some(now_ns) = due_ns.filter(|due_ns| self.wake_ns != Some(*due_ns)) {
            self.wake_ns = Some(now_ns);
            out.push(AgentOutput::WakeAt { now_ns });
        }
    }
}

fn dialer(config: &AgentConfig) -> dialer::DialerConfig {
    dialer::DialerConfig {
        edges: config.edges,
        heartbeat_interval_ns: config.heartbeat_interval_ns,
        heartbeat_timeout_ns: config.heartbeat_timeout_ns,
        backoff_min_ns: config.backoff_min_ns,
        backoff_max_ns: config.backoff_max_ns,
    }
}
