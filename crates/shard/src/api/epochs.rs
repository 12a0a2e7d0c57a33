//! How an app is protected by epochs.

use marram_session::owner::BackupForm;
use marram_wire::record;

record! {
    /// When the outputs of sessions leave that are protected by epochs, and what their backup gets.
    EpochSettings {
        /// Epochs end so often at most, in microseconds; 0 for one with each message.
        every_us: u32,
        /// A session that has lost its backup goes on without one after this time, in milliseconds.
        alone_after_ms: u32,
        /// What a backup gets.
        form: BackupForm,
    }
}
