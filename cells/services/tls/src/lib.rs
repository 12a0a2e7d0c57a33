//! A stage that terminates TLS 1.3 for a server without TLS: it decrypts the client's records and encrypts the server's data. The
//! certificate is the image's `/etc/tls/certificate.pem`; its private key stays in the host, which signs (`keys` in the
//! manifest). `/etc/tls/alpn` lists the protocols that clients may request, one per line.
//!
//! This file handles ports and half-closes. The protocol is in `connection`, its configuration in `config`, and the algorithms
//! are in `crypto`; `door` gives them access to the host.
//!
//! Keys, record numbers and half-read records are part of the cell's state: they survive the loss
//! of an edge, and the client's TLS connection with them. For this every random byte comes from the
//! cell's generator, and a key signs the same message with the same signature: after a recovery the
//! cell must produce the same ciphertext again, since the client may have part of it.

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
    /// Set while the client is connected, until the conversation has failed.
    connection: Option<Connection>,
    /// Pending output for the client and the server; empty between handlers.
    heard: Heard,
    /// No more data is sent to the server.
    server_is_told: bool,
    /// No more data is sent to the client.
    client_is_told: bool,
}

impl Default for Tls {
    /// Reads the image's certificate, so that deployment refuses an invalid one.
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

    /// A cell with these files, for tests.
    ///
    /// # Errors
    /// In words, if they are invalid.
    pub fn with(certificate_pem: &[u8], alpn: &str) -> Result<Self, String> {
        config::of(certificate_pem, alpn).map(Self::new)
    }

    /// Lets the connection work, and sends its output.
    fn work(
        &mut self,
        context: &mut Context,
        what: impl FnOnce(&mut Connection, &mut Heard) -> Result<(), String>,
    ) {
        let Some(connection) = &mut self.connection else { return };
        let result = door::lend(context, || what(connection, &mut self.heard));
        // Input from the client may cause output, such as new keys or an alert, even after the last data for it.
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
        // Idle connections free what they need not keep: it would be part of every checkpoint.
        self.heard = Heard::default();
        if let Err(reason) = result {
            self.fail(context, &reason);
        }
    }

    /// The client will send no more. Has an effect only once.
    fn tell_server(&mut self, context: &mut Context) {
        if !self.server_is_told {
            self.server_is_told = true;
            context.close(Port::SERVER);
        }
    }

    /// No more data will be sent to the client.
    fn tell_client(&mut self, context: &mut Context) {
        if !self.client_is_told {
            self.client_is_told = true;
            context.close(Port::CLIENT);
        }
    }

    /// The conversation has failed; an alert, if there is one, was already sent.
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
            // A further client would get another client's data.
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
