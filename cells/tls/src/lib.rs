//! A stage that ends TLS 1.3 before a server that speaks plain: the client's records come in, what they say goes on, and what
//! the server says goes back in records. The certificate is the image's `/etc/tls/certificate.pem`; its private key stays in
//! the host, which signs (`keys` in the manifest). `/etc/tls/alpn` names the protocols that clients may ask for, one a line.
//!
//! Knows ports and half-closes. The protocol is `connection`'s, what it is set up with `config`'s, and the algorithms are in
//! `crypto`; what they need of the host they get through `door`.

mod config;
mod connection;
mod crypto;
mod door;

use connection::{Connection, Heard};
use marram_sdk::{Cell, Context, Level, MESSAGE_BYTES_MAX, Port, PortKind, cell};
use rustls::ServerConfig;
use std::sync::Arc;

/// The cell.
pub struct Tls {
    config: Arc<ServerConfig>,
    /// Once the client is there, until the conversation has failed.
    connection: Option<Connection>,
    /// What is on its way to the client and the server; empty between handlers.
    heard: Heard,
    server_is_told: bool,
    /// Nothing more is said to the client.
    client_is_told: bool,
}

impl Default for Tls {
    /// Reads the image's certificate, so that one that cannot be used is refused at deployment.
    fn default() -> Self {
        Self::new(config::of_image().unwrap_or_else(|error| panic!("{error}")))
    }
}

impl Tls {
    fn new(config: Arc<ServerConfig>) -> Self {
        Self {
            config,
            connection: None,
            heard: Heard::default(),
            server_is_told: false,
            client_is_told: false,
        }
    }

    /// As the image's files would make it, for tests.
    ///
    /// # Errors
    /// In words, if they make no sense.
    pub fn with(certificate_pem: &[u8], alpn: &str) -> Result<Self, String> {
        config::of(certificate_pem, alpn).map(Self::new)
    }

    /// Has the connection do something, and sends what comes of it.
    fn work(
        &mut self,
        context: &mut Context,
        what: impl FnOnce(&mut Connection, &mut Heard) -> Result<(), String>,
    ) {
        let Some(connection) = &mut self.connection else { return };
        let result = door::lend(context, || what(connection, &mut self.heard));
        // What the client says may have answers, as new keys or an alert, also when the last word to it was said.
        if !self.client_is_told {
            self.heard
                .ciphertext
                .chunks(MESSAGE_BYTES_MAX)
                .for_each(|chunk| context.send(Port::CLIENT, chunk));
        }
        self.heard.plaintext.chunks(MESSAGE_BYTES_MAX).for_each(|chunk| context.send(Port::SERVER, chunk));
        if self.heard.is_end {
            self.tell_server(context);
        }
        if self.heard.is_over {
            self.tell_client(context);
        }
        // What an idle connection need not keep goes back: it would be in every checkpoint.
        self.heard = Heard::default();
        if let Err(reason) = result {
            self.fail(context, &reason);
        }
    }

    /// The client will say no more.
    fn tell_server(&mut self, context: &mut Context) {
        if !self.server_is_told {
            self.server_is_told = true;
            context.close(Port::SERVER);
        }
    }

    /// Nothing more will be said to the client.
    fn tell_client(&mut self, context: &mut Context) {
        if !self.client_is_told {
            self.client_is_told = true;
            context.close(Port::CLIENT);
        }
    }

    /// Nothing can be said any more; the alert, if there is one to give, is on its way.
    fn fail(&mut self, context: &mut Context, reason: &str) {
        context.print(Level::Info, format_args!("closed: {reason}"));
        self.connection = None;
        self.tell_server(context);
        self.tell_client(context);
    }
}

impl Cell for Tls {
    fn opened(&mut self, context: &mut Context, port: Port, kind: PortKind) {
        match (port, kind) {
            (Port::CLIENT, PortKind::Client) => match Connection::new(Arc::clone(&self.config)) {
                Ok(connection) => self.connection = Some(connection),
                Err(reason) => self.fail(context, &reason),
            },
            (Port::CLIENT, _) => {
                self.fail(context, "the client speaks in datagrams, and TLS takes a stream");
            }
            (Port::SERVER, _) => {}
            // It would hear what is another's.
            (further, _) => {
                context.print(
                    Level::Error,
                    "closed: each client needs a cell of its own; write `cell = \"client\"`",
                );
                context.close(further);
            }
        }
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        self.work(context, |connection, heard| match port {
            Port::CLIENT => connection.receive(payload, heard),
            Port::SERVER => connection.send(payload, heard),
            _ => Ok(()),
        });
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        match port {
            Port::CLIENT => {
                if self.connection.as_ref().is_some_and(Connection::is_handshaking) {
                    self.fail(context, "the client left before the handshake was over");
                }
                self.tell_server(context);
            }
            Port::SERVER => self.work(context, Connection::finish),
            _ => {}
        }
    }
}

cell!(Tls);
