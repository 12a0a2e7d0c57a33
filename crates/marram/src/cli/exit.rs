//! Failures of commands, and their exit statuses.

use std::io::Write;
use std::process::ExitCode;

/// Shown under `marram --help`.
pub(super) const HELP: &str = "Exit status:
  0  done; for demo and bench: every check held
  1  something failed; the message says what happened and what to do
  2  the command line, the environment, the configuration, the manifest or the name of a file is wrong
  3  the edge refused the request, or does not know its object
  4  the edge cannot be reached, or does not answer
  5  a check failed: bytes lost, repeated or changed; a replay that diverged
  6  bench: everything was measured, and a figure misses its bar
`marram exec` ends with the status of the program that it runs. Where several edges are asked, the status is that of the
first failure; the answers of the others are printed.";

/// Why a command failed, by what the caller can do about it.
#[derive(Debug)]
pub enum Failure {
    /// Any failure that is not named below.
    Other(anyhow::Error),
    /// The command line or a file of the user is wrong.
    Usage(anyhow::Error),
    /// The edge refused the request.
    Refused(anyhow::Error),
    /// No edge could be reached.
    Unreachable(anyhow::Error),
    /// What the command checks does not hold.
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
    pub(super) fn all(failures: Vec<Self>) -> Option<Self> {
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

    fn parts(&self) -> (u8, &anyhow::Error) {
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

/// Reports a failure on standard error and turns it into the exit status.
pub(super) fn code(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let (code, error) = failure.parts();
            // Written at once, since other processes may write at the same time. An error is ignored.
            let text = format!("marram: {error:#}\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::from(code)
        }
    }
}
