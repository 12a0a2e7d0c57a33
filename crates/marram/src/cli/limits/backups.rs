//! Limits of what has a backup.

use super::{Row, size};
use marram_config::policies;
use marram_sandbox::limits as sandbox;
use marram_shard::{api::POLICIES_MAX, shard};

/// Of replicas at other edges.
pub(super) fn of_backups() -> [Row; 7] {
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
            "sessions measured for policies that a shard looks at before it handles other events",
            shard::LOOKS_MAX.to_string(),
            "the others follow",
        ),
    ]
}
