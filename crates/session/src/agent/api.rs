//! What an agent is told and what it asks for: the seam between the pure agent and the sockets around it.

use alloc::{string::String, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{Code, Frame},
    id::{Generation, SessionId},
    peer::Origin,
};

/// A wire to one shard of one edge; named by the shell, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WireId(pub u64);

/// A local connection; the shell names those it accepts, the agent those it asks for (with the top bit set).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// Where a wire leads: an edge by its place in the agent's list, nearest first where nothing is known, and a shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Target {
    /// Place in the list of edges.
    pub edge: u16,
    /// Which shard of that edge.
    pub shard: u8,
}

/// A server that an agent can reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentServer {
    /// By the name that manifests use.
    pub name: String,
    /// Whether it speaks in datagrams.
    pub datagrams: bool,
    /// Whether its connections keep messages apart, as [`AgentInput::Accepted`] says.
    pub messages: bool,
}

/// What an agent is and how patient it is. All times in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentConfig {
    /// Servers that this agent can reach; empty for a client's agent.
    pub servers: Vec<AgentServer>,
    /// How many edges there are to choose from.
    pub edges: u16,
    /// How often a wire is asked whether its edge is there.
    pub heartbeat_interval_ns: u64,
    /// After how long without a word from it an edge is suspected.
    pub heartbeat_timeout_ns: u64,
    /// How long a connection waits for an edge that takes its session before it is given up.
    pub edge_wait_ns: u64,
    /// First wait before an edge is dialled again; doubles, with jitter.
    pub backoff_min_ns: u64,
    /// Longest wait before an edge is dialled again.
    pub backoff_max_ns: u64,
    /// How long a session that cannot be resumed is remembered when the edge did not say.
    pub linger_ns: u64,
    /// How long connecting to the server may take.
    pub connect_timeout_ns: u64,
    /// How long a shard that failed has to be well before the sessions that belong there go back to it. Doubles each time.
    pub failback_delay_ns: u64,
}

/// Something happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AgentInput {
    /// A wire that was asked for by [`AgentOutput::Dial`] is there: connected, encrypted and authenticated as configured.
    WireUp {
        /// Its name from now on.
        wire: WireId,
        /// Where it leads.
        target: Target,
    },
    /// A wire could not be made.
    DialFailed {
        /// Where it would have led.
        target: Target,
        /// For people.
        reason: String,
    },
    /// A wire broke.
    WireDown {
        /// Which.
        wire: WireId,
        /// For people.
        reason: String,
    },
    /// A frame arrived.
    Frame {
        /// On which wire.
        wire: WireId,
        /// What.
        frame: Frame,
    },
    /// A local client connected.
    Accepted {
        /// Its connection.
        connection: ConnectionId,
        /// The app that its route leads to.
        app: String,
        /// Whether it speaks in datagrams: without `messages`, it is no connection but those between one address and a listener.
        datagrams: bool,
        /// Whether it is a connection that keeps messages apart: even an empty one is written then, and it can say that it is done.
        messages: bool,
        /// Where it came in, if it came from outside this process.
        origin: Option<Origin>,
    },
    /// A connection asked for by [`AgentOutput::Connect`] is there.
    Connected {
        /// Which.
        connection: ConnectionId,
    },
    /// It could not be made.
    ConnectFailed {
        /// Which.
        connection: ConnectionId,
        /// For people.
        reason: String,
    },
    /// Bytes from a local connection, at most [`marram_wire::limits::STREAM_CUT`] at a time; where it speaks in datagrams or
    /// keeps messages apart, exactly one, of [`marram_wire::limits::MESSAGE_SIZE_MAX`] bytes at most.
    Received {
        /// Which.
        connection: ConnectionId,
        /// What.
        bytes: Bytes,
    },
    /// The local program will send no more.
    EndOfInput {
        /// Which.
        connection: ConnectionId,
    },
    /// The local connection was reset or failed.
    Broken {
        /// Which.
        connection: ConnectionId,
    },
    /// The local socket took so many bytes of what it was given by [`AgentOutput::Write`].
    Written {
        /// Which.
        connection: ConnectionId,
        /// How many.
        bytes: u64,
    },
    /// A time asked for by [`AgentOutput::WakeAt`] has come, or the shell felt like it.
    Wake,
    /// The operator wants the agent to stop: take no new connections.
    Drain,
}

