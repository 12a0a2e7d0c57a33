//! Limits of apps whose clients have one shared cell for each key.

use super::{Row, size, time};
use marram_config::manifest;
use marram_shard::shard;
use marram_wire::limits::CELL_KEY_MAX;
use std::time::Duration;

/// A row for each.
pub(super) fn rows() -> Vec<Row> {
    vec![
        (
            "slots that the keys of an app are spread over (m)",
            manifest::SLOTS.to_string(),
            "several keys share a slot",
        ),
        ("the same, at most", manifest::SLOTS_MAX.to_string(), "the manifest is refused"),
        (
            "cells of a slot",
            shard::CELLS_PER_SLOT_MAX.to_string(),
            "a client with another key is answered that its slot is full, and asks again; one with a key that has a cell joins it",
        ),
        (
            "slots that a shard has, or has asked for",
            shard::SLOTS_MAX.to_string(),
            "the oldest answer is forgotten; if the shard has all of them, a client of a further one is answered that it is full",
        ),
        (
            "a cell that runs, without a first client",
            time(Duration::from_nanos(shard::UNUSED_NS)),
            "it ends, unless its slot has no other one",
        ),
        ("a key", size(CELL_KEY_MAX), "the client is refused where it connects"),
    ]
}
