//! What people write: configurations and manifests in TOML, turned into what the programs take.
//!
//! Two steps: as written (private structs that mirror the text) and as resolved (what the rest of the binary uses). Every
//! error names file, line, field and fix.

pub mod agent;
mod coordinator;
mod credentials;
pub mod edge;
pub mod environment;
mod hints;
mod keys;
pub mod manifest;
pub mod recorder;
pub mod routes;
mod shared;
pub mod source;
pub mod units;
