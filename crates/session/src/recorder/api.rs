//! What a recorder is told and what it asks for: the seam between the pure recorder and the sockets and files around it.

use crate::{
    agent::{Target, WireId},
    dialer,
};
use alloc::{string::String, vec::Vec};
use marram_wire::{
    frame::{Code, Frame},
    id::{Generation, SessionId},
    seal::KeeperKey,
};

/// What a recorder is, how patient it is and how much it keeps.
#[derive(Clone, Debug)]
pub struct RecorderConfig {
    /// The recorder's name, for people.
    pub name: String,
    /// What it shows to be one of the domain's keepers.
    pub key: KeeperKey,
    /// Whom it dials.
    pub dialer: dialer::DialerConfig,
    /// How long a session is kept that nobody feeds any more, in nanoseconds.
    pub linger_ns: u64,
    /// Bytes that it keeps of all sessions.
    pub memory: u64,
    /// Sessions that it keeps.
    pub sessions: usize,
    /// Whether there is a disk behind it: then it says what to write.
    pub store: bool,
}

/// Something happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecorderInput {
    /// A wire that was asked for by [`RecorderOutput::Dial`] is there: connected, encrypted and authenticated as configured.
    WireUp {
        /// Its name from now on.
        wire: WireId,
        /// Where it leads.
        target: Target,
    },
    /// A wire could not be made.
    DialFailed {
        /// Where it would have led.
        target: Target,
        /// For people.
        reason: String,
    },
    /// A wire broke.
    WireDown {
        /// Which.
        wire: WireId,
        /// For people.
        reason: String,
    },
    /// A frame arrived.
    Frame {
        /// On which wire.
        wire: WireId,
        /// What.
        frame: Frame,
    },
    /// A time asked for by [`RecorderOutput::WakeAt`] has come, or the shell felt like it.
    Wake,
    /// The operator wants the recorder to stop: it says good-bye to every edge.
    Stop,
}

/// Do something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecorderOutput {
    /// Make a wire; answered by [`RecorderInput::WireUp`] or [`RecorderInput::DialFailed`].
    Dial {
        /// Where to.
        target: Target,
    },
    /// Close a wire after what was sent; not answered.
    CloseWire {
        /// Which.
        wire: WireId,
        /// For people.
        reason: String,
    },
    /// Send a frame; those for which [`Frame::is_bulk`] holds may wait behind others of their wire.
    Send {
        /// On which wire.
        wire: WireId,
        /// What.
        frame: Frame,
    },
    /// Write to a session's file, behind what was written before. Nothing waits for it.
    Store {
        /// Which session.
        session: SessionId,
        /// What.
        store: FileOperation,
    },
    /// Call again with [`RecorderInput::Wake`] at this time at the latest. The last one counts.
    WakeAt {
        /// On the clock that `now` is on.
        now_ns: u64,
    },
    /// Something that people want to know.
    Report(RecorderReport),
}

/// What to do with a session's file. A file that is not appended to for a while holds an older state, which is good as such; it
/// may be appended to again only when it was begun anew.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are the large one")]
pub enum FileOperation {
    /// Begin it anew with these frames, in place of what it has.
    Begin(Vec<Frame>),
    /// Append this one.
    Append(Frame),
    /// Remove it.
    Remove,
}

/// For logs, metrics and listings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecorderReport {
    /// A shard of an edge answered.
    EdgeUp {
        /// Which.
        target: Target,
        /// What it calls itself.
        name: String,
    },
    /// It is gone or suspected.
    EdgeDown {
        /// Which.
        target: Target,
        /// For people.
        reason: String,
        /// Whether it was suspected for its silence.
        suspected: bool,
    },
    /// A session is kept from now on: what there is would do for a recovery.
    Kept {
        /// Which.
        session: SessionId,
        /// Its app.
        app: String,
        /// Its owner.
        generation: Generation,
        /// Who feeds it.
        target: Target,
    },
    /// A session is not kept (any more) because of what was fed, or for want of room.
    Refused {
        /// Which.
        session: SessionId,
        /// Why.
        code: Code,
        /// For people.
        reason: String,
    },
    /// A session was recalled.
    Recalled {
        /// Which.
        session: SessionId,
        /// By whom.
        target: Target,
        /// Bytes that went there; none if nothing is kept of it.
        bytes: Option<u64>,
    },
    /// A session was forgotten: it is over, or nobody has fed it for long.
    Forgotten {
        /// Which.
        session: SessionId,
        /// Whether for the silence.
        lingered: bool,
    },
}

/// A session that is kept, for listings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecorderRow {
    /// Which.
    pub session: SessionId,
    /// Its app.
    pub app: String,
    /// Whose cell it was last.
    pub generation: Generation,
    /// Who feeds it; none if nobody does any more.
    pub target: Option<Target>,
    /// Whether a recovery could begin with it.
    pub ready: bool,
    /// Bytes of messages.
    pub messages: u64,
    /// Bytes of log.
    pub log: u64,
    /// Bytes of checkpoints.
    pub checkpoints: u64,
}

/// Figures since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RecorderCounts {
    /// Inputs that were fed.
    pub fed: u64,
    /// Bytes of them, log and messages.
    pub fed_bytes: u64,
    /// Checkpoints that became whole.
    pub checkpoints: u64,
    /// Sessions that were recalled.
    pub recalled: u64,
    /// Sessions that were asked for and not kept.
    pub unknown: u64,
    /// Sessions that were refused, or dropped for want of room.
    pub refused: u64,
}
