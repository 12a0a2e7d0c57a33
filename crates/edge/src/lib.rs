//! An edge: [`shard::Shard`] (one a core) and [`control::Control`], which decide everything and touch nothing.
//!
//! Pure: sockets, disks, clocks and Wasm are asked for and answered as values ([`api`]).
#![no_std]

extern crate alloc;

pub mod api;
pub mod cache;
pub mod control;
pub mod coordinator;
pub mod ring;
pub mod run_queue;
pub mod shard;
pub mod suggest;
