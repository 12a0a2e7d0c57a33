//! The identity and the rights of the other end of a wire, after the shell has verified them.
//!
//! An agent's id is a digest of its public key: it cannot be claimed without the private key. The rights come from the credential
//! (token or certificate) that the agent also presented. This module knows neither signatures nor tokens.

use crate::{id::HostId, record};
use alloc::{string::String, vec::Vec};

record! {
    /// What a credential allows. The default allows nothing.
    #[derive(Default)]
    Rights {
        /// Open sessions, and hold the client ends of those.
        client: bool,
        /// Hold the server ends of sessions with any server.
        any_server: bool,
        /// Hold the server ends of sessions with these servers.
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

    /// Whether it may serve as this server's agent.
    #[must_use]
    pub fn serves(&self, server: &str) -> bool {
        self.any_server || self.servers.iter().any(|name| name == server)
    }

    /// Whether nothing is allowed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !(self.client || self.any_server || self.recorder || self.edge) && self.servers.is_empty()
    }

    /// The union of two sets of rights.
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

/// The verified facts about an agent, from when its wire was connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// The digest of the public key whose private half signed this connection.
    pub host: HostId,
    /// What it may do.
    pub rights: Rights,
    /// The name of the credential that gives these rights; empty if none is configured.
    pub credential: String,
    /// The first name in the agent's TLS certificate, if it presented one that the edge's `ca` signed.
    pub certificate: Option<String>,
}

impl Verified {
    /// An agent with all rights: used where no credential is configured, and in tests.
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
