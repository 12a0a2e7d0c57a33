//! What an app settles for its sessions, and what an owner counts over its life.

use super::Witnessing;
use alloc::string::String;
use bytes::{Bytes, BytesMut};
use marram_wire::{
    codec::{Error, Field},
    frame::Keeps,
};

/// Which end keeps checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// The client's end.
    Client,
    /// The server's end.
    Server,
    /// Both.
    Both,
}

/// In which form a backup gets what the cell did (docs/protocol-epochs.md, "Log or pages").
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum BackupForm {
    /// The log, which the backup replays as it comes.
    #[default]
    Log,
    /// The log or pages of memory, whichever is fewer bytes. The backup holds both, and replays what it must when it goes on.
    Auto,
    /// Pages of memory. The backup replays nothing.
    Pages,
}

impl BackupForm {
    /// In the order of their encoding.
    const ALL: [Self; 3] = [Self::Log, Self::Auto, Self::Pages];

    /// Its name, in manifests, in listings and in the admin API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Auto => "auto",
            Self::Pages => "pages",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }
}

impl Field for BackupForm {
    fn put(&self, out: &mut BytesMut) {
        (*self as u8).put(out);
    }

    fn take(from: &mut Bytes) -> Result<Self, Error> {
        Self::ALL.get(usize::from(u8::take(from)?)).copied().ok_or(Error::Unknown)
    }
}

/// The app manifest's settings for its sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnerPolicy {
    /// The app's name.
    pub app: String,
    /// The server's name, if the app has a server.
    pub server: Option<String>,
    /// What ends keep. With messages alone, a backup has the rest, and outputs wait for it.
    pub keeps: Keeps,
    /// In which form a backup gets that rest.
    pub form: BackupForm,
    /// Which end keeps checkpoints.
    pub holder: Holder,
    /// The longest acceptable replay of what no checkpoint covers, in nanoseconds.
    pub recovery_target_ns: u64,
    /// Bytes of checkpoints that this edge takes of an end, and has an end keep, at most.
    pub checkpoints_max: u64,
    /// How long ends keep the record of a session that cannot be resumed, in milliseconds.
    pub linger_ms: u32,
    /// Messages that the cell may send per second; 0 for no limit.
    pub messages_per_s: u32,
    /// Bytes of log that the session may write per second; 0 for no limit.
    pub log_bytes_per_s: u32,
    /// Whether a recording is made when a handler of the session is stopped.
    pub record_stops: bool,
    /// Whether other sessions use the same cell ([`crate::shared`]). Then ends keep nothing.
    pub shared: bool,
    /// Whether an external witness stores how much the client has received, and what to do while the witness is
    /// unavailable. For apps without a server: their clients could otherwise go back to an older state.
    pub witness: Option<Witnessing>,
}

/// Counted over the owner's life.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct OwnerTotals {
    /// Messages, timers and tasks consumed, replay not counted.
    pub consumed: u64,
    /// Entries consumed in replay.
    pub replayed: u64,
    /// Outputs produced, replay not counted.
    pub produced: u64,
    /// Bytes of the messages that the cell consumed from its client and sent to it, replay not counted.
    pub payload_bytes: u64,
    /// Checkpoints stored by an end.
    pub checkpoints: u64,
    /// Checkpoints that were begun because the shard's replay budget was used up.
    pub budget_checkpoints: u64,
    /// Bytes of the checkpoints that an end stored, sealed.
    pub checkpoint_bytes: u64,
    /// Bytes of pages, sealed, that were sent to a backup instead of log.
    pub epoch_page_bytes: u64,
    /// Generations opened by this owner.
    pub generations: u64,
    /// Pauses that the owner ended because nothing else could end them.
    pub pauses_ended: u64,
}
