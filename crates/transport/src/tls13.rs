//! What all TLS of this project shares: one provider, and clients that decide themselves which certificates to trust, while the
//! signature of the handshake is always checked. TLS 1.3 only. Knows no file and no socket.

use rustls::{
    DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use std::{fmt, sync::Arc};

/// The cryptography of all TLS connections.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificates that a server has shown.
#[derive(Clone, Copy, Debug)]
pub struct ShownChain<'a> {
    /// Its own certificate.
    pub leaf: &'a CertificateDer<'a>,
    /// Those that it sent to lead from its own to a trusted one.
    pub intermediates: &'a [CertificateDer<'a>],
    /// The name that was dialled.
    pub name: &'a ServerName<'a>,
    /// The stapled OCSP response; empty if there is none.
    pub ocsp: &'a [u8],
    /// The time of the handshake.
    pub now: UnixTime,
}

/// Which servers a client trusts.
pub trait Trust: fmt::Debug + Send + Sync {
    /// Decides on a server by the certificates that it has shown.
    ///
    /// # Errors
    /// If the client does not trust them, with the reason.
    fn judge(&self, shown: ShownChain<'_>) -> Result<(), Error>;
}

/// A verifier for `rustls` which asks a [`Trust`] about the certificates. It checks by itself that the server has the private
/// key of its certificate.
#[derive(Debug)]
pub struct HandshakeVerifier<T> {
    trust: T,
    algorithms: WebPkiSupportedAlgorithms,
}

impl<T> HandshakeVerifier<T> {
    /// A verifier with the signature algorithms of [`provider`].
    pub fn new(trust: T) -> Self {
        Self { trust, algorithms: provider().signature_verification_algorithms }
    }
}

impl<T: Trust> ServerCertVerifier for HandshakeVerifier<T> {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.trust.judge(ShownChain { leaf, intermediates, name, ocsp, now })?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not supported".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
