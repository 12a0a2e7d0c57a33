//! Inputs and outputs of an agent: the interface between the pure agent and the sockets around it.

use super::Memory;
use crate::dialer::Target;
use alloc::{string::String, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{Code, Frame},
    id::{Generation, SessionId},
    key::CellKey,
    peer::Origin,
};

/// A wire to one shard of one edge; the shell chooses the id and never reuses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WireId(pub u64);

/// A local connection. The shell chooses the ids of those it accepts, the agent those it requests (with the top bit set).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// A server that an agent can reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentServer {
    /// The name that manifests use.
    pub name: String,
    /// Whether it uses datagrams.
    pub datagrams: bool,
    /// Whether its connections preserve message boundaries, as in [`AgentInput::Accepted`].
    pub messages: bool,
}

/// An agent's servers, edges and timeouts. All times in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentConfig {
    /// Servers that this agent can reach; empty for a client's agent.
    pub servers: Vec<AgentServer>,
    /// Number of edges to choose from.
    pub edges: u16,
    /// Where the shell dials them, as far as it is known: no edge is learned at one of these addresses.
    pub addresses: Vec<String>,
    /// Whether it also uses edges of the domain that its edges tell it of.
    pub learn: bool,
    /// Whether a new session asks the least loaded of the edges that are equally near, not the first of them.
    pub spread: bool,
    /// Interval between heartbeats on a wire.
    pub heartbeat_interval_ns: u64,
    /// Silence after which an edge is suspected.
    pub heartbeat_timeout_ns: u64,
    /// How long a connection waits for an edge that accepts its session, before it is closed.
    pub edge_wait_ns: u64,
    /// First backoff before an edge is dialled again; doubles, with jitter.
    pub backoff_min_ns: u64,
    /// Maximum backoff.
    pub backoff_max_ns: u64,
    /// How long the record of a session that cannot be resumed is kept, if the edge did not set a time.
    pub linger_ns: u64,
    /// Timeout for the connection to the server.
    pub connect_timeout_ns: u64,
    /// How long a shard that failed has to be healthy before its sessions fail back. Doubles with each failure.
    pub failback_delay_ns: u64,
    /// Bytes of checkpoints that are kept for one session at most.
    pub checkpoints_max: u64,
    /// Bytes that its sessions may keep together.
    pub memory_max: u64,
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AgentInput {
    /// A wire that [`AgentOutput::Dial`] requested is up: connected, encrypted and authenticated as configured.
    WireUp {
        /// The wire's id from now on.
        wire: WireId,
        /// The shard that it leads to.
        target: Target,
    },
    /// A wire could not be established.
    DialFailed {
        /// The shard that it would have led to.
        target: Target,
        /// The cause, for people.
        reason: String,
    },
    /// A wire broke.
    WireDown {
        /// The wire.
        wire: WireId,
        /// The cause, for people.
        reason: String,
    },
    /// A frame arrived.
    Frame {
        /// The wire on which it arrived.
        wire: WireId,
        /// The frame.
        frame: Frame,
    },
    /// A local client connected.
    Accepted {
        /// The connection.
        connection: ConnectionId,
        /// The app that its route leads to.
        app: String,
        /// Which of the app's shared cells it is for, if the app has one for each key.
        key: Option<CellKey>,
        /// Whether it uses datagrams: without `messages` it is no connection, only the datagrams between one address and a
        /// listener.
        datagrams: bool,
        /// Whether it is a connection that preserves message boundaries: even an empty message is written, and it can signal
        /// its end.
        messages: bool,
        /// Where the client connected, if it is outside this process.
        origin: Option<Origin>,
    },
    /// A connection that [`AgentOutput::Connect`] requested is open.
    Connected {
        /// The connection.
        connection: ConnectionId,
    },
    /// The connection could not be opened.
    ConnectFailed {
        /// The connection.
        connection: ConnectionId,
        /// The cause, for people.
        reason: String,
    },
    /// Bytes from a local connection, at most [`marram_wire::limits::STREAM_CUT`] at a time. With datagrams or message
    /// boundaries, exactly one message of at most [`marram_wire::limits::MESSAGE_SIZE_MAX`] bytes.
    Received {
        /// The connection.
        connection: ConnectionId,
        /// The bytes.
        bytes: Bytes,
    },
    /// The shell did not read from a local connection, because [`Agent::may_read`](super::Agent::may_read) forbids it.
    Waits {
        /// The connection.
        connection: ConnectionId,
    },
    /// The local program will send no more.
    EndOfInput {
        /// The connection.
        connection: ConnectionId,
    },
    /// The local connection was reset or failed.
    Broken {
        /// The connection.
        connection: ConnectionId,
    },
    /// The local socket took this many bytes of [`AgentOutput::Write`].
    Written {
        /// The connection.
        connection: ConnectionId,
        /// Number of bytes.
        bytes: u64,
    },
    /// A time requested by [`AgentOutput::WakeAt`] has come. The shell may also send this at any other time.
    Wake,
    /// The operator stops the agent: it accepts no new connections.
    Drain,
    /// The operator lets the agent go on after all: it accepts new connections again.
    CancelDrain,
}

