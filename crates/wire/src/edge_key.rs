//! Requests between the edges of a domain: how one proves that it belongs to the domain, and how the other seals what it answers.
//!
//! ```text
//! asks:     nonce, proof = MAC(edge key; nonce, target)             no secret leaves, so any server may be asked
//! answers:  salt, body sealed under KDF(edge key; proof, salt)      only an edge of the domain can make or read it
//! ```
//!
//! A server that is no edge of the domain learns only what is asked for. If it passes a request on to an edge, or replays it, it
//! gets a sealed answer, and the edge that asked accepts that answer only to this request.

use crate::{
    cipher::{Cipher, NONCE, TAG},
    id::{Hex, parse_hex},
    seal::{DomainSecret, SealError},
};
use alloc::vec::Vec;
use core::fmt;

/// Bytes by which a sealed answer is longer than its text.
pub const ANSWER_OVERHEAD: usize = TAG;

/// The key with which an edge of the domain gets apps and images from another. It gives no other access.
#[derive(Clone)]
pub struct EdgeKey([u8; 32]);

impl fmt::Debug for EdgeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EdgeKey")
    }
}

impl EdgeKey {
    /// Derives the domain's key.
    #[must_use]
    pub fn derive(secret: &DomainSecret) -> Self {
        Self(secret.key("marram 2026 edge reads"))
    }

    /// Proves that an edge of the domain asks for `target`, the path and query of a request. `nonce` is random for each request.
    #[must_use]
    pub fn proof(&self, nonce: [u8; 16], target: &[u8]) -> EdgeProof {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"asks").update(&nonce).update(target);
        EdgeProof { nonce, mac: *hasher.finalize().as_bytes() }
    }

    /// Whether an edge of the domain made this proof for `target`. The time does not depend on where two proofs differ.
    #[must_use]
    pub fn verify(&self, proof: &EdgeProof, target: &[u8]) -> bool {
        let expected = blake3::Hash::from_bytes(self.proof(proof.nonce, target).mac);
        expected == blake3::Hash::from_bytes(proof.mac)
    }

    /// Seals the body of an answer to the request with this proof. `salt` is random for each answer, since a request can be
    /// replayed and its answer may have changed.
    #[must_use]
    pub fn seal_answer(&self, proof: &EdgeProof, salt: [u8; 16], mut body: Vec<u8>) -> Vec<u8> {
        let tag = self.cipher(proof, salt).seal([0; NONCE], &mut body);
        body.extend_from_slice(&tag);
        body
    }

    /// Opens the body of an answer to the request with this proof.
    ///
    /// # Errors
    /// If no edge of the domain sealed it for this request, or a bit was altered.
    pub fn open_answer(
        &self,
        proof: &EdgeProof,
        salt: [u8; 16],
        mut sealed: Vec<u8>,
    ) -> Result<Vec<u8>, SealError> {
        let len = self.cipher(proof, salt).open([0; NONCE], &mut sealed).ok_or(SealError)?;
        sealed.truncate(len);
        Ok(sealed)
    }

    /// Of one answer, so that its nonce is always the first one.
    fn cipher(&self, proof: &EdgeProof, salt: [u8; 16]) -> Cipher {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"answers").update(&proof.mac).update(&salt);
        Cipher::new(hasher.finalize().as_bytes())
    }
}

/// What a request between edges shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EdgeProof {
    /// Random for each request.
    pub nonce: [u8; 16],
    /// Covers nonce and target.
    pub mac: [u8; 32],
}

impl fmt::Display for EdgeProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", Hex(&self.nonce), Hex(&self.mac))
    }
}

impl EdgeProof {
    /// Reads what `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (nonce, mac) = text.split_once('.')?;
        Some(Self { nonce: parse_hex(nonce)?, mac: parse_hex(mac)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::ToString, vec};

    fn keys() -> [EdgeKey; 2] {
        [b"one", b"two"].map(|material| EdgeKey::derive(&DomainSecret::from_material(material)))
    }

    #[test]
    fn a_proof_is_for_one_target_in_one_domain() {
        let [one, two] = keys();
        let proof = one.proof([7; 16], b"/v1/apps");
        assert!(one.verify(&proof, b"/v1/apps"));
        assert!(!two.verify(&proof, b"/v1/apps"), "another domain's");
        assert!(!one.verify(&proof, b"/v1/images/00"), "of another target");
        let text = proof.to_string();
        assert_eq!(EdgeProof::parse(&text), Some(proof));
        assert_eq!(EdgeProof::parse(&text[1..]), None);
        assert!(!one.verify(&EdgeProof { nonce: [8; 16], ..proof }, b"/v1/apps"), "with another nonce");
    }

    #[test]
    fn an_answer_is_for_one_request_and_only_for_edges_of_the_domain() {
        let [one, two] = keys();
        let proof = one.proof([7; 16], b"/v1/apps");
        for text in [&b""[..], b"{\"apps\":[]}"] {
            let sealed = one.seal_answer(&proof, [1; 16], text.to_vec());
            assert_eq!(sealed.len(), text.len() + ANSWER_OVERHEAD);
            assert_eq!(one.open_answer(&proof, [1; 16], sealed.clone()), Ok(text.to_vec()));
            assert!(two.open_answer(&proof, [1; 16], sealed.clone()).is_err(), "another domain's");
            assert!(one.open_answer(&proof, [2; 16], sealed.clone()).is_err(), "with another salt");
            let other = one.proof([8; 16], b"/v1/apps");
            assert!(one.open_answer(&other, [1; 16], sealed.clone()).is_err(), "to another request");
            for at in 0..sealed.len() {
                let mut altered = sealed.clone();
                altered[at] ^= 1;
                assert!(one.open_answer(&proof, [1; 16], altered).is_err(), "byte {at} is altered");
            }
        }
        assert!(one.open_answer(&proof, [1; 16], vec![0; ANSWER_OVERHEAD - 1]).is_err(), "too short");
        assert_ne!(
            one.seal_answer(&proof, [1; 16], vec![0; 8]),
            one.seal_answer(&proof, [2; 16], vec![0; 8])
        );
    }
}
