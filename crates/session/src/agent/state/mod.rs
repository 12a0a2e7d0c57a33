//! The agent's state. Each structure owns the tables of one subject, keeps them consistent and knows no other subject;
//! none of them sends anything. The agent composes them.

pub(super) mod connections;
pub(super) mod sessions;
pub(super) mod tombstones;
pub(super) mod wires;
