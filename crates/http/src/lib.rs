//! HTTP as the admin API, the coordinator's store and the edges' peers need it: servers with limits, TLS for both sides, and the decision
//! whether a request is allowed by its head alone. Knows no request.
//!
//! ```text
//! accept (limit) ─▶ [TLS 1.3] ─▶ head (time limit) ─▶ Guard::admit ─▶ the caller's answer ─▶ Body
//! server.rs         tls.rs       server.rs            access.rs       (another crate)        server.rs
//! ```
//!
//! Nothing here is on the path of a session: a tokio runtime of its own runs each server, apart
//! from the `mio` loops of shards and agents, so that an operator's slow request delays no message.

mod access;
mod edges;
mod refusal;
mod server;
pub mod tls;

pub use access::{Access, Guard, Metrics, has_a_type, is_no_page, is_own_host, own_names};
pub use edges::{EdgeCaller, EdgeRequest};
pub use refusal::Refusal;
pub use server::{BODY_BYTES_MAX, Body, BodyStream, Server, bearer, is_same, shows};
