//! Why a recorder cannot start or continue, in words that name what to change.

use marram_agent::EdgeTransportError;
use std::{fmt, io, path::PathBuf};

/// Why a recorder cannot start or continue. The operator fixes the first two by its configuration; the last is an error of the
/// operating system.
#[derive(Debug)]
pub enum RecorderError {
    /// It cannot dial its edges.
    Transport(EdgeTransportError),
    /// The directory of its files cannot be used.
    Directory(PathBuf, io::Error),
    /// A system call failed.
    Io(io::Error),
}

impl From<EdgeTransportError> for RecorderError {
    fn from(error: EdgeTransportError) -> Self {
        Self::Transport(error)
    }
}

impl From<io::Error> for RecorderError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for RecorderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(error) => write!(f, "{error}"),
            Self::Directory(directory, error) => {
                write!(f, "cannot use the directory {}: {error}", directory.display())
            }
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for RecorderError {}
