//! Cells in the sandbox: deployed, run, checkpointed, and attacked.
//!
//! One program for all of these tests, since each test program links the engine. They share its process and run side by side: a
//! test that measures the process runs in one of its own ([`own_process`]).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod allocations;
mod backup_pages;
mod cache;
mod chains;
mod checkpoint;
mod connections;
mod copying;
mod crowd;
mod deploy;
mod driver;
mod files;
mod files_random;
mod languages;
#[path = "../../../marram/tests/e2e/support/own_process.rs"]
mod own_process;
mod peer;
mod ports;
mod processes;
mod ready;
mod red_team;
mod run;
mod services;
mod support;
