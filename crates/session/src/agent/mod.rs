//! An agent: the ends of many sessions, the wires to the edges, and the choice between them.
//!
//! Pure: sockets and clocks are asked for and answered as values ([`In`], [`Out`]). A client's agent opens sessions for local
//! connections; a server's agent takes them up and connects to the server. Either may lead a recovery (DESIGN.md section 5.7).

mod api;
mod local;
mod sessions;
mod wires;

pub use api::{Config, ConnectionId, In, Out, Report, Target, WireId};

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use marram_wire::{id::SessionId, random::Random};
use sessions::Session;
use wires::{Dial, Wire};

/// Acknowledgements wait at most this long for a message to travel with.
const ACK_DELAY_NS: u64 = 5_000_000;

/// The agent. Feed it what happens; do what it says.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    random: Random,
    started: bool,
    draining: bool,
    dials: BTreeMap<Target, Dial>,
    wires: BTreeMap<WireId, Wire>,
    sessions: BTreeMap<SessionId, Session>,
    connections: BTreeMap<ConnectionId, SessionId>,
    connections_made: u64,
    /// When sessions want to be looked at.
    timers: BTreeSet<(u64, SessionId)>,
    wake_ns: Option<u64>,
}

impl Agent {
    /// `entropy` seeds session ids and jitter: 32 random bytes.
    #[must_use]
    pub fn new(config: Config, entropy: [u8; 32]) -> Self {
        Self {
            config,
            random: Random::new(entropy),
            started: false,
            draining: false,
            dials: BTreeMap::new(),
            wires: BTreeMap::new(),
            sessions: BTreeMap::new(),
            connections: BTreeMap::new(),
            connections_made: 0,
            timers: BTreeSet::new(),
            wake_ns: None,
        }
    }

    /// Takes one event at `now_ns` (monotonic) and appends what is to be done. The first event should be [`In::Wake`].
    pub fn step(&mut self, now_ns: u64, input: In, out: &mut Vec<Out>) {
        if !self.started {
            self.started = true;
            self.dial_all(now_ns, out);
        }
        match input {
            In::WireUp { wire, target } => self.wire_up(now_ns, wire, target, out),
            In::DialFailed { target, reason } => self.dial_failed(now_ns, target, reason, out),
            In::WireDown { wire, reason } => self.wire_down(now_ns, wire, reason, out),
            In::Frame { wire, frame } => self.frame(now_ns, wire, frame, out),
            In::Accepted { connection, app } => self.accepted(now_ns, connection, app, out),
            In::Connected { connection } => self.connected(now_ns, connection, out),
            In::ConnectFailed { connection, reason } => self.connect_failed(now_ns, connection, reason, out),
            In::Received { connection, bytes } => self.local_bytes(now_ns, connection, bytes, out),
            In::EndOfInput { connection } => self.local_end(now_ns, connection, out),
            In::Broken { connection } => self.local_broken(now_ns, connection, out),
            In::Written { connection, bytes } => self.local_written(now_ns, connection, bytes, out),
            In::Wake => {}
            In::Drain => self.draining = true,
        }
        self.wires_due(now_ns, out);
        self.sessions_due(now_ns, out);
        self.ask_to_wake(out);
    }

    /// Sessions that the agent remembers.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Bytes kept for all sessions: messages, log and checkpoints.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.sessions.values().map(|session| session.end.kept_bytes()).sum()
    }

    /// The end of one session, to look at.
    #[must_use]
    pub fn end(&self, session: SessionId) -> Option<&crate::end::End> {
        self.sessions.get(&session).map(|session| &session.end)
    }

    /// Every session, in the order of its id.
    pub fn session_ids(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }

    fn sessions_due(&mut self, now_ns: u64, out: &mut Vec<Out>) {
        while let Some(&(due_ns, session)) = self.timers.first() {
            if due_ns > now_ns {
                return;
            }
            self.timers.pop_first();
            if let Some(state) = self.sessions.get_mut(&session) {
                state.timer_ns = None;
            }
            self.session_due(now_ns, session, out);
        }
    }

    /// Looks at the session at `at_ns`, or earlier if something else asked for it.
    fn arm(&mut self, id: SessionId, at_ns: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.timer_ns.is_some_and(|timer_ns| timer_ns <= at_ns) {
            return;
        }
        if let Some(timer_ns) = session.timer_ns.replace(at_ns) {
            self.timers.remove(&(timer_ns, id));
        }
        self.timers.insert((at_ns, id));
    }

    fn ask_to_wake(&mut self, out: &mut Vec<Out>) {
        let sessions = self.timers.first().map(|(due_ns, _)| *due_ns);
        let due_ns = [sessions, self.wires_wake_ns()].into_iter().flatten().min();
        if let Some(now_ns) = due_ns.filter(|due_ns| self.wake_ns != Some(*due_ns)) {
            self.wake_ns = Some(now_ns);
            out.push(Out::WakeAt { now_ns });
        }
    }
}
