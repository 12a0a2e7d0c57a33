//! The admin API: HTTP for operators, in a thread of its own beside the edge and never in a session's way.
//!
//! | request | does | answer |
//! |---|---|---|
//! | `GET /healthz` | asks the control whether it is there | edge's name |
//! | `GET /metrics` | | Prometheus text |
//! | `GET /v1/edge` | | what the edge, each shard and each app have now |
//! | `POST /v1/apps` | deploys: [`body`] says what to send | name, image, what its sessions survive |
//! | `GET /v1/apps`, `/v1/apps/NAME` | | apps with their manifests |
//! | `DELETE /v1/apps/NAME` | no new sessions of it | |
//! | `GET /v1/sessions`, `/v1/sessions/ID` | | sessions; one, with what it survives, in words |
//! | `POST /v1/sessions/ID/record`, `.../record/redacted` | records it | the record file, without the app |
//! | `DELETE /v1/sessions/ID` | ends it for good | |
//! | `GET /v1/routes` | | rules of the gates, how often each decided, listeners |
//! | `PUT /v1/routes` | replaces the rules, all at once: `{"routes": [...], "revision": n}` | as above |
//! | `GET /v1/standbys/ID` | | who stands by for a session of whichever edge, by what the coordinator was told |
//! | `GET /v1/coordinator` | | whether the coordinator is there, what cannot be done meanwhile, the edges it knows |
//! | `GET /v1/logs?...` | | the last lines that the edge logged, and those to come: `logs.rs` says how |
//! | `POST /v1/drain` | moves everything away, takes nothing new | |
//! | `GET /v1/images/HASH` | | the module, files and quotas behind an image, for another edge |
//! | `GET /v1/images/HASH/app` | | what its app promises, deployed now or once, for another edge |
//!
//! A recorder answers `/healthz`, `/metrics`, `/v1/sessions` and `/v1/logs` in the same way, an agent `/healthz` and `/v1/logs`.
//!
//! Who may ask what is in `access.rs`: operators everything, other edges of the domain their apps and images, a token of its own
//! `/metrics`, everybody `/healthz`, web pages nothing.
//!
//! Answers are JSON where nothing else is said. A refusal is `{"error": what happened, "fix": who can do what}`.

mod access;
mod agent;
mod apps;
pub mod body;
mod boot;
mod chains;
pub mod client;
mod coordination;
mod figures;
mod logs;
mod peers;
mod recorder;
mod routes;
mod routing;
mod server;
mod state;
mod token;
mod view;

pub use access::{Access, Metrics};
pub(crate) use access::{has_a_type, is_no_page, is_own_host, own_names};
pub use agent::AgentAdmin;
pub use boot::{check, load};
pub use client::ANSWER_BYTES_MAX;
pub use logs::FOLLOWERS_MAX;
pub(crate) use logs::HEARTBEAT;
pub use peers::fetch;
pub use recorder::RecorderAdmin;
pub use routes::{Answer, Call, Refusal};
pub use routing::Replacement;
pub use server::{AdminApi, BODY_PATIENCE, CONNECTIONS_MAX, HEAD_PATIENCE, WRITE_PATIENCE, serve, start};
pub use state::AdminState;
