//! What a backup is fed that holds it: which entries wait at the owner, and which pages are on their way (see [`super::pages`]).

use super::{boundary::Boundary, forms::FormChoice};
use alloc::collections::VecDeque;
use marram_wire::{
    frame::Fed,
    id::Port,
    limits::{COVER_LOG, FEED_WINDOW, LOG_SIZE_MAX, RETAINED_MAX},
};

/// What is copied for the backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PagesKind {
    /// Pages that changed since the copy before.
    Changed,
    /// All pages: there was nothing to build on.
    Whole,
    /// All pages, for a keeper that begins with them. The backup gets them because the next ones build on them.
    Shared,
}

/// Pages that were copied, until the backup has applied them.
#[derive(Debug)]
pub(super) struct CopiedPages {
    number: u32,
    pub(super) at: Boundary,
    /// Sealed; 0 before.
    pub(super) size: u64,
    kind: PagesKind,
    /// Whether the log waits meanwhile, and how much of it waited that they stand for, if that says what an epoch costs.
    waits: bool,
    instead_of: Option<u64>,
}

/// What a backup that holds lacks, beside entries that wait and can be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lacking {
    /// Nothing: it gets the log, or all that waits begins at the pages that it has.
    Nothing,
    /// Pages that are on their way to it.
    Copied,
    /// Pages that are not copied yet: what waits begins later than what it has.
    Pages,
}

/// What a backup that holds is fed, beside the checkpoint with which it begins.
#[derive(Debug, Default)]
pub(super) struct PageFeed {
    pub(super) choice: FormChoice,
    /// Entries that wait, each with what it costs of the feed's window; none while the log is sent.
    waiting: Option<VecDeque<(u64, Fed)>>,
    waiting_bytes: u64,
    /// What these would be, if they were sent: without what an entry counts as in the window beyond its bytes.
    waiting_size: u64,
    /// Whether the entries that wait begin where the last copy was made.
    is_whole: bool,
    /// Whether that copy was one of changed pages. Then the next one has differences from it, as those that follow; behind a copy of
    /// all pages, it has each page as a whole.
    has_versions: bool,
    /// Entries, and messages with them, since the last copy: what a backup would replay.
    entries: u64,
    charge: u64,
    /// Of the present epoch, as they are sent.
    pub(super) epoch_bytes: u64,
    /// Whether pages are to be copied as soon as the cell stands between two entries.
    is_due: bool,
    copied: Option<CopiedPages>,
    /// Whether the last copy could not be made.
    has_failed: bool,
    /// Whether the backup is to take the session over once it has everything.
    pub(super) hands_over: bool,
}

impl PageFeed {
    /// An entry was logged, with the message that it consumed. Returns it if it is to be sent now.
    pub(super) fn entry(&mut self, entry: u64, cost: u64, fed: Fed) -> Option<Fed> {
        self.entries += entry;
        self.charge += cost;
        let size = (fed.entry.len() + fed.payload.len()) as u64;
        self.epoch_bytes += size;
        let Some(waiting) = &mut self.waiting else { return Some(fed) };
        waiting.push_back((cost, fed));
        self.waiting_bytes += cost;
        self.waiting_size += size;
        None
    }

    /// Whether the cell must wait: entries do not leave, or the backup would have to hold too many.
    pub(super) fn is_full(&self) -> bool {
        self.waiting_bytes > FEED_WINDOW / 2
            || self.entries > LOG_SIZE_MAX / 4 * 3
            || self.charge > RETAINED_MAX / 2 * 3
    }

