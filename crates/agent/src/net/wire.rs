//! One wire: a socket, perhaps TLS on it, a handshake, then frames both ways.
//!
//! Never blocks and never waits: a loop calls it when the socket may have something, and asks what came of it.

use super::{
    credentials::Credentials,
    crypt::{Crypt, Sealing},
    error::WireError,
    handshake::{Handshake, Party},
    key::AgentKey,
    outgoing::Outgoing,
    preamble::{self, Preamble, PreambleAnswer, PreambleVerdict},
    proof::Token,
    socket::Socket,
};
use marram_wire::{
    frame::{Frame, Reader},
    id::HostId,
    rights::Verified,
};
use rustls::{ClientConfig, ServerConfig, pki_types::ServerName};
use std::{io, io::Write, sync::Arc};

/// Read at once when little has been arriving, in bytes.
const READ_SMALL: usize = 16 << 10;
/// Read at once when much has been arriving, in bytes.
const READ_LARGE: usize = 256 << 10;
/// A peer that leaves so many bytes unread is given up. Session windows keep a healthy wire far below it.
pub(crate) const UNREAD_MAX: usize = 512 << 20;

/// How an agent makes itself known.
pub struct Introduction {
    /// Which shard it wants.
    pub shard: u8,
    /// Which agent it is.
    pub key: AgentKey,
    /// Shown and demanded, where there is one.
    pub token: Option<Token>,
    /// What to encrypt with and whom to expect; plain without.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

enum Stage {
    /// An agent: the connection is being made.
    Connecting(Introduction),
    /// An agent: the preamble is sent, and so much of the answer is there.
    Answer { introduction: Introduction, got: [u8; preamble::SIZE], count: usize },
    /// Keys are being agreed.
    Encrypting(Option<Party>),
    /// The two sides are proving themselves.
    Proving(Box<Handshake>),
    /// Frames flow.
    Up,
}

/// What a read came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadProgress {
    /// Something; more may be there.
    More,
    /// Something; the socket is empty unless the peer has closed.
    Drained,
    /// Nothing.
    Nothing,
}

/// One wire.
pub struct Wire {
    socket: Socket,
    /// Boxed: a TLS session is large, and plain wires have none.
    crypt: Option<Box<Crypt>>,
    stage: Stage,
    reader: Reader,
    outgoing: Outgoing,
    read_size: usize,
    /// An edge: what was verified of the agent, until it is asked for.
    verified: Option<Box<Verified>>,
}

impl Wire {
    /// An agent's, over a connection that is being made.
    pub fn dial(socket: Socket, introduction: Introduction) -> Self {
        Self::new(socket, Stage::Connecting(introduction))
    }

    /// An edge's, over a connection whose preamble has been read and answered.
    pub fn accept(
        socket: Socket,
        credentials: Arc<Credentials>,
        tls: Option<Arc<ServerConfig>>,
    ) -> Result<Self, WireError> {
        let mut wire = Self::new(socket, Stage::Encrypting(Some(Party::Edge(credentials))));
        wire.crypt = tls.map(Crypt::server).transpose()?.map(Box::new);
        wire.advance()?;
        Ok(wire)
    }

    /// Within one machine's edge: nothing is proved, since the operating system has passed the socket. At the edge's side `agent` is
    /// its gate's id.
    pub fn trusted(socket: Socket, agent: Option<HostId>) -> Self {
        let verified = agent.map(|host| Box::new(Verified::trusted(host)));
        Self { verified, ..Self::new(socket, Stage::Up) }
    }

    fn new(socket: Socket, stage: Stage) -> Self {
        let (reader, outgoing) = (Reader::default(), Outgoing::default());
        Self { socket, crypt: None, stage, reader, outgoing, read_size: READ_SMALL, verified: None }
    }

