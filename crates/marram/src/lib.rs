//! The binary of Marram, as a library: the I/O (sockets, disks, clocks, processes, flags) around the pure state machines.
//!
//! Nothing here decides about sessions: that is `marram-session` and `marram-edge`. Nothing here names the Wasm engine:
//! that is `marram-sandbox`.

pub mod admin;
pub mod bench;
pub mod cli;
pub mod config;
pub mod coordinator;
pub mod demo;
pub mod edge;
pub mod exec;
pub mod harness;
mod http;
pub mod keys;
pub mod logging;
pub mod manifest;
pub mod memory;
pub mod project;
pub mod recorder;
pub mod replay;
mod tls;
