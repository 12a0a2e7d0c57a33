//! The admin API: HTTP for operators, in a thread of its own beside the edge, so that it never delays a session.
//!
//! | request | does | answer |
//! |---|---|---|
//! | `GET /healthz` | checks that the control answers | edge's name |
//! | `GET /metrics` | | Prometheus text |
//! | `GET /v1/edge` | | what the edge, each shard and each app have now |
//! | `POST /v1/apps` | deploys: [`body`] says what to send | name, image, what its sessions survive |
//! | `GET /v1/apps`, `/v1/apps/NAME` | | apps with their manifests |
//! | `DELETE /v1/apps/NAME` | no new sessions of it | |
//! | `GET /v1/sessions`, `/v1/sessions/ID` | | sessions; one, with what it survives, in words |
//! | `POST /v1/sessions/ID/record`, `.../record/redacted` | records it | the record file, without the app |
//! | `DELETE /v1/sessions/ID` | ends it for good | |
//! | `POST /v1/sessions/ID/move/EDGE` | begins to move it, or its backup; `/backup`, `/replace` and `/force` may follow | |
//! | `DELETE /v1/sessions/ID/move` | stops that | |
//! | `GET /v1/moves` | | moves under way, and results of past ones |
//! | `GET /v1/moves/EDGE`, `.../EDGE/SHARD` | | what the move of each session would be; these words as above |
//! | `GET /v1/routes` | | rules of the gates, how often each decided, listeners |
//! | `PUT /v1/routes` | replaces the rules, all at once: `{"routes": [...], "revision": n}` | as above |
//! | `GET /v1/policies` | | replication policies in force, where they come from, how many sessions follow each |
//! | `PUT /v1/policies` | replaces them at this edge by the `[[policy]]` tables of a text | as above, with what has changed |
//! | `POST /v1/policies/plan` | nothing | the same, with what a `PUT` would change |
//! | `DELETE /v1/policies`, `/v1/policies/NAME` | undoes that; removes one at this edge | as above |
//! | `PUT`, `DELETE /v1/coordinator/policies` | sets or removes those of the domain | how many it has |
//! | `DELETE /v1/coordinator/policies/NAME` | removes one of them | how many are left |
//! | `POST /v1/coordinator/policies/plan` | nothing | what a `PUT` would change at this edge |
//! | `GET /v1/standbys/ID` | | the standby of a session of any edge, as the coordinator knows it |
//! | `GET /v1/coordinator` | | whether the coordinator is reachable, what is impossible meanwhile, the edges it knows |
//! | `GET /v1/logs?...` | | the edge's last log lines, and new ones: see `logs.rs` |
//! | `GET /v1/coordinator/cells` | | where the protected shared cells of the apps that are deployed here are |
//! | `POST /v1/coordinator/cells/APP/give-up` | | gives up an app's cell whose edges are gone; `/NAME` behind it for each that is registered and dead; `APP/slots/N` if it has keys |
//! | `POST /v1/coordinator/accept` | | accepts that the coordinator's store has lost decisions |
//! | `GET /v1/drain` | | whether the edge drains, and how each session would leave, if it stopped |
//! | `POST /v1/drain`, `/v1/drain/force` | moves all sessions away, accepts no new ones; the first not if some would have no standby | |
//! | `POST /v1/drain/cancel` | lets the edge go on: what is still there stays, new sessions are accepted | how many sessions stay, moves that were stopped, sessions that are handed over already |
//! | `GET /v1/images/HASH` | | the module, files and quotas behind an image, for another edge |
//! | `GET /v1/images/HASH/app?name=APP` | | the settings of this app with this image, which is or was deployed, for another edge; without `name`, those of one such app |
//!
//! A recorder answers `/healthz`, `/metrics`, `/v1/sessions` and `/v1/logs` in the same way, an agent `/healthz` and `/v1/logs`.
//!
//! Access rules are in `marram_http::Guard`: operators may ask for everything, other edges of the domain for apps and images, a token of
//! its own opens `/metrics`, `/healthz` is open to all, and web pages get nothing.
//!
//! Answers are JSON unless the table says otherwise. A refusal is `{"error": what happened, "fix": how to fix it}`.
//!
//! ```text
//! thread "admin"         accepts, checks the head, reads the body, streams log lines     never blocks
//! "admin-answer" (8)     AdminApi::answer: waits for the control, compiles, reads files   may block
//! thread "admin-boot"    deploys the apps of the start                                    may block
//!        │ ask / answer, with a time limit
//!        ▼
//! the control (`marram_shard::control`) in the supervisor's loop ─▶ shards
//! ```
//!
//! Nothing is remembered here between requests but the token and the directory of deployed apps:
//! what an edge has is asked of its control each time, so the answer is never older than the
//! request.

mod agent;
mod answer;
mod apps;
mod asking;
pub mod body;
mod boot;
mod cells;
mod chains;
pub mod client;
mod coordination;
mod figures;
mod kept;
mod logs;
mod peers;
mod policies;
mod recorder;
mod routes;
mod routing;
mod server;
mod state;
mod token;
mod view;

pub use agent::AgentAdmin;
pub use answer::{Answer, Call};
pub use boot::{AppError, CheckError, check, load};
pub use client::ANSWER_BYTES_MAX;
pub use logs::FOLLOWERS_MAX;
pub use logs::HEARTBEAT;
pub use peers::{FetchError, fetch};
pub use recorder::RecorderAdmin;
pub use routing::Replacement;
pub use server::{
    AdminApi, AdminStartError, BODY_PATIENCE, CONNECTIONS_MAX, HEAD_PATIENCE, WRITE_PATIENCE, serve, start,
};
pub use state::AdminState;
pub use token::TokenError;
