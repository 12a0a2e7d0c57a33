//! A record file: a session from a checkpoint, or from its beginning, to one position of its log, with everything that its cell
//! consumed in between. With the file and the app, the cell can be run again.
//!
//! ```text
//! file    := "MRRC" | version (4) | length of what follows (8) | section*
//! section := kind (1) | length of the payload (8) | checksum (16) | payload
//! ```
//!
//! The file is not sealed: the messages of client and server are readable, unless they were redacted. The format is described in
//! `docs/formats-record.md`.

mod decode;
#[cfg(test)]
mod tests;

use crate::{
    codec::{Error, Field},
    header::{Header, Many},
    id::{Generation, ImageHash, Port, SessionId},
    limits::{CHECKPOINTS_SIZE_MAX, LOG_SIZE_MAX, RETAINED_MAX, charge},
    log::{Cursor, Event, Found, Logged, PortEvent, Read},
    record,
};
use alloc::{boxed::Box, string::String, vec::Vec};
use bytes::{BufMut, Bytes, BytesMut};
use core::fmt;

/// The magic of every record file.
pub const MAGIC: [u8; 4] = *b"MRRC";
/// The version of the layout that this build writes. 2: a header has tasks and locks. 3: and paused ports. 4: and clients of a shared
/// cell. 5: the file says whether it is of such a cell. 6: the servers to which it has connected.
pub const VERSION: u32 = 6;
/// The oldest version that it reads.
pub const VERSION_OLDEST: u32 = 1;
/// Largest record file, in bytes: the largest chain of checkpoints, both ends' messages, and the apps to run them.
pub const RECORDING_SIZE_MAX: u64 = 5 << 30;
/// Most messages of one end: even an empty message has a cost.
pub const MESSAGES_MAX: u64 = RETAINED_MAX / charge(0);
/// Most messages of all clients of a shared cell together. Its owner keeps them, and as much more while a checkpoint is made.
pub const CELL_MESSAGES_MAX: u64 = 2 * MESSAGES_MAX;
/// Most apps in a file: a chain and each of its stages.
pub const APPS_MAX: usize = 17;

const _: () = assert!(
    RECORDING_SIZE_MAX > CHECKPOINTS_SIZE_MAX + LOG_SIZE_MAX + 2 * RETAINED_MAX,
    "everything that ends keep of a session fits a file"
);

/// Bytes before the first section.
const HEAD: usize = 16;
/// Bytes of a section before its payload.
const SECTION_HEAD: usize = 1 + 8 + CHECKSUM;
const CHECKSUM: usize = 16;

/// Kinds of sections, in their order in a file.
mod kind {
    pub(super) const ABOUT: u8 = 1;
    pub(super) const HEADER: u8 = 2;
    pub(super) const CHECKPOINT: u8 = 3;
    pub(super) const LOG: u8 = 4;
    pub(super) const INPUTS: u8 = 5;
    pub(super) const STOP: u8 = 6;
    pub(super) const APP: u8 = 7;
}

record! {
    /// The session, and how it was recorded.
    About {
        /// The recorded session.
        session: SessionId,
        /// The image that it ran.
        image: ImageHash,
        /// Its app's name, for people.
        app: String,
        /// The edge that owned it, for people.
        edge: String,
        /// The generation of its owner.
        generation: Generation,
        /// When it was recorded, in nanoseconds since the Unix epoch.
        unix_ns: i64,
        /// The session's log offset at which the log in this file begins.
        log_offset: u64,
        /// The state hash of the cell at the end of the log, if the cell still existed.
        state: Option<[u8; 32]>,
        /// Whether messages were replaced by their lengths: then the file cannot be run.
        redacted: bool,
        /// Whether it is a shared cell, whose clients join and leave. The session is then the cell's.
        shared: bool,
    }
}

/// One message of an end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordedMessage {
    /// Its payload.
    Payload(Bytes),
    /// No more will follow.
    Close,
    /// A redacted payload.
    Redacted {
        /// The length of the payload in bytes.
        size: u64,
        /// A keyed digest of the payload: the same for equal payloads of this session, and useless for guessing them.
        digest: [u8; 16],
    },
}

impl Field for RecordedMessage {
    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Payload(payload) => {
                0u8.put(out);
                payload.put(out);
            }
            Self::Close => 1u8.put(out),
            Self::Redacted { size, digest } => {
                2u8.put(out);
                size.put(out);
                digest.put(out);
            }
        }
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        Ok(match u8::take(from)? {
            0 => Self::Payload(Field::take(from)?),
            1 => Self::Close,
            2 => Self::Redacted { size: Field::take(from)?, digest: Field::take(from)? },
            _ => return Err(Error::Unknown),
        })
    }
}

record! {
    /// The messages at one port, as far as the log in the file consumes them. In a shared cell a port can have several clients, one
    /// after the other.
    Inputs {
        /// The port.
        port: Port,
        /// Sequence number of the first message. In a shared cell 0, if the port's first client joins in the log.
        first: u64,
        /// The messages, in order.
        messages: Many<RecordedMessage>,
    }
}

record! {
    /// A handler that was stopped, after the end of the log.
    RecordedStop {
        /// Its input, as a log entry that was never written, with its time.
        entry: Bytes,
        /// Whether the host stopped it because it exceeded a quota; else it trapped.
        killed: bool,
        /// The reason, for people.
        reason: String,
    }
}

