//! What `marram exec` has a program load: connections to configured destinations go to an agent instead, and the program is told
//! that they go where it wanted.
//!
//! [`rules`] says which, and is ordinary code. `hooks` puts itself in front of two functions of the C library, and exists only in
//! the shared object: it takes no memory, starts no thread, and leaves `errno` as it was. Refuses to know what an agent is.

#![no_std]

#[cfg(test)]
extern crate std;

#[cfg(marram_preload)]
mod hooks;
pub mod rules;

/// The environment variable that has the rules.
pub const VARIABLE: &str = "MARRAM_EXEC";
