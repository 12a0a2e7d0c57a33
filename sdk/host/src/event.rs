//! Events that a program can observe: edges and sessions, in stable types.

use marram_session::agent::AgentReport;
use std::time::Duration;

/// An event. Sessions have the ids that `marram ps` and `marram inspect` show.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An edge answers.
    EdgeUp {
        /// `host:port`, as in the settings.
        address: &'a str,
        /// The edge's name.
        name: &'a str,
    },
    /// Two edges do not share a domain secret: neither can continue the other's sessions. Reported once for any two secrets.
    OtherDomain {
        /// `host:port`, as in the settings.
        address: &'a str,
        /// The edge's name.
        name: &'a str,
        /// The other edge's name.
        other: &'a str,
    },
    /// An edge is gone, or was silent for so long that it counts as gone.
    EdgeDown {
        /// `host:port`, as in the settings.
        address: &'a str,
        /// The reason, for people.
        reason: &'a str,
    },
    /// A session has begun, or continues at another edge.
    Owned {
        /// The session's id.
        session: String,
        /// The name of its app.
        app: &'a str,
        /// The address of its edge now, as in the settings.
        address: &'a str,
        /// How long it had no owner; zero for a new one.
        gap: Duration,
    },
    /// A session waits for something that an edge lacks, and retries.
    Waiting {
        /// The session's id.
        session: String,
        /// The name of its app.
        app: &'a str,
        /// For people: what is missing, and what to do.
        reason: &'a str,
        /// How long it will still wait at most.
        left: Duration,
    },
    /// The sessions of this program keep as much as `Settings::memory` lets them: they are slowed, and new ones wait.
    MemoryFull {
        /// Bytes that they keep.
        kept: u64,
        /// How many sessions there are.
        sessions: usize,
    },
    /// There is room again.
    MemoryFree {
        /// Bytes that they keep.
        kept: u64,
        /// How many sessions there are.
        sessions: usize,
    },
    /// A session is over.
    Ended {
        /// The session's id.
        session: String,
        /// The reason, for people.
        reason: &'a str,
    },
}

impl<'a> Event<'a> {
    /// The event of a report, if programs can observe it.
    pub(crate) fn of(address: &'a str, report: &'a AgentReport) -> Option<Self> {
        Some(match report {
            AgentReport::EdgeUp { name, .. } => Self::EdgeUp { address, name },
            AgentReport::OtherDomain { name, other, .. } => Self::OtherDomain { address, name, other },
            // What was up at a learned address is not used there any more.
            AgentReport::EdgeDown { reason, .. } | AgentReport::EdgeForgotten { reason, .. } => {
                Self::EdgeDown { address, reason }
            }
            AgentReport::Owned { session, app, gap_ns, .. } => {
                Self::Owned { session: session.to_string(), app, address, gap: Duration::from_nanos(*gap_ns) }
            }
            AgentReport::Waiting { session, app, reason, left_ns, .. } => Self::Waiting {
                session: session.to_string(),
                app,
                reason,
                left: Duration::from_nanos(*left_ns),
            },
            AgentReport::MemoryFull { memory, sessions } => {
                Self::MemoryFull { kept: memory.kept, sessions: *sessions }
            }
            AgentReport::MemoryFree { memory, sessions } => {
                Self::MemoryFree { kept: memory.kept, sessions: *sessions }
            }
            AgentReport::Ended { session, reason, .. } => {
                Self::Ended { session: session.to_string(), reason }
            }
            AgentReport::EdgeNotFound { .. }
            | AgentReport::EdgeNotAsTold { .. }
            | AgentReport::Orphaned { .. }
            | AgentReport::ZombieRefused { .. }
            | AgentReport::FailingBack { .. } => {
                return None;
            }
        })
    }
}
