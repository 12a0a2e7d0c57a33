//! A session that changes its replication group while it runs, and with it perhaps its backup (docs/protocol-epochs.md, "Groups that
//! change").
//!
//! ```text
//! fed beside the backup ──▶ hold_for_change: nothing leaves ──▶ the next backup has confirmed all before ──▶ change_backup, join_group
//! ```
//! The shard decides when (`crates/shard/src/shard/changes.rs`). Until the last step the session is its former group's: if anything
//! goes wrong, it stays there, and nothing has left that its backup lacks.

use super::{Feed, KeeperId, Now, Owner, OwnerEffect};
use alloc::vec::Vec;
use marram_wire::frame::{Channel, GroupId, JoinGroup};

impl Owner {
    /// Whether this keeper could be the session's backup: it has all that it begins with, and is not far behind.
    #[must_use]
    pub fn could_be_backup(&self, keeper: KeeperId) -> bool {
        self.replicas.is_able(keeper)
    }

    /// This keeper learns that the session is in another group from now on. What its backup confirms releases nothing more, until the
    /// session has joined that group or [`Self::keep_group`] is called.
    pub fn hold_for_change(&mut self, keeper: KeeperId, group: GroupId, out: &mut Vec<OwnerEffect>) {
        let Some(channel) = self.replicas.streaming_on(keeper) else { return };
        self.epochs.is_changing = true;
        out.push(OwnerEffect::ToKeeper(keeper, JoinGroup { channel, group }.into()));
    }

    /// Whether outputs leave, or have left, that the backup has not confirmed. Then the ends accept one that is behind them: so it stays the
    /// session's only one.
    #[must_use]
    pub fn has_run_ahead(&self) -> bool {
        self.epochs.runs_ahead()
    }

    /// Whether outputs wait until the session has changed its group.
    #[must_use]
    pub fn is_changing_group(&self) -> bool {
        self.epochs.is_changing
    }

    /// The session stays in its group: what was not released for the change is in its next epoch.
    pub fn keep_group(&mut self, out: &mut Vec<OwnerEffect>) {
        if core::mem::take(&mut self.epochs.is_changing) {
            self.epochs.begin_again();
            self.epoch_is_due(out);
        }
    }

    /// No entry begins from now on, until [`Self::go_on`]: this edge is to hand the session over, and its backup to have exactly what the next
    /// owner has. True once it stands between two entries, and the backup was sent all before.
    pub fn stands_still(&mut self, out: &mut Vec<OwnerEffect>) -> bool {
        self.epochs.is_still = true;
        if self.runner.is_busy() || self.runner.rebuild.is_some() {
            return false;
        }
        // One that has not begun has no pages, and begins at the next owner.
        let warm = self.replicas.backup_keeper().filter(|_| self.log.end() > 0);
        warm.is_none_or(|keeper| self.may_leave_pages(keeper, out))
    }

    /// Entries begin again: the session stays here.
    pub fn go_on(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        if core::mem::take(&mut self.epochs.is_still) {
            self.pump(now, out);
        }
    }

    /// Makes a keeper the backup that has a copy from the owner before, which is at exactly this position: it is sent none. Nothing else is
    /// told to keep the session yet.
    pub fn add_continued_backup(
        &mut self,
        keeper: KeeperId,
        channel: Channel,
        feed: Feed,
        out: &mut Vec<OwnerEffect>,
    ) {
        // Of what was read, and of the time, it may know only what comes from here on.
        self.log.forget_reads();
        self.runner.logs_time = self.about.is_shared_cell();
        self.replicas.add(keeper, channel, feed, false);
        self.replicas.keep_on(keeper, &self.keep_frame(), out);
        self.backup_changed(out);
    }

    /// Nothing is fed to this keeper any more, which is not told: it may have to go on with what it has.
    pub fn set_aside(&mut self, keeper: KeeperId) {
        self.replicas.set_aside(keeper);
    }

    /// This keeper has all that has left, and is the session's backup from now on. Nothing changes if it was before; else the former one
    /// is to be removed, and the shard puts the session into its new group.
    pub fn change_backup(&mut self, keeper: KeeperId, out: &mut Vec<OwnerEffect>) {
        if !self.replicas.is_backup(keeper) {
            // It has no copy but the one that it began with: a copy on its way to the former one is lost, and the next pages are whole.
            self.checkpointer.drop_apart();
            self.checkpointer.apart_base = None;
            self.replicas.pages_lost();
            self.replicas.change_backup(keeper);
        }
        self.epochs.begin_again();
        self.epoch_is_due(out);
    }
}
