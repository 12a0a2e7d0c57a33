//! Why an agent cannot start, in words that name what to change in its configuration.

use super::edges::EdgesError;
use marram_transport::{ListenError, SecurityError};
use std::{fmt, io};

/// Why timeouts cannot be used together; the operator changes the one that the message names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeoutsError {
    /// The timeout of this name is zero.
    Zero(&'static str),
    /// `heartbeat_timeout` is less than two heartbeats.
    HeartbeatTimeout,
    /// `backoff_max` is less than `backoff_min`.
    Backoff,
}

impl fmt::Display for TimeoutsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero(name) => write!(f, "`timeouts.{name}` is zero: set it to a longer time"),
            Self::HeartbeatTimeout => f.write_str(
                "`timeouts.heartbeat_timeout` is less than two heartbeats: one late answer would make the agent \
                 suspect the edge",
            ),
            Self::Backoff => f.write_str("`timeouts.backoff_max` is less than `backoff_min`"),
        }
    }
}

impl std::error::Error for TimeoutsError {}

/// Why a program cannot dial its edges; the operator changes its configuration.
#[derive(Debug)]
pub enum EdgeTransportError {
    /// A file of the security settings cannot be used.
    Security(SecurityError),
    /// The list of edges is wrong.
    Edges(EdgesError),
}

impl From<SecurityError> for EdgeTransportError {
    fn from(error: SecurityError) -> Self {
        Self::Security(error)
    }
}

impl From<EdgesError> for EdgeTransportError {
    fn from(error: EdgesError) -> Self {
        Self::Edges(error)
    }
}

impl fmt::Display for EdgeTransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Security(error) => write!(f, "{error}"),
            Self::Edges(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for EdgeTransportError {}

/// Why an agent cannot start or continue. The operator fixes all but the last by its configuration; that one is an error of the
/// operating system.
#[derive(Debug)]
pub enum AgentError {
    /// Its timeouts do not fit together.
    Timeouts(TimeoutsError),
    /// It cannot dial its edges.
    Transport(EdgeTransportError),
    /// A listener cannot be bound.
    Listen(ListenError),
    /// A system call failed.
    Io(io::Error),
}

impl From<TimeoutsError> for AgentError {
    fn from(error: TimeoutsError) -> Self {
        Self::Timeouts(error)
    }
}

impl From<EdgeTransportError> for AgentError {
    fn from(error: EdgeTransportError) -> Self {
        Self::Transport(error)
    }
}

impl From<ListenError> for AgentError {
    fn from(error: ListenError) -> Self {
        Self::Listen(error)
    }
}

impl From<io::Error> for AgentError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeouts(error) => write!(f, "{error}"),
            Self::Transport(error) => write!(f, "{error}"),
            Self::Listen(error) => write!(f, "{error}"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for AgentError {}
