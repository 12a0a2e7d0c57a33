//! Formats of bytes that outlive a process: identifiers, frames, log records, checkpoint headers, seals, versions and limits.
//!
//! Pure: this crate cannot use a clock, a socket, a thread or a randomly ordered map. Every decoder checks lengths before it
//! allocates, and refuses what it does not know.
#![no_std]

extern crate alloc;

mod cipher;
pub mod codec;
pub mod edge_key;
pub mod frame;
pub mod header;
pub mod id;
pub mod key;
pub mod limits;
pub mod log;
pub mod peer;
pub mod random;
pub mod recording;
pub mod rights;
pub mod seal;
pub mod seeded;
