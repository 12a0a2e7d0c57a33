//! The coordinator's store against a small model, and edges' clients against the store, with faults between them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod clients;
mod store;
