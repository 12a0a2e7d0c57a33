//! Pages instead of the log, for a backup that holds what it gets (docs/protocol-epochs.md, "Log or pages").
//!
//! ```text
//! log:     entry entry entry | entry entry entry |      each is sent when its handler has ended
//! pages:   entries wait here | copy, delta       |      the delta has all that changed since the last copy
//! ```
//! A delta is sent and applied as the checkpoints of a warm standby are, and stands for all entries before its copy. Entries
//! behind that wait until the next copy, which drops them, or until the session goes over to the log: then they are sent, behind
//! the position to which the backup's cell was advanced.

use super::{
    BackupForm, EpochRelease, Now, Owner, OwnerEffect,
    boundary::Boundary,
    page_feed::{Lacking, PagesKind},
    replica_stream::KeeperId,
    replicas::Replicas,
};
use alloc::vec::Vec;
use marram_wire::limits::{COVER_LOG, RETAINED_MAX};

/// A backup that holds the log gets pages after so many bytes of messages at the latest.
const HELD_CHARGE: u64 = RETAINED_MAX / 2;

impl Owner {
    /// Whether its backup gets pages now, and not the log.
    #[must_use]
    pub fn sends_pages(&self) -> bool {
        self.replicas.sends_pages()
    }

    /// An epoch ends: whether the backup gets pages for it. Then they are copied now, or when the handler that runs has ended.
    pub(super) fn epoch_is_pages(&mut self, out: &mut Vec<OwnerEffect>) -> bool {
        let has_more = self.epochs.last().log_offset > self.epochs.kept().log_offset;
        let form = self.about.policy.form;
        let Some(feed) = self.replicas.page_feed_mut() else { return false };
        let epoch_bytes = core::mem::take(&mut feed.epoch_bytes);
        if !feed.waits() {
            let goes_over = match form {
                BackupForm::Log => false,
                BackupForm::Auto => feed.choice.log_sent(epoch_bytes),
                BackupForm::Pages => true,
            };
            if goes_over {
                feed.enter_pages();
            }
            return false;
        }
        if has_more {
            feed.ask();
        }
        if self.may_copy() {
            self.checkpoint_if_due(out);
        }
        true
    }

    /// A backup that holds the log would have to replay much of it: pages are due.
    pub(super) fn ask_pages_if_much(&mut self) {
        let is_long = self.checkpointer.is_replay_long(&self.about);
        if let Some(feed) = self.replicas.page_feed_mut() {
            let (entries, charge) = feed.replay_bytes();
            if is_long || entries >= COVER_LOG || charge >= HELD_CHARGE {
                feed.ask();
            }
        }
    }

    /// A keeper has said something: if it has applied the pages that were copied last, what they stand for is kept.
    pub(super) fn pages_stored(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let number = self.replicas.take_stored();
        let Some(feed) = self.replicas.page_feed_mut() else { return };
        let Some(copied) = number.and_then(|number| feed.stored(number)) else { return };
        let wants_log = self.about.policy.form == BackupForm::Auto && feed.choice.wants_log();
        let hands_over = core::mem::take(&mut feed.hands_over);
        let is_over = feed.waits() && feed.lacking() == Lacking::Nothing && (wants_log || hands_over);
        self.checkpointer.pages_held(copied.size);
        // Before anything else is copied.
        if is_over {
            self.leave_pages(out);
        }
        // Before its claim names the backup, another one may still go on, without these pages.
        let leave = matches!(self.epoch_release(), EpochRelease::Confirmed | EpochRelease::Ahead);
        if leave && !self.epochs.is_changing {
            self.pages_kept(now, copied.at, out);
        }
        // Whether a shared cell is still to be handed over, the shard knows, which is told that pages were stored.
        let hands_over = hands_over && !self.about.is_shared_cell();
        if hands_over && let Some(keeper) = self.replicas.backup_keeper() {
            self.hand_over(now, keeper, out);
        }
        if self.may_copy() {
            self.checkpoint_if_due(out);
        }
    }

    /// The backup gets the log from now on: the entries that waited are sent.
    fn leave_pages(&mut self, out: &mut Vec<OwnerEffect>) {
        let is_some = self.replicas.send_waiting(out);
        if is_some {
            self.epoch_is_due(out);
        }
    }

    /// Whether a keeper that is to take the session over has all of it: entries that wait are sent before. False if pages are on their
    /// way to it; the session is handed over when they have arrived.
    pub(super) fn may_leave_pages(&mut self, keeper: KeeperId, out: &mut Vec<OwnerEffect>) -> bool {
        let Some(feed) = self.replicas.page_feed_of(keeper) else { return true };
        let lacking = feed.lacking();
        if lacking != Lacking::Nothing {
            feed.hands_over = true;
            if lacking == Lacking::Pages {
                feed.ask();
            }
            if self.may_copy() {
                self.checkpoint_if_due(out);
            }
            return false;
        }
        self.leave_pages(out);
        true
    }
}

impl Replicas {
    /// Pages are copied for the backup, at the end of the last entry.
    pub(super) fn pages_copied(&mut self, number: u32, kind: PagesKind, at: &Boundary) {
        if let Some(feed) = self.page_feed_mut() {
            feed.copy(number, kind, at.clone());
        }
    }

    /// A checkpoint is sealed. Returns its size if it is the backup's pages.
    pub(super) fn pages_sealed(&mut self, number: u32, size: u64) -> u64 {
        let is_it = self.page_feed_mut().is_some_and(|feed| feed.sealed(number, size));
        if is_it { size } else { 0 }
    }
}
