//! Hostile agents. Each file is a class of attacks, each test an attack and what contains it; docs/red-team.md lists them.
//!
//! A witness goes on beside each: a session between an honest client's agent and an honest server's, which must not notice.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on fails; numbers are made up"
)]

mod frames;
mod roles;
mod sessions;
mod table;
mod world;
