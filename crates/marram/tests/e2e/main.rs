//! The product with real processes: edges, agents and recorders that the built program runs, on this machine.
//!
//! One program for all of these tests, since each test program links the whole product. They share its process and run side by
//! side, so a test changes nothing that belongs to the whole process. One that must do that runs in a process of its own
//! ([`support::own_process`]), and one that needs the whole machine has it alone ([`support::turns`]).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cli;
mod develop;
mod epochs;
mod games;
mod keepers;
mod moves;
mod network;
mod operate;
mod recovery;
mod security;
mod services;
mod sessions;
mod support;
