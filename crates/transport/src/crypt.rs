//! A TLS session over a non-blocking socket. Knows no certificate ([`super::trust`]) and no frame.
//!
//! ```text
//! socket ─read─▶ raw (ciphertext) ─read_tls─▶ rustls ─take_plain─▶ the wire's frame reader
//! socket ◀─write_tls─ rustls ◀─Sealing─ the wire's `Outgoing`
//! ```
//!
//! The library buffers as little as possible: plaintext waits in `Outgoing`, which counts it
//! against the wire's limits and lets urgent frames overtake bulk.

use super::{certificate, socket::Socket};
use bytes::{Buf, BytesMut};
use rustls::{
    ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection, pki_types::ServerName,
};
use std::{
    io::{self, BufRead, IoSlice, Write},
    sync::Arc,
};

/// Ciphertext read at once, in bytes: four full records.
const READ_SIZE: usize = 64 << 10;
/// Label of the exported secret (RFC 8446, 7.5). Part of the wire format: both sides must use the
/// same.
const EXPORTER: &[u8] = b"EXPORTER-marram-wire";

/// One side of a TLS session.
#[derive(Debug)]
pub(crate) struct Crypt {
    connection: Connection,
    /// Ciphertext that was read and not yet decrypted.
    raw: BytesMut,
}

impl Crypt {
    /// An agent's side; `name` is what the edge's certificate must be for.
    pub(crate) fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, rustls::Error> {
        let connection = ClientConnection::new(config, name)?.into();
        Ok(Self { connection, raw: BytesMut::new() })
    }

    /// An edge's side.
    pub(crate) fn server(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let connection = ServerConnection::new(config)?.into();
        Ok(Self { connection, raw: BytesMut::new() })
    }

    /// Whether the TLS handshake is still in progress.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// A secret that only the two sides of this session know.
    ///
    /// It differs between any two sessions, so a relay that terminates TLS on both sides has two
    /// different ones.
    ///
    /// # Errors
    /// If the handshake is not complete.
    pub(crate) fn exported(&self) -> Result<[u8; 32], rustls::Error> {
        self.connection.export_keying_material([0; 32], EXPORTER, None)
    }

    /// The names in the peer's certificate, if it presented one; TLS has verified it.
    pub(crate) fn peer_names(&self) -> Option<Vec<String>> {
        self.connection.peer_certificates()?.first().map(|certificate| certificate::names(certificate))
    }

    /// Reads ciphertext once and appends the plaintext to `plain`. Returns the number of bytes read, 0 at the end of the stream.
    ///
    /// The count is of ciphertext, so a caller cannot tell by it whether the socket is empty. A
    /// close without the peer's `close_notify` counts as an end too: truncation is harmless, since
    /// a frame that is incomplete is never interpreted.
    pub(crate) fn read(&mut self, socket: &mut Socket, plain: &mut BytesMut) -> io::Result<usize> {
        self.raw.reserve(READ_SIZE);
        let read = socket.read_into(&mut self.raw)?;
        let mut ended = read == 0;
        while !self.raw.is_empty() && !ended {
            let taken = self.connection.read_tls(&mut &self.raw[..])?;
            self.raw.advance(taken);
            let state = match self.connection.process_new_packets() {
                Ok(state) => state,
                Err(error) => {
                    // Sends the peer an alert with the reason; an error here changes nothing.
                    let _ = self.connection.write_tls(socket);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            };
            ended = state.peer_has_closed();
            if state.plaintext_bytes_to_read() > 0 {
                self.take_plain(plain)?;
            }
        }
        Ok(if ended { 0 } else { read })
    }

    /// Moves what is decrypted to `plain`. The library limits the plaintext that it holds, so this
    /// runs after each batch of records.
    fn take_plain(&mut self, plain: &mut BytesMut) -> io::Result<()> {
        let mut reader = self.connection.reader();
        loop {
            let len = match reader.fill_buf() {
                Ok(chunk) => {
                    plain.extend_from_slice(chunk);
                    chunk.len()
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            if len == 0 {
                return Ok(());
            }
            reader.consume(len);
        }
    }

    /// Writes ciphertext until none waits (true) or the socket would block (false).
    pub(crate) fn flush(&mut self, socket: &mut Socket) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Tells the peer that no more will come. Best effort: the socket is closed next.
    pub(crate) fn close(&mut self, socket: &mut Socket) {
        self.connection.send_close_notify();
        let _ = self.flush(socket);
    }
}

/// A writer that accepts plaintext while the socket accepts ciphertext.
pub(crate) struct Sealing<'a> {
    /// The session.
    pub crypt: &'a mut Crypt,
    /// The socket for the ciphertext.
    pub socket: &'a mut Socket,
}

impl Sealing<'_> {
    fn room(&mut self) -> io::Result<()> {
        if self.crypt.flush(self.socket)? { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}

// Ciphertext is written before more plaintext is accepted, so the library holds about one write's
// worth, and a socket that is full shows itself as `WouldBlock` to `Outgoing`, as a plain one does.
impl Write for Sealing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.room()?;
        self.crypt.connection.writer().write(bytes)
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.room()?;
        self.crypt.connection.writer().write_vectored(slices)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.room()
    }
}
