//! The proofs between agent and edge, bound to their connection.
//!
//! ```text
//! signed := "marram 2026 agent identity" | 0 | side (1: 0 agent, 1 edge) | TLS (1) | exported (32, zeros without TLS)
//!           | agent's key (32) | agent's nonce (32) | edge's nonce (32)
//! proof  := BLAKE3 keyed with derive_key("marram 2026 wire token", token) (signed, of the side that proves)
//! ```
//!
//! A program between two TLS sessions has two different exported secrets and can forward neither a signature nor a proof. So a
//! self-signed certificate is sufficient if the token is secret. Without TLS, only the nonces bind the proofs.

use super::key::{self, AgentKey, PUBLIC_SIZE, SIGNATURE_SIZE};

/// Size of a nonce and of a proof, in bytes.
pub(crate) const SIZE: usize = 32;
const DOMAIN: &[u8] = b"marram 2026 agent identity\0";

/// The side that proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WireSide {
    /// The one that dialled.
    Agent = 0,
    /// The one that listened.
    Edge = 1,
}

/// A token, hashed to a key.
#[derive(Clone)]
pub struct Token([u8; 32]);

/// The connection that signatures and proofs are bound to.
#[derive(Clone)]
pub struct Binding {
    /// Exported by TLS; absent when plain.
    pub exported: Option<[u8; 32]>,
    /// The agent's public key.
    pub key: [u8; PUBLIC_SIZE],
    /// Drawn by the agent for this connection.
    pub agent_nonce: [u8; SIZE],
    /// Drawn by the edge for this connection.
    pub edge_nonce: [u8; SIZE],
}

impl Binding {
    /// The agent's signature of this connection.
    pub(crate) fn sign(&self, key: &AgentKey) -> [u8; SIGNATURE_SIZE] {
        key.sign(&self.signed())
    }

    /// Whether the agent with this binding's key has signed this connection.
    pub(crate) fn is_signed(&self, signature: &[u8]) -> bool {
        key::verify(&self.key, &self.signed(), signature)
    }

    /// What an agent signs.
    fn signed(&self) -> Vec<u8> {
        self.bytes(WireSide::Agent)
    }

    /// The layout `signed` above. The side is part of it, so that an edge cannot return an agent's
    /// proof as its own.
    fn bytes(&self, side: WireSide) -> Vec<u8> {
        let flags = [side as u8, u8::from(self.exported.is_some())];
        let exported = self.exported.unwrap_or_default();
        [DOMAIN, &flags, &exported, &self.key, &self.agent_nonce, &self.edge_nonce].concat()
    }
}

impl Token {
    /// From the configured text.
    pub fn new(text: &str) -> Self {
        Self(blake3::derive_key("marram 2026 wire token", text.as_bytes()))
    }

    /// The proof of `side`.
    pub fn proof(&self, side: WireSide, binding: &Binding) -> [u8; SIZE] {
        self.digest(side, binding).into()
    }

    /// Whether the proof of `side` is correct; takes constant time.
    pub fn verify(&self, side: WireSide, binding: &Binding, shown: [u8; SIZE]) -> bool {
        self.digest(side, binding) == blake3::Hash::from(shown)
    }

    fn digest(&self, side: WireSide, binding: &Binding) -> blake3::Hash {
        blake3::keyed_hash(&self.0, &binding.bytes(side))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_and_signatures_hold_for_one_side_of_one_connection_token_and_key() {
        let (key, other_key) = (AgentKey::generate().expect("random"), AgentKey::generate().expect("random"));
        let binding = |exported, key: &AgentKey, agent: u8, edge: u8| Binding {
            exported,
            key: key.public(),
            agent_nonce: [agent; SIZE],
            edge_nonce: [edge; SIZE],
        };
        let token = Token::new("correct horse");
        let here = binding(Some([7; 32]), &key, 1, 2);
        let (proof, signature) = (token.proof(WireSide::Agent, &here), here.sign(&key));
        assert!(token.verify(WireSide::Agent, &here, proof) && here.is_signed(&signature));
        assert!(!token.verify(WireSide::Edge, &here, proof));
        assert!(!Token::new("correct horsf").verify(WireSide::Agent, &here, proof));
        assert!(!here.is_signed(&here.sign(&other_key)));
        for other in [
            binding(Some([8; 32]), &key, 1, 2),
            binding(None, &key, 1, 2),
            binding(Some([7; 32]), &key, 3, 2),
            binding(Some([7; 32]), &key, 1, 3),
            binding(Some([7; 32]), &other_key, 1, 2),
        ] {
            assert!(!token.verify(WireSide::Agent, &other, proof));
            assert!(!other.is_signed(&signature));
        }
    }
}
