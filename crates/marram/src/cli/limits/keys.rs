//! Limits of apps whose clients have one shared cell for each key, and of servers to which shared cells connect.

use super::{Row, size, time};
use marram_config::manifest;
use marram_shard::shard;
use marram_wire::limits::{CELL_KEY_MAX, CONNECT_ANSWER_NS, CONNECT_NS, CONNECTIONS_MAX};
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
        ("servers that an app may connect to", manifest::SERVERS_MAX.to_string(), "the manifest is refused"),
        (
            "servers that a shared cell is connected to, or connects to, at a time",
            CONNECTIONS_MAX.to_string(),
            "`connect` traps: that ends the session of the client whose input it was, or in a timer or task the cell",
        ),
        (
            "a server that no agent reaches",
            time(Duration::from_nanos(CONNECT_NS)),
            "the cell's port closes, and the edge's log says why",
        ),
        (
            "an agent that does not answer a cell that connects",
            time(Duration::from_nanos(CONNECT_ANSWER_NS)),
            "another agent of the server is asked",
        ),
        ("a key", size(CELL_KEY_MAX), "the client is refused where it connects"),
    ]
}
