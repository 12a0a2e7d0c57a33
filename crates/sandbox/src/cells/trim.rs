//! Frees the memory of unused slots: a used slot keeps pages, so that its next cell does not fault on them.
//!
//! The engine offers no call for that. So each warm slot is taken as for a cell, its pages are
//! given back with `madvise`, and it is released: what the pool then keeps is empty.

use super::Cells;
use super::bound::Bound;
use super::live::Live;
use marram_session::cell::Seed;
use std::rc::Rc;

impl Cells {
    /// Removes all cells that were started ahead, and frees the memory of all unused slots. Live cells are not touched; the next
    /// cells start as slowly as the first. Returns how many cells were removed and how many slots were cleared.
    pub fn reclaim(&mut self) -> (usize, usize) {
        self.deferred_free.clear();
        (self.ready.clear(), self.trim())
    }

    /// Takes each warm slot once more, empties it and releases it. A slot is found by the image that it last had.
    ///
    /// The engine prefers the slot that last had the image which is asked for, and it counts unused
    /// warm slots: when taking one does not lower that number, no slot of this image is left.
    fn trim(&mut self) -> usize {
        let images: Vec<Rc<Bound>> = self.bound.values().cloned().collect();
        let mut taken = Vec::new();
        for image in images {
            loop {
                let warm = self.warm_slots();
                let (one, seed) = (std::slice::from_ref(&image), Seed([0; 32]));
                let live = Live::start(one, false, &self.drivers, seed, &self.method, self.ticker.watch());
                let Ok(mut live) = live else { break };
                live.discard();
                if self.warm_slots() >= warm {
                    // The slot was never used, or had another image and is as clean as a new one.
                    break;
                }
                // Held until all are found, otherwise the same slot would be found again.
                taken.push(live);
            }
        }
        taken.len()
    }

    /// Unused slots that had a cell.
    #[must_use]
    pub fn warm_slots(&self) -> usize {
        self.engine.pooling_allocator_metrics().map_or(0, |metrics| metrics.unused_warm_memories() as usize)
    }
}
