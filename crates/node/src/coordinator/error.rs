//! Why an edge's coordinator cannot start, in words that name what to change.

use marram_http::tls::HttpsError;
use marram_shard::coordinator::Damage;
use std::{fmt, io, net::SocketAddr, path::PathBuf};

/// Why the embedded store cannot start. The operator fixes the file, or restores it from a copy.
#[derive(Debug)]
pub enum StoreError {
    /// The file's contents are not a store's.
    Damaged(PathBuf, Damage),
    /// The file cannot be read.
    Unreadable(PathBuf, io::Error),
    /// The file cannot be written.
    Unwritable(PathBuf, io::Error),
    /// Its thread cannot be started.
    Thread(io::Error),
    /// The operating system gave no random bytes.
    Random(io::Error),
    /// The file in which this edge remembers its store holds something else.
    Remembered(PathBuf),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(file, damage) => {
                write!(f, "the coordinator's store {} cannot be used: {damage}", file.display())
            }
            Self::Unreadable(file, error) => {
                write!(f, "the store {} cannot be read: {error}", file.display())
            }
            Self::Unwritable(file, error) => {
                write!(f, "the coordinator's store {} cannot be written: {error}", file.display())
            }
            Self::Thread(error) => write!(f, "{error}"),
            Self::Random(error) => write!(f, "the operating system provides no random bytes: {error}"),
            Self::Remembered(file) => write!(
                f,
                "{} is damaged: it holds how far this edge saw the coordinator's store come. If the store lost nothing, remove it; the \
                 edge then remembers what it sees from now on",
                file.display()
            ),
        }
    }
}

impl std::error::Error for StoreError {}

/// Why an edge's coordinator cannot start. The operator fixes the first four by the table `[coordinator]`; the others are errors
/// of the operating system.
#[derive(Debug)]
pub enum CoordinatorError {
    /// The store that this edge serves cannot start.
    Store(StoreError),
    /// The store's address cannot be listened on.
    Listen(SocketAddr, io::Error),
    /// The certificate or key of the store that this edge serves cannot be used.
    Identity(HttpsError),
    /// The certificates for connections to the store cannot be used.
    Connector(HttpsError),
    /// The store's server cannot start.
    Serve(io::Error),
    /// The operating system gave no random bytes.
    Random(io::Error),
    /// Another system call failed.
    Io(io::Error),
}

impl From<StoreError> for CoordinatorError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for CoordinatorError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for CoordinatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => write!(f, "{error}"),
            Self::Listen(listen, error) => write!(
                f,
                "cannot listen on {listen} for other edges: choose another `coordinator.serve`, or stop the program \
                 that uses it: {error}"
            ),
            Self::Identity(error) => {
                write!(f, "correct `coordinator.certificate` and `coordinator.key`: {error}")
            }
            Self::Connector(error) => write!(
                f,
                "correct `coordinator.ca`, `coordinator.certificate` and `coordinator.key`: {error}"
            ),
            Self::Serve(error) => write!(f, "the coordinator's store cannot be served: {error}"),
            Self::Random(error) => write!(f, "the operating system provides no random bytes: {error}"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CoordinatorError {}
