//! How many cells a process may have, and how their memory is managed.
//!
//! The pool reserves address space for all slots when the process starts and commits nothing: a
//! slot costs memory when its cell writes.
//!
//! ```text
//! slot 0          slot 1
//! | 4 GiB | guard 32 MiB || 4 GiB | guard | ...        address space, reserved
//! | image pages, copy on write | zero ... |            mapped when a cell starts
//! ```
//! One memory size for all slots lets every image use every slot; the guard pages and 4 GiB make
//! explicit bounds checks unnecessary.

use crate::dirty::{Tracking, pagemap_scan_works};
use crate::limits::{TABLE_ELEMENTS_MAX, TABLES_MAX};
use wasmtime::{Enabled, PoolingAllocationConfig};

/// How a used slot gets the image's pages back. In both cases the next cell cannot see data of the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reset {
    /// Written pages are found by PAGEMAP_SCAN and rewritten in place, so that the next cell does not fault on them.
    /// Falls back to [`Reset::Discard`] where the kernel cannot.
    Rewrite,
    /// All pages are given back to the kernel.
    Discard,
}

/// How many cells a process may have, and how it manages their memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CellsConfig {
    /// Cells that can live at once. Each reserves 4 GiB of address space and takes about four of the mappings that the
    /// kernel grants a process (65,530 unless `vm.max_map_count` says otherwise).
    pub slots: u32,
    /// How dirty pages are found.
    pub tracking: Tracking,
    /// How used slots are cleaned.
    pub reset: Reset,
    /// Bytes of each slot that stay resident between cells under [`Reset::Rewrite`]. More of it
    /// makes the next start faster, and idle slots larger: at most `slots` times this many bytes
    /// stay.
    pub keep_resident: usize,
    /// Whether a debugger gets the code addresses and line information: only for images that were made for a debugger.
    pub debugged: bool,
    /// Whether a handler is preempted after a slice, so that other cells can run. Without it, a handler runs to its end, however
    /// long that takes, and no thread wakes every millisecond: for a program that trusts its only cell.
    pub slices: bool,
}

impl Default for CellsConfig {
    fn default() -> Self {
        Self {
            slots: 2_000,
            tracking: Tracking::Auto,
            reset: Reset::Rewrite,
            keep_resident: 256 << 10,
            debugged: false,
            slices: true,
        }
    }
}

impl CellsConfig {
    /// The engine's pool for this many cells.
    pub(crate) fn pool(&self) -> PoolingAllocationConfig {
        let mut pool = PoolingAllocationConfig::new();
        // A long-lived cell has a driver in addition to its guests.
        pool.total_core_instances(self.slots.saturating_mul(2))
            .total_memories(self.slots)
            .total_tables(self.slots.saturating_mul(TABLES_MAX))
            // A cell keeps one stack for all of its stages, from its first handler on: a preempted
            // handler stays on it, and the stages run one after the other.
            .total_stacks(self.slots)
            .max_tables_per_module(TABLES_MAX)
            .table_elements(TABLE_ELEMENTS_MAX)
            // The engine's own structures for one instance: mostly its globals and its imports. A
            // module with the most globals that deployment accepts must fit.
            .max_core_instance_size(1 << 20)
            .max_memory_size(1 << 32)
            // All slots may stay warm: the memory that this keeps is bounded by `keep_resident`,
            // and `Cells::reclaim` frees it.
            .max_unused_warm_slots(self.slots);
        if self.reset == Reset::Rewrite && pagemap_scan_works() {
            pool.linear_memory_keep_resident(self.keep_resident)
                .table_keep_resident(4_096)
                .pagemap_scan(Enabled::Yes);
        }
        pool
    }
}
