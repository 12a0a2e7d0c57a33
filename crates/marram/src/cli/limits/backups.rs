//! Limits of what has a backup, and of shared cells with keys.

use super::{Row, size, time};
use marram_config::{
    manifest::{SLOTS, SLOTS_MAX},
    policies,
};
use marram_sandbox::limits as sandbox;
use marram_shard::shard;
use marram_wire::limits as wire;
use std::time::Duration;

/// Of apps with one shared cell for each key.
pub(super) fn of_keys() -> [Row; 4] {
    [
        ("the key of a shared cell", size(wire::CELL_KEY_MAX), "the client is refused, with the reason"),
        (
            "slots over which an app's keys are spread (m)",
            format!("{SLOTS}, and at most {SLOTS_MAX}"),
            "the manifest is refused",
        ),
        (
            "cells of keys in one slot",
            shard::CELLS_PER_SLOT_MAX.to_string(),
            "clients with further keys wait, and are then refused",
        ),
        (
            "the cell of a key, without a first client",
            time(Duration::from_nanos(shard::UNUSED_NS)),
            "it ends, unless its slot has no other one",
        ),
    ]
}

/// Of replicas at other edges.
pub(super) fn of_backups() -> [Row; 6] {
    [
        (
            "copies at former owners that a shard reports as not needed until they certainly know",
            shard::UNNEEDED_MAX.to_string(),
            "further ones are reported once; a copy that is not reported stays until `keep.linger` is over",
        ),
        (
            "earlier versions of pages that a cell keeps for its backup",
            format!(
                "1/{} of its memory, and {} at least",
                sandbox::VERSIONS_MEMORY_PART,
                size(sandbox::VERSIONS_BYTES_MIN)
            ),
            "a page that was not written for the longest time is sent whole the next time",
        ),
        ("the same, of all cells", size(sandbox::VERSIONS_BYTES_MAX), "as above"),
        ("policies of an edge", policies::POLICIES_MAX.to_string(), "refused"),
        ("edges that a policy names", policies::TARGETS_MAX.to_string(), "refused"),
        ("groups over which a policy spreads sessions", policies::GROUPS_MAX.to_string(), "refused"),
    ]
}