/// Do something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AgentOutput {
    /// Make a wire; answered by [`AgentInput::WireUp`] or [`AgentInput::DialFailed`].
    Dial {
        /// Where to.
        target: Target,
    },
    /// Close a wire after what was sent; not answered.
    CloseWire {
        /// Which.
        wire: WireId,
        /// For people.
        reason: String,
    },
    /// Send a frame; those for which [`Frame::is_bulk`] holds may wait behind others of their wire.
    Send {
        /// On which wire.
        wire: WireId,
        /// What.
        frame: Frame,
    },
    /// Connect to a server by the name that the manifest uses.
    Connect {
        /// The connection's name from now on.
        connection: ConnectionId,
        /// Which server.
        server: String,
        /// Where the client came in, as its agent says.
        origin: Option<Origin>,
    },
    /// Write to a local connection; acknowledged by [`AgentInput::Written`] as the socket takes it. Where it speaks in datagrams or keeps
    /// messages apart, these bytes are exactly one, perhaps an empty one.
    Write {
        /// Which.
        connection: ConnectionId,
        /// What.
        bytes: Bytes,
    },
    /// After what was written, say that no more will come (half-close). Where it is no connection, nobody can be told, and
    /// what comes from the same address now belongs to another conversation.
    Shutdown {
        /// Which.
        connection: ConnectionId,
    },
    /// Close a local connection: both directions are done, or, with a failure, the program must learn that there was one.
    Close {
        /// Which.
        connection: ConnectionId,
        /// Why it is to be reset rather than ended in order.
        failure: Option<ConnectionFailure>,
    },
    /// Stop or resume reading from a local connection.
    Reading {
        /// Which.
        connection: ConnectionId,
        /// Whether to read.
        on: bool,
    },
    /// Call again with [`AgentInput::Wake`] at this time at the latest. The last one counts.
    WakeAt {
        /// On the clock that `now` is on.
        now_ns: u64,
    },
    /// Something that people want to know.
    Report(AgentReport),
}

/// Why a local program's connection is reset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionFailure {
    /// Of which session; none if it had none, or has it no longer.
    pub session: Option<SessionId>,
    /// Why.
    pub code: Code,
    /// For people.
    pub reason: String,
}

/// For logs, metrics and listings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AgentReport {
    /// An edge answered.
    EdgeUp {
        /// Which.
        target: Target,
        /// What it calls itself.
        name: String,
    },
    /// Two edges do not share a domain secret: neither can go on with the other's sessions. Told once for any two secrets.
    OtherDomain {
        /// Which.
        target: Target,
        /// What it calls itself.
        name: String,
        /// What the other one calls itself.
        other: String,
    },
    /// An edge is gone or suspected.
    EdgeDown {
        /// Which.
        target: Target,
        /// For people.
        reason: String,
        /// Whether it was suspected for its silence.
        suspected: bool,
    },
    /// A session began or moved to another owner.
    Owned {
        /// Which.
        session: SessionId,
        /// Its app.
        app: String,
        /// Its owner.
        generation: Generation,
        /// Where.
        target: Target,
        /// Since it lost its last owner, in nanoseconds; 0 for a new session.
        gap_ns: u64,
    },
    /// An edge does not take a session, which waits and goes on asking. Once for each edge and reason.
    Waiting {
        /// Which.
        session: SessionId,
        /// Its app.
        app: String,
        /// Who refused it.
        target: Target,
        /// What for.
        code: Code,
        /// For people.
        reason: String,
        /// How long it waits still, at the most, in nanoseconds.
        left_ns: u64,
    },
    /// A session lost its owner; a recovery begins.
    Orphaned {
        /// Which.
        session: SessionId,
        /// For people.
        reason: String,
    },
    /// A session asks the shard where it belongs for a generation; until it has one there, it stays where it is.
    FailingBack {
        /// Which.
        session: SessionId,
        /// Where to.
        target: Target,
    },
    /// A frame of an older generation was refused.
    ZombieRefused {
        /// Of which session.
        session: SessionId,
        /// Whose.
        generation: Generation,
    },
    /// A session is over.
    Ended {
        /// Which.
        session: SessionId,
        /// Why.
        code: Code,
        /// For people.
        reason: String,
        /// Whether the session was forgotten without the other end's word, after the linger time.
        lingered: bool,
    },
}
