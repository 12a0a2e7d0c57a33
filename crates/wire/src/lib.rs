//! Bytes that outlive a process: identifiers, frames, log records, checkpoints, versions and limits.
//!
//! Pure: no clock, socket, thread or randomly ordered map can be named here.
#![no_std]

extern crate alloc;

pub mod id;
