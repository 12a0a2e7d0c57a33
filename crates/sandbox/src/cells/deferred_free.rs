//! Frees large cells in pieces: their memory goes back to the kernel bit by bit, so that no other cell waits while all of it
//! goes.
//!
//! A slot is free only when its cell's memory is gone. If a new cell finds no other slot, all pending memory is freed at once.
//!
//! Returning a gibibyte of written pages takes the kernel about a tenth of a second, during which
//! the shard's only thread would serve nothing else. In pieces of about a tenth of a millisecond the work
//! hides between handlers:
//!
//! ```text
//! memory of a stage   | keep: the pool resets it | ... | left: not yet given back |
//! 0                                               keep                       size
//!                                                  <-------- pieces, from the end
//! ```
//! The cell itself is unusable from [`DeferredFree::take`] on: no name leads to it. Tracking of a piece ends just before the piece goes, since that
//! takes nearly as long.

use super::live::{Live, Stage};
use super::{Cells, CellsConfig};
use crate::buffers::discard;
use crate::limits::{DEFERRED_FREE_BYTES_MAX, DEFERRED_FREE_PIECE_BYTES, DEFERRED_FREE_PIECE_PART};
use std::collections::VecDeque;

/// Ended cells whose memory is not yet free.
#[derive(Default)]
pub(super) struct DeferredFree {
    /// Oldest first: it is freed first, and completely before the next one begins.
    cells: VecDeque<FreeingCell>,
    /// Sum of the bytes that these cells still have.
    bytes: usize,
    /// Bytes of each memory that stay resident: the pool resets them in place for the slot's next cell.
    keep: usize,
}

/// An ended cell.
struct FreeingCell {
    /// Holds the slots until it is dropped.
    live: Live,
    /// Its memories, by stage, and how many bytes of each are not yet given back.
    left: Vec<(usize, usize)>,
}

impl DeferredFree {
    pub(super) fn new(config: &CellsConfig) -> Self {
        Self { keep: config.keep_resident, ..Self::default() }
    }

    /// Takes the instances of an ended cell; a small cell is freed at once.
    pub(super) fn take(&mut self, mut live: Live) {
        let size = |stage: &Stage| stage.memory.data_size(&live.store);
        let sizes = live.stages.iter().map(size).enumerate();
        let left: Vec<_> = sizes.filter(|(_, size)| *size > self.keep + DEFERRED_FREE_PIECE_BYTES).collect();
        if left.is_empty() {
            return;
        }
        live.forget_copies();
        self.bytes += left.iter().map(|(_, size)| size).sum::<usize>();
        self.cells.push_back(FreeingCell { live, left });
        // Each turn empties at least one memory, so this ends.
        while self.bytes > DEFERRED_FREE_BYTES_MAX {
            self.piece(usize::MAX);
        }
    }

    /// Gives back at most `piece` bytes of the oldest ended cell, and frees its slots if no more bytes are left.
    ///
    /// `left` has the stages in order and gives back the last one first, so that popping is cheap.
    /// A slot is released only with its whole cell, because all stages share one store.
    fn piece(&mut self, piece: usize) {
        let Some(FreeingCell { live, left }) = self.cells.front_mut() else { return };
        if let Some((at, left_here)) = left.last_mut() {
            let rest = left_here.saturating_sub(piece).max(self.keep.min(*left_here));
            // No range is tracked while its pages are given back.
            live.disarm_from(*at, rest);
            let Live { stages, store, .. } = live;
            discard(&mut stages[*at].memory.data_mut(store)[rest..*left_here]);
            self.bytes -= *left_here - rest;
            *left_here = rest;
            if rest <= self.keep {
                self.bytes -= rest;
                left.pop();
            }
        }
        if left.is_empty() {
            self.cells.pop_front();
        }
    }

    /// Frees all slots and returns how many cells that were. Dropping a cell lets the pool clean
    /// its slot at once, which takes as long as the deferral was meant to hide: only for a client
    /// that would otherwise be refused.
    pub(super) fn clear(&mut self) -> usize {
        self.bytes = 0;
        let count = self.cells.len();
        self.cells.clear();
        count
    }
}

impl Cells {
    /// Whether ended cells still have memory. If so, call [`Self::free_piece`] periodically.
    #[must_use]
    pub fn is_freeing(&self) -> bool {
        !self.deferred_free.cells.is_empty()
    }

    /// Bytes of memory that ended cells still have.
    #[must_use]
    pub fn deferred_free_bytes(&self) -> usize {
        self.deferred_free.bytes
    }

    /// Gives a piece of the memory of ended cells back to the kernel. The piece grows with what
    /// waits, so that a long backlog is worked off faster.
    pub fn free_piece(&mut self) {
        self.deferred_free
            .piece(DEFERRED_FREE_PIECE_BYTES.max(self.deferred_free.bytes / DEFERRED_FREE_PIECE_PART));
    }
}

#[cfg(test)]
mod tests {
    use crate::cells::{Cells, CellsConfig};
    use crate::images::Images;
    use crate::limits::DEFERRED_FREE_PIECE_BYTES;
    use crate::quotas::Quotas;
    use marram_session::cell::{CellId, Seed};

    #[test]
    fn a_large_cell_goes_piece_by_piece_and_at_once_if_its_slot_is_needed() {
        let module = wat::parse_str(
            r#"(module (memory (export "memory") 256)
                 (func (export "marram_alloc") (param i32) (result i32) (i32.const 0))
                 (func (export "marram_recv") (param i32 i32 i32)))"#,
        )
        .unwrap();
        let dir = std::env::temp_dir().join(format!("marram-cells-deferred-free-{}", std::process::id()));
        let images = Images::open(&dir).unwrap();
        let image = images.load(images.deploy(&module, &[], &Quotas::default()).unwrap().hash).unwrap();
        let mut cells = Cells::new(CellsConfig { slots: 1, ..CellsConfig::default() }).unwrap();
        for cell in [CellId(1), CellId(2)] {
            // The second cell finds the slot although the first was not freed explicitly.
            cells.start(cell, &image, Seed([0; 32])).unwrap();
            cells.remove(cell);
            assert!(cells.is_freeing() && cells.is_empty());
        }
        let pieces = std::iter::from_fn(|| cells.is_freeing().then(|| cells.free_piece())).count();
        assert_eq!(pieces, (256 << 16) / DEFERRED_FREE_PIECE_BYTES);
        cells.start(CellId(3), &image, Seed([0; 32])).unwrap();
        assert!(!cells.is_freeing());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
