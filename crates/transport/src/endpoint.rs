//! Applies a program's security settings to its wires: how an agent dials, and what an edge admits.

use super::{
    credentials::Credentials,
    error::WireError,
    key::{AgentKey, AgentKeyError},
    preamble::{Preamble, PreambleVerdict},
    proof::Token,
    security::Security,
    socket::Socket,
    trust::{self, TlsError},
    wire::{Introduction, Wire},
};
use marram_wire::id::HostId;
use mio::net::TcpStream;
use rustls::{ClientConfig, ServerConfig, pki_types::ServerName};
use std::{fmt, io, net::SocketAddr, sync::Arc};

/// Why the security settings of a program cannot be applied. The operator fixes the file that the message names.
#[derive(Debug)]
pub enum SecurityError {
    /// The agent has no key.
    Key(AgentKeyError),
    /// A certificate or its key cannot be used.
    Tls(TlsError),
    /// The edge's own certificate cannot be created.
    SelfSigned(rcgen::Error),
}

impl From<AgentKeyError> for SecurityError {
    fn from(error: AgentKeyError) -> Self {
        Self::Key(error)
    }
}

impl From<TlsError> for SecurityError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

impl fmt::Display for SecurityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(error) => write!(f, "{error}"),
            Self::Tls(error) => write!(f, "{error}"),
            Self::SelfSigned(error) => write!(f, "cannot create a certificate: {error}"),
        }
    }
}

impl std::error::Error for SecurityError {}

/// Why a wire cannot be started. The agent's operator can fix the first two; the last may pass.
#[derive(Debug)]
pub enum ConnectError {
    /// No certificate can contain this name.
    Name(String),
    /// The address is not on loopback, and nothing authenticates the edge.
    Unauthenticated(SocketAddr),
    /// The operating system refused the connection.
    Io(io::Error),
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(host) => write!(f, "{host} is not a valid host name or address for a certificate"),
            Self::Unauthenticated(address) => write!(
                f,
                "{address} is not on loopback, and nothing is configured to authenticate it with: give this agent a \
                 token or a ca, or set insecure_plain = true"
            ),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ConnectError {}

/// An agent's side.
///
/// One for each process that dials: all its wires are signed with the same key and so come from the
/// same host.
pub struct WireConnector {
    key: AgentKey,
    token: Option<Token>,
    tls: Option<Arc<ClientConfig>>,
    insecure_plain: bool,
}

impl WireConnector {
    /// Parses certificates, decides whether wires are encrypted, and loads or generates the agent's key.
    ///
    /// # Errors
    /// If a file or certificate cannot be used, or another process holds the key file's lock.
    pub fn new(security: &Security) -> Result<Self, SecurityError> {
        let key = match &security.identity_file {
            None => AgentKey::generate()?,
            Some(path) => AgentKey::open(path)?,
        };
        let tls = security.asks_for_tls().then(|| trust::client_config(security)).transpose()?;
        let token = security.token.as_deref().map(Token::new);
        Ok(Self { key, token, tls, insecure_plain: security.insecure_plain })
    }

    /// The agent's id.
    #[must_use]
    pub fn host(&self) -> HostId {
        self.key.host()
    }

    /// Starts a wire to `address`; `host` must match the edge's certificate.
    ///
    /// Returns at once: the connection is established later, in the loop. No wire is dialled plain
    /// to another machine by omission: without anything to authenticate with, `insecure_plain` must
    /// be set on purpose.
    ///
    /// # Errors
    /// If the address may not be dialled unencrypted, `host` cannot be in a certificate, or no
    /// socket is left.
    pub fn dial(&self, address: SocketAddr, host: &str, shard: u8) -> Result<Wire, ConnectError> {
        let tls = match &self.tls {
            Some(config) => {
                let name = ServerName::try_from(host.to_string())
                    .map_err(|_| ConnectError::Name(host.to_string()))?;
                Some((Arc::clone(config), name))
            }
            None if self.insecure_plain || address.ip().to_canonical().is_loopback() => None,
            None => return Err(ConnectError::Unauthenticated(address)),
        };
        let socket = Socket::tcp(TcpStream::connect(address)?)?;
        Ok(Wire::dial(socket, Introduction { shard, key: self.key.clone(), token: self.token.clone(), tls }))
    }
}

/// An edge's side.
#[derive(Clone)]
pub struct WireAcceptor {
    credentials: Arc<Credentials>,
    tls: Option<Arc<ServerConfig>>,
    insecure_plain: bool,
}

impl WireAcceptor {
    /// Parses certificates.
    ///
    /// # Errors
    /// If one of the files cannot be used, with what is wrong with it.
    pub fn new(security: &Security) -> Result<Self, SecurityError> {
        Ok(Self {
            credentials: Arc::new(Credentials::new(security)),
            tls: trust::server_config(security)?,
            insecure_plain: security.insecure_plain,
        })
    }

    /// Completes an edge's settings: adds a self-signed certificate if only a token is configured.
    ///
    /// The supervisor calls it once, before the shards start: so all of them, restarted ones too,
    /// present one certificate.
    pub fn complete(security: &Security) -> Result<Security, SecurityError> {
        let mut security = security.clone();
        if security.identity.is_none() && Credentials::new(&security).has_tokens() {
            security.identity = Some(trust::self_signed().map_err(SecurityError::SelfSigned)?);
        }
        Ok(security)
    }

    /// The verdict on a connection with this preamble.
    ///
    /// Runs before any cryptography, so that a misconfigured agent learns the reason for little
    /// work of the edge. It is advice and not protection: the preamble can be altered on its way,
    /// but what it announces must be carried out afterwards (`handshake.rs`), and `loopback` comes
    /// from the socket.
    pub fn judge(&self, preamble: Preamble, loopback: bool) -> PreambleVerdict {
        if preamble.tls && self.tls.is_none() {
            return PreambleVerdict::NoTls;
        }
        if !preamble.tls && self.credentials.demands_certificate() {
            return PreambleVerdict::CertificateMissing;
        }
        if !preamble.tls && !loopback && !self.insecure_plain {
            return PreambleVerdict::PlainRefused;
        }
        match preamble.token {
            true if !self.credentials.has_tokens() => PreambleVerdict::TokenUnknown,
            false if !self.credentials.admits_without_token() => PreambleVerdict::TokenMissing,
            _ => PreambleVerdict::Welcome,
        }
    }

    /// Starts a wire on a connection with the verdict [`PreambleVerdict::Welcome`].
    pub fn accept(&self, socket: Socket, tls: bool) -> Result<Wire, WireError> {
        let config = if tls { self.tls.clone() } else { None };
        Wire::accept(socket, Arc::clone(&self.credentials), config)
    }
}
