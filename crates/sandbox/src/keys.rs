//! Keys that the host signs with for cells, so that no cell, checkpoint or log ever contains one. An app names a key by a
//! digest of its public half, which is part of the app's image: every machine that replays a session signs with the same key.
//!
//! This module does not know algorithms or files: the caller provides each key as a [`Signer`].
//!
//! A checkpoint or a log in a client's hands is sealed, but a key that was ever in a cell's memory
//! would be in every copy of it, and could not be withdrawn. So the guest gets signatures and never
//! the key (`docs/decisions/signing.md`).
//!
//! The guest numbers its keys from 0, in the order in which the app lists them; a number is valid
//! for that app only.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Names a key: a digest of its public half.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 32]);

impl KeyId {
    /// The id of a public key, given as the DER of a certificate's `SubjectPublicKeyInfo`.
    #[must_use]
    pub fn of(public_key: &[u8]) -> Self {
        Self(blake3::derive_key("marram signing key 1", public_key))
    }
}

impl fmt::Display for KeyId {
    /// Prints enough of the digest to distinguish keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// Signs with one private key.
///
/// The signature must depend only on the key and the message: a replay signs again, perhaps on another machine, and must get
/// the same bytes. Ed25519 has this property; ECDSA must choose its nonces as RFC 6979 says.
pub trait Signer: Send + Sync {
    /// Signs a message. A signature has at most [`crate::limits::SIGNATURE_BYTES_MAX`] bytes.
    fn sign(&self, message: &[u8]) -> Vec<u8>;
}

/// The keys that this machine holds.
#[derive(Clone, Default)]
pub struct Keyring {
    keys: BTreeMap<KeyId, Arc<dyn Signer>>,
}

impl Keyring {
    /// Adds a key.
    pub fn add(&mut self, id: KeyId, signer: Arc<dyn Signer>) {
        self.keys.insert(id, signer);
    }

    /// The keys that an image names, in its order. Fails with the first key that is missing.
    /// An app's cells are not started on a machine that lacks one of its keys: they could not
    /// continue a session that has signed.
    pub(crate) fn pick(&self, ids: &[KeyId]) -> Result<Arc<[Arc<dyn Signer>]>, KeyId> {
        ids.iter().map(|id| self.keys.get(id).cloned().ok_or(*id)).collect()
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.keys.keys()).finish()
    }
}

/// The fixed prefix of what a TLS 1.3 server signs in a handshake; the transcript's digest follows (RFC 8446, section 4.4.3).
///
/// 64 spaces, the context string, and a zero byte. The spaces are there so that a signature of TLS
/// 1.2 can never be mistaken for it.
const CERTIFICATE_VERIFY: &[u8; 98] =
    b"                                                                TLS 1.3, server CertificateVerify\0";
/// Lengths of the digests that TLS 1.3 uses: SHA-256 and SHA-384.
const DIGEST_BYTES: [usize; 2] = [32, 48];

/// Whether a message is what a TLS 1.3 server signs to prove that it has the key. The host signs nothing else for a cell. So a
/// hostile cell can act as the server only on its own connections, where it is the server anyway.
/// It cannot use the key for a client certificate, a document or another protocol, and the digest's
/// length leaves no room to hide chosen text behind the prefix.
pub(crate) fn is_certificate_verify(message: &[u8]) -> bool {
    message.strip_prefix(CERTIFICATE_VERIFY).is_some_and(|digest| DIGEST_BYTES.contains(&digest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_tls_server_signs_is_signed() {
        let whole = |digest: usize| [&CERTIFICATE_VERIFY[..], &vec![7; digest]].concat();
        for len in 0..70 {
            assert_eq!(is_certificate_verify(&whole(len)), [32, 48].contains(&len), "{len}");
        }
        for at in 0..CERTIFICATE_VERIFY.len() {
            let mut message = whole(32);
            message[at] ^= 1;
            assert!(!is_certificate_verify(&message), "byte {at}");
        }
        let client = String::from_utf8(whole(32)).unwrap().replace("server", "client");
        assert!(!is_certificate_verify(client.as_bytes()));
    }

    #[test]
    fn a_keyring_gives_the_keys_that_are_named_or_says_which_is_not_there() {
        struct Echo(u8);
        impl Signer for Echo {
            fn sign(&self, message: &[u8]) -> Vec<u8> {
                [&[self.0], message].concat()
            }
        }
        let mut keyring = Keyring::default();
        let [a, b, c] = [b"a", b"b", b"c"].map(|name| KeyId::of(name));
        keyring.add(a, Arc::new(Echo(1)));
        keyring.add(b, Arc::new(Echo(2)));
        let picked = keyring.pick(&[b, a]).unwrap();
        assert_eq!(picked.iter().map(|key| key.sign(b"x")).collect::<Vec<_>>(), [b"\x02x", b"\x01x"]);
        assert_eq!(keyring.pick(&[a, c]).err(), Some(c));
    }
}
