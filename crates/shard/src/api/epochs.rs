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
