//! The command line of Marram, as a library that tests can call: flags, output, projects, replays and the demo.
//!
//! What the commands start is in the crates below: `marram-node` (edges and recorders), `marram-agent` and `marram-admin`.
//!
//! ```text
//! cli/       one file a command: flags (clap) ─▶ call ─▶ text or JSON       the only place that knows flags
//! exec/      `marram exec`                   replay/   `marram replay`
//! project/   `marram new`, `marram dev`      demo/     `marram demo`
//! failure.rs what a caller can tell apart: exit statuses 1 to 6
//! ```
//!
//! Commands are short-lived and may block. Output for programs (`--json`) and the exit statuses are
//! interfaces; text for people may change with each version.

pub mod cli;
pub mod demo;
pub mod exec;
mod failure;
pub mod project;
pub mod replay;
