//! How an app is protected by epochs.

use crate::byte_enum::byte_enum;
use marram_wire::record;

/// What the backup of a session gets ([`marram_session::owner::BackupForm`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum EpochForm {
    /// The log, which it replays.
    #[default]
    Log,
    /// The log or pages, whichever is fewer bytes.
    Auto,
    /// Pages.
    Pages,
}
byte_enum!(EpochForm { Log, Auto, Pages });

impl EpochForm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Log, Self::Auto, Self::Pages];

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

record! {
    /// When the outputs of sessions leave that are protected by epochs, and what their backup gets.
    EpochPace {
        /// Epochs end so often at most, in microseconds; 0 for one with each message.
        every_us: u32,
        /// A session that has lost its backup goes on without one after this time, in milliseconds.
        alone_after_ms: u32,
        /// What a backup gets.
        form: EpochForm,
    }
}
