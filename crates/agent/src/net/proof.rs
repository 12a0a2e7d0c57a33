//! Proof of the shared token, both ways, bound to the connection that it is given on.
//!
//! ```text
//! agent -> edge   nonce (32)
//! edge  -> agent  nonce (32) | proof (32)
//! agent -> edge   1 | proof (32),   or 0 if the edge's proof is wrong
//! ```
//!
//! A proof is a keyed digest over its side, the TLS session's exported secret (nothing when plain) and both nonces:
//! whoever sits between two TLS sessions has two secrets and can pass no proof on, so a certificate that nobody signed is
//! enough.

/// Size of a nonce and of a proof, in bytes.
pub(crate) const SIZE: usize = 32;

/// Which side proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Side {
    /// The one that dialled.
    Agent = 0,
    /// The one that listened.
    Edge = 1,
}

/// A token as it is used.
#[derive(Clone)]
pub struct Token([u8; 32]);

/// What a proof is bound to.
pub struct Binding {
    /// Exported by TLS; absent when plain.
    pub exported: Option<[u8; 32]>,
    /// Drawn by the agent for this connection.
    pub agent_nonce: [u8; SIZE],
    /// Drawn by the edge for this connection.
    pub edge_nonce: [u8; SIZE],
}

impl Token {
    /// From the text in a configuration.
    pub fn new(text: &str) -> Self {
        Self(blake3::derive_key("marram 2026 wire token", text.as_bytes()))
    }

    /// What `side` shows.
    pub fn proof(&self, side: Side, binding: &Binding) -> [u8; SIZE] {
        self.digest(side, binding).into()
    }

    /// Whether `side` has shown what it should; takes equally long wherever the two differ.
    pub fn verify(&self, side: Side, binding: &Binding, shown: [u8; SIZE]) -> bool {
        self.digest(side, binding) == blake3::Hash::from(shown)
    }

    fn digest(&self, side: Side, binding: &Binding) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[side as u8, u8::from(binding.exported.is_some())]);
        hasher.update(&binding.exported.unwrap_or_default());
        hasher.update(&binding.agent_nonce).update(&binding.edge_nonce);
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_side_of_one_connection_and_token() {
        let binding = |exported, agent: u8, edge: u8| Binding {
            exported,
            agent_nonce: [agent; SIZE],
            edge_nonce: [edge; SIZE],
        };
        let token = Token::new("correct horse");
        let here = binding(Some([7; 32]), 1, 2);
        let proof = token.proof(Side::Agent, &here);
        assert!(token.verify(Side::Agent, &here, proof));
        assert!(!token.verify(Side::Edge, &here, proof));
        assert!(!Token::new("correct horsf").verify(Side::Agent, &here, proof));
        for other in [
            binding(Some([8; 32]), 1, 2),
            binding(None, 1, 2),
            binding(Some([7; 32]), 3, 2),
            binding(Some([7; 32]), 1, 3),
        ] {
            assert!(!token.verify(Side::Agent, &other, proof));
        }
    }
}
