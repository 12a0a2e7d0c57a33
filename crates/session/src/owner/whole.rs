//! A session that is copied at the same moment as all others of its group, and whose outputs leave when the pages of all are at the
//! backup: what the replication of a whole virtual machine does. It is the baseline of benchmarks; no configuration asks for it.
//!
//! ```text
//! halt ─▶ no handler runs ─▶ end_epoch: copied ─▶ resume ... pages are stored ... release_stored
//! ```
//! The shard makes each of these steps for all sessions of the group (`crates/shard/src/shard/whole.rs`).

use super::{Now, Owner, OwnerEffect, OwnerPhase, boundary::Boundary};
use alloc::vec::Vec;
use marram_wire::id::Generation;

impl Owner {
    /// No entry begins until [`Self::resume`]; one that runs ends. Pages release nothing until [`Self::release_stored`].
    pub fn halt(&mut self) {
        (self.epochs.awaits_group, self.epochs.is_halted) = (true, true);
    }

    /// Entries begin again.
    pub fn resume(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        self.epochs.is_halted = false;
        self.pump(now, out);
    }

    /// Whether its backup lacks pages that are due or copied, and gets them soon.
    pub fn has_pages_under_way(&mut self) -> bool {
        let may_copy = self.phase() == OwnerPhase::Running && !self.replicas.has_handed_over();
        may_copy && self.replicas.page_feed_mut().is_some_and(|feed| feed.is_under_way())
    }

    /// The backup has stored pages up to here.
    pub(super) fn pages_kept(&mut self, now: Now, at: Boundary, out: &mut Vec<OwnerEffect>) {
        if self.epochs.awaits_group {
            self.epochs.stored = Some(at);
        } else {
            self.kept(now, Generation::NONE, &at, out);
        }
    }

    /// The pages of all sessions of the group are stored, or this one is in another group.
    pub fn release_stored(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        self.epochs.awaits_group = false;
        if let Some(at) = self.epochs.stored.take() {
            self.kept(now, Generation::NONE, &at, out);
        }
    }
}
