//! What a wire must prove before a frame is believed. Plain data; knows no socket.

use marram_wire::rights::Rights;
use std::{fmt, path::PathBuf};

/// A certificate chain and its private key, each as the contents of a PEM file.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The chain, leaf first.
    pub chain_pem: Vec<u8>,
    /// The leaf's private key: PKCS #8, SEC 1 or PKCS #1.
    pub key_pem: Vec<u8>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

/// What an edge knows some agents by, and what those may do.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// For people.
    pub name: String,
    /// Agents that know this token have it.
    pub token: Option<String>,
    /// Agents that show a certificate with this name, signed by the edge's `ca`, have it.
    pub certificate: Option<String>,
    /// What it allows.
    pub rights: Rights,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({})", self.name)
    }
}

/// How a program protects its wires. Most fields serve both sides; what an absent one means differs.
///
/// A wire is encrypted unless both its addresses are loopback and nothing here asks for encryption, or unless
/// `insecure_plain` says so.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// Each side proves to the other that it knows it. An agent's: of the credential that it has at its edges. An edge's: it lets
    /// agents be everything, clients, servers, recorders and edges. An edge that has a token refuses agents without one. It should be
    /// as hard to guess as a key: 16 random bytes or more, in any spelling.
    pub token: Option<String>,
    /// An edge: what else it knows agents by.
    pub credentials: Vec<Credential>,
    /// An agent: where its key, and so its id, is kept. Without it they live as long as the process.
    pub identity_file: Option<PathBuf>,
    /// Certificates (PEM) that sign the other side's. An agent's: which edges to believe; without it the token alone is
    /// believed. An edge's: which agents to let in; without it agents need no certificate.
    pub ca_pem: Option<Vec<u8>>,
    /// This side's own. An edge without one makes one for itself at each start, which only the token vouches for.
    pub identity: Option<Identity>,
    /// An agent: never encrypt. An edge: let agents do so from anywhere.
    pub insecure_plain: bool,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Security")
            .field("token", &self.token.as_ref().map(|_| "secret"))
            .field("credentials", &self.credentials)
            .field("identity_file", &self.identity_file)
            .field("ca", &self.ca_pem.is_some())
            .field("identity", &self.identity.is_some())
            .field("insecure_plain", &self.insecure_plain)
            .finish()
    }
}

impl Security {
    /// Whether an agent so configured encrypts where it need not: it has something to authenticate with.
    #[must_use]
    pub fn asks_for_tls(&self) -> bool {
        !self.insecure_plain && (self.token.is_some() || self.ca_pem.is_some() || self.identity.is_some())
    }
}
