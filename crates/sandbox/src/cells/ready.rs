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
struct WarmPool {
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
pub struct WarmPoolStats {
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
pub(super) struct WarmPools {
    pools: HashMap<ImageHash, WarmPool>,
    /// Cells on all shelves.
    count: usize,
    /// What may be on all shelves.
    most: usize,
    stats: ReadyStats,
}

impl WarmPools {
    /// At most `most` cells on all shelves together.
    pub(super) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub(super) fn stats(&self) -> ReadyStats {
        ReadyStats { ready: self.count, ..self.stats }
    }

    /// Sets up a shelf for an image that clients may ask for.
    pub(super) fn expect(&mut self, image: &Arc<Image>) {
        self.pools.entry(image.hash()).or_insert_with(|| WarmPool {
            image: Arc::clone(image),
            cells: Vec::new(),
            wanted: READY_MIN,
            fewest: 0,
            found: 0,
            missed: 0,
        });
    }

    /// What became of the cells of one image, where clients are expected for it.
    pub(super) fn pool_stats(&self, image: ImageHash) -> Option<WarmPoolStats> {
        let pool = self.pools.get(&image)?;
        Some(WarmPoolStats {
            ready: pool.cells.len(),
            wanted: pool.wanted,
            found: pool.found,
            missed: pool.missed,
        })
    }

    /// Takes a cell from the image's shelf and makes it the one with this seed.
    pub(super) fn take(&mut self, image: ImageHash, seed: Seed) -> Option<Stages> {
        let pool = self.pools.get_mut(&image)?;
        let Some(stages) = pool.cells.pop() else {
            pool.wanted = (pool.wanted * 2).min(READY_MAX);
            pool.missed += 1;
            self.stats.missed += 1;
            return None;
        };
        pool.fewest = pool.fewest.min(pool.cells.len());
        self.count -= 1;
        pool.found += 1;
        self.stats.found += 1;
        stages.reseed(seed);
        Some(stages)
    }

    /// The image whose shelf lacks most of what it should have.
    pub(super) fn lacking(&self) -> Option<Arc<Image>> {
        if self.count >= self.most {
            return None;
        }
        let lacks = |pool: &&WarmPool| pool.wanted.saturating_sub(pool.cells.len());
        let pool = self.pools.values().max_by_key(lacks)?;
        (lacks(&pool) > 0).then(|| Arc::clone(&pool.image))
    }

    /// Puts a cell on its shelf.
    pub(super) fn put(&mut self, image: ImageHash, stages: Stages) {
        if let Some(pool) = self.pools.get_mut(&image) {
            pool.cells.push(stages);
            self.count += 1;
        }
    }

    /// A cell that cannot be started ahead is not tried again until a client asks.
    pub(super) fn give_up(&mut self, image: ImageHash) {
        if let Some(pool) = self.pools.get_mut(&image) {
            pool.wanted = pool.cells.len();
        }
    }

    /// Takes back what nobody needed since this was last called: a quarter of a shelf that was never half empty.
    #[expect(clippy::iter_over_hash_type, reason = "what is done to one pool has no effect on another")]
    pub(super) fn tend(&mut self) {
        for pool in self.pools.values_mut() {
            if pool.fewest * 2 > pool.wanted {
                pool.wanted = (pool.wanted - pool.wanted / 4).max(READY_MIN);
            }
            let surplus = pool.cells.len().saturating_sub(pool.wanted);
            pool.cells.truncate(pool.wanted);
            pool.fewest = pool.cells.len();
            self.count -= surplus;
            self.stats.reclaimed += surplus as u64;
        }
    }

    /// Gives up every cell that nobody has asked for; how many that were.
    #[expect(clippy::iter_over_hash_type, reason = "what is done to one pool has no effect on another")]
    pub(super) fn clear(&mut self) -> usize {
        let cells = std::mem::take(&mut self.count);
        self.stats.reclaimed += cells as u64;
        for pool in self.pools.values_mut() {
            pool.cells.clear();
            pool.wanted = READY_MIN;
            pool.fewest = 0;
        }
        cells
    }

    /// No client will ask for this image any more.
    pub(super) fn forget(&mut self, image: ImageHash) {
        if let Some(pool) = self.pools.remove(&image) {
            self.count -= pool.cells.len();
            self.stats.reclaimed += pool.cells.len() as u64;
        }
    }
}
