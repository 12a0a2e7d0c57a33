//! Makes a recording from what an owner gathered of its session: decrypts checkpoints, cuts the log where they begin, and
//! selects the messages that it consumes. Not done in the owner, since decryption takes time.

use super::cursor::{Consumed, LogReplayError, follow};
use crate::cell::{CellId, CellImage, SealedCheckpoint};
use alloc::{boxed::Box, collections::BTreeMap, string::String, vec::Vec};
use bytes::Bytes;
use core::fmt;
use marram_wire::{
    codec,
    frame::CheckpointMeta,
    header::{self, Header, HeaderMismatch, Many, Unacknowledged},
    id::{Generation, Port, SessionId},
    log::Cursor,
    recording::{About, Inputs, RecordedMessage, RecordedStop, Recording},
    seal::{Digest, SealError, SessionKeys},
};

/// What one end showed to the session's owner.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The end's port.
    pub port: Port,
    /// How many of its messages the cell has consumed.
    pub took: u64,
    /// Sequence number of the first message here.
    pub sent_start: u64,
    /// The messages from there on.
    pub messages: Vec<Unacknowledged>,
    /// A full checkpoint and its deltas.
    pub checkpoints: Vec<SealedCheckpoint>,
}

/// What the owner of a shared cell keeps for itself. It asks no end: none has messages of the others.
#[derive(Clone, Debug, Default)]
pub struct OwnKept {
    /// A full checkpoint; none if the log is there from its start.
    pub checkpoint: Option<SealedCheckpoint>,
    /// The messages that the log consumes from there on, in its order, and that of the handler that was stopped.
    pub messages: Vec<(Port, Unacknowledged)>,
}

/// A session as its owner gathered it, at one position of its log.
#[derive(Clone, Debug)]
pub struct Gathered {
    /// The session.
    pub session: SessionId,
    /// The image of its cell.
    pub image: CellImage,
    /// Its app's name.
    pub app: String,
    /// The generation of the owner that gathered it.
    pub generation: Generation,
    /// The keys that open the checkpoints.
    pub keys: SessionKeys,
    /// The cell, if it exists and its state can be hashed.
    pub cell: Option<CellId>,
    /// The offset at which `log` begins.
    pub log_floor: u64,
    /// Entries, in plaintext, up to the position.
    pub log: Bytes,
    /// Tag of the running digest at the position.
    pub tag: [u8; 8],
    /// What the ends showed, client first; nothing of a shared cell.
    pub ends: Vec<Shown>,
    /// Of a shared cell, what its owner keeps.
    pub own: Option<OwnKept>,
    /// The handler that was stopped at the position, if there is one.
    pub stop: Option<RecordedStop>,
}

/// Why what an owner gathered gives no recording. No operator can mend it: an end has shown data that does not fit the session's, and a
/// recovery from it would fail too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AssembleError {
    /// The newest checkpoint is outside the owner's log.
    OutsideLog,
    /// An end does not have the messages that the log needs.
    MissingMessages,
    /// A checkpoint cannot be decrypted.
    Sealed(SealError),
    /// A checkpoint's header cannot be decoded.
    Header(codec::Error),
    /// A checkpoint does not belong where it is.
    Misplaced(HeaderMismatch),
    /// The newest checkpoint has other ports than the session, or clients and the session has none.
    OtherPorts,
    /// Log, messages and checkpoint do not give the owner's digest.
    Altered,
    /// The log cannot be decoded.
    Log,
}

impl fmt::Display for AssembleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutsideLog => f.write_str("the ends' newest checkpoint is outside the owner's log"),
            Self::MissingMessages => f.write_str("an end does not have the messages that the log needs"),
            Self::Sealed(error) => write!(f, "{error}"),
            Self::Header(error) => write!(f, "{error}"),
            Self::Misplaced(mismatch) => write!(f, "{mismatch}"),
            Self::OtherPorts => f.write_str("a checkpoint has other ports than the session"),
            Self::Altered => {
                f.write_str("messages or a checkpoint were altered: they do not match the owner's digest")
            }
            Self::Log => f.write_str("the log cannot be decoded"),
        }
    }
}

impl core::error::Error for AssembleError {}

/// Index of the chain of checkpoints that is the newest.
pub(crate) fn newest<'a>(chains: impl Iterator<Item = &'a [CheckpointMeta]>) -> Option<usize> {
    let key = |last: &CheckpointMeta| (last.log_offset, last.generation, last.number);
    let held = chains.enumerate().filter_map(|(index, chain)| chain.last().map(|last| (key(last), index)));
    held.max().map(|(_, index)| index)
}

