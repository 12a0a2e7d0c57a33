//! Why a command failed: the kinds that a caller can tell apart, and their exit statuses.
//!
//! The distinction is by the one that must act: the user (2), the operator of the edge (3, 4), or the reader
//! of a result (5, 6). Scripts may depend on the numbers; `cli/exit.rs` documents them.

/// Why a command failed, by what the caller can do about it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Any failure that is not named below.
    /// A plain `anyhow::Error` becomes this one.
    Other(anyhow::Error),
    /// The command line or a file of the user is wrong.
    Usage(anyhow::Error),
    /// The edge refused the request.
    Refused(anyhow::Error),
    /// No edge could be reached.
    /// Also if it does not answer in time: a retry may help.
    Unreachable(anyhow::Error),
    /// What the command checks does not hold.
    /// Such as a replay that diverges: the command itself worked.
    Check(anyhow::Error),
    /// A measured figure is out of its limits.
    Missed(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl Failure {
    /// Combines several: a line for each, with the exit status of the first.
    ///
    /// None if there were none. The prefix `marram: ` of the first line is added where it is
    /// printed.
    pub(crate) fn all(failures: Vec<Self>) -> Option<Self> {
        let several = |first: Self, next: Self| {
            let text = anyhow::anyhow!("{:#}\nmarram: {:#}", first.parts().1, next.parts().1);
            match first {
                Self::Other(_) => Self::Other(text),
                Self::Usage(_) => Self::Usage(text),
                Self::Refused(_) => Self::Refused(text),
                Self::Unreachable(_) => Self::Unreachable(text),
                Self::Check(_) => Self::Check(text),
                Self::Missed(_) => Self::Missed(text),
            }
        };
        failures.into_iter().reduce(several)
    }

    /// The exit status, and what happened.
    pub(crate) fn parts(&self) -> (u8, &anyhow::Error) {
        match self {
            Self::Other(error) => (1, error),
            Self::Usage(error) => (2, error),
            Self::Refused(error) => (3, error),
            Self::Unreachable(error) => (4, error),
            Self::Check(error) => (5, error),
            Self::Missed(error) => (6, error),
        }
    }
}
