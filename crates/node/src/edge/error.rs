//! Why the processes of an edge cannot start or continue, in words that name what to change.

use crate::keys::SigningKeyError;
use marram_agent::{AgentError, EdgeTransportError};
use marram_sandbox::{CellStartError, DeployError};
use marram_transport::{ListenError, SecurityError};
use marram_wire::codec;
use std::{fmt, io, path::PathBuf};

/// Why the supervisor of an edge cannot start or continue. The operator fixes all but the last three by the edge's configuration;
/// those are errors of the operating system.
#[derive(Debug)]
pub enum SupervisorError {
    /// The edge's secret is too short.
    ShortSecret,
    /// The directory of recordings cannot be used.
    Recordings(PathBuf, io::Error),
    /// A file of the security settings cannot be used.
    Security(SecurityError),
    /// Another supervisor has this admin channel.
    ChannelTaken,
    /// A listener for agents cannot be bound.
    Listen(ListenError),
    /// The gates cannot dial the edges that are configured for them.
    GateEdges(EdgeTransportError),
    /// The agent of the gates cannot start.
    Gates(AgentError),
    /// The log lines of shards cannot be received.
    LogLines(io::Error),
    /// A shard cannot be ended.
    EndShard(io::Error),
    /// Another system call failed.
    Io(io::Error),
}

impl From<SecurityError> for SupervisorError {
    fn from(error: SecurityError) -> Self {
        Self::Security(error)
    }
}

impl From<ListenError> for SupervisorError {
    fn from(error: ListenError) -> Self {
        Self::Listen(error)
    }
}

impl From<AgentError> for SupervisorError {
    fn from(error: AgentError) -> Self {
        Self::Gates(error)
    }
}

impl From<io::Error> for SupervisorError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for SupervisorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShortSecret => {
                f.write_str("the edge's secret has less than 16 bytes: give it a longer one")
            }
            Self::Recordings(directory, error) => {
                write!(f, "cannot use {} for recordings: make it writable: {error}", directory.display())
            }
            Self::Security(error) => write!(f, "{error}"),
            Self::ChannelTaken => f.write_str("this admin channel serves another supervisor already"),
            Self::Listen(error) => write!(f, "{error}"),
            Self::GateEdges(error) => write!(f, "[gates]: {error}"),
            Self::Gates(error) => write!(f, "{error}"),
            Self::LogLines(error) => write!(f, "cannot receive shards' log lines: {error}"),
            Self::EndShard(error) => write!(f, "cannot end a shard: {error}"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for SupervisorError {}

/// Why a shard's process cannot start or continue. Its supervisor logs it, and starts another; the operator fixes the first five.
#[derive(Debug)]
pub enum ShardError {
    /// Standard input is no socket: no supervisor started the process.
    NoSupervisor(io::Error),
    /// A file of the security settings cannot be used.
    Security(SecurityError),
    /// The edges that this one is a standby of cannot be dialled.
    Standby(EdgeTransportError),
    /// The image cache cannot be used.
    Images(PathBuf, DeployError),
    /// The pool of cells cannot be reserved.
    Pool(CellStartError),
    /// A key that cells may sign with cannot be used, though the supervisor has read it.
    Key(SigningKeyError),
    /// A message of the supervisor cannot be read: the two are different versions of the program.
    Message(codec::Error),
    /// The supervisor sent this message before it had set the shard up.
    TooEarly(String),
    /// The supervisor has set the shard up twice.
    SetUpTwice,
    /// A system call failed.
    Io(io::Error),
}

impl From<SecurityError> for ShardError {
    fn from(error: SecurityError) -> Self {
        Self::Security(error)
    }
}

impl From<SigningKeyError> for ShardError {
    fn from(error: SigningKeyError) -> Self {
        Self::Key(error)
    }
}

impl From<codec::Error> for ShardError {
    fn from(error: codec::Error) -> Self {
        Self::Message(error)
    }
}

impl From<io::Error> for ShardError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for ShardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSupervisor(error) => write!(
                f,
                "standard input is not a socket: `marram edge` starts `marram shard`; do not start it by hand: {error}"
            ),
            Self::Security(error) => write!(f, "{error}"),
            Self::Standby(EdgeTransportError::Security(error)) => write!(f, "[standby]: {error}"),
            Self::Standby(EdgeTransportError::Edges(error)) => write!(f, "[standby] edges: {error}"),
            Self::Images(directory, error) => {
                write!(f, "cannot use the image cache {}: make it writable: {error}", directory.display())
            }
            Self::Pool(error) => {
                write!(
                    f,
                    "cannot reserve the cell pool: lower limits.cells, or raise vm.max_map_count: {error}"
                )
            }
            Self::Key(error) => write!(f, "the supervisor gave a key that {error}"),
            Self::Message(error) => write!(f, "{error}"),
            Self::TooEarly(message) => {
                write!(f, "the supervisor sent {message} before it had set this shard up")
            }
            Self::SetUpTwice => f.write_str("the supervisor has set this shard up twice"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ShardError {}
