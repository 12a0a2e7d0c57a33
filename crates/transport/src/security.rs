//! What a wire must prove before its frames are accepted. Plain data; knows no socket.

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

/// A credential that agents can present to an edge, and its rights.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Its name, for logs.
    pub name: String,
    /// An agent that proves this token has the credential.
    pub token: Option<String>,
    /// An agent with a certificate of this name, signed by the edge's `ca`, has the credential.
    pub certificate: Option<String>,
    /// What it allows.
    pub rights: Rights,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({})", self.name)
    }
}

/// How a program protects its wires. Most fields apply to both sides; the meaning of an absent one differs.
///
/// A wire is encrypted unless both its addresses are loopback and nothing here asks for encryption, or unless
/// `insecure_plain` says so.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// A shared secret that each side proves to the other. At an agent: the token of its credential at its edges. At an edge: it
    /// gives agents all rights: client, server, recorder and edge. An edge with a token refuses agents without one. It must be as
    /// hard to guess as a key: at least 16 random bytes, in any encoding.
    pub token: Option<String>,
    /// At an edge: further credentials.
    pub credentials: Vec<Credential>,
    /// At an agent: the file with its key, and so its id. Without it they are lost when the process ends.
    pub identity_file: Option<PathBuf>,
    /// Certificates (PEM) of the CAs that sign the other side's. At an agent: which edges it trusts; without it only the token
    /// authenticates them. At an edge: which agents it admits; without it agents need no certificate.
    pub ca_pem: Option<Vec<u8>>,
    /// This side's own certificate. An edge without one generates a self-signed one at each start, which only the token
    /// authenticates.
    pub identity: Option<Identity>,
    /// At an agent: never encrypt. At an edge: accept unencrypted wires from any address.
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
    /// Whether an agent with these settings encrypts where it need not: it has something to authenticate with.
    #[must_use]
    pub fn asks_for_tls(&self) -> bool {
        !self.insecure_plain && (self.token.is_some() || self.ca_pem.is_some() || self.identity.is_some())
    }
}
