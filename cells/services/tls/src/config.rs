//! Makes the configuration of connections from the image's files. Invalid files are refused at deployment, with the reason.
//!
//! A certificate is public and part of the image; its private key is not, and never enters a cell's
//! memory: no checkpoint and no log entry of the cell can reveal it. Instead the library is given a
//! [`HostKey`], which passes what is to be signed to the host.

use crate::crypto;
use crate::door;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::{Error, ServerConfig, SignatureAlgorithm, SignatureScheme};
use std::sync::Arc;
use std::time::Duration;

/// The certificate chain, leaf first.
const CERTIFICATE: &str = "/etc/tls/certificate.pem";
/// Protocols that clients may request, one per line, the preferred one first.
const ALPN: &str = "/etc/tls/alpn";
/// The default if there is no such file.
const ALPN_DEFAULT: &str = "http/1.1";
/// The only key in the manifest. By index in that list.
const KEY: u32 = 0;

/// Reads the image's files.
pub(crate) fn of_image() -> Result<Arc<ServerConfig>, String> {
    let certificate = std::fs::read(CERTIFICATE).map_err(|error| {
        format!("there is no {CERTIFICATE} ({error}); name it in the manifest's `files`, and in its `keys`")
    })?;
    let alpn = std::fs::read_to_string(ALPN);
    of(&certificate, alpn.as_deref().unwrap_or(ALPN_DEFAULT))
}

/// Uses the contents of these files. Also finds what would otherwise fail in every handshake: that
/// there is no certificate, or that its key is of a kind that the host cannot sign with.
pub(crate) fn of(certificate_pem: &[u8], alpn: &str) -> Result<Arc<ServerConfig>, String> {
    let wrong = |what: &str| format!("{CERTIFICATE} {what}");
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate_pem).collect();
    let chain = chain.map_err(|error| wrong(&format!("is no PEM file: {error:?}")))?;
    let leaf =
        chain.first().ok_or_else(|| wrong("holds no certificate (\"-----BEGIN CERTIFICATE-----\")"))?;
    let leaf = ParsedCertificate::try_from(leaf)
        .map_err(|error| wrong(&format!("begins with a certificate that makes no sense: {error}")))?;
    let key = HostKey::of(&leaf.subject_public_key_info()).ok_or_else(|| {
        wrong("is for a key that is neither Ed25519 nor on P-256; have one made for such a key")
    })?;
    let mut config = ServerConfig::builder_with_details(Arc::new(crypto::provider()), Arc::new(NoClock))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, Arc::new(key)))));
    // Without AES instructions, the other cipher is faster and no worse against side channels.
    config.ignore_client_order = true;
    // A ticket would have to be valid in the cell of another session.
    config.send_tls13_tickets = 0;
    config.alpn_protocols =
        alpn.lines().map(|line| line.trim().into()).filter(|line: &Vec<u8>| !line.is_empty()).collect();
    Ok(Arc::new(config))
}

/// Only tickets have an age, and there are none. The library's builder wants a clock in any case.
#[derive(Debug)]
struct NoClock;

impl TimeProvider for NoClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::ZERO))
    }
}

/// A key that the host holds and signs with. This says which algorithm it is for; the key itself is
/// known only by [`KEY`].
#[derive(Clone, Copy, Debug)]
enum HostKey {
    Ed25519,
    P256,
}

impl HostKey {
    /// The kind of a certificate's key; `None` if the host cannot sign with it.
    fn of(public_key: &[u8]) -> Option<Self> {
        // The first bytes of every `SubjectPublicKeyInfo` of the kind, up to the key itself.
        const ED25519: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70];
        const P256: &[u8] = &[
            0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
            0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07,
        ];
        match public_key {
            key if key.starts_with(ED25519) => Some(Self::Ed25519),
            key if key.starts_with(P256) => Some(Self::P256),
            _ => None,
        }
    }
}

impl SigningKey for HostKey {
    /// `None` if the client does not accept this kind of signature; the handshake fails then.
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&self.scheme()).then(|| Box::new(*self) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        match self {
            Self::Ed25519 => SignatureAlgorithm::ED25519,
            Self::P256 => SignatureAlgorithm::ECDSA,
        }
    }
}

impl Signer for HostKey {
    /// Works only within [`door::lend`], thus within a handler.
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        door::sign(KEY, message).ok_or_else(|| Error::General("the host cannot be reached".into()))
    }

    fn scheme(&self) -> SignatureScheme {
        match self {
            Self::Ed25519 => SignatureScheme::ED25519,
            Self::P256 => SignatureScheme::ECDSA_NISTP256_SHA256,
        }
    }
}
