//! A standby cell: what its next checkpoint is checked against, and which attempt to advance it is current.
//!
//! ```text
//! restored ─▶ has(header) ─▶ begin(meta) ─ bytes ─▶ ends ─▶ has(header) ─▶ begin ...   until the cell runs
//! ```
//!
//! The owner may give up a checkpoint and begin another one; the attempt's number tells late
//! results of the old one apart.

use super::checkpoints::Arriving;
use marram_wire::{
    frame::{CheckpointKind, CheckpointMeta},
    header::{Header, Many},
    id::{Generation, ImageHash, SessionId},
    seal::SessionKeys,
};

/// The state of a standby cell, until it runs.
#[derive(Debug)]
pub(super) struct Standing {
    session: SessionId,
    image: ImageHash,
    keys: SessionKeys,
    /// The header of the cell's checkpoint; none before it is restored.
    header: Option<Header>,
    /// That of the full one before it, or of the same.
    full: Option<Header>,
    /// Attempts so far.
    attempts: u64,
    /// Whether the last attempt is still in progress.
    underway: bool,
}

impl Standing {
    /// For a cell that is to be restored.
    pub(super) fn new(session: SessionId, image: ImageHash, keys: SessionKeys) -> Self {
        Self { session, image, keys, header: None, full: None, attempts: 0, underway: false }
    }

    /// Records the checkpoint that the cell has now. Parts of the header for the session alone are not kept: they would keep the
    /// whole checkpoint in memory.
    pub(super) fn has(&mut self, header: &Header) {
        let (timers, tasks, locks) = (Many::default(), Many::default(), Many::default());
        let (paused, clients, servers) = (Many::default(), Many::default(), Many::default());
        let header = Header { timers, tasks, locks, paused, clients, servers, ports: Vec::new(), ..*header };
        if header.base_generation == Generation::NONE {
            self.full = Some(header.clone());
        }
        self.header = Some(header);
    }

    /// Begins an attempt to advance the cell to its next checkpoint, which replaces any earlier one. Returns its number, and the
    /// state that takes the bytes; `None` if the cell has no checkpoint yet.
    pub(super) fn begin(&mut self, meta: CheckpointMeta) -> Option<(u64, Arriving)> {
        let base = if meta.kind == CheckpointKind::Merged { &self.full } else { &self.header };
        let header = base.clone()?;
        self.attempts += 1;
        self.underway = true;
        let arriving = Arriving::next(self.session, self.image, self.keys.clone(), (meta, header));
        Some((self.attempts, arriving))
    }

    /// Whether an attempt waits for bytes, or for its turn.
    pub(super) fn is_underway(&self) -> bool {
        self.underway
    }

    /// Ends an attempt; returns whether it was the current one.
    pub(super) fn ends(&mut self, attempt: u64) -> bool {
        attempt == self.attempts && std::mem::take(&mut self.underway)
    }
}
