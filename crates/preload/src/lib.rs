//! The library that `marram exec` preloads into a program: connections to configured destinations go to an agent instead, and the
//! program sees its original destination as the peer.
//!
//! [`rules`] chooses the connections, and is ordinary code. `hooks` replaces two functions of the C library, and exists only in
//! the shared object: it allocates no memory, starts no thread, and does not change `errno`. Neither knows what an agent is.

#![no_std]

#[cfg(test)]
extern crate std;

#[cfg(marram_preload)]
mod hooks;
pub mod rules;

/// The environment variable with the rules.
pub const VARIABLE: &str = "MARRAM_EXEC";