/// An action for the shell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AgentOutput {
    /// Establish a wire; answered by [`AgentInput::WireUp`] or [`AgentInput::DialFailed`].
    Dial {
        /// The shard to connect to.
        target: Target,
    },
    /// From now on, dial this edge of the list at this address. It is not one of the configured edges.
    Learn {
        /// Its place in the list of edges.
        edge: u16,
        /// The address, `host:port`.
        address: String,
    },
    /// This edge of the list is not dialled any more; its place may get another one.
    Forget {
        /// Its place in the list of edges.
        edge: u16,
    },
    /// Close a wire after the pending frames were sent; not answered.
    CloseWire {
        /// The wire.
        wire: WireId,
        /// The reason, for people.
        reason: String,
    },
    /// Send a frame; those for which [`Frame::is_bulk`] holds may wait behind others of their wire.
    Send {
        /// The wire.
        wire: WireId,
        /// The frame.
        frame: Frame,
    },
    /// Free this memory; it may take long.
    Free {
        /// Used by nothing else, unless it is being sent.
        bytes: Bytes,
    },
    /// Connect to a server by the name that the manifest uses.
    Connect {
        /// The connection's id from now on.
        connection: ConnectionId,
        /// The server's name.
        server: String,
        /// Where the client connected, as its agent says.
        origin: Option<Origin>,
    },
    /// Write to a local connection; acknowledged by [`AgentInput::Written`] as the socket takes it. With datagrams or message
    /// boundaries, these bytes are exactly one message, which may be empty.
    Write {
        /// The connection.
        connection: ConnectionId,
        /// The bytes.
        bytes: Bytes,
    },
    /// Signal the end of the stream after the pending writes (half-close). Without a connection there is no such signal, and
    /// later datagrams from the same address belong to another conversation.
    Shutdown {
        /// The connection.
        connection: ConnectionId,
    },
    /// Close a local connection: both directions are closed, or, with a failure, the program must detect the failure.
    Close {
        /// The connection.
        connection: ConnectionId,
        /// Why it is reset instead of closed in order.
        failure: Option<ConnectionFailure>,
    },
    /// Stop or resume reading from a local connection.
    Reading {
        /// The connection.
        connection: ConnectionId,
        /// Whether to read.
        on: bool,
    },
    /// Send [`AgentInput::Wake`] at this time at the latest. A later request replaces this one.
    WakeAt {
        /// On the clock of `now`.
        now_ns: u64,
    },
    /// An event for logs, metrics and listings.
    Report(AgentReport),
}

/// Why a local program's connection is reset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionFailure {
    /// The session; none if it had none, or not any longer.
    pub session: Option<SessionId>,
    /// The error code.
    pub code: Code,
    /// The reason, for people.
    pub reason: String,
}

/// Events for logs, metrics and listings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AgentReport {
    /// An edge answered.
    EdgeUp {
        /// The shard.
        target: Target,
        /// The edge's name.
        name: String,
    },
    /// Two edges have different domain secrets: neither can recover the other's sessions. Reported once for any two secrets.
    OtherDomain {
        /// The shard.
        target: Target,
        /// The edge's name.
        name: String,
        /// The other edge's name.
        other: String,
    },
    /// An edge is disconnected or suspected.
    EdgeDown {
        /// The shard.
        target: Target,
        /// The cause, for people.
        reason: String,
        /// Whether it was suspected because it was silent.
        suspected: bool,
    },
    /// A learned edge cannot be reached, and has never proved to be what was told.
    EdgeNotFound {
        /// The shard.
        target: Target,
        /// The cause, for people.
        reason: String,
    },
    /// Another edge is where a learned edge was told to be. It is not used there.
    EdgeNotAsTold {
        /// The shard.
        target: Target,
        /// The cause, for people.
        reason: String,
        /// Whether the agent has the edge that answered in another place: as when it has restarted under another name.
        known: bool,
    },
    /// A learned edge is not used any more.
    EdgeForgotten {
        /// Its first shard.
        target: Target,
        /// The cause, for people.
        reason: String,
    },
    /// A session began or moved to another owner.
    Owned {
        /// The session.
        session: SessionId,
        /// Its app.
        app: String,
        /// The generation of its owner.
        generation: Generation,
        /// The shard of its owner.
        target: Target,
        /// Time since it lost its last owner, in nanoseconds; 0 for a new session.
        gap_ns: u64,
    },
    /// An edge refuses a session, which waits and keeps asking. Reported once for each edge and reason.
    Waiting {
        /// The session.
        session: SessionId,
        /// Its app.
        app: String,
        /// The shard that refused it.
        target: Target,
        /// The error code.
        code: Code,
        /// The reason, for people.
        reason: String,
        /// Remaining time until the session ends if no edge accepts it, in nanoseconds.
        left_ns: u64,
    },
    /// A session lost its owner; a recovery begins.
    Orphaned {
        /// The session.
        session: SessionId,
        /// The cause, for people.
        reason: String,
    },
    /// A session asks its home shard for a generation. It stays where it is until it has an owner there.
    FailingBack {
        /// The session.
        session: SessionId,
        /// The home shard.
        target: Target,
    },
    /// A frame of an older generation was refused.
    ZombieRefused {
        /// The session.
        session: SessionId,
        /// The generation of the frame's sender.
        generation: Generation,
    },
    /// The agent's memory is full: sessions are slowed, or new ones wait. Reported once, until there is room again.
    MemoryFull {
        /// What is kept.
        memory: Memory,
        /// By how many sessions.
        sessions: usize,
    },
    /// There is room again.
    MemoryFree {
        /// What is kept.
        memory: Memory,
        /// By how many sessions.
        sessions: usize,
    },
    /// A session ended.
    Ended {
        /// The session.
        session: SessionId,
        /// The code of the reason.
        code: Code,
        /// The reason, for people.
        reason: String,
        /// Whether the linger time expired without an answer from the other end.
        lingered: bool,
    },
}
