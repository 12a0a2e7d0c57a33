//! Certificates: from PEM in a configuration to the TLS library's types. TLS 1.3 only, no tickets, no resumption: wires live
//! long, and each is authenticated from the start.

use super::{
    security::{Identity, Security},
    tls13::{HandshakeVerifier, ShownChain, Trust, provider},
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{Resumption, WebPkiServerVerifier, danger::ServerCertVerifier},
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier},
    version::TLS13,
};
use std::{fmt, sync::Arc};

/// Why TLS cannot be used as it is configured. The operator can fix each with another file; the TLS library has the last word on
/// their contents.
#[derive(Debug)]
pub enum TlsError {
    /// The ca file is not PEM.
    CaNotPem(pem::Error),
    /// The ca file contains a certificate that cannot be a root.
    CaNoRoot(rustls::Error),
    /// The ca file contains no certificate.
    CaEmpty,
    /// The certificate file is not PEM.
    CertificateNotPem(pem::Error),
    /// The certificate file contains no certificate.
    CertificateEmpty,
    /// The key file contains no private key in PEM.
    NoKey(pem::Error),
    /// The private key does not match the certificate.
    Mismatch(rustls::Error),
    /// At an agent: it has a certificate, and nothing to authenticate the edge with.
    EdgeUnproven,
    /// The ca file's certificates cannot be used to check the peer's.
    Roots(VerifierBuilderError),
    /// The library refused the settings.
    Library(rustls::Error),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CaNotPem(error) => write!(f, "the ca file is not PEM: {error}"),
            Self::CaNoRoot(error) => {
                write!(f, "the ca file contains a certificate that cannot be a root: {error}")
            }
            Self::CaEmpty => {
                f.write_str("the ca file contains no certificate: give the PEM file of the signing certificate")
            }
            Self::CertificateNotPem(error) => write!(f, "the certificate file is not PEM: {error}"),
            Self::CertificateEmpty => f.write_str("the certificate file contains no certificate"),
            Self::NoKey(error) => write!(f, "the key file contains no private key in PEM: {error}"),
            Self::Mismatch(error) => write!(f, "the private key does not match the certificate: {error}"),
            Self::EdgeUnproven => f.write_str(
                "the agent has a certificate but nothing to authenticate the edge with: give it a ca or a token",
            ),
            Self::Roots(error) => write!(f, "{error}"),
            Self::Library(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for TlsError {}

fn roots(ca_pem: &[u8]) -> Result<Arc<RootCertStore>, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem) {
        let certificate = certificate.map_err(TlsError::CaNotPem)?;
        store.add(certificate).map_err(TlsError::CaNoRoot)?;
    }
    if store.is_empty() {
        return Err(TlsError::CaEmpty);
    }
    Ok(Arc::new(store))
}

type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn chain(identity: &Identity) -> Result<Chain, TlsError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&identity.chain_pem)
        .collect::<Result<_, _>>()
        .map_err(TlsError::CertificateNotPem)?;
    if chain.is_empty() {
        return Err(TlsError::CertificateEmpty);
    }
    let key = PrivateKeyDer::from_pem_slice(&identity.key_pem).map_err(TlsError::NoKey)?;
    Ok((chain, key))
}

/// An edge's TLS settings; `None` if it has no certificate.
pub(crate) fn server_config(security: &Security) -> Result<Option<Arc<ServerConfig>>, TlsError> {
    let Some(identity) = &security.identity else { return Ok(None) };
    let (chain, key) = chain(identity)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Library)?;
    let builder = match &security.ca_pem {
        None => builder.with_no_client_auth(),
        Some(ca_pem) => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(roots(ca_pem)?, provider())
                .build()
                .map_err(TlsError::Roots)?,
        ),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Mismatch)?;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Some(Arc::new(config)))
}

/// An agent's TLS settings.
///
/// # Errors
/// If a certificate or key cannot be used, or the agent has neither a `ca` nor a token: it would
/// then encrypt to an edge that it cannot tell from any other.
pub(crate) fn client_config(security: &Security) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier: Arc<dyn ServerCertVerifier> = match &security.ca_pem {
        Some(ca_pem) => WebPkiServerVerifier::builder_with_provider(roots(ca_pem)?, provider())
            .build()
            .map_err(TlsError::Roots)?,
        None => {
            if security.token.is_none() {
                return Err(TlsError::EdgeUnproven);
            }
            Arc::new(HandshakeVerifier::new(TokenVouches))
        }
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match &security.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = chain(identity)?;
            builder.with_client_auth_cert(chain, key).map_err(TlsError::Mismatch)?
        }
    };
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// A self-signed certificate, for an edge with a token that authenticates it.
pub(crate) fn self_signed() -> Result<Identity, rcgen::Error> {
    let made = rcgen::generate_simple_self_signed(["marram-edge".to_string()])?;
    Ok(Identity {
        chain_pem: made.cert.pem().into_bytes(),
        key_pem: made.signing_key.serialize_pem().into_bytes(),
    })
}

/// Accepts any certificate with a key that signs the handshake. The proof of the shared token authenticates its owner; the proof
/// is bound to this TLS session ([`super::proof`]).
#[derive(Debug)]
struct TokenVouches;

impl Trust for TokenVouches {
    fn judge(&self, _shown: ShownChain<'_>) -> Result<(), rustls::Error> {
        Ok(())
    }
}
