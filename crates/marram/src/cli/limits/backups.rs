//! Limits of what has a backup.

use super::{Row, size, time};
use marram_config::{manifest, policies};
use marram_sandbox::limits as sandbox;
use marram_shard::{api::POLICIES_MAX, shard};

/// Of replicas at other edges.
pub(super) fn of_backups() -> [Row; 12] {
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
        ("policies of an edge", POLICIES_MAX.to_string(), "refused"),
        ("edges that a policy names", policies::TARGETS_MAX.to_string(), "refused"),
        ("groups over which a policy spreads sessions", policies::GROUPS_MAX.to_string(), "refused"),
        (
            "sessions of a shard that a policy moves in a second onto an edge that joins",
            policies::REBALANCE_MAX.to_string(),
            "refused",
        ),
        (
            "sessions measured for policies that a shard looks at before it handles other events",
            shard::LOOKS_MAX.to_string(),
            "the others follow",
        ),
        (
            "between two epochs (m: epoch.every)",
            time(manifest::EVERY),
            "the backup gets what the cell did, and outputs leave",
        ),
        (
            "the same, in a manifest or policy",
            format!("{} us to {}", manifest::EVERY_MIN.as_micros(), time(manifest::EVERY_MAX)),
            "refused",
        ),
        (
            "a session whose backup is gone (m: epoch.alone_after)",
            time(manifest::ALONE_AFTER),
            "its outputs leave without one, and it is lost with its edge",
        ),
        ("the same, at most", time(manifest::ALONE_AFTER_MAX), "refused"),
    ]
}
