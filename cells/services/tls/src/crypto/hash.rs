//! SHA-256, and HMAC with it.
//!
//! Both cipher suites use them: for the transcript of the handshake, and through HKDF for all keys
//! (RFC 8446, section 7.1).

use hmac::{Hmac, KeyInit, Mac};
use rustls::crypto::{hash, hmac as tls};
use sha2::Digest;

/// Bytes of a digest.
const LEN: usize = 32;

pub(super) struct Sha256;

impl hash::Hash for Sha256 {
    fn start(&self) -> Box<dyn hash::Context> {
        Box::new(Hashing(sha2::Sha256::new()))
    }

    fn hash(&self, data: &[u8]) -> hash::Output {
        hash::Output::new(&sha2::Sha256::digest(data))
    }

    fn output_len(&self) -> usize {
        LEN
    }

    fn algorithm(&self) -> hash::HashAlgorithm {
        hash::HashAlgorithm::SHA256
    }
}

/// A hash under way. The library forks it for the digest of a transcript that goes on.
struct Hashing(sha2::Sha256);

impl hash::Context for Hashing {
    fn fork_finish(&self) -> hash::Output {
        hash::Output::new(&self.0.clone().finalize())
    }

    fn fork(&self) -> Box<dyn hash::Context> {
        Box::new(Self(self.0.clone()))
    }

    fn finish(self: Box<Self>) -> hash::Output {
        hash::Output::new(&self.0.finalize())
    }

    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }
}

/// The algorithm. HKDF is the library's, on top of it.
pub(super) struct HmacSha256;

impl tls::Hmac for HmacSha256 {
    fn with_key(&self, key: &[u8]) -> Box<dyn tls::Key> {
        Box::new(Key(Hmac::new_from_slice(key).expect("a key of any length will do")))
    }

    fn hash_output_len(&self) -> usize {
        LEN
    }
}

/// The state after the key was absorbed, cloned for each message.
struct Key(Hmac<sha2::Sha256>);

impl tls::Key for Key {
    fn sign_concat(&self, first: &[u8], middle: &[&[u8]], last: &[u8]) -> tls::Tag {
        let mut mac = self.0.clone();
        mac.update(first);
        middle.iter().for_each(|piece| mac.update(piece));
        mac.update(last);
        tls::Tag::new(&mac.finalize().into_bytes())
    }

    fn tag_len(&self) -> usize {
        LEN
    }
}
