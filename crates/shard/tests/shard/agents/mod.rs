//! Hostile agents. Each file is a class of attacks, each test an attack and its containment; docs/red-team.md lists them.
//!
//! During each attack, a session between an honest client's agent and an honest server's agent continues; it must not be
//! affected.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on fails; numbers are made up"
)]

pub(crate) mod frames;
mod roles;
mod sessions;
mod table;
pub(crate) mod world;
