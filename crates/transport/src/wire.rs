//! One wire: a socket, optionally TLS on it, a handshake, then frames in both directions.
//!
//! Never blocks: a loop calls it when the socket may be ready, and asks for the result.
//!
//! ```text
//! agent: Connecting ─▶ Answer ─▶ Encrypting ─▶ Proving ─▶ Up
//! edge:     (the preamble was read and answered before)   Encrypting ─▶ Proving ─▶ Up
//! gate:     (a socket pair within one edge)                                        Up
//! ```
//!
//! A stage never goes back. After an error the wire must be closed and dropped; there is no
//! reconnect here.

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

/// Bytes per read while little arrives.
const READ_SMALL: usize = 16 << 10;
/// Bytes per read while much arrives.
const READ_LARGE: usize = 256 << 10;
/// A wire with so many unread bytes at the peer is closed. Session windows keep a healthy wire far below it. Bulk frames
/// do not count: an agent that sends the checkpoints of all of its sessions to one edge may queue gigabytes that it keeps
/// anyway.
pub(crate) const UNREAD_MAX: usize = 512 << 20;

/// How an agent identifies itself.
pub struct Introduction {
    /// The shard that it wants.
    pub shard: u8,
    /// The agent's key.
    pub key: AgentKey,
    /// Proved, and required of the edge, if there is one.
    pub token: Option<Token>,
    /// TLS settings and the expected name; no TLS if absent.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

enum Stage {
    /// An agent: the connection is being established.
    Connecting(Introduction),
    /// An agent: the preamble is sent, and the answer is partly received.
    Answer { introduction: Introduction, got: [u8; preamble::SIZE], count: usize },
    /// The TLS handshake is in progress.
    Encrypting(Option<Party>),
    /// The two sides prove their identities.
    Proving(Box<Handshake>),
    /// Frames flow.
    Up,
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadProgress {
    /// Bytes were read; more may be available.
    More,
    /// Bytes were read; the socket is empty unless the peer has closed.
    Drained,
    /// Nothing was read.
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
    /// An edge: the verified facts about the agent, until they are taken.
    verified: Option<Box<Verified>>,
}

impl Wire {
    /// An agent's wire, over a connection that is being established.
    pub fn dial(socket: Socket, introduction: Introduction) -> Self {
        Self::new(socket, Stage::Connecting(introduction))
    }

    /// An edge's wire, over a connection with a preamble that has been read and answered.
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

    /// Within one edge's machine: nothing is proved, since the operating system has passed the socket. At the edge's side,
    /// `agent` is its gate's id.
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

    /// An edge: the verified facts about the agent, once, when the handshake is complete.
    pub fn take_verified(&mut self) -> Option<Box<Verified>> {
        self.verified.take()
    }

    /// Bytes that wait to be written.
    pub fn unwritten(&self) -> usize {
        self.outgoing.size()
    }

    /// Queues a frame.
    pub fn send(&mut self, frame: Frame) {
        self.outgoing.push(frame);
    }

    /// Takes the next complete frame.
    ///
    /// # Errors
    /// If the received bytes are not a valid frame.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, WireError> {
        if self.is_up() { self.reader.next_frame().map_err(Into::into) } else { Ok(None) }
    }

    /// Reads once, as much as fits, and continues the handshake if it is not complete.
    ///
    /// # Errors
    /// If the wire has ended. Frames that were read before can still be taken.
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
                // The peer's last message may have arrived with its close, and says more.
                self.advance()?;
                return Err(WireError::Closed);
            }
            Ok(count) => {
                // A filled buffer was too small; a nearly unused one wastes memory.
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

    /// Whether the last [`Self::flush`] left bulk frames although the socket may take more, for others to have their turn.
    pub fn is_turn_over(&self) -> bool {
        self.outgoing.is_turn_over()
    }

    /// Writes waiting bytes, as far as the socket takes them; true if none are left.
    ///
    /// # Errors
    /// If the wire has ended.
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
                // During the TLS handshake the library would buffer plaintext; ours waits here instead.
                let handshaking = sealing.crypt.is_handshaking();
                (handshaking || self.outgoing.write_to(&mut sealing)?)
                    && sealing.crypt.flush(sealing.socket)?
            }
        };
        if self.outgoing.own_size() > UNREAD_MAX {
            return Err(WireError::NotRead);
        }
        Ok(empty)
    }

    /// Tells the peer that the wire ends, as far as that is possible without blocking.
    pub fn close(&mut self) {
        if self.flush().is_ok_and(|empty| empty)
            && let Some(crypt) = &mut self.crypt
        {
            crypt.close(&mut self.socket);
        }
    }

    /// If the connection is established now, sends the preamble.
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

    /// Reads no further than the answer: the following bytes may be TLS.
    fn read_answer(&mut self) -> Result<ReadProgress, WireError> {
        if matches!(self.stage, Stage::Connecting(_)) {
            self.connected()?;
        }
        let Stage::Answer { got, count, .. } = &mut self.stage else { return Ok(ReadProgress::Nothing) };
        match self.socket.read(&mut got[*count..]) {
            Ok(0) => return Err(WireError::Garbage("no answer to the preamble")),
            Ok(read) => *count += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReadProgress::Nothing),
            Err(error) => return Err(error.into()),
        }
        if *count < preamble::SIZE {
            return Ok(ReadProgress::More);
        }
        let answer = PreambleAnswer::decode(*got)
            .ok_or(WireError::Garbage("something other than an edge's answer"))?;
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

    /// Advances the handshake as far as the received bytes allow.
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
