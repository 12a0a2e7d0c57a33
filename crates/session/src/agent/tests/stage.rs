//! A stage for one agent: passes events, keeps virtual time, wakes the agent exactly at the requested times, answers its pings,
//! and records its outputs.

use super::{
    super::{
        Agent, AgentConfig, AgentInput, AgentOutput, AgentReport, AgentServer, ConnectionId, MEMORY, Target,
        WireId,
    },
    kept, lines,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use bytes::Bytes;
use marram_wire::{
    codec::Last,
    frame::{Channel, Chosen, Code, Frame, Keeps, Output, Pong, Promise, Reject, Welcome},
    id::{Generation, ImageHash, SessionId},
};

pub(super) const MS: u64 = 1_000_000;

/// Time zero of the tests differs from that of the clock.
const START_NS: u64 = 3_600_000 * MS;

/// Timeouts in milliseconds, chosen so that no two are due at the same time by chance.
pub(super) const INTERVAL: u64 = 700;
pub(super) const TIMEOUT: u64 = 2_000;
pub(super) const EDGE_WAIT: u64 = 10_000;
pub(super) const LINGER: u64 = 20_000;
pub(super) const CONNECT: u64 = 3_000;
pub(super) const FAILBACK_DELAY: u64 = 5_000;
/// The session's linger time, as promises set it.
pub(super) const SESSION_LINGER: u64 = 30_000;

/// An agent that requests more wake-ups within one wait is in a busy loop.
const WAKES_MAX: usize = 10_000;

/// Milliseconds as a decimal number.
pub(super) fn milliseconds(ns: u64) -> String {
    match ns % MS {
        0 => format!("{}", ns / MS),
        rest => format!("{}.{rest:06}", ns / MS),
    }
}

/// A server by its name: `udp-` servers use datagrams, connections of `web-` servers preserve message boundaries.
fn server(name: &str) -> AgentServer {
    let (datagrams, messages) = (name.starts_with("udp-"), name.starts_with("web-"));
    AgentServer { name: name.to_string(), datagrams, messages }
}

pub(super) fn config(edges: u16, servers: &[&str]) -> AgentConfig {
    AgentConfig {
        servers: servers.iter().map(|name| server(name)).collect(),
        edges,
        addresses: Vec::new(),
        learn: true,
        spread: true,
        heartbeat_interval_ns: INTERVAL * MS,
        heartbeat_timeout_ns: TIMEOUT * MS,
        edge_wait_ns: EDGE_WAIT * MS,
        backoff_min_ns: 100 * MS,
        backoff_max_ns: 1_000 * MS,
        linger_ns: LINGER * MS,
        connect_timeout_ns: CONNECT * MS,
        failback_delay_ns: FAILBACK_DELAY * MS,
        checkpoints_max: marram_wire::limits::CHECKPOINTS_SIZE,
        memory_max: MEMORY,
    }
}

/// An agent and its surroundings.
pub(super) struct Stage {
    pub(super) agent: Agent,
    pub(super) now_ns: u64,
    wake_ns: Option<u64>,
    /// Edges that answer pings, and after how long; the others are silent.
    pub(super) answering: BTreeMap<WireId, u64>,
    pongs: BTreeSet<(u64, WireId, u64)>,
    /// In the order in which they first appeared.
    sessions: Vec<SessionId>,
    /// Whether the lines contain dialling, greetings and pings as well.
    pub(super) tells_wires: bool,
}

impl Stage {
    pub(super) fn new(config: AgentConfig, entropy: u8) -> Self {
        let agent = Agent::new(config, [entropy; 32]);
        Self {
            agent,
            now_ns: START_NS,
            wake_ns: None,
            answering: BTreeMap::new(),
            pongs: BTreeSet::new(),
            sessions: Vec::new(),
            tells_wires: false,
        }
    }

    /// A client's agent with this many edges, each with one shard, connected: edge 0 by wire 1, edge 1 by wire 2, ..
    pub(super) fn client(edges: u16) -> Self {
        Self::connected(config(edges, &[]))
    }

    /// A server's agent for `db`, as above.
    pub(super) fn server(edges: u16) -> Self {
        Self::connected(config(edges, &["db"]))
    }

    fn connected(config: AgentConfig) -> Self {
        let edges = config.edges;
        let mut stage = Self::new(config, 1);
        for edge in 0..edges {
            stage.edge(u64::from(edge) + 1, edge);
        }
        stage
    }

    /// A client's agent with this many edges. Its program is connection 1; g1 at edge 0 owns its session, on channel 2 of wire
    /// 1.
    pub(super) fn owned(edges: u16) -> Self {
        let mut stage = Self::client(edges);
        stage.accept(1);
        stage.own(1, 2, 1);
        stage
    }

    /// A server's agent with a session that g1 owns on channel 1 of wire 1; its server is connection `q1`, which is open.
    pub(super) fn serving(edges: u16) -> Self {
        let mut stage = Self::server(edges);
        stage.frame(1, Promise { server: "db".to_string(), ..promise(SERVED, 1, 1) });
        stage.frame(1, chosen(1));
        stage.step(AgentInput::Connected { connection: asked(1) });
        stage
    }

    /// Passes an event and returns the agent's outputs; requested wake-ups are stored.
    pub(super) fn step(&mut self, input: AgentInput) -> Vec<String> {
        let mut out = Vec::new();
        self.agent.step(self.now_ns, input, &mut out);
        kept::check(&self.agent);
        out.iter().filter_map(|out| self.write_down(out)).collect()
    }

    fn write_down(&mut self, out: &AgentOutput) -> Option<String> {
        match out {
            AgentOutput::WakeAt { now_ns } => {
                assert!(*now_ns > self.now_ns, "the agent would spin");
                self.wake_ns = Some(*now_ns);
                return None;
            }
            AgentOutput::Send { wire, frame: Frame::Ping(ping) } if self.answering.contains_key(wire) => {
                self.pongs.insert((self.now_ns + self.answering[wire], *wire, ping.stamp));
                return None;
            }
            AgentOutput::Dial { .. }
            | AgentOutput::Send { frame: Frame::Greet(_) | Frame::Ping(_), .. }
            | AgentOutput::Report(AgentReport::EdgeUp { .. } | AgentReport::EdgeDown { .. })
                if !self.tells_wires =>
            {
                return None;
            }
            _ => {}
        }
        let sessions = &mut self.sessions;
        Some(lines::line(out, &mut |session| {
            let known = sessions.iter().position(|known| *known == session);
            let index = known.unwrap_or_else(|| {
                sessions.push(session);
                sessions.len() - 1
            });
            format!("s{}", index + 1)
        }))
    }

    /// Lets time pass, and wakes the agent at the requested times. Each line begins with its time since the call.
    pub(super) fn wait(&mut self, ms: u64) -> Vec<String> {
        let since_ns = self.now_ns;
        let mut told = Vec::new();
        while let Some(lines) = self.advance(since_ns + ms * MS) {
            let at = milliseconds(self.now_ns - since_ns);
            told.extend(lines.into_iter().map(|line| format!("{at} {line}")));
        }
        told
    }

    /// Lets time pass until this line, at most `ms`; returns the time passed in nanoseconds.
    pub(super) fn wait_for(&mut self, what: &str, ms: u64) -> u64 {
        self.wait_to(what, ms).0
    }

    /// As above; also returns all lines of that moment.
    pub(super) fn wait_to(&mut self, what: &str, ms: u64) -> (u64, Vec<String>) {
        let since_ns = self.now_ns;
        while let Some(lines) = self.advance(since_ns + ms * MS) {
            if lines.iter().any(|line| line.contains(what)) {
                return (self.now_ns - since_ns, lines);
            }
        }
        panic!("the agent did not say `{what}`")
    }

    /// Advances to the next event before that time; none if there is none.
    fn advance(&mut self, until_ns: u64) -> Option<Vec<String>> {
        for _ in 0..WAKES_MAX {
            let pong = self.pongs.first().copied().filter(|(due_ns, ..)| *due_ns <= until_ns);
            let wake_ns = self.wake_ns.filter(|wake_ns| *wake_ns <= until_ns);
            let lines = match (pong, wake_ns) {
                (Some((due_ns, wire, stamp)), wake_ns) if wake_ns.is_none_or(|wake_ns| due_ns <= wake_ns) => {
                    self.pongs.pop_first();
                    self.now_ns = due_ns;
                    self.frame(wire.0, Pong { stamp, load: 0 })
                }
                (_, Some(wake_ns)) => {
                    self.wake_ns = None;
                    self.now_ns = wake_ns;
                    self.step(AgentInput::Wake)
                }
                _ => {
                    self.now_ns = until_ns;
                    return None;
                }
            };
            if !lines.is_empty() {
                return Some(lines);
            }
        }
        panic!("the agent spins")
    }

    /// A wire to an edge with one shard comes up; pings on it are answered after a millisecond.
    pub(super) fn edge(&mut self, wire: u64, edge: u16) -> Vec<String> {
        self.shard(wire, edge, 0, 1)
    }

    /// A wire to one of several shards of an edge comes up, as above.
    pub(super) fn shard(&mut self, wire: u64, edge: u16, shard: u8, shards: u8) -> Vec<String> {
        self.answering.entry(WireId(wire)).or_insert(MS);
        let mut lines = self.step(AgentInput::WireUp { wire: WireId(wire), target: Target { edge, shard } });
        lines.extend(self.frame(wire, Welcome { shard, ..welcome(shards) }));
        lines
    }

    pub(super) fn frame(&mut self, wire: u64, frame: impl Into<Frame>) -> Vec<String> {
        self.step(AgentInput::Frame { wire: WireId(wire), frame: frame.into() })
    }

    /// The edge behind a wire falls silent, but the wire stays.
    pub(super) fn silence(&mut self, wire: u64) {
        self.answering.remove(&WireId(wire));
        self.pongs.retain(|(_, at, _)| at.0 != wire);
    }

    pub(super) fn wire_down(&mut self, wire: u64) -> Vec<String> {
        self.silence(wire);
        self.step(AgentInput::WireDown { wire: WireId(wire), reason: "it broke".to_string() })
    }

    /// A program connects to the listener of `app`.
    pub(super) fn accept(&mut self, connection: u64) -> Vec<String> {
        self.step(AgentInput::Accepted {
            key: None,
            connection: ConnectionId(connection),
            app: "app".to_string(),
            datagrams: false,
            messages: false,
            origin: None,
        })
    }

    /// The program of a connection sends something.
    pub(super) fn hear(&mut self, connection: u64, text: &'static str) -> Vec<String> {
        let bytes = Bytes::from_static(text.as_bytes());
        self.step(AgentInput::Received { connection: ConnectionId(connection), bytes })
    }

    pub(super) fn end_of_input(&mut self, connection: u64) -> Vec<String> {
        self.step(AgentInput::EndOfInput { connection: ConnectionId(connection) })
    }

    pub(super) fn broken(&mut self, connection: u64) -> Vec<String> {
        self.step(AgentInput::Broken { connection: ConnectionId(connection) })
    }

    pub(super) fn written(&mut self, connection: u64, bytes: u64) -> Vec<String> {
        self.step(AgentInput::Written { connection: ConnectionId(connection), bytes })
    }

    /// The id of the first session, second session, ..
    pub(super) fn session(&self, number: usize) -> SessionId {
        self.sessions[number - 1]
    }

    /// An edge asks for the promise of the first session and chooses an empty log.
    pub(super) fn own(&mut self, wire: u64, channel: Channel, count: u64) -> Vec<String> {
        let mut lines = self.frame(wire, promise(self.session(1), channel, count));
        lines.extend(self.frame(wire, chosen(channel)));
        lines
    }

    pub(super) fn reject(&mut self, wire: u64, channel: Channel, code: Code) -> Vec<String> {
        self.frame(wire, Reject { channel, code, reason: "no".to_string() })
    }

    pub(super) fn output(&mut self, wire: u64, channel: Channel, text: &'static str) -> Vec<String> {
        self.frame(wire, output(channel, Bytes::from_static(text.as_bytes())))
    }

    /// The last output: the cell closes its output.
    pub(super) fn output_close(&mut self, wire: u64, channel: Channel) -> Vec<String> {
        self.frame(wire, Output { close: true, ..output(channel, Bytes::new()) })
    }
}

/// The session of [`Stage::serving`].
pub(super) const SERVED: SessionId = SessionId([8; 16]);

/// The id of a connection that the agent requested.
pub(super) fn asked(number: u64) -> ConnectionId {
    ConnectionId(number | 1 << 63)
}

pub(super) fn generation(count: u64) -> Generation {
    Generation { count, opener: 5 }
}

pub(super) fn welcome(shards: u8) -> Welcome {
    let edge = "north".to_string();
    Welcome { version: 1, edge, shard: 0, shards, challenge: [3; 16], draining: false, domain: [4; 8] }
}

/// An edge's request to a client's end; the session's key is proved.
pub(super) fn promise(session: SessionId, channel: Channel, count: u64) -> Promise {
    Promise {
        channel,
        session,
        generation: generation(count),
        app: "app".to_string(),
        image: ImageHash([2; 32]),
        server: String::new(),
        peer: None,
        key: [4; 16],
        fresh: true,
        proven: true,
        keeps: Keeps::All,
        shared: false,
        assigned: false,
        linger_ms: u32::try_from(SESSION_LINGER).expect("small"),
        live: None,
        origin: None,
        promoted: Last(None),
    }
}

/// The owner chooses an empty log.
pub(super) fn chosen(channel: Channel) -> Chosen {
    Chosen {
        channel,
        log_offset: 0,
        log: Bytes::new(),
        tag: [0; 8],
        credit: 1 << 20,
        session_ns: 0,
        runs_ahead: Last(None),
    }
}

pub(super) fn output(channel: Channel, payload: Bytes) -> Output {
    Output { channel, increment: None, close: false, payload }
}

/// The lines that contain `what`.
pub(super) fn only(lines: Vec<String>, what: &str) -> Vec<String> {
    let mut lines = lines;
    lines.retain(|line| line.contains(what));
    lines
}

/// As many zeros as one cut of a program's stream has at most.
pub(super) fn cut() -> Bytes {
    Bytes::from(vec![0; marram_wire::limits::STREAM_CUT])
}

/// The sessions that ask for a generation, in the order in which they do, with their channels.
pub(super) fn asking<T: AsRef<str>>(lines: &[T]) -> Vec<(usize, u32)> {
    let hello = |line: &T| {
        let (_, rest) = line.as_ref().split_once(" hello c")?;
        let mut words = rest.split_whitespace();
        let (channel, session) = (words.next()?, words.next()?.strip_prefix('s')?);
        Some((session.parse().ok()?, channel.parse().ok()?))
    };
    lines.iter().filter_map(hello).collect()
}
