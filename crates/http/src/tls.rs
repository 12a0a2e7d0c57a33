//! TLS for HTTP, both sides: admin API, peers, recorders, the coordinator's store, etcd. TLS 1.3 only. Knows no
//! request and does not authorize clients: requests carry tokens for that.
//!
//! Wires between agents and edges have a TLS of their own (`trust.rs` in `marram-transport`): there
//! the token can authenticate an edge with any certificate, because its proof is bound to the TLS
//! session. A bearer token is sent as it is, so here the client must know the server before it
//! sends anything.

use marram_transport::Identity;
use marram_transport::tls13::{HandshakeVerifier, ShownChain, Trust, provider};
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// Where systems keep the certificates that they trust.
/// Debian, Red Hat, Alpine and the BSDs; the first that can be read is used.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Why a PEM file gives no certificates.
#[derive(Debug)]
pub enum PemError {
    /// It is not PEM.
    NotPem(pem::Error),
    /// It contains no certificate.
    Empty,
}

impl fmt::Display for PemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPem(error) => write!(f, "it is not PEM: {error}"),
            Self::Empty => f.write_str("it contains no certificate in PEM"),
        }
    }
}

impl std::error::Error for PemError {}

/// Why one side cannot use TLS. The operator gives another file; the TLS library has the last word on the files' contents.
#[derive(Debug)]
pub enum HttpsError {
    /// The file with the own certificate cannot be used.
    Certificate(PemError),
    /// The key's file contains no private key in PEM.
    NoKey(pem::Error),
    /// The private key does not match the certificate.
    Mismatch(rustls::Error),
    /// No trusted certificates are configured, and this machine has no list of them.
    NothingTrusted,
    /// The file of trusted certificates cannot be used.
    Trusted(PemError),
    /// The trusted certificates cannot be used to check a server's.
    Roots(VerifierBuilderError),
    /// The library refused the settings.
    Library(rustls::Error),
}

impl fmt::Display for HttpsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(error) => write!(f, "the certificate's file cannot be used: {error}"),
            Self::NoKey(error) => write!(f, "the key's file contains no private key in PEM: {error}"),
            Self::Mismatch(error) => write!(f, "the private key does not match the certificate: {error}"),
            Self::NothingTrusted => f.write_str(
                "this machine has no list of trusted certificates: name the server's, or its signer's, as `ca`",
            ),
            Self::Trusted(error) => write!(f, "the file of trusted certificates cannot be used: {error}"),
            Self::Roots(error) => write!(f, "{error}"),
            Self::Library(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for HttpsError {}

type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(PemError::NotPem)?;
    if all.is_empty() {
        return Err(PemError::Empty);
    }
    Ok(all)
}

fn chain(identity: &Identity) -> Result<Chain, HttpsError> {
    let chain = certificates(&identity.chain_pem).map_err(HttpsError::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&identity.key_pem).map_err(HttpsError::NoKey)?;
    Ok((chain, key))
}

/// A server's side.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

impl Acceptor {
    /// A server with this certificate and key.
    ///
    /// # Errors
    /// If certificate or key cannot be used, or they do not belong together.
    pub fn new(identity: &Identity) -> Result<Self, HttpsError> {
        let (chain, key) = chain(identity)?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(HttpsError::Library)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(HttpsError::Mismatch)?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Finishes a handshake.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        Ok(Stream::Tls(Box::new(self.0.accept(stream).await?.into())))
    }
}

/// A client's side: decides which servers to trust.
#[derive(Clone)]
pub struct Connector(TlsConnector);

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// Trusts servers with a certificate that is in `ca_pem` or signed by one in it; without `ca_pem`, the system's certificates
    /// apply. Shows `identity` to a server that asks for a certificate.
    ///
    /// # Errors
    /// The text says which file is wrong.
    pub fn new(ca_pem: Option<&[u8]>, identity: Option<&Identity>) -> Result<Self, HttpsError> {
        let system;
        let pem = match ca_pem {
            Some(pem) => pem,
            None => {
                system = SYSTEM
                    .iter()
                    .find_map(|path| std::fs::read(path).ok())
                    .ok_or(HttpsError::NothingTrusted)?;
                &system
            }
        };
        let known = certificates(pem).map_err(HttpsError::Trusted)?;
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(known.iter().cloned());
        // A pinned certificate need not be usable as a root: then it is trusted itself and signs
        // nothing.
        let signed = (added > 0)
            .then(|| WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build())
            .transpose()
            .map_err(HttpsError::Roots)?;
        // The system's certificates are signers only, not servers' own.
        let pinned = if ca_pem.is_some() { known } else { Vec::new() };
        let verifier = HandshakeVerifier::new(Believed { pinned, signed });
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(HttpsError::Library)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = chain(identity)?;
                builder.with_client_auth_cert(chain, key).map_err(HttpsError::Mismatch)?
            }
        };
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Performs the handshake with the server that an authority, `HOST:PORT`, names.
    ///
    /// The authority's host is what the certificate must be for, unless the certificate is pinned.
    /// The caller has resolved and connected: `stream` may lead through anything.
    ///
    /// # Errors
    /// If the host is no name or address, or the handshake fails.
    pub async fn connect(&self, authority: &str, stream: TcpStream) -> io::Result<Stream> {
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(self.0.connect(name, stream).await?.into())))
    }
}

/// Trusts exactly the certificates that it was given, and those that they signed. A pinned certificate is valid for every name.
///
/// Pinning makes a self-signed certificate usable without names in it: an operator copies the
/// server's file to the clients. Its key must still sign the handshake, and its dates are not
/// checked: removing it from the file is how it is revoked.
#[derive(Debug)]
struct Believed {
    pinned: Vec<CertificateDer<'static>>,
    signed: Option<Arc<WebPkiServerVerifier>>,
}

impl Trust for Believed {
    fn judge(&self, shown: ShownChain<'_>) -> Result<(), rustls::Error> {
        let ShownChain { leaf, intermediates, name, ocsp, now } = shown;
        if self.pinned.iter().any(|pinned| pinned == leaf) {
            return Ok(());
        }
        match &self.signed {
            Some(signed) => signed.verify_server_cert(leaf, intermediates, name, ocsp, now).map(drop),
            None => Err(rustls::CertificateError::UnknownIssuer.into()),
        }
    }
}

/// A connection, encrypted or not.
/// Boxed, because a TLS session is large and most streams are plain.
pub enum Stream {
    /// Not encrypted.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Wraps `stream`, a connection to the authority; with a connector, it performs the TLS handshake.
pub async fn connected(
    connector: Option<&Connector>,
    authority: &str,
    stream: TcpStream,
) -> io::Result<Stream> {
    match connector {
        None => Ok(Stream::Plain(stream)),
        Some(connector) => connector.connect(authority, stream).await,
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
