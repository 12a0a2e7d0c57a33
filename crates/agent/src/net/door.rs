//! Where a program's security settings meet its wires: what an agent dials with, and what an edge lets in.

use super::{
    error::WireError,
    preamble::{Preamble, Verdict},
    proof::Token,
    security::Security,
    socket::Socket,
    trust,
    wire::{Introduction, Wire},
};
use anyhow::Context;
use mio::net::TcpStream;
use rustls::{ClientConfig, ServerConfig, pki_types::ServerName};
use std::{net::SocketAddr, sync::Arc};

/// An agent's side.
pub struct AgentDoor {
    token: Option<Token>,
    tls: Option<Arc<ClientConfig>>,
    insecure_plain: bool,
}

impl AgentDoor {
    /// Reads certificates and decides whether wires are encrypted.
    pub fn new(security: &Security) -> anyhow::Result<Self> {
        let tls = security.asks_for_tls().then(|| trust::client_config(security)).transpose()?;
        let token = security.token.as_deref().map(Token::new);
        Ok(Self { token, tls, insecure_plain: security.insecure_plain })
    }

    /// Begins a wire to `address`; `host` is what the edge's certificate must be for.
    pub fn dial(&self, address: SocketAddr, host: &str, shard: u8) -> anyhow::Result<Wire> {
        let tls = match &self.tls {
            Some(config) => {
                let name = ServerName::try_from(host.to_string()).with_context(|| {
                    format!("{host} is neither a name nor an address that a certificate can be for")
                })?;
                Some((Arc::clone(config), name))
            }
            None => {
                anyhow::ensure!(
                    self.insecure_plain || address.ip().to_canonical().is_loopback(),
                    "{address} is not on loopback, and nothing is configured to authenticate it with: give this agent a \
                     token or a ca, or set insecure_plain = true"
                );
                None
            }
        };
        let socket = Socket::tcp(TcpStream::connect(address)?)?;
        Ok(Wire::dial(socket, Introduction { shard, token: self.token.clone(), tls }))
    }
}

/// An edge's side.
#[derive(Clone)]
pub struct EdgeDoor {
    token: Option<Token>,
    tls: Option<Arc<ServerConfig>>,
    insecure_plain: bool,
}

impl EdgeDoor {
    /// Reads certificates.
    pub fn new(security: &Security) -> anyhow::Result<Self> {
        Ok(Self {
            token: security.token.as_deref().map(Token::new),
            tls: trust::server_config(security)?,
            insecure_plain: security.insecure_plain,
        })
    }

    /// Completes an edge's settings with a certificate of its own making where only a token is configured.
    pub fn complete(security: &Security) -> anyhow::Result<Security> {
        let mut security = security.clone();
        if security.identity.is_none() && security.token.is_some() {
            security.identity = Some(trust::self_signed().context("cannot make a certificate")?);
        }
        Ok(security)
    }

    /// Whether a connection with this preamble may go on.
    pub fn judge(&self, preamble: Preamble, loopback: bool) -> Verdict {
        if preamble.tls && self.tls.is_none() {
            return Verdict::NoTls;
        }
        if !preamble.tls && !loopback && !self.insecure_plain {
            return Verdict::PlainRefused;
        }
        match (preamble.token, self.token.is_some()) {
            (true, false) => Verdict::TokenUnknown,
            (false, true) => Verdict::TokenMissing,
            _ => Verdict::Welcome,
        }
    }

    /// Begins a wire on a connection that was judged welcome. A client certificate, where one is demanded, is only asked
    /// for by TLS: a plain wire from loopback shows none.
    pub fn accept(&self, socket: Socket, tls: bool) -> Result<Wire, WireError> {
        let config = if tls { self.tls.clone() } else { None };
        Wire::accept(socket, self.token.clone(), config)
    }
}
