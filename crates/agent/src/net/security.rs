//! What a wire must prove before a frame is believed. Plain data; knows no socket.

use std::fmt;

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

/// How a program protects its wires. The same four fields serve both sides; what an absent one means differs.
///
/// A wire is encrypted unless both its addresses are loopback and nothing here asks for encryption, or unless
/// `insecure_plain` says so.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// Shared by the agents and edges of one domain: each side proves to the other that it knows it. An edge that has
    /// one refuses agents without it. It should be as hard to guess as a key: 16 random bytes or more, in any spelling.
    pub token: Option<String>,
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
