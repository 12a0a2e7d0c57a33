//! Copies a cell's memory for a checkpoint, in pieces, while the cell runs between them.
//!
//! ```text
//! prepare:   | collect | copy | collect | copy | ...  until little is left         the cell runs between pieces
//! snapshot:  | collect | copy |  then globals, ports, files                         the cell does not run
//! ```
//! Collecting finds what was written since the last time (`dirty`); a page that was written again is copied again, over
//! its first copy. So the copy is that of one moment, the end of `snapshot`, whatever was prepared, and a preparation
//! that is given up changes nothing: what it collected stays pending. This is the pre-copy of live migration (Clark et
//! al., NSDI 2005, 3.1), into a buffer.

use super::Cells;
use super::live::{Live, Stage};
use crate::buffers::{CopyBuffers, Spares};
use crate::checkpoint::{Copied, PageCounts, Snapshot, SnapshotError, Versions};
use crate::dirty::{PageSet, parts};
use crate::limits::{COPY_PIECE_BYTES, PAGE};
use marram_session::cell::{CellId, CheckpointBase};
use std::io;

/// What examining a part of memory counts as, in bytes of copying.
const COLLECT_BYTES: usize = 256 << 10;
/// With so many pages in the last round a preparation is ready: copying as many again takes a fraction of a millisecond.
const READY_PAGES: usize = 128;
/// A preparation is ready after so many rounds at the latest: the cell writes as fast as it is copied.
const ROUNDS_MAX: u32 = 8;

/// A copy of a stage's memory that is being made.
pub(crate) struct Copying {
    base: CheckpointBase,
    /// Pages that are still to be copied in this round.
    left: PageSet,
    copied: Copied,
    at: At,
    /// Rounds that are over.
    rounds: u32,
    /// Pages of the present round, and of the one before.
    round_pages: [usize; 2],
    /// Whether the cell does not run any more: this round is the last.
    is_last: bool,
}

/// Where in a round a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// The next part to examine.
    Collect(usize),
    /// The next page to copy is not before this one.
    Copy(u32),
    /// Ready for the last round.
    Ready,
}

impl Copying {
    fn begin_round(&mut self) {
        self.at = At::Collect(0);
    }

    /// A round is over.
    fn end_round(&mut self) {
        self.rounds += 1;
        let [pages, before] = self.round_pages;
        let is_converging = self.rounds < 2 || pages < before / 4 * 3;
        if pages <= READY_PAGES || !is_converging || self.rounds >= ROUNDS_MAX {
            self.at = At::Ready;
        } else {
            self.begin_round();
        }
    }
}

impl Stage {
    /// Copies until `budget` bytes are used up. True if nothing is left: the cell can be stopped, or, with `last`, its memory
    /// has been copied as it is now.
    fn copy(
        &mut self,
        memory: &[u8],
        (base, last): (CheckpointBase, bool),
        budget: &mut usize,
        spares: &Spares,
    ) -> io::Result<bool> {
        let image = &self.bound.image.memory;
        self.tracker.arm(memory);
        if self.copying.as_ref().is_none_or(|copying| copying.base != base) {
            self.copying = Some(Copying {
                base,
                left: self.tracker.pages(base),
                copied: Copied::new(memory.len(), memory.len() / PAGE, spares),
                at: At::Collect(0),
                rounds: 0,
                round_pages: [0; 2],
                is_last: false,
            });
        }
        let Some(copying) = &mut self.copying else { return Ok(false) };
        if last != copying.is_last {
            // What was written up to now must be found from the first part on.
            copying.is_last = last;
            copying.begin_round();
        }
        loop {
            if *budget == 0 {
                return Ok(false);
            }
            match copying.at {
                At::Collect(part) if part < parts(memory) => {
                    self.tracker.collect(memory, image, part, &mut copying.left)?;
                    copying.at = At::Collect(part + 1);
                    *budget = budget.saturating_sub(COLLECT_BYTES);
                }
                At::Collect(_) => {
                    copying.round_pages = [copying.left.len(), copying.round_pages[0]];
                    if copying.rounds == 0 && copying.copied.len() == 0 {
                        copying.copied = Copied::new(memory.len(), copying.round_pages[0], spares);
                    }
                    copying.at = At::Copy(0);
                }
                At::Copy(from) => match copying.left.take_from(from) {
                    Some(page) => {
                        copying.copied.copy(memory, page);
                        copying.at = At::Copy(page);
                        *budget = budget.saturating_sub(PAGE);
                    }
                    None if last => return Ok(true),
                    None => copying.end_round(),
                },
                At::Ready => return Ok(true),
            }
        }
    }
}

