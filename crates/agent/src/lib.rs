//! An agent, in its own process or embedded in the program that it serves: local sockets and wires around
//! `marram_session::agent::Agent`, which makes all decisions.
//!
//! ```text
//!  clients, servers            one thread: `Shell::run`                    edges
//!  ───────────────   inputs   ┌──────────────────────────┐   frames   ───────────────
//!  locals      TCP  ────────▶ │                          │ ─────────▶
//!  datagrams   UDP            │  Agent::step  (pure)     │            WireTable
//!  websockets  HTTP ◀──────── │                          │ ◀─────────
//!  ───────────────   outputs  └──────────────────────────┘            ───────────────
//!                               ▲ Waker: names (thread "resolver"), connections of an embedding program
//! ```
//!
//! This crate owns sockets and the clock and knows no session: the state machine decides what is
//! sent, read, closed or dialled. Everything on the thread is non-blocking except the observer of
//! an embedding program ([`Program::new`]) and the lock of [`Routing`]. A recorder uses the
//! dialling part alone ([`EndpointDialer`], [`EdgeReports`]); an edge runs an agent for its gates.

mod datagrams;
mod dialled;
mod edges;
mod error;
mod events;
mod local;
mod locals;
pub mod messages;
mod program;
mod reports;
mod resolver;
mod routing;
mod shell;
mod transport;
mod trim;
mod undecided;
pub mod websocket;

pub use dialled::{DialFailed, DialInto, Dialing, WireInput};
pub use edges::{EdgesError, parse as parse_edges};
pub use error::{AgentError, EdgeTransportError, TimeoutsError};
pub use program::{
    ASKED_MAX, BACKLOG_MAX, Backlog, CloseState, ConnectHandle, ConnectionKind, ConnectionState,
    HandingError, Program, STOPPED, StreamHalf,
};
pub use reports::EdgeReports;
pub use routing::{FLOWS_MAX, IDLE, Listener, ListenerCounts, MemoryCounts, NotReplaced, Routing};
pub use shell::Shell;
pub use transport::{DialError, EdgeTransport, EndpointDialer, ServerError, ServerLink};

pub use marram_session::agent::{MEMORY, MEMORY_MIN};

use marram_transport::{Security, StopSignal, WireConnector};
use std::time::Duration;

/// The complete configuration of an agent, resolved.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The listeners for local clients, and the app of each. No listeners for a server's agent.
    pub routing: Routing,
    /// Edges as `host:port`, preferred first. Names are resolved again at each dial; each address that a name has when the agent
    /// starts counts as a separate edge.
    pub edges: Vec<String>,
    /// Whether it also uses edges of the domain that its edges tell it of.
    pub learn: bool,
    /// Whether a new session goes to the least loaded of the edges that are equally near, and not to the first of them.
    pub spread: bool,
    /// Servers that this agent connects to. Empty for a client's agent.
    pub servers: Vec<ServerSettings>,
    /// How its wires are protected.
    pub security: Security,
    /// All timeouts.
    pub timeouts: Timeouts,
    /// Limits of what it keeps.
    pub limits: AgentLimits,
}

/// What an agent keeps at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgentLimits {
    /// Bytes that its sessions may keep together: messages, log, checkpoints. At least [`MEMORY_MIN`].
    pub memory_max: u64,
    /// Bytes of checkpoints of one session: at most [`CHECKPOINTS_SIZE_MAX`](marram_wire::limits::CHECKPOINTS_SIZE_MAX).
    pub checkpoints_max: u64,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self { memory_max: MEMORY, checkpoints_max: marram_wire::limits::CHECKPOINTS_SIZE }
    }
}

/// A server that an agent connects to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerSettings {
    /// The name that manifests use.
    pub name: String,
    /// `host:port`
    pub address: String,
    /// Whether it uses datagrams.
    pub datagrams: bool,
    /// Whether the agent first sends it the client's address, in a PROXY protocol header. Not for datagrams.
    pub proxy_protocol: bool,
}