impl Gathered {
    /// Makes the recording. `edge`, `unix_ns` and the cell's state hash are stored in it.
    ///
    /// # Errors
    /// If the ends' data does not fit together: then a recovery from it would fail too.
    pub fn assemble(
        self,
        edge: String,
        unix_ns: i64,
        state: Option<[u8; 32]>,
    ) -> Result<Recording, AssembleError> {
        let (header, checkpoints) = match self.chain() {
            Some(chain) => self.open(chain)?,
            None => (None, Vec::new()),
        };
        let base = header.as_ref().map_or(0, |header| header.log_offset);
        let covered = base.checked_sub(self.log_floor).and_then(|covered| usize::try_from(covered).ok());
        let Some(log) =
            covered.filter(|covered| *covered <= self.log.len()).map(|covered| self.log.slice(covered..))
        else {
            return Err(AssembleError::OutsideLog);
        };
        let inputs = match &self.own {
            Some(own) => by_port(&own.messages, header.as_deref()),
            None => self.consumed_at_ends(header.as_deref())?,
        };
        self.verify(header.as_deref(), &log, &inputs)?;
        let said = |message: &Unacknowledged| {
            if message.close {
                RecordedMessage::Close
            } else {
                RecordedMessage::Payload(message.payload.clone())
            }
        };
        let inputs = inputs
            .into_iter()
            .map(|(port, first, messages)| Inputs {
                port,
                first,
                messages: Many(messages.into_iter().map(said).collect()),
            })
            .collect();
        Ok(Recording {
            about: About {
                session: self.session,
                image: self.image,
                app: self.app,
                edge,
                generation: self.generation,
                unix_ns,
                log_offset: base,
                state,
                redacted: false,
                shared: self.own.is_some(),
            },
            inputs,
            header,
            checkpoints,
            log,
            stop: self.stop,
            apps: Vec::new(),
        })
    }

    /// The newest checkpoint, with its deltas.
    fn chain(&self) -> Option<&[SealedCheckpoint]> {
        if let Some(own) = &self.own {
            return own.checkpoint.as_ref().map(core::slice::from_ref);
        }
        let metas = |end: &Shown| -> Vec<CheckpointMeta> {
            end.checkpoints.iter().map(|checkpoint| checkpoint.meta.clone()).collect()
        };
        let chains: Vec<Vec<CheckpointMeta>> = self.ends.iter().map(metas).collect();
        let source = newest(chains.iter().map(|chain| &chain[..]))?;
        Some(&self.ends[source].checkpoints)
    }

    /// What the log consumes of the ends' messages.
    fn consumed_at_ends(&self, header: Option<&Header>) -> Result<Vec<PortInputs<'_>>, AssembleError> {
        let mut inputs = Vec::new();
        for (index, end) in self.ends.iter().enumerate() {
            let first = header.map_or(Some(0), |header| header.ports.get(index).map(|port| port.took));
            let consumed = first.and_then(|first| consumed(end, first).map(|messages| (first, messages)));
            let (first, messages) = consumed.ok_or(AssembleError::MissingMessages)?;
            inputs.push((end.port, first, messages.iter().collect()));
        }
        Ok(inputs)
    }

    /// Decrypts a chain: the last header, and the sections of each checkpoint.
    fn open(&self, chain: &[SealedCheckpoint]) -> Result<(Option<Box<Header>>, Vec<Bytes>), AssembleError> {
        let (mut last, mut sections): (Option<Header>, Vec<Bytes>) = (None, Vec::new());
        for SealedCheckpoint { meta, bytes } in chain {
            let plain = self.keys.seal(meta.generation).open_checkpoint(meta.number, bytes);
            let plain = plain.map_err(AssembleError::Sealed)?;
            let (header, body) = header::split(plain.into()).map_err(AssembleError::Header)?;
            header
                .check(meta, self.session, self.image, (last.as_ref(), self.own.is_some()))
                .map_err(AssembleError::Misplaced)?;
            sections.push(body);
            last = Some(header);
        }
        let is_shared = self.own.is_some();
        let fits =
            |last: &Header| last.ports.len() == self.ends.len() && (is_shared || last.clients.0.is_empty());
        let last = last.filter(fits);
        let last = last.ok_or(AssembleError::OtherPorts)?;
        Ok((Some(Box::new(last)), sections))
    }

    /// Checks that log and messages give the owner's digest.
    fn verify(
        &self,
        header: Option<&Header>,
        log: &Bytes,
        inputs: &[PortInputs<'_>],
    ) -> Result<(), AssembleError> {
        let start = Digest::start(self.session);
        let begin = header.map_or((start, Cursor::default()), |header| {
            (Digest(header.head), Cursor { last_ns: header.last_ns })
        });
        let message = |port: Port, number: usize| {
            let (.., messages) = inputs.iter().find(|(at, ..)| *at == port)?;
            messages.get(number).copied()
        };
        match follow(&self.keys, begin, log, &mut Consumed::default(), message) {
            Ok((digest, _)) if digest.tag() == self.tag => Ok(()),
            Ok(_) => Err(AssembleError::Altered),
            Err(LogReplayError::Missing) => Err(AssembleError::MissingMessages),
            Err(_) => Err(AssembleError::Log),
        }
    }
}

/// Messages of a port: the sequence number of the first one, and all, in order.
type PortInputs<'a> = (Port, u64, Vec<&'a Unacknowledged>);

/// The messages of a shared cell's clients, by port.
fn by_port<'a>(messages: &'a [(Port, Unacknowledged)], header: Option<&Header>) -> Vec<PortInputs<'a>> {
    let mut ports: BTreeMap<Port, Vec<&Unacknowledged>> = BTreeMap::new();
    for (port, message) in messages {
        ports.entry(*port).or_default().push(message);
    }
    let took = |port| header.map_or(0, |header| header.client_took(port));
    ports.into_iter().map(|(port, messages)| (port, took(port), messages)).collect()
}

/// The messages of an end from `first` on that were consumed.
fn consumed(end: &Shown, first: u64) -> Option<&[Unacknowledged]> {
    let from = usize::try_from(first.checked_sub(end.sent_start)?).ok()?;
    let to = usize::try_from(end.took.checked_sub(end.sent_start)?).ok()?;
    end.messages.get(from..to)
}
