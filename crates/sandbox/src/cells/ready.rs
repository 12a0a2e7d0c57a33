//! Cells started ahead of their clients, so that a new one finds everything but its own state in place.
//!
//! Each image has a shelf. What was taken is put back when the process has nothing better to do; a shelf that was found
//! empty gets longer, one that nobody empties shorter. None of it is anybody's yet: a cell on a shelf has the image's
//! state and no seed.

use super::stages::Stages;
use crate::chain::Image;
use crate::limits::{READY_MAX, READY_MIN};
use marram_session::cell::Seed;
use marram_wire::id::ImageHash;
use std::collections::HashMap;
use std::sync::Arc;

/// Cells of one image.
struct Shelf {
    image: Arc<Image>,
    cells: Vec<Stages>,
    /// How many there should be.
    wanted: usize,
    /// The fewest that there were since this was last looked at.
    fewest: usize,
    /// Clients that found one, and that did not.
    found: u64,
    missed: u64,
}

/// What became of cells that were started ahead.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ReadyStats {
    /// On the shelves now.
    pub ready: usize,
    /// Clients that found one.
    pub found: u64,
    /// Clients that had to wait for theirs to be started.
    pub missed: u64,
    /// Given up because the room was needed, or nobody came.
    pub reclaimed: u64,
}

/// What became of those of one image, since clients were expected for it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ShelfStats {
    /// On its shelf now.
    pub ready: usize,
    /// How many are to be there.
    pub wanted: usize,
    /// Clients that found one.
    pub found: u64,
    /// Clients that had to wait for theirs to be started.
    pub missed: u64,
}

/// All shelves of a process.
#[derive(Default)]
pub(super) struct Ready {
    shelves: HashMap<ImageHash, Shelf>,
    /// Cells on all shelves.
    count: usize,
    /// What may be on all shelves.
    most: usize,
    stats: ReadyStats,
}

impl Ready {
    /// At most `most` cells on all shelves together.
    pub(super) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub(super) fn stats(&self) -> ReadyStats {
        ReadyStats { ready: self.count, ..self.stats }
    }

    /// Sets up a shelf for an image that clients may ask for.
    pub(super) fn expect(&mut self, image: &Arc<Image>) {
        self.shelves.entry(image.hash()).or_insert_with(|| Shelf {
            image: Arc::clone(image),
            cells: Vec::new(),
            wanted: READY_MIN,
            fewest: 0,
            found: 0,
            missed: 0,
        });
    }

    /// What became of the cells of one image, where clients are expected for it.
    pub(super) fn shelf_stats(&self, image: ImageHash) -> Option<ShelfStats> {
        let shelf = self.shelves.get(&image)?;
        Some(ShelfStats {
            ready: shelf.cells.len(),
            wanted: shelf.wanted,
            found: shelf.found,
            missed: shelf.missed,
        })
    }

    /// Takes a cell from the image's shelf and makes it the one with this seed.
    pub(super) fn take(&mut self, image: ImageHash, seed: Seed) -> Option<Stages> {
        let shelf = self.shelves.get_mut(&image)?;
        let Some(stages) = shelf.cells.pop() else {
            shelf.wanted = (shelf.wanted * 2).min(READY_MAX);
            shelf.missed += 1;
            self.stats.missed += 1;
            return None;
        };
        shelf.fewest = shelf.fewest.min(shelf.cells.len());
        self.count -= 1;
        shelf.found += 1;
        self.stats.found += 1;
        stages.reseed(seed);
        Some(stages)
    }

    /// The image whose shelf lacks most of what it should have.
    pub(super) fn lacking(&self) -> Option<Arc<Image>> {
        if self.count >= self.most {
            return None;
        }
        let lacks = |shelf: &&Shelf| shelf.wanted.saturating_sub(shelf.cells.len());
        let shelf = self.shelves.values().max_by_key(lacks)?;
        (lacks(&shelf) > 0).then(|| Arc::clone(&shelf.image))
    }

    /// Puts a cell on its shelf.
    pub(super) fn put(&mut self, image: ImageHash, stages: Stages) {
        if let Some(shelf) = self.shelves.get_mut(&image) {
            shelf.cells.push(stages);
            self.count += 1;
        }
    }

    /// A cell that cannot be started ahead is not tried again until a client asks.
    pub(super) fn give_up(&mut self, image: ImageHash) {
        if let Some(shelf) = self.shelves.get_mut(&image) {
            shelf.wanted = shelf.cells.len();
        }
    }

    /// Takes back what nobody needed since this was last called: a quarter of a shelf that was never half empty.
    #[expect(clippy::iter_over_hash_type, reason = "what is done to one shelf has no effect on another")]
    pub(super) fn tend(&mut self) {
        for shelf in self.shelves.values_mut() {
            if shelf.fewest * 2 > shelf.wanted {
                shelf.wanted = (shelf.wanted - shelf.wanted / 4).max(READY_MIN);
            }
            let surplus = shelf.cells.len().saturating_sub(shelf.wanted);
            shelf.cells.truncate(shelf.wanted);
            shelf.fewest = shelf.cells.len();
            self.count -= surplus;
            self.stats.reclaimed += surplus as u64;
        }
    }

    /// Gives up every cell that nobody has asked for; how many that were.
    #[expect(clippy::iter_over_hash_type, reason = "what is done to one shelf has no effect on another")]
    pub(super) fn clear(&mut self) -> usize {
        let cells = std::mem::take(&mut self.count);
        self.stats.reclaimed += cells as u64;
        for shelf in self.shelves.values_mut() {
            shelf.cells.clear();
            shelf.wanted = READY_MIN;
            shelf.fewest = 0;
        }
        cells
    }

    /// No client will ask for this image any more.
    pub(super) fn forget(&mut self, image: ImageHash) {
        if let Some(shelf) = self.shelves.remove(&image) {
            self.count -= shelf.cells.len();
            self.stats.reclaimed += shelf.cells.len() as u64;
        }
    }
}