    /// Whether pages are to be copied now.
    pub(super) fn is_due(&self) -> bool {
        self.is_due && self.copied.is_none()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// The backup begins with a checkpoint at this moment, or its pages are copied.
    pub(super) fn begin(&mut self) {
        (self.entries, self.charge) = (0, 0);
    }

    /// The backup goes on with what another owner has fed it. How much of that it holds is not known here, but that it is no more than
    /// what makes pages due and what came while they were copied: together with that it must have room for it.
    pub(super) fn begin_behind_others(&mut self) {
        (self.entries, self.charge) = (COVER_LOG / 2, RETAINED_MAX / 4);
    }

    /// Pages are copied, at the end of the last entry.
    pub(super) fn copy(&mut self, number: u32, kind: PagesKind, at: Boundary) {
        let (waits, is_changed) = (self.waiting.is_some(), kind == PagesKind::Changed);
        let says_cost = waits && self.is_whole && self.has_versions && is_changed;
        let instead_of = says_cost.then_some(self.waiting_size);
        self.copied = Some(CopiedPages { number, at, size: 0, kind, waits, instead_of });
        self.has_versions = is_changed;
        if let Some(waiting) = &mut self.waiting {
            waiting.clear();
            (self.waiting_bytes, self.waiting_size) = (0, 0);
            self.is_whole = true;
        }
        self.is_due = false;
        self.begin();
    }

    /// The backup has applied this checkpoint: the pages, if it was those.
    pub(super) fn stored(&mut self, number: u32) -> Option<CopiedPages> {
        let copied = self.copied.take_if(|copied| copied.number == number)?;
        if copied.waits && copied.kind != PagesKind::Shared {
            self.choice.pages(copied.size, copied.instead_of);
        }
        Some(copied)
    }

    /// Whether pages are copied and not sealed.
    pub(super) fn has_unsealed(&self) -> bool {
        self.copied.as_ref().is_some_and(|copied| copied.size == 0)
    }

    /// A copy that was not sealed is lost: the next one stands for what it was to stand for as well.
    pub(super) fn lose_copy(&mut self) {
        if self.has_unsealed() {
            self.copied = None;
            (self.is_whole, self.is_due) = (false, true);
        }
    }

    /// No checkpoint could be taken. False if there was none the time before either: then a copy is not tried for ever while outputs
    /// wait for it.
    pub(super) fn copy_failed(&mut self) -> bool {
        let may_try = !self.has_failed;
        self.has_failed = true;
        self.lose_copy();
        may_try
    }

    /// A newer generation is opened. Entries that wait are sealed for the one before: only pages can stand for them.
    pub(super) fn renew(&mut self) {
        if self.waiting.as_ref().is_some_and(|waiting| !waiting.is_empty()) {
            (self.is_whole, self.is_due) = (false, true);
        }
    }

    /// Entries that waited, if the backup gets the log from now on. Only when it has the last copy, and so stands where they begin.
    pub(super) fn leave_pages(&mut self) -> VecDeque<(u64, Fed)> {
        (self.waiting_bytes, self.waiting_size, self.is_due) = (0, 0, false);
        self.waiting.take().unwrap_or_default()
    }

    /// What the backup lacks. Entries that wait can be sent as log once that is nothing.
    pub(super) fn lacking(&self) -> Lacking {
        match (&self.copied, &self.waiting) {
            (Some(_), _) => Lacking::Copied,
            (None, Some(_)) if !self.is_whole => Lacking::Pages,
            (None, _) => Lacking::Nothing,
        }
    }

    /// The copy with this number is sealed. False if that is no copy of pages.
    pub(super) fn sealed(&mut self, number: u32, size: u64) -> bool {
        let copied = self.copied.as_mut().filter(|copied| copied.number == number);
        let is_it = copied.is_some();
        copied.into_iter().for_each(|copied| copied.size = size);
        self.has_failed &= !is_it;
        is_it
    }

    /// Whether entries wait instead of being sent.
    pub(super) fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    /// From the next entry on they wait: what was sent of this epoch is confirmed with it.
    pub(super) fn enter_pages(&mut self) {
        (self.waiting, self.is_whole) = (Some(VecDeque::new()), false);
    }

    /// Pages are due.
    pub(super) fn ask(&mut self) {
        self.is_due = true;
    }

    /// Entries, and messages with them, since the last copy, in bytes: what a backup would replay.
    pub(super) fn replay_bytes(&self) -> (u64, u64) {
        (self.entries, self.charge)
    }

    /// Whether pages are to be copied, or were and the backup has not applied them.
    pub(super) fn is_under_way(&self) -> bool {
        self.is_due || self.copied.is_some()
    }

    /// These ends were told to forget messages of this charge.
    pub(super) fn forgot(&mut self, told: &[(Port, u64)]) {
        if let Some(copied) = &mut self.copied {
            copied.at.forgot(told);
        }
    }
}
