//! Giving back the memory of slots that nobody uses: a used slot keeps pages, so that its next cell does not fault on them.

use super::Cells;
use super::bound::Bound;
use super::live::Live;
use marram_session::cell::Seed;
use std::rc::Rc;

impl Cells {
    /// Gives up all cells that were started ahead, and the memory of all slots that nobody uses. Cells that live are not
    /// touched; the next ones start as slowly as the first. Says how many cells were given up and how many slots cleared.
    pub fn reclaim(&mut self) -> (usize, usize) {
        self.deferred_free.clear();
        (self.ready.clear(), self.trim())
    }

    /// Takes each warm slot once more, empties it and lets it go. A slot is found by the image that it had last.
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
                    // It was never used, or it was another image's and is as clean as if it never was.
                    break;
                }
                // Kept until all are found, or the same one would be found again.
                taken.push(live);
            }
        }
        taken.len()
    }

    /// Slots that nobody uses and that had a cell.
    #[must_use]
    pub fn warm_slots(&self) -> usize {
        self.engine.pooling_allocator_metrics().map_or(0, |metrics| metrics.unused_warm_memories() as usize)
    }
}