    /// For registration with a poll.
    pub fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Whether frames flow.
    pub fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }

    /// An edge: what was verified of the agent, once, when frames flow.
    pub fn take_verified(&mut self) -> Option<Box<Verified>> {
        self.verified.take()
    }

    /// Bytes that wait to be written.
    pub fn unwritten(&self) -> usize {
        self.outgoing.size()
    }

    /// Adds a frame to what will be written.
    pub fn send(&mut self, frame: Frame) {
        self.outgoing.push(frame);
    }

    /// Takes the next frame of those that have been read.
    ///
    /// # Errors
    /// If what was read is no frame.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, WireError> {
        if self.is_up() { self.reader.next_frame().map_err(Into::into) } else { Ok(None) }
    }

    /// Reads once, as much as fits, and goes on with the handshake if there is one to go on with.
    ///
    /// # Errors
    /// If the wire is at its end. Frames that were read before can still be taken.
    pub fn read(&mut self) -> Result<ReadProgress, WireError> {
        if matches!(self.stage, Stage::Connecting(_) | Stage::Answer { .. }) {
            return self.read_answer();
        }
        let missing = if self.is_up() { self.reader.missing() } else { 0 };
        self.reader.buffer.reserve(self.read_size.max(missing));
        let room = self.reader.buffer.capacity() - self.reader.buffer.len();
        let read = match &mut self.crypt {
            None => self.socket.read_into(&mut self.reader.buffer),
            Some(crypt) => crypt.read(&mut self.socket, &mut self.reader.buffer),
        };
        let outcome = match read {
            Ok(0) => {
                // The peer's last word may have come with its goodbye, and says more.
                self.advance()?;
                return Err(WireError::Closed);
            }
            Ok(count) => {
                // A buffer that was filled was too small; one that was hardly used ties up memory for nothing.
                self.read_size = match count {
                    _ if count >= self.read_size => READ_LARGE,
                    _ if count < self.read_size / 4 => READ_SMALL,
                    _ => self.read_size,
                };
                let full = self.crypt.is_some() || count >= room;
                if full { ReadProgress::More } else { ReadProgress::Drained }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ReadProgress::Nothing,
            Err(error) => return Err(error.into()),
        };
        if !self.is_up() {
            let advanced = self.advance();
            self.flush()?;
            advanced?;
        }
        Ok(outcome)
    }

    /// Writes what waits, as far as the socket takes it; true if nothing is left.
    ///
    /// # Errors
    /// If the wire is at its end.
    pub fn flush(&mut self) -> Result<bool, WireError> {
        if let Stage::Connecting(_) = self.stage {
            return self.connected();
        }
        if let Stage::Answer { .. } = self.stage {
            return Ok(true);
        }
        let empty = match &mut self.crypt {
            None => self.outgoing.write_to(&mut self.socket)?,
            Some(crypt) => {
                let mut sealing = Sealing { crypt, socket: &mut self.socket };
                // While keys are being agreed the library would take and hold plaintext; ours waits here instead.
                let handshaking = sealing.crypt.is_handshaking();
                (handshaking || self.outgoing.write_to(&mut sealing)?)
                    && sealing.crypt.flush(sealing.socket)?
            }
        };
        if self.outgoing.size() > UNREAD_MAX {
            return Err(WireError::NotRead);
        }
        Ok(empty)
    }

    /// Tells the peer that this is the end, as far as that is possible without waiting.
    pub fn close(&mut self) {
        if self.flush().is_ok_and(|empty| empty)
            && let Some(crypt) = &mut self.crypt
        {
            crypt.close(&mut self.socket);
        }
    }

    /// The connection was being made: if it is there now, introduces the agent.
    fn connected(&mut self) -> Result<bool, WireError> {
        if !self.socket.connected()? {
            return Ok(true);
        }
        let Stage::Connecting(introduction) = std::mem::replace(&mut self.stage, Stage::Up) else {
            return Ok(true);
        };
        let preamble = Preamble {
            shard: introduction.shard,
            tls: introduction.tls.is_some(),
            token: introduction.token.is_some(),
        };
        let written = self.socket.write(&preamble.encode())?;
        debug_assert_eq!(written, preamble::SIZE, "a fresh socket takes eight bytes");
        self.stage = Stage::Answer { introduction, got: [0; preamble::SIZE], count: 0 };
        Ok(true)
    }

    /// Reads no further than the answer: what follows may be TLS.
    fn read_answer(&mut self) -> Result<ReadProgress, WireError> {
        if matches!(self.stage, Stage::Connecting(_)) {
            self.connected()?;
        }
        let Stage::Answer { got, count, .. } = &mut self.stage else { return Ok(ReadProgress::Nothing) };
        match self.socket.read(&mut got[*count..]) {
            Ok(0) => return Err(WireError::Garbage("nothing in answer to an agent's first bytes")),
            Ok(read) => *count += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReadProgress::Nothing),
            Err(error) => return Err(error.into()),
        }
        if *count < preamble::SIZE {
            return Ok(ReadProgress::More);
        }
        let answer =
            PreambleAnswer::decode(*got).ok_or(WireError::Garbage("something else than an edge's answer"))?;
        if answer.verdict != PreambleVerdict::Welcome {
            return Err(WireError::Refused(answer));
        }
        let Stage::Answer { introduction, .. } = std::mem::replace(&mut self.stage, Stage::Up) else {
            return Ok(ReadProgress::Nothing);
        };
        let Introduction { key, token, tls, .. } = introduction;
        self.stage = Stage::Encrypting(Some(Party::Agent { key, token }));
        if let Some((config, name)) = tls {
            self.crypt = Some(Box::new(Crypt::client(config, name)?));
        }
        self.advance()?;
        self.flush()?;
        Ok(ReadProgress::More)
    }

    /// Goes as far through the handshake as what was read allows.
    fn advance(&mut self) -> Result<(), WireError> {
        if let Stage::Encrypting(party) = &mut self.stage {
            if self.crypt.as_ref().is_some_and(|crypt| crypt.is_handshaking()) {
                return Ok(());
            }
            let exported = self.crypt.as_ref().map(|crypt| crypt.exported()).transpose()?;
            let certificate = self.crypt.as_ref().and_then(|crypt| crypt.peer_names());
            let Some(party) = party.take() else { return Ok(()) };
            let handshake = Handshake::begin(party, exported, certificate, &mut self.outgoing)?;
            self.stage = Stage::Proving(Box::new(handshake));
        }
        if let Stage::Proving(handshake) = &mut self.stage
            && handshake.advance(&mut self.reader.buffer, &mut self.outgoing)?
        {
            self.verified = handshake.take_verified();
            self.stage = Stage::Up;
        }
        Ok(())
    }
}
