//! An edge: [`shard::Shard`] (one per core) and [`control::Control`], which make all decisions and do no I/O.
//!
//! Pure: requests to sockets, disks, clocks and Wasm, and their answers, are values ([`api`]).
#![no_std]

extern crate alloc;

pub mod api;
mod app_version;
mod byte_enum;
pub mod cache;
pub mod control;
pub mod coordinator;
mod note_level;
mod policies;
pub mod ring;
pub mod run_queue;
pub mod shard;
pub mod suggest;
mod traffic;