impl Cells {
    /// Makes a later [`Self::snapshot`] on `base` short, by a piece of about a tenth of a millisecond. True when little is left;
    /// call it again until then, between the cell's handlers. A large memory needs many calls.
    ///
    /// # Errors
    /// If the cell is gone or runs a handler, the kernel cannot report writes, or there is no checkpoint for a delta.
    pub fn prepare_snapshot(&mut self, cell: CellId, base: CheckpointBase) -> Result<bool, SnapshotError> {
        self.copy(cell, (base, false), COPY_PIECE_BYTES)
    }

    /// The buffers of copies. A piece takes one at most for each stage, and makes it itself if none is ready.
    #[must_use]
    pub fn copy_buffers(&self) -> CopyBuffers {
        CopyBuffers(self.spares.clone())
    }

    /// What became of the pages that were written between two checkpoints of a backup.
    #[must_use]
    pub fn page_counts(&self) -> PageCounts {
        self.versions.counts()
    }

    /// Bytes of earlier versions of pages that are kept for such checkpoints.
    #[must_use]
    pub fn version_bytes(&self) -> usize {
        self.versions.bytes()
    }

    /// Makes a piece of a snapshot on `base`; the snapshot when it is whole. The cell must not run between the calls.
    ///
    /// # Errors
    /// As [`Self::snapshot`].
    pub fn snapshot_piece(
        &mut self,
        cell: CellId,
        base: CheckpointBase,
    ) -> Result<Option<Snapshot>, SnapshotError> {
        let whole = self.copy(cell, (base, true), COPY_PIECE_BYTES)?;
        if whole { self.finish_snapshot(cell, base).map(Some) } else { Ok(None) }
    }

    /// Copies what a checkpoint on `base` needs: the cell pauses for this long, which is a millisecond for a few MiB that were
    /// not prepared. Encode the result on another thread. On success the copied state is the new base for
    /// [`CheckpointBase::Previous`], whether or not the copy is kept (I19 is the session's to hold).
    ///
    /// # Errors
    /// If the cell is not between handlers, or a delta has no checkpoint to build on. The cell continues in both cases.
    pub fn snapshot(&mut self, cell: CellId, base: CheckpointBase) -> Result<Snapshot, SnapshotError> {
        self.copy(cell, (base, true), usize::MAX)?;
        self.finish_snapshot(cell, base)
    }

    /// Frees what was copied for a snapshot that is not taken. What was written meanwhile stays pending.
    pub fn forget_preparation(&mut self, cell: CellId) {
        let Some(stages) = self.quiet(cell) else { return };
        stages.live().borrow_mut().stages.iter_mut().for_each(|stage| stage.copying = None);
    }

    /// Copies the memories of all stages within the budget.
    fn copy(
        &mut self,
        cell: CellId,
        (base, last): (CheckpointBase, bool),
        mut budget: usize,
    ) -> Result<bool, SnapshotError> {
        let stages = self.quiet(cell).ok_or(SnapshotError::NotIdle)?;
        let Live { stages: parts, store, .. } = &mut *stages.live().borrow_mut();
        // Without tracking since the last checkpoint, the writes after it are not known, so it is no base.
        let has_base = |stage: &Stage| {
            let (last, full) = (stage.checkpoint.is_some(), stage.full_checkpoint.is_some());
            last && (full || base.is_previous()) && stage.tracker.is_armed()
        };
        if base != CheckpointBase::Image && !parts.iter().all(has_base) {
            return Err(SnapshotError::NoBase);
        }
        let mut whole = true;
        for stage in parts.iter_mut() {
            let memory = stage.memory;
            match stage.copy(memory.data(&*store), (base, last), &mut budget, &self.spares) {
                Ok(is_whole) => whole &= is_whole,
                Err(error) => {
                    // Writes that the kernel has reported once are not reported again.
                    parts.iter_mut().for_each(|stage| (stage.checkpoint, stage.copying) = (None, None));
                    return Err(SnapshotError::Tracking(error.to_string()));
                }
            }
        }
        Ok(whole)
    }

    /// Completes a snapshot of memories that have been copied.
    fn finish_snapshot(&mut self, cell: CellId, base: CheckpointBase) -> Result<Snapshot, SnapshotError> {
        let stages = self.quiet(cell).ok_or(SnapshotError::NotIdle)?;
        let Live { stages: parts, store, .. } = &mut *stages.live().borrow_mut();
        let mut taken = Vec::with_capacity(parts.len());
        for (at, stage) in parts.iter_mut().enumerate() {
            let Some(Copying { copied, .. }) = stage.copying.take() else {
                return Err(SnapshotError::NoBase);
            };
            // Only a backup's reader has exactly the checkpoint before.
            let versions = stage.versions.take().filter(|_| base == CheckpointBase::Backup);
            stage.versions = (base == CheckpointBase::Backup)
                .then(|| versions.unwrap_or_else(|| Versions::new(&self.versions)));
            taken.push(stage.snapshot(store, at, base, copied));
        }
        Ok(Snapshot::new(stages.image(), taken))
    }
}
