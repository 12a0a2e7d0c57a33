//! Inputs and outputs of a recorder: the interface between the pure recorder and the sockets and files around it.

use crate::{
    agent::{Target, WireId},
    dialer,
};
use alloc::{string::String, vec::Vec};
use core::fmt;
use marram_wire::{
    frame::{Code, Frame},
    id::{Generation, SessionId},
    seal::KeeperKey,
};

/// A recorder's identity, timeouts and limits.
#[derive(Clone, Debug)]
pub struct RecorderConfig {
    /// The recorder's name, for people.
    pub name: String,
    /// Proves that the recorder is one of the domain's keepers.
    pub key: KeeperKey,
    /// The edges that it dials, with timeouts.
    pub dialer: dialer::DialerConfig,
    /// How long a session without a feed is kept, in nanoseconds.
    pub linger_ns: u64,
    /// Maximum of bytes kept for all sessions.
    pub memory: u64,
    /// Maximum number of sessions.
    pub sessions: usize,
    /// Whether there is a disk: then it requests writes.
    pub store: bool,
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are the large one")]
pub enum RecorderInput {
    /// A wire that [`RecorderOutput::Dial`] requested is up: connected, encrypted and authenticated as configured.
    WireUp {
        /// The wire's id from now on.
        wire: WireId,
        /// The shard that it leads to.
        target: Target,
    },
    /// A wire could not be established.
    DialFailed {
        /// The shard that it would have led to.
        target: Target,
        /// The cause, for people.
        reason: String,
    },
    /// A wire broke.
    WireDown {
        /// The wire.
        wire: WireId,
        /// The cause, for people.
        reason: String,
    },
    /// A frame arrived.
    Frame {
        /// The wire on which it arrived.
        wire: WireId,
        /// The frame.
        frame: Frame,
    },
    /// A time requested by [`RecorderOutput::WakeAt`] has come. The shell may also send this at any other time.
    Wake,
    /// The operator stops the recorder: it sends a goodbye to every edge.
    Stop,
}

/// An action for the shell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecorderOutput {
    /// Establish a wire; answered by [`RecorderInput::WireUp`] or [`RecorderInput::DialFailed`].
    Dial {
        /// The shard to connect to.
        target: Target,
    },
    /// Close a wire after the pending frames were sent; not answered.
    CloseWire {
        /// The wire.
        wire: WireId,
        /// The reason, for people.
        reason: String,
    },
    /// Send a frame; those for which [`Frame::is_bulk`] holds may wait behind others of their wire.
    Send {
        /// The wire.
        wire: WireId,
        /// The frame.
        frame: Frame,
    },
    /// Write to a session's file, after earlier writes. Nothing waits for it.
    Store {
        /// The session.
        session: SessionId,
        /// The write operation.
        store: FileOperation,
    },
    /// Send [`RecorderInput::Wake`] at this time at the latest. A later request replaces this one.
    WakeAt {
        /// On the clock of `now`.
        now_ns: u64,
    },
    /// An event for logs, metrics and listings.
    Report(RecorderReport),
}

/// An operation on a session's file. A file that was not appended to for a while holds an older state, which is still usable.
/// After that it may be appended to only when it was rewritten first.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are the large one")]
pub enum FileOperation {
    /// Replace the file's contents with these frames.
    Begin(Vec<Frame>),
    /// Append this frame.
    Append(Frame),
    /// Remove the file.
    Remove,
}

/// Events for logs, metrics and listings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecorderReport {
    /// A shard of an edge answered.
    EdgeUp {
        /// The shard.
        target: Target,
        /// The edge's name.
        name: String,
    },
    /// A shard of an edge is disconnected or suspected.
    EdgeDown {
        /// The shard.
        target: Target,
        /// The cause, for people.
        reason: String,
        /// Whether it was suspected because it was silent.
        suspected: bool,
    },
    /// A session is kept from now on: the data is sufficient for a recovery.
    Kept {
        /// The session.
        session: SessionId,
        /// Its app.
        app: String,
        /// The generation of its owner.
        generation: Generation,
        /// The shard that feeds it.
        target: Target,
    },
    /// A session is not kept, or no longer: the fed data was invalid, or there is no room.
    Refused {
        /// The session.
        session: SessionId,
        /// The error code.
        code: Code,
        /// The reason, for people.
        reason: String,
    },
    /// A session was recalled.
    Recalled {
        /// The session.
        session: SessionId,
        /// The shard that recalled it.
        target: Target,
        /// Bytes sent there; none if nothing of the session is kept.
        bytes: Option<u64>,
    },
    /// A session was deleted: it ended, or it was without a feed for too long.
    Forgotten {
        /// The session.
        session: SessionId,
        /// Whether it was deleted because it had no feed.
        lingered: bool,
    },
}

/// A session that is kept, for listings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecorderRow {
    /// The session.
    pub session: SessionId,
    /// Its app.
    pub app: String,
    /// The generation of its last known owner.
    pub generation: Generation,
    /// The shard that feeds it; none if it has no feed any more.
    pub target: Option<Target>,
    /// Whether a recovery could use it.
    pub ready: bool,
    /// Bytes of messages.
    pub messages: u64,
    /// Bytes of log.
    pub log: u64,
    /// Bytes of checkpoints.
    pub checkpoints: u64,
}

/// Counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RecorderCounts {
    /// Entries that were fed.
    pub fed: u64,
    /// Bytes of the fed entries, log and messages.
    pub fed_bytes: u64,
    /// Checkpoints that arrived completely.
    pub checkpoints: u64,
    /// Sessions that were recalled.
    pub recalled: u64,
    /// Sessions that were asked for and not kept.
    pub unknown: u64,
    /// Sessions that were refused, or dropped because there was no room.
    pub refused: u64,
}

/// A session's file cannot be restored: one of its frames does not continue those before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnfitFrame {
    /// The index of the frame among those of the file.
    pub index: usize,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl fmt::Display for UnfitFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {}: {}", self.index, self.reason)
    }
}

impl core::error::Error for UnfitFrame {}
