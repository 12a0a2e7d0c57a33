//! The command line and the files that people write: commands, configurations, manifests, and the messages about mistakes
//! in them.

mod commands;
mod config;
mod mistakes;
mod mistakes_running;