/// The timeouts of an agent. Every value must be greater than zero.
///
/// Those that the state machine measures exclude the time in which the process could not run
/// (`marram_transport::Clock`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// The interval of heartbeats on a wire.
    pub heartbeat_interval: Duration,
    /// An edge without any message for so long is suspected, sooner if its answers usually come soon; at least twice the interval.
    pub heartbeat_timeout: Duration,
    /// How long a connection waits for an edge that takes its session before it fails.
    /// An ended session's tombstone must outlive it (`docs/protocol.md`, chapter 1); nothing checks
    /// that relation.
    pub edge_wait: Duration,
    /// First wait before an edge is dialled again; doubles, with jitter.
    pub backoff_min: Duration,
    /// Longest wait before an edge is dialled again.
    pub backoff_max: Duration,
    /// How long a session that cannot be resumed is remembered if its edge did not say.
    pub linger: Duration,
    /// How long a shard that failed must be healthy before its sessions fail back; doubles each time.
    pub failback_delay: Duration,
    /// The time limit of a wire's handshake, from the first packet to the last proof.
    pub dial: Duration,
    /// The time limit of a connection to a server.
    pub connect: Duration,
    /// How long a connection waits for its client's first bytes, if a rule needs them.
    pub first_bytes: Duration,
    /// How long the host of a client or server may be unreachable before its connections count as broken.
    pub peer_unreachable: Duration,
    /// How long sessions may continue after the first stop request.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_millis(50),
            heartbeat_timeout: Duration::from_millis(200),
            edge_wait: Duration::from_secs(30),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            linger: Duration::from_secs(600),
            failback_delay: Duration::from_secs(2),
            dial: Duration::from_secs(3),
            connect: Duration::from_secs(5),
            first_bytes: Duration::from_secs(3),
            peer_unreachable: Duration::from_secs(120),
            drain: Duration::from_secs(30),
        }
    }
}

impl Timeouts {
    /// Whether the values are valid.
    ///
    /// # Errors
    /// With the first invalid timeout.
    pub fn check(&self) -> Result<(), TimeoutsError> {
        let times = [
            ("heartbeat_interval", self.heartbeat_interval),
            ("heartbeat_timeout", self.heartbeat_timeout),
            ("edge_wait", self.edge_wait),
            ("backoff_min", self.backoff_min),
            ("backoff_max", self.backoff_max),
            ("linger", self.linger),
            ("failback_delay", self.failback_delay),
            ("dial", self.dial),
            ("connect", self.connect),
            ("first_bytes", self.first_bytes),
            ("peer_unreachable", self.peer_unreachable),
            ("drain", self.drain),
        ];
        for (name, time) in times {
            if time.is_zero() {
                return Err(TimeoutsError::Zero(name));
            }
        }
        if self.heartbeat_timeout < 2 * self.heartbeat_interval {
            return Err(TimeoutsError::HeartbeatTimeout);
        }
        if self.backoff_max < self.backoff_min {
            return Err(TimeoutsError::Backoff);
        }
        Ok(())
    }
}

/// Runs an agent until `stop`: then it refuses new connections, waits for its sessions, and returns.
///
/// # Errors
/// If it cannot start, with what to change in its configuration; afterwards only if the operating system reports an error.
pub fn run(options: &AgentOptions, stop: StopSignal) -> Result<(), AgentError> {
    Ok(prepare(options, stop, edge_transport(&options.security, &options.edges)?)?.run()?)
}

/// The transport to these edges.
///
/// # Errors
/// If the edges or a file of the security settings cannot be used.
pub fn edge_transport(security: &Security, edges: &[String]) -> Result<EdgeTransport, EdgeTransportError> {
    Ok(EdgeTransport::Edges { connector: WireConnector::new(security)?, edges: edges::parse(edges)? })
}

/// An agent that is ready to run over a given transport: its listeners are bound.
///
/// # Errors
/// As [`run`], when it starts. Clients that connect before [`Shell::run`] wait in the kernel's
/// queue.
pub fn prepare(
    options: &AgentOptions,
    stop: StopSignal,
    transport: EdgeTransport,
) -> Result<Shell, AgentError> {
    Shell::new(options, stop, transport, None)
}

/// An agent that is ready to run in the program that it serves, and the handle with which this program opens connections.
///
/// # Errors
/// As [`run`].
pub fn embed(
    options: &AgentOptions,
    stop: StopSignal,
    program: Program,
) -> Result<(Shell, ConnectHandle), AgentError> {
    options.timeouts.check()?;
    let shell = Shell::new(options, stop, edge_transport(&options.security, &options.edges)?, Some(program))?;
    let handle = shell.connect_handle().expect("it has a program");
    Ok((shell, handle))
}
