//! One session: its log, its two ends, the edge in the middle, release rules, recovery.
//!
//! Pure: running a cell is an effect ([`cell::Run`] out, [`cell::Ran`] in), answered by the Wasm executor or by a
//! fake of a few lines, so protocol tests run in microseconds. This crate does not know the sandbox.
#![no_std]

extern crate alloc;

pub mod agent;
pub mod budget;
pub mod bug;
pub mod cell;
mod credit;
pub mod dialer;
pub mod end;
pub mod invariant;
pub mod learned;
pub mod owner;
pub mod recorder;
pub mod replay;
mod schedule;
pub mod shared;
pub mod trace;
