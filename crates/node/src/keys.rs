//! Private keys that an edge signs with for its cells: from PEM files to the types of the sandbox. Knows algorithms; does not
//! know which app may use a key.
//!
//! Only deterministic signatures are possible: after a recovery the cell signs the same message
//! again, and the client must not see another signature (`docs/decisions/signing.md`). That
//! excludes RSA-PSS, and ECDSA with random nonces, as the TLS library's signer has.

use marram_sandbox::{KeyId, Signer};
use p256::ecdsa::signature::Signer as _;
use p256::pkcs8::DecodePrivateKey;
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::server::ParsedCertificate;
use std::fmt;
use std::sync::Arc;

/// A private key that the configuration names, and the apps that may use it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name in the configuration.
    pub name: String,
    /// The file's contents.
    pub pem: Vec<u8>,
    /// Identifies it at the sandbox: derived from the public key.
    /// An image names the key by it, so a renewed certificate with the same key is the same key.
    pub id: KeyId,
    /// Apps with cells that may sign with it.
    pub apps: Vec<String>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("apps", &self.apps)
            .finish()
    }
}

/// Why a key's file cannot be used; the operator names another. The text continues "names a file that ...".
#[derive(Clone, PartialEq, Debug)]
pub enum SigningKeyError {
    /// It contains no private key in PEM.
    NoKey,
    /// Its private key is for another algorithm.
    OtherAlgorithm,
    /// It contains no certificate in PEM.
    NoCertificate,
    /// Its first certificate is invalid.
    InvalidCertificate(rustls::Error),
}

impl fmt::Display for SigningKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey => f.write_str("contains no private key in PEM"),
            Self::OtherAlgorithm => f.write_str(
                "contains a private key that is neither Ed25519 nor on P-256; signatures of others are not the same \
                 each time, and a session's must be",
            ),
            Self::NoCertificate => f.write_str("contains no certificate in PEM"),
            Self::InvalidCertificate(error) => write!(f, "begins with an invalid certificate: {error}"),
        }
    }
}

impl std::error::Error for SigningKeyError {}

/// Reads a private key: PKCS #8 or SEC 1, Ed25519 or P-256.
///
/// # Errors
/// The text continues "names a file that ...".
///
/// Slow enough to be done once: for each key when the configuration is read, and when a shard
/// starts.
pub fn read(pem: &[u8]) -> Result<(KeyId, Arc<dyn Signer>), SigningKeyError> {
    let der = PrivateKeyDer::from_pem_slice(pem).map_err(|_| SigningKeyError::NoKey)?;
    let other = || SigningKeyError::OtherAlgorithm;
    let key = any_supported_type(&der).map_err(|_| other())?;
    let id = key.public_key().map(|public| KeyId::of(&public)).ok_or_else(other)?;
    // The library parses and checks the key; only the signing on P-256 is done by another one.
    if let Some(signer) = key.choose_scheme(&[SignatureScheme::ED25519]) {
        return Ok((id, Arc::new(Ed25519(signer))));
    }
    key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]).ok_or_else(other)?;
    let secret = match &der {
        PrivateKeyDer::Pkcs8(der) => p256::SecretKey::from_pkcs8_der(der.secret_pkcs8_der()).ok(),
        PrivateKeyDer::Sec1(der) => p256::SecretKey::from_sec1_der(der.secret_sec1_der()).ok(),
        _ => None,
    };
    Ok((id, Arc::new(P256(secret.ok_or_else(other)?.into()))))
}

/// The id of the key that a certificate chain in PEM is for: the key of the first certificate.
///
/// # Errors
/// The text continues "names a file that ...".
///
/// The certificate is not verified: whether clients trust it is not the edge's concern.
pub fn of_certificate(pem: &[u8]) -> Result<KeyId, SigningKeyError> {
    let leaf = CertificateDer::from_pem_slice(pem).map_err(|_| SigningKeyError::NoCertificate)?;
    let leaf = ParsedCertificate::try_from(&leaf).map_err(SigningKeyError::InvalidCertificate)?;
    Ok(KeyId::of(&leaf.subject_public_key_info()))
}

/// Deterministic: a signature depends only on key and message.
struct Ed25519(Box<dyn rustls::sign::Signer>);

impl Signer for Ed25519 {
    fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message).expect("Ed25519 signs every message")
    }
}

/// Deterministic: nonces are derived from key and message (RFC 6979).
struct P256(p256::ecdsa::SigningKey);

impl Signer for P256 {
    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let signature: p256::ecdsa::DerSignature = self.0.sign(message);
        signature.as_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(algorithm: &'static rcgen::SignatureAlgorithm) -> (String, String) {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let certificate =
            rcgen::CertificateParams::new(["localhost".into()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn a_key_signs_the_same_each_time_and_its_certificate_agrees() {
        for (algorithm, scheme) in [
            (&rcgen::PKCS_ED25519, SignatureScheme::ED25519),
            (&rcgen::PKCS_ECDSA_P256_SHA256, SignatureScheme::ECDSA_NISTP256_SHA256),
        ] {
            let (certificate, key) = made(algorithm);
            let (id, signer) = read(key.as_bytes()).unwrap();
            assert_eq!(of_certificate(certificate.as_bytes()), Ok(id));
            let signature = signer.sign(b"message");
            assert_eq!(signature, read(key.as_bytes()).unwrap().1.sign(b"message"));
            assert!(signature.len() <= marram_sandbox::limits::SIGNATURE_BYTES_MAX);

            let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
            let all = rustls::crypto::ring::default_provider().signature_verification_algorithms;
            let verifiers = all.mapping.iter().find(|(theirs, _)| *theirs == scheme).unwrap().1;
            let leaf = rustls::server::ParsedCertificate::try_from(&der).unwrap();
            let info = leaf.subject_public_key_info();
            // The raw public key is the last part of the key info.
            let bits = if scheme == SignatureScheme::ED25519 { 32 } else { 65 };
            let public = &info[info.len() - bits..];
            assert!(
                verifiers
                    .iter()
                    .any(|verifier| { verifier.verify_signature(public, b"message", &signature).is_ok() })
            );
        }
    }

    /// RFC 6979, A.2.5, SHA-256.
    #[test]
    fn nonces_are_those_of_the_standard() {
        let hex = |text: &str| {
            let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
            (0..text.len()).step_by(2).map(byte).collect::<Vec<u8>>()
        };
        let secret = hex("c9afa9d845ba75166b5c215767b1d6934e50c3db36e89b127b8a622b120f6721");
        let key = p256::ecdsa::SigningKey::from_slice(&secret).unwrap();
        let r = "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716";
        let s = "f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8";
        // | sequence | integer r, with a zero before its high bit | integer s, likewise |
        assert_eq!(P256(key).sign(b"sample"), hex(&format!("3046022100{r}022100{s}")));
    }

    #[test]
    fn other_files_are_refused_in_words() {
        let (certificate, p384) = made(&rcgen::PKCS_ECDSA_P384_SHA384);
        for (file, words) in [
            ("", "no private key"),
            (&certificate, "no private key"),
            (&p384, "neither Ed25519 nor on P-256"),
        ] {
            let error = read(file.as_bytes()).err().unwrap().to_string();
            assert!(error.contains(words), "{error:?} does not say {words:?}");
        }
        assert!(of_certificate(p384.as_bytes()).unwrap_err() == SigningKeyError::NoCertificate);
    }
}
