//! What a program can be told of beside its bytes: edges and sessions, in words that stay.

use marram_session::agent::AgentReport;
use std::time::Duration;

/// What happened. Sessions are named as `marram ps` and `marram inspect` name them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An edge answers.
    EdgeUp {
        /// `host:port`, as in the settings.
        address: &'a str,
        /// What it calls itself.
        name: &'a str,
    },
    /// Two edges do not share a domain secret: neither can go on with the other's sessions. Told once for any two secrets.
    OtherDomain {
        /// `host:port`, as in the settings.
        address: &'a str,
        /// What it calls itself.
        name: &'a str,
        /// What the other one calls itself.
        other: &'a str,
    },
    /// An edge is gone, or silent for so long that it is taken for gone.
    EdgeDown {
        /// `host:port`, as in the settings.
        address: &'a str,
        /// For people.
        reason: &'a str,
    },
    /// A session has begun, or goes on at another edge.
    Owned {
        /// Which.
        session: String,
        /// Of which app.
        app: &'a str,
        /// Where it is now, as in the settings.
        address: &'a str,
        /// How long nobody had it; zero for a new one.
        gap: Duration,
    },
    /// A session waits for what an edge lacks, and goes on asking.
    Waiting {
        /// Which.
        session: String,
        /// Of which app.
        app: &'a str,
        /// For people: what is lacking, and what to do.
        reason: &'a str,
        /// How long it waits still, at the most.
        left: Duration,
    },
    /// A session is over.
    Ended {
        /// Which.
        session: String,
        /// For people.
        reason: &'a str,
    },
}

impl<'a> Event<'a> {
    /// What a report says, if it is for a program's ears.
    pub(crate) fn of(address: &'a str, report: &'a AgentReport) -> Option<Self> {
        Some(match report {
            AgentReport::EdgeUp { name, .. } => Self::EdgeUp { address, name },
            AgentReport::OtherDomain { name, other, .. } => Self::OtherDomain { address, name, other },
            AgentReport::EdgeDown { reason, .. } => Self::EdgeDown { address, reason },
            AgentReport::Owned { session, app, gap_ns, .. } => {
                Self::Owned { session: session.to_string(), app, address, gap: Duration::from_nanos(*gap_ns) }
            }
            AgentReport::Waiting { session, app, reason, left_ns, .. } => Self::Waiting {
                session: session.to_string(),
                app,
                reason,
                left: Duration::from_nanos(*left_ns),
            },
            AgentReport::Ended { session, reason, .. } => {
                Self::Ended { session: session.to_string(), reason }
            }
            AgentReport::Orphaned { .. }
            | AgentReport::ZombieRefused { .. }
            | AgentReport::FailingBack { .. } => {
                return None;
            }
        })
    }
}
