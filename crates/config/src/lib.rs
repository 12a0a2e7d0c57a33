//! What people write: configurations and manifests in TOML, turned into what the programs take.
//!
//! Two steps: as written (private structs that mirror the text) and as resolved (what the rest of the binary uses). Every
//! error names file, line, field and fix.
//!
//! ```text
//! file ─Source::read─▶ text ─environment─▶ text with overrides ─serde─▶ `Written*` ─resolve─▶ settings
//!                                                                          (spans)     └──▶ warnings
//! ```
//!
//! - **As written** mirrors the text: every optional field is an `Option`, so that a default has
//!   one place, the `resolve` of its table. Unknown fields are errors (`deny_unknown_fields`): a
//!   misspelt limit must not silently become the default. Fields that a message may point at are
//!   `Spanned`.
//! - **As resolved** holds values that the programs can use without a further check: relations
//!   between fields are checked, files with secrets are read, and paths are joined to the text's
//!   directory.
//!
//! Everything runs once at the start of a command, on its only thread, and may block on small
//! files. Nothing here starts a process, opens a socket or remembers anything. The samples
//! (`*.sample.toml`) explain each field to operators, with its default.

pub mod agent;
mod coordinator;
mod credentials;
pub mod edge;
pub mod environment;
mod hints;
mod keys;
pub mod manifest;
pub mod policies;
pub mod recorder;
pub mod routes;
mod shared;
pub mod source;
pub mod store;
pub mod units;