/// A session as recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recording {
    /// The session, and how it was recorded.
    pub about: About,
    /// The session at the checkpoint; none if it begins with the log.
    pub header: Option<Box<Header>>,
    /// The cell at the checkpoint: a full checkpoint and its deltas, as the sandbox made them.
    pub checkpoints: Vec<Bytes>,
    /// The log from there on, as encoded entries.
    pub log: Bytes,
    /// The messages that the entries consumed, by port: the client's, and the server's if there is one. In a shared cell those of each
    /// port that has any.
    pub inputs: Vec<Inputs>,
    /// The stopped handler, if the file was made because of it.
    pub stop: Option<RecordedStop>,
    /// The parts of the image: the app, or the chain and its stages. May be missing.
    pub apps: Vec<(ImageHash, Bytes)>,
}

/// The error in a file that cannot be used, and its offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordingError {
    /// Bytes from the start of the file.
    pub offset: u64,
    /// The error.
    pub what: &'static str,
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the record file is damaged at byte {}: {}", self.offset, self.what)
    }
}

impl core::error::Error for RecordingError {}

impl Recording {
    /// Encodes the file.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let payloads: usize =
            self.checkpoints.iter().chain(self.apps.iter().map(|app| &app.1)).map(Bytes::len).sum();
        let mut out = BytesMut::with_capacity(payloads + self.log.len() + (1 << 16));
        out.put_slice(&MAGIC);
        out.put_u32_le(VERSION);
        out.put_u64_le(0);
        section(&mut out, kind::ABOUT, |out| self.about.put(out));
        if let Some(header) = &self.header {
            section(&mut out, kind::HEADER, |out| header.put(out));
        }
        for checkpoint in &self.checkpoints {
            section(&mut out, kind::CHECKPOINT, |out| out.put_slice(checkpoint));
        }
        section(&mut out, kind::LOG, |out| out.put_slice(&self.log));
        for inputs in &self.inputs {
            section(&mut out, kind::INPUTS, |out| inputs.put(out));
        }
        if let Some(stop) = &self.stop {
            section(&mut out, kind::STOP, |out| stop.put(out));
        }
        for (image, app) in &self.apps {
            section(&mut out, kind::APP, |out| {
                image.put(out);
                out.put_slice(app);
            });
        }
        let length = (out.len() - HEAD) as u64;
        out[8..HEAD].copy_from_slice(&length.to_le_bytes());
        out.freeze()
    }

    /// Removes all messages and everything derived from them. What remains says what happened when, and how long messages were.
    /// `key` prevents that a reader of the file verifies guesses of the messages.
    #[must_use]
    pub fn redacted(mut self, key: &[u8; 32]) -> Self {
        self.about.redacted = true;
        self.about.state = None;
        let mut cursor = Cursor { last_ns: self.header.as_ref().map_or(0, |header| header.last_ns) };
        self.header = None;
        self.checkpoints.clear();
        self.log = without_secrets(&self.log, &mut cursor);
        if let Some(stop) = &mut self.stop {
            stop.entry = without_secrets(&stop.entry, &mut cursor);
        }
        for said in self.inputs.iter_mut().flat_map(|inputs| &mut inputs.messages.0) {
            if let RecordedMessage::Payload(payload) = said {
                let mut digest = [0; 16];
                digest.copy_from_slice(&blake3::keyed_hash(key, payload).as_bytes()[..16]);
                *said = RecordedMessage::Redacted { size: payload.len() as u64, digest };
            }
        }
        self
    }
}

/// Appends a section; `put` appends its payload.
fn section(out: &mut BytesMut, kind: u8, put: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_u8(kind);
    out.put_bytes(0, SECTION_HEAD - 1);
    put(out);
    let length = (out.len() - start - SECTION_HEAD) as u64;
    out[start + 1..start + 9].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum(kind, &out[start + SECTION_HEAD..]);
    out[start + 9..start + SECTION_HEAD].copy_from_slice(&checksum);
}

/// Detects damage, also in the kind and the length.
fn checksum(kind: u8, payload: &[u8]) -> [u8; CHECKSUM] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind]).update(&(payload.len() as u64).to_le_bytes()).update(payload);
    let mut checksum = [0; CHECKSUM];
    checksum.copy_from_slice(&hasher.finalize().as_bytes()[..CHECKSUM]);
    checksum
}

/// The log without the cell's seed, which reveals what the cell drew and which keys may be derived from; without what the cell
/// knew of its clients; and without what it read from the cache, except for the lengths.
fn without_secrets(log: &Bytes, cursor: &mut Cursor) -> Bytes {
    let (mut rest, mut out, mut put) = (log.clone(), BytesMut::new(), *cursor);
    while let Some(mut entry) = (!rest.is_empty()).then(|| cursor.take(&mut rest)).and_then(Result::ok) {
        match &mut entry.event {
            Event::Start { seed, peers } => {
                *seed = [0; 32];
                peers.client = None;
            }
            Event::Port(PortEvent::Joined(joined)) => joined.peer = None,
            _ => {}
        }
        for logged in &mut entry.reads.list {
            if let Logged::New(Read { key, found }) = logged {
                *key = [0; 8];
                if let Found::Object(bytes) = found {
                    *bytes = BytesMut::zeroed(bytes.len()).freeze();
                }
            }
        }
        put.put(&entry, &mut out);
    }
    out.freeze()
}
