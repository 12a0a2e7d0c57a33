//! What is known of one keeper that is fed: how far it is, and what it waits for.

use super::{copy_window::CopyWindow, page_feed::PageFeed, policy::BackupForm, protection::Place};
use alloc::{boxed::Box, collections::VecDeque, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{Channel, CheckpointMeta, Stored},
    limits::{FEED_WINDOW, REPLAY_LAG_MAX},
};

/// After this many bytes a place is noted up to which a keeper may confirm what it was fed.
const PLACE_EVERY: u64 = FEED_WINDOW / 16;

/// Identifies a keeper within one shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeeperId(pub u64);

/// What a keeper does with what it is fed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feed {
    /// It keeps log, messages and checkpoints.
    Kept,
    /// It replays the log while the cell runs.
    Replayed,
    /// It replays the log, and is to take the session over.
    Moved,
    /// It replays the log, and outputs wait for it: the session waits for one that lags instead of dropping it.
    Backup,
    /// As above, but it holds the log, or pages, until it goes on.
    WarmBackup,
}

impl Feed {
    /// That of a backup which gets this.
    #[must_use]
    pub fn of_backup(form: BackupForm) -> Self {
        if form == BackupForm::Log { Self::Backup } else { Self::WarmBackup }
    }

    /// Whether it replays the log as it comes.
    #[must_use]
    pub fn is_replayed(self) -> bool {
        !matches!(self, Self::Kept | Self::WarmBackup)
    }

    /// Whether outputs wait for it.
    #[must_use]
    pub fn is_backup(self) -> bool {
        matches!(self, Self::Backup | Self::WarmBackup)
    }

    /// Whether it begins with a full checkpoint that no end gets.
    pub(super) fn begins_apart(self) -> bool {
        self.is_replayed() || self.is_backup()
    }
}

/// A checkpoint in flight.
#[derive(Debug)]
pub(super) struct CheckpointTransfer {
    pub(super) meta: CheckpointMeta,
    pub(super) took: Vec<u64>,
    pub(super) bytes: Bytes,
    /// None before it is announced.
    pub(super) sent: Option<usize>,
}

/// The stream to one keeper.
#[derive(Debug)]
pub(super) struct ReplicaStream {
    pub(super) keeper: KeeperId,
    pub(super) channel: Channel,
    pub(super) feed: Feed,
    /// Whether it is fed beside the backup, and is to be the next one.
    pub(super) is_next: bool,
    /// Whether entries are sent; otherwise it waits for the next full checkpoint.
    pub(super) streaming: bool,
    /// The log offset from which on they are.
    pub(super) begins_at: u64,
    /// Once it was told to take the session over: the entries that it has been fed since.
    pub(super) handed_over: Option<u64>,
    /// It is told to take the session over when the handler that runs has ended; no other one begins before.
    pub(super) awaits_boundary: bool,
    /// The checkpoint that it begins with, until that is sealed.
    pub(super) base: Option<u32>,
    /// Whether it has stored that checkpoint.
    pub(super) ready: bool,
    pub(super) transfers: VecDeque<CheckpointTransfer>,
    /// What is on its way of checkpoints.
    pub(super) window: CopyWindow,
    /// Bytes of checkpoints that may still be sent to it. Without limit, unless it is to take the session over: the shard spreads
    /// the copies of its moves over time.
    pub(super) allowed: u64,
    /// Bytes of entries and messages that it has not acknowledged.
    pub(super) behind: u64,
    /// Of a hot one: entries that it was fed and has not replayed, and the minimum of this number since it was ready.
    /// The number begins with all entries that were sent while its checkpoint was in flight. Of one that keeps checkpoints as ends do: entries
    /// since the last one that it has stored.
    pub(super) unreplayed: u64,
    pub(super) unreplayed_min: u64,
    /// Checkpoints that it has not stored, each with the entries that it was fed since that was copied.
    pub(super) copies: VecDeque<(u32, u64)>,
    /// While the session is protected only because it moves: places in what it is fed, each with the bytes that it had been sent, or
    /// will have acknowledged, there.
    pub(super) places: VecDeque<(u64, Place)>,
    pub(super) fed: u64,
    /// Of a warm backup.
    pub(super) pages: Option<Box<PageFeed>>,
    /// The last checkpoint that it has stored, until that is taken.
    pub(super) stored: Option<u32>,
}

impl ReplicaStream {
    /// The keeper has the checkpoint that it begins with.
    pub(super) fn mark_ready(&mut self) {
        if !self.ready {
            self.ready = true;
            self.unreplayed_min = self.unreplayed;
        }
    }

