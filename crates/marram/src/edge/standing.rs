//! A cell that stands by: what its next checkpoint is checked against, and which attempt to bring it there counts.

use super::checkpoints::Arriving;
use marram_wire::{
    frame::CheckpointMeta,
    header::{Header, Many},
    id::{ImageHash, SessionId},
    seal::SessionKeys,
};

/// What is known of a cell that stands by, until it runs.
#[derive(Debug)]
pub(super) struct Standing {
    session: SessionId,
    image: ImageHash,
    keys: SessionKeys,
    /// That of the checkpoint that the cell has; none before it is restored.
    header: Option<Header>,
    /// Attempts so far.
    attempts: u64,
    /// Whether the last one is neither over nor overtaken.
    underway: bool,
}

impl Standing {
    /// Of a cell that is to be restored.
    pub(super) fn new(session: SessionId, image: ImageHash, keys: SessionKeys) -> Self {
        Self { session, image, keys, header: None, attempts: 0, underway: false }
    }

    /// The cell has this checkpoint now. What a header says for the session alone is not kept: outputs would hold the whole
    /// checkpoint in memory.
    pub(super) fn has(&mut self, header: &Header) {
        let (timers, tasks, locks) = (Many::default(), Many::default(), Many::default());
        let paused = Many::default();
        self.header = Some(Header { timers, tasks, locks, paused, ports: Vec::new(), ..*header });
    }

    /// Begins an attempt to bring the cell to its next checkpoint; no earlier one counts from here on. Gives its number, and
    /// what takes the bytes. Nothing if the cell has no checkpoint yet.
    pub(super) fn begin(&mut self, meta: CheckpointMeta) -> Option<(u64, Arriving)> {
        let header = self.header.clone()?;
        self.attempts += 1;
        self.underway = true;
        let arriving = Arriving::next(self.session, self.image, self.keys.clone(), (meta, header));
        Some((self.attempts, arriving))
    }

    /// Whether an attempt waits for bytes, or for its turn.
    pub(super) fn is_underway(&self) -> bool {
        self.underway
    }

    /// Ends an attempt; whether it was the one that counts.
    pub(super) fn ends(&mut self, attempt: u64) -> bool {
        attempt == self.attempts && std::mem::take(&mut self.underway)
    }
}
