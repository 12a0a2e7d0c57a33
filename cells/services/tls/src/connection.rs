//! One TLS connection, as bytes in and bytes out. Does not know ports.
//!
//! ```text
//! client -- ciphertext --> unread --> process_tls_records --> heard.plaintext --> server
//!                                         |
//! client <-- heard.ciphertext <-----------+-- alerts and the handshake: step
//! client <-- heard.ciphertext <-- write <-- say <-- early, plaintext <----------- server
//! ```
//!
//! The library's unbuffered interface is used: after each call it says what it can do next, and the
//! bytes are in this file's buffers. These are emptied and freed where possible, as everything in
//! memory is part of checkpoints. The format of records is that of RFC 8446, section 5.

use rustls::ServerConfig;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus, WriteTraffic,
};
use std::sync::Arc;

/// Bytes that a server may send before the client's handshake is complete; they cannot be encrypted yet.
const EARLY_BYTES_MAX: usize = 1 << 20;
/// A larger emptied buffer is freed: it would be part of every checkpoint.
const KEPT_BYTES_MAX: usize = 1 << 10;
/// Bytes of plaintext in a record, and what a record has beyond them: header, content type, tag. 16
/// KiB is the most that RFC 8446 allows.
const RECORD_BYTES: usize = 1 << 14;
/// 22 bytes, since all ciphers in `crypto` have a tag of 16.
const RECORD_OVERHEAD_BYTES: usize = 5 + 1 + 16;

/// The output for some input.
#[derive(Default)]
pub(crate) struct Heard {
    /// For the client.
    pub(crate) ciphertext: Vec<u8>,
    /// From the client.
    pub(crate) plaintext: Vec<u8>,
    /// The client will send no more.
    pub(crate) is_end: bool,
    /// The client knows that no more will be sent to it.
    pub(crate) is_over: bool,
}

/// One connection.
pub(crate) struct Connection {
    /// The protocol's state: keys, record numbers, the transcript of the handshake.
    tls: UnbufferedServerConnection,
    /// Ciphertext that is not yet a whole record or handshake message.
    unread: Vec<u8>,
    /// Plaintext that waits for the end of the handshake.
    early: Vec<u8>,
    /// Whether nothing follows that plaintext.
    is_finished: bool,
    /// Until the library first allows data to be sent.
    is_handshaking: bool,
    /// The client has ended its stream; later input is ignored.
    is_deaf: bool,
}

impl Connection {
    /// For one client; the configuration is shared.
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<Self, String> {
        let tls = UnbufferedServerConnection::new(config).map_err(|error| error.to_string())?;
        Ok(Self {
            tls,
            unread: Vec::new(),
            early: Vec::new(),
            is_finished: false,
            is_handshaking: true,
            is_deaf: false,
        })
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.is_handshaking
    }

    /// Handles input from the client. After an error, `heard` contains the alert about it.
    pub(crate) fn receive(&mut self, ciphertext: &[u8], heard: &mut Heard) -> Result<(), String> {
        if self.is_deaf {
            return Ok(());
        }
        self.unread.extend_from_slice(ciphertext);
        self.go_on(&[], heard)
    }

    /// Encrypts data from the server.
    pub(crate) fn send(&mut self, plaintext: &[u8], heard: &mut Heard) -> Result<(), String> {
        if !self.is_handshaking {
            return self.go_on(plaintext, heard);
        }
        if self.early.len() + plaintext.len() > EARLY_BYTES_MAX {
            return Err(format!(
                "the server said more than {EARLY_BYTES_MAX} bytes before the handshake was over"
            ));
        }
        self.early.extend_from_slice(plaintext);
        Ok(())
    }

    /// The server will send no more.
    pub(crate) fn finish(&mut self, heard: &mut Heard) -> Result<(), String> {
        self.is_finished = true;
        self.go_on(&[], heard)
    }

    /// Processes the input that was read, then sends `plaintext`, if the handshake is complete. The
    /// library is asked until it needs more input. It says for each state how much input was used;
    /// all of it is removed at once at the end.
    fn go_on(&mut self, plaintext: &[u8], heard: &mut Heard) -> Result<(), String> {
        let mut used = 0;
        let result = loop {
            let UnbufferedStatus { mut discard, state } =
                self.tls.process_tls_records(&mut self.unread[used..]);
            let progress = match state {
                Ok(state) => step(state, heard, &mut discard),
                Err(error) => Err(error.to_string()),
            };
            used += discard;
            match progress {
                Ok(Progress::More) => {}
                Ok(progress) => break Ok(progress),
                Err(error) => break Err(error),
            }
        };
        self.is_deaf |= heard.is_end;
        self.unread.drain(..used);
        shrink(&mut self.unread);
        match result {
            Ok(Progress::Ready) => self.say(plaintext, heard),
            Ok(_) => Ok(()),
            Err(error) => {
                self.give_alert(heard);
                Err(error)
            }
        }
    }

