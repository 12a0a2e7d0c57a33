//! Warm pools: cells started ahead of their clients, so that a new session needs to set only its own state.
//!
//! Each image has a pool. It is refilled when the process is idle. A pool that a client finds empty grows; a pool that stays
//! more than half full shrinks. A cell in a pool belongs to no session yet: it has the image's state and no seed.
//!
//! ```text
//! wanted  8 --client finds none--> 16 --> 32 --> ... 512     doubles, at once
//!         8 <--never half empty--- 12 <-- 16                 loses a quarter, at each `tend`
//! ```
//! The fast growth follows a crowd; the slow decay keeps cells for its next wave. The cells of all
//! pools together take at most one slot in `READY_SHARE`, and are given up before a client is
//! refused a slot.

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
    /// The last one put in is taken first: its pages are most likely in the processor's caches.
    cells: Vec<Stages>,
    /// Target size of the pool.
    wanted: usize,
    /// The smallest size since the last [`WarmPools::tend`].
    fewest: usize,
    /// Clients that found a cell in the pool; `missed` counts those that did not.
    found: u64,
    missed: u64,
}

/// Statistics of cells that were started ahead.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ReadyStats {
    /// Cells in all pools now.
    pub ready: usize,
    /// Clients that found a ready cell.
    pub found: u64,
    /// Clients that had to wait until their cell was started.
    pub missed: u64,
    /// Cells removed because the memory was needed, or no client came.
    pub reclaimed: u64,
}

/// Statistics of one image's pool, since clients were first expected.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct WarmPoolStats {
    /// Cells in the pool now.
    pub ready: usize,
    /// Target size of the pool.
    pub wanted: usize,
    /// Clients that found a ready cell.
    pub found: u64,
    /// Clients that had to wait until their cell was started.
    pub missed: u64,
}

/// All pools of a process.
#[derive(Default)]
pub(super) struct WarmPools {
    /// A pool stays while its image is expected, also when it is empty.
    pools: HashMap<ImageHash, WarmPool>,
    /// Cells in all pools.
    count: usize,
    /// Most cells in all pools together.
    most: usize,
    stats: ReadyStats,
}

impl WarmPools {
    /// Holds at most `most` cells in all pools together.
    pub(super) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub(super) fn stats(&self) -> ReadyStats {
        ReadyStats { ready: self.count, ..self.stats }
    }

    /// Creates a pool for an image that clients may ask for.
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

    /// Statistics of one image, if clients are expected for it.
    pub(super) fn pool_stats(&self, image: ImageHash) -> Option<WarmPoolStats> {
        let pool = self.pools.get(&image)?;
        Some(WarmPoolStats {
            ready: pool.cells.len(),
            wanted: pool.wanted,
            found: pool.found,
            missed: pool.missed,
        })
    }

    /// Takes a cell from the image's pool and gives it this seed.
    ///
    /// The seed is what makes the cell the session's: until then no byte in it differs from any
    /// other cell of the image.
    pub(super) fn take(&mut self, image: ImageHash, seed: Seed) -> Option<Stages> {
        let pool = self.pools.get_mut(&image)?;
        let Some(stages) = pool.cells.pop() else {
            // It is 0 after `give_up`.
            pool.wanted = (pool.wanted * 2).clamp(READY_MIN, READY_MAX);
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

    /// The image whose pool lacks the most cells. `None` if no pool lacks any, or all of them
    /// together have reached their maximum.
    pub(super) fn lacking(&self) -> Option<Arc<Image>> {
        if self.count >= self.most {
            return None;
        }
        let lacks = |pool: &&WarmPool| pool.wanted.saturating_sub(pool.cells.len());
        let pool = self.pools.values().max_by_key(lacks)?;
        (lacks(&pool) > 0).then(|| Arc::clone(&pool.image))
    }

    /// Puts a cell into its pool. If the pool was forgotten meanwhile, the cell is dropped.
    pub(super) fn put(&mut self, image: ImageHash, stages: Stages) {
        if let Some(pool) = self.pools.get_mut(&image) {
            pool.cells.push(stages);
            self.count += 1;
        }
    }

    /// Does not try again to start a cell ahead for this image until a client asks.
    pub(super) fn give_up(&mut self, image: ImageHash) {
        if let Some(pool) = self.pools.get_mut(&image) {
            pool.wanted = pool.cells.len();
        }
    }

    /// Shrinks pools by cells that were not needed since the last call: a pool that was never half empty loses a quarter.
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

    /// Removes every cell that has no client, and returns how many that were.
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

    /// Removes the pool of an image that no client will ask for any more.
    pub(super) fn forget(&mut self, image: ImageHash) {
        if let Some(pool) = self.pools.remove(&image) {
            self.count -= pool.cells.len();
            self.stats.reclaimed += pool.cells.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::Images;
    use crate::quotas::Quotas;

    #[test]
    fn a_pool_that_was_given_up_grows_again_when_a_client_asks() {
        let place = std::env::temp_dir().join(format!("marram-warm-pool-{}", std::process::id()));
        let images = Images::open(&place).unwrap();
        let module = wat::parse_str(
            r#"(module (memory (export "memory") 1)
                 (func (export "marram_alloc") (param i32) (result i32) (i32.const 4096))
                 (func (export "marram_recv") (param i32 i32 i32)))"#,
        );
        let info = images.deploy(&module.unwrap(), &[], &Quotas::default()).unwrap();
        let image = images.load(info.hash).unwrap();
        let mut pools = WarmPools::new(READY_MAX);
        pools.expect(&image);
        assert!(pools.lacking().is_some());
        pools.give_up(info.hash);
        assert!(pools.lacking().is_none());
        assert!(pools.take(info.hash, Seed([1; 32])).is_none());
        assert!(pools.lacking().is_some(), "a client has asked");
        std::fs::remove_dir_all(&place).unwrap();
    }
}
