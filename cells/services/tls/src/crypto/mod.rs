//! The algorithms for the TLS library, from crates in pure Rust. Each file implements one of the library's
//! interfaces with existing algorithms.
//!
//! The library's usual providers are in C and assembler, or read the operating system's random
//! bytes. A cell is compiled to Wasm and must be deterministic, so its algorithms are in Rust, and
//! its random bytes are the host's.

mod cipher;
mod exchange;
mod hash;

use crate::door;
use rustls::crypto::{
    CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms,
    tls13::HkdfUsingHmac,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::SigningKey;
use rustls::{CipherSuite, CipherSuiteCommon, Error, SupportedCipherSuite, Tls13CipherSuite};
use std::sync::Arc;

/// Everything that a TLS 1.3 server without client certificates needs. The suites are in order of
/// preference. No signature is verified, as no client is asked for a certificate.
pub(crate) fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            SupportedCipherSuite::Tls13(&CHACHA20_POLY1305),
            SupportedCipherSuite::Tls13(&AES_128_GCM),
        ],
        kx_groups: vec![&exchange::X25519],
        signature_verification_algorithms: WebPkiSupportedAlgorithms { all: &[], mapping: &[] },
        secure_random: &Generator,
        key_provider: &NoKeys,
    }
}

static CHACHA20_POLY1305: Tls13CipherSuite = Tls13CipherSuite {
    common: CipherSuiteCommon {
        suite: CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        hash_provider: &hash::Sha256,
        confidentiality_limit: u64::MAX,
    },
    hkdf_provider: &HkdfUsingHmac(&hash::HmacSha256),
    aead_alg: &cipher::CHACHA20_POLY1305,
    quic: None,
};

static AES_128_GCM: Tls13CipherSuite = Tls13CipherSuite {
    common: CipherSuiteCommon {
        suite: CipherSuite::TLS13_AES_128_GCM_SHA256,
        hash_provider: &hash::Sha256,
        // The library's value for this cipher.
        confidentiality_limit: 1 << 24,
    },
    hkdf_provider: &HkdfUsingHmac(&hash::HmacSha256),
    aead_alg: &cipher::AES_128_GCM,
    quic: None,
};

/// The cell's own generator: a replay draws the same bytes.
#[derive(Debug)]
struct Generator;

impl SecureRandom for Generator {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), GetRandomFailed> {
        if door::fill_random(buffer) { Ok(()) } else { Err(GetRandomFailed) }
    }
}

/// The host holds private keys; the library never loads one.
#[derive(Debug)]
struct NoKeys;

impl KeyProvider for NoKeys {
    fn load_private_key(&self, _: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        Err(Error::General("a cell holds no private key".into()))
    }
}