    /// The handshake is complete: sends the waiting plaintext first. Called whenever data may be
    /// sent, even without any. Ends with `close_notify` if the server has finished.
    fn say(&mut self, plaintext: &[u8], heard: &mut Heard) -> Result<(), String> {
        self.is_handshaking = false;
        let early = std::mem::take(&mut self.early);
        for plaintext in [&early[..], plaintext] {
            if !plaintext.is_empty() {
                self.write(plaintext.len(), heard, |writer, out| writer.encrypt(plaintext, out))?;
            }
        }
        if std::mem::take(&mut self.is_finished) {
            self.write(0, heard, |writer, out| writer.queue_close_notify(out))?;
            heard.is_over = true;
        }
        Ok(())
    }

    /// Makes `encrypt` write the records for this many bytes of plaintext. Prepares room for one
    /// record more than needed, and for what the library asks for if that is too little.
    fn write(
        &mut self,
        len: usize,
        heard: &mut Heard,
        mut encrypt: impl FnMut(
            &mut WriteTraffic<'_, ServerConnectionData>,
            &mut [u8],
        ) -> Result<usize, EncryptError>,
    ) -> Result<(), String> {
        // No input can be processed now, so none is removed.
        let mut writer = match self.tls.process_tls_records(&mut self.unread).state {
            Ok(ConnectionState::WriteTraffic(writer)) => writer,
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let start = heard.ciphertext.len();
        let mut room = len + (len / RECORD_BYTES + 2) * RECORD_OVERHEAD_BYTES;
        loop {
            heard.ciphertext.resize(start + room, 0);
            let result = encrypt(&mut writer, &mut heard.ciphertext[start..]);
            heard.ciphertext.truncate(start + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(_) => return Ok(()),
                // A key update is sent before it.
                Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size }))
                    if required_size > room =>
                {
                    room = required_size;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// After an error: writes the alert about it, if there is one. Errors during this are dropped:
    /// the first one is the reason that counts.
    fn give_alert(&mut self, heard: &mut Heard) {
        while let UnbufferedStatus { state: Ok(state), .. } = self.tls.process_tls_records(&mut self.unread) {
            match step(state, heard, &mut 0) {
                Ok(Progress::More) => {}
                _ => return,
            }
        }
    }
}

/// The result of a step.
enum Progress {
    /// There may be more to do.
    More,
    /// The client must send more first.
    Blocked,
    /// The same, and the server's data can be sent.
    Ready,
}

/// Handles one state of the connection. `discard` is how much of the input it has used. After an
/// error, what was decrypted before it is in `heard`.
fn step(
    state: ConnectionState<'_, '_, ServerConnectionData>,
    heard: &mut Heard,
    discard: &mut usize,
) -> Result<Progress, String> {
    match state {
        ConnectionState::ReadTraffic(mut reader) => {
            while let Some(record) = reader.next_record() {
                let record = record.map_err(|error| error.to_string())?;
                *discard += record.discard;
                heard.plaintext.extend_from_slice(record.payload);
            }
        }
        ConnectionState::EncodeTlsData(mut encoder) => {
            let start = heard.ciphertext.len();
            let mut encode = |out: &mut [u8]| match encoder.encode(out) {
                Ok(len) => Ok(len),
                Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                    Err(required_size)
                }
                Err(EncodeError::AlreadyEncoded) => Ok(0),
            };
            if let Err(len) = encode(&mut []) {
                heard.ciphertext.resize(start + len, 0);
                encode(&mut heard.ciphertext[start..])
                    .map_err(|len| format!("a handshake message needs {len} bytes, and was given them"))?;
            }
        }
        ConnectionState::TransmitTlsData(transmission) => transmission.done(),
        ConnectionState::PeerClosed => heard.is_end = true,
        ConnectionState::WriteTraffic(_) => return Ok(Progress::Ready),
        ConnectionState::BlockedHandshake | ConnectionState::Closed => return Ok(Progress::Blocked),
        other => {
            return Err(format!("the connection is in a state that this build does not know: {other:?}"));
        }
    }
    Ok(Progress::More)
}

/// Frees the buffer if it is empty and large.
fn shrink(buffer: &mut Vec<u8>) {
    if buffer.is_empty() && buffer.capacity() > KEPT_BYTES_MAX {
        *buffer = Vec::new();
    }
}
