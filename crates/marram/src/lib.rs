//! The command line of Marram, as a library that tests can call: flags, output, projects, replays and the demo.
//!
//! What the commands start is in the crates below: `marram-node` (edges and recorders), `marram-agent` and `marram-admin`.

pub mod cli;
pub mod demo;
pub mod exec;
pub mod failure;
pub mod project;
pub mod replay;
