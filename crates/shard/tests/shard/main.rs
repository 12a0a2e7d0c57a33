//! The machines of an edge, driven by tests that play agents, shards and clocks.

mod admission;
mod agents;
mod cells;
mod coordinator;
mod drains;
mod edges;
mod late_moves;
mod moves;
mod plans;
mod recalls;
mod refusals;
mod secrets;
mod servers;
mod shared;
mod standbys;
mod support;
