//! Refused requests: what happened and how to fix it.
//!
//! Every refusal has both texts, so that a client never learns only that something failed. The
//! status is for programs, `error` says what happened, and `fix` what the caller can do; how they
//! are written into a body is the caller's matter.

use hyper::StatusCode;
use std::fmt;

/// Why a request was refused.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    error: String,
    fix: String,
}

impl Refusal {
    /// A refusal with a status, what happened, and what the caller can do about it.
    pub fn new(status: StatusCode, error: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status, error: error.into(), fix: fix.into() }
    }

    /// The same, for a named part of the request.
    /// Only `error` is changed: "`part`: what happened".
    #[must_use]
    pub fn about(self, part: &str) -> Self {
        Self { error: format!("{part}: {}", self.error), ..self }
    }

    /// For errors that are bugs.
    #[must_use]
    pub fn bug(error: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error, "this is a bug in the edge; its log says more")
    }

    /// The answer's status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What happened.
    #[must_use]
    pub fn error(&self) -> &str {
        &self.error
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn fix(&self) -> &str {
        &self.fix
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.error, self.fix)
    }
}
