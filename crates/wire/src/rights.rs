//! Who is at the other end of a wire and what it may do there, once the shell has verified it.
//!
//! An agent's id is a digest of its public key: it cannot be claimed without the private one. What the agent may do is decided by
//! the credential (token or certificate) that it showed beside it. Knows no signature and no token.

use crate::{id::HostId, record};
use alloc::{string::String, vec::Vec};

record! {
    /// What a credential allows. The default allows nothing.
    #[derive(Default)]
    Rights {
        /// Open sessions, and hold the clients' ends of those.
        client: bool,
        /// Hold the servers' ends of sessions with any server.
        any_server: bool,
        /// Hold the servers' ends of sessions with these servers.
        servers: Vec<String>,
        /// Keep sessions as a recorder.
        recorder: bool,
        /// Stand by for sessions as another edge.
        edge: bool,
    }
}

impl Rights {
    /// Every role that a wire can have.
    #[must_use]
    pub fn all() -> Self {
        Self { client: true, any_server: true, servers: Vec::new(), recorder: true, edge: true }
    }

    /// Whether it may be this server's agent.
    #[must_use]
    pub fn serves(&self, server: &str) -> bool {
        self.any_server || self.servers.iter().any(|name| name == server)
    }

    /// Whether nothing is allowed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !(self.client || self.any_server || self.recorder || self.edge) && self.servers.is_empty()
    }

    /// What either of two allows.
    #[must_use]
    pub fn or(mut self, other: &Self) -> Self {
        self.client |= other.client;
        self.any_server |= other.any_server;
        self.recorder |= other.recorder;
        self.edge |= other.edge;
        for server in &other.servers {
            if !self.servers.contains(server) {
                self.servers.push(server.clone());
            }
        }
        self
    }
}

/// What was verified of an agent when its wire came up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// The digest of the public key whose private half signed this connection.
    pub host: HostId,
    /// What it may do.
    pub rights: Rights,
    /// The name of the credential that allows it; empty where none is configured.
    pub credential: String,
    /// The first name in the TLS certificate that it showed, if it showed one that the edge's `ca` signed.
    pub certificate: Option<String>,
}

impl Verified {
    /// An agent that needs to prove nothing: where no credential is configured, and in tests.
    #[must_use]
    pub fn trusted(host: HostId) -> Self {
        Self { host, rights: Rights::all(), credential: String::new(), certificate: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_allow_what_they_name_and_no_more() {
        let none = Rights::default();
        assert!(none.is_empty() && !none.serves("origin"));
        let named = Rights { servers: alloc::vec!["origin".into()], ..Rights::default() };
        assert!(!named.is_empty() && named.serves("origin") && !named.serves("orgin") && !named.client);
        let both = named.clone().or(&Rights { client: true, ..named });
        assert!(both.client && !both.recorder && !both.edge && !both.any_server);
        assert_eq!(both.servers, ["origin"]);
        assert!(Rights::all().serves("anything"));
    }
}