    /// It has stored parts of a checkpoint. False if it was sent less than that, or if it claims to have all of a
    /// checkpoint that was not sent completely: ends ask a keeper first if it is ready, so a false claim would mislead
    /// them.
    pub(super) fn stored(&mut self, now_ns: u64, stored: &Stored) -> bool {
        if !self.window.store(now_ns, stored.bytes) {
            return false;
        }
        let Some(number) = stored.complete else { return true };
        let sent = |transfer: &CheckpointTransfer| {
            transfer.meta.number == number && transfer.sent == Some(transfer.bytes.len())
        };
        let complete = self.window.in_flight() == 0 && self.transfers.front().is_some_and(sent);
        if complete {
            self.has_stored(number);
            self.mark_ready();
            self.stored = Some(number);
        }
        complete
    }

    /// An entry was logged, which it is fed.
    pub(super) fn count_entry(&mut self) {
        let counts = self.feed.is_replayed() || self.feed == Feed::Kept;
        self.unreplayed += u64::from(counts);
        self.copies.iter_mut().for_each(|(_, entries)| *entries += 1);
        self.handed_over = self.handed_over.map(|entries| entries + 1);
    }

    /// A checkpoint was copied at the end of the last entry, which it gets if it keeps such.
    pub(super) fn copied(&mut self, number: u32) {
        if self.streaming && self.feed == Feed::Kept {
            // A copy that was given up is sent to none.
            let Self { copies, transfers, .. } = self;
            copies.retain(|(earlier, _)| transfers.iter().any(|it| it.meta.number == *earlier));
            copies.push_back((number, 0));
        }
    }

    /// It has stored this checkpoint. What it would have to replay begins there.
    fn has_stored(&mut self, number: u32) {
        while let Some((copied, entries)) = self.copies.pop_front_if(|(copied, _)| *copied <= number) {
            if copied == number {
                self.unreplayed = entries;
                self.unreplayed_min = self.unreplayed_min.min(entries);
            }
        }
    }

    /// Whether it has all that it was sent of checkpoints. It could not be advanced once it replays.
    pub(super) fn is_settled(&self) -> bool {
        self.ready && self.transfers.is_empty()
    }

    /// It has replayed this many more entries. False if that is more than it was fed.
    pub(super) fn replayed(&mut self, entries: u64) -> bool {
        let Some(left) = self.unreplayed.checked_sub(entries).filter(|_| self.feed.is_replayed()) else {
            return false;
        };
        self.unreplayed = left;
        self.unreplayed_min = self.unreplayed_min.min(left);
        true
    }

    /// It was sent an entry: every now and then the place behind that is noted.
    pub(super) fn note_place(&mut self, place: impl FnOnce() -> Place) {
        let last = self.places.back().map_or(self.fed - self.behind, |(fed, _)| *fed);
        if self.fed - last >= PLACE_EVERY {
            self.places.push_back((self.fed, place()));
        }
    }

    /// The last of the places up to which it has acknowledged everything.
    pub(super) fn take_confirmed(&mut self) -> Option<Place> {
        let acknowledged = self.fed - self.behind;
        let mut last = None;
        while let Some((_, place)) = self.places.pop_front_if(|(fed, _)| *fed <= acknowledged) {
            last = Some(place);
        }
        last
    }

    /// Whether outputs wait for it now.
    pub(super) fn is_backup(&self) -> bool {
        self.feed.is_backup() && !self.is_next
    }

    /// Whether the session waits for it, instead of doing without it: outputs wait for it, or it is about to take the session over.
    pub(super) fn is_needed(&self) -> bool {
        self.is_backup() || self.handed_over.is_some()
    }

    /// Whether it is needed, and so far behind that the cell waits. One that is about to take the session over is fed this many more entries.
    pub(super) fn is_full(&self, more_max: impl Fn() -> u64) -> bool {
        // It takes over once it has replayed everything. If it is slower than this edge, it gets so far only because the cell waits.
        // A backup may also be handed nothing in the end, and goes on to be fed.
        let follows = !self.feed.is_backup() && self.handed_over.is_some_and(|fed| fed >= more_max());
        let lags = follows || self.behind > FEED_WINDOW / 2 || self.fell_behind() > REPLAY_LAG_MAX;
        let is_full = lags || self.pages.as_ref().is_some_and(|pages| pages.is_full());
        self.is_needed() && self.streaming && is_full
    }

    /// By how many entries it has fallen behind since it was ready, if it replays them as they come.
    pub(super) fn fell_behind(&self) -> u64 {
        if self.ready && self.feed.is_replayed() { self.unreplayed - self.unreplayed_min } else { 0 }
    }
}
