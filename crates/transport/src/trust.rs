//! Certificates: from PEM in a configuration to the TLS library's types. TLS 1.3 only, no tickets, no resumption: wires live
//! long, and each is authenticated from the start.

use super::{
    security::{Identity, Security},
    tls13::{HandshakeVerifier, ShownChain, Trust, provider},
};
use anyhow::{Context, ensure};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{Resumption, WebPkiServerVerifier, danger::ServerCertVerifier},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};
use std::sync::Arc;

fn roots(ca_pem: &[u8]) -> anyhow::Result<Arc<RootCertStore>> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem) {
        let certificate = certificate.context("the ca file is not PEM")?;
        store.add(certificate).context("the ca file contains a certificate that cannot be a root")?;
    }
    ensure!(
        !store.is_empty(),
        "the ca file contains no certificate: give the PEM file of the signing certificate"
    );
    Ok(Arc::new(store))
}

type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn chain(identity: &Identity) -> anyhow::Result<Chain> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&identity.chain_pem)
        .collect::<Result<_, _>>()
        .context("the certificate file is not PEM")?;
    ensure!(!chain.is_empty(), "the certificate file contains no certificate");
    let key = PrivateKeyDer::from_pem_slice(&identity.key_pem)
        .context("the key file contains no private key in PEM")?;
    Ok((chain, key))
}

/// An edge's TLS settings; `None` if it has no certificate.
pub(crate) fn server_config(security: &Security) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    let Some(identity) = &security.identity else { return Ok(None) };
    let (chain, key) = chain(identity)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let builder = match &security.ca_pem {
        None => builder.with_no_client_auth(),
        Some(ca_pem) => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(roots(ca_pem)?, provider()).build()?,
        ),
    };
    let mut config =
        builder.with_single_cert(chain, key).context("the private key does not match the certificate")?;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Some(Arc::new(config)))
}

/// An agent's TLS settings.
///
/// # Errors
/// If a certificate or key cannot be used, or the agent has neither a `ca` nor a token: it would
/// then encrypt to an edge that it cannot tell from any other.
pub(crate) fn client_config(security: &Security) -> anyhow::Result<Arc<ClientConfig>> {
    let verifier: Arc<dyn ServerCertVerifier> = match &security.ca_pem {
        Some(ca_pem) => WebPkiServerVerifier::builder_with_provider(roots(ca_pem)?, provider()).build()?,
        None => {
            ensure!(
                security.token.is_some(),
                "the agent has a certificate but nothing to authenticate the edge with: give it a ca or a token"
            );
            Arc::new(HandshakeVerifier::new(TokenVouches))
        }
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match &security.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = chain(identity)?;
            builder
                .with_client_auth_cert(chain, key)
                .context("the private key does not match the certificate")?
        }
    };
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// A self-signed certificate, for an edge with a token that authenticates it.
pub(crate) fn self_signed() -> anyhow::Result<Identity> {
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
