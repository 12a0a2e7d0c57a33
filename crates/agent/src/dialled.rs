//! The wires that a loop dials: how they come into its table of wires, and what its machine hears of them. Decides nothing: the
//! machine says what is dialled and when.

use super::transport::{DialError, EndpointDialer, Resolved, ServerError, ServerLink};
use marram_session::{
    agent::{AgentInput, ConnectionId, Target, WireId},
    recorder::RecorderInput,
};
use marram_transport::{Wire, WireEvent, WireTable, token};
use marram_wire::frame::Frame;
use mio::Registry;
use std::time::Instant;

/// Where a loop keeps its wires.
pub struct DialInto<'a, M> {
    /// Its table.
    pub table: &'a mut WireTable<M>,
    /// Its poll's registry.
    pub registry: &'a Registry,
    /// The kind of its wires' tokens ([`token::token`]).
    pub kind: u64,
    /// What the table holds beside a wire that was dialled to this shard.
    pub meta: fn(Target) -> M,
    /// When the wires' handshakes start.
    pub now: Instant,
}

/// A wire that could not be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DialFailed {
    /// The shard that it would have led to.
    pub target: Target,
    /// Why, for people.
    pub reason: String,
}

/// What comes of a connection that waited until a name was resolved.
pub enum Dialing {
    /// A wire that could not be started.
    Failed(DialFailed),
    /// A connection to a server, which its agent adds to its own.
    Server(ConnectionId, Result<ServerLink, ServerError>),
}

/// What happened to a wire that was dialled.
#[allow(clippy::large_enum_variant, reason = "nearly all of them are the large one")]
pub enum WireInput {
    /// Its handshake is complete.
    Up(WireId, Target),
    /// It could not be started, or its handshake failed.
    DialFailed(DialFailed),
    /// It broke; why, for people.
    Down(WireId, String),
    /// A frame arrived.
    Frame(WireId, Frame),
}

impl WireInput {
    /// The next event of a table of wires that were all dialled.
    pub fn next(table: &mut WireTable<Target>) -> Option<Self> {
        let (id, event) = table.next_happened()?;
        let wire = WireId(id);
        Some(match event {
            WireEvent::Up(target, _) => Self::Up(wire, target),
            WireEvent::Frame(frame) => Self::Frame(wire, frame),
            WireEvent::Down { error, stood: true, .. } => Self::Down(wire, error.to_string()),
            WireEvent::Down { error, stood: false, meta: target } => {
                Self::DialFailed(DialFailed { target, reason: error.to_string() })
            }
        })
    }
}

impl From<WireInput> for AgentInput {
    fn from(input: WireInput) -> Self {
        match input {
            WireInput::Up(wire, target) => Self::WireUp { wire, target },
            WireInput::DialFailed(failed) => failed.into(),
            WireInput::Down(wire, reason) => Self::WireDown { wire, reason },
            WireInput::Frame(wire, frame) => Self::Frame { wire, frame },
        }
    }
}

impl From<WireInput> for RecorderInput {
    fn from(input: WireInput) -> Self {
        match input {
            WireInput::Up(wire, target) => Self::WireUp { wire, target },
            WireInput::DialFailed(failed) => failed.into(),
            WireInput::Down(wire, reason) => Self::WireDown { wire, reason },
            WireInput::Frame(wire, frame) => Self::Frame { wire, frame },
        }
    }
}

impl From<DialFailed> for AgentInput {
    fn from(DialFailed { target, reason }: DialFailed) -> Self {
        Self::DialFailed { target, reason }
    }
}

impl From<DialFailed> for RecorderInput {
    fn from(DialFailed { target, reason }: DialFailed) -> Self {
        Self::DialFailed { target, reason }
    }
}

impl<M: Clone> DialInto<'_, M> {
    fn insert(&mut self, target: Target, wire: Result<Wire, DialError>) -> Result<(), DialFailed> {
        let token = |id| token::token(self.kind, id);
        let meta = (self.meta)(target);
        wire.and_then(|wire| Ok(self.table.insert(self.registry, token, wire, meta, self.now)?))
            .map(drop)
            .map_err(|error| DialFailed { target, reason: error.to_string() })
    }
}

impl EndpointDialer {
    /// Starts a wire, now or when its edge's name is resolved; [`Self::next_dialed`] then adds it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn dial<M: Clone>(&self, target: Target, mut into: DialInto<'_, M>) -> Result<(), DialFailed> {
        self.wire(target).transpose().map_or(Ok(()), |wire| into.insert(target, wire))
    }

    /// Adds the wires whose edges' names are resolved. Returns what the caller has to handle, and is called again until there is
    /// nothing left.
    pub fn next_dialed<M: Clone>(&self, mut into: DialInto<'_, M>) -> Option<Dialing> {
        loop {
            match self.next_resolved()? {
                Resolved::Wire(target, wire) => {
                    if let Err(failed) = into.insert(target, *wire) {
                        return Some(Dialing::Failed(failed));
                    }
                }
                Resolved::Server(connection, link) => return Some(Dialing::Server(connection, link)),
            }
        }
    }
}
