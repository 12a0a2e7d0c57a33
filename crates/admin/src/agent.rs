//! The admin API of an agent with an admin address: its health and its log lines. Knows no session.
//!
//! An agent has nothing to deploy and no session that could be addressed from outside. `/v1/logs`
//! is answered by the server for every program (`server.rs`), before this is asked.

use super::answer::{Answer, Call};
use super::server::AdminApi;
use hyper::{Method, StatusCode};
use marram_http::Refusal;
use serde_json::json;

/// The agent, as seen by its admin API.
#[derive(Clone, Copy, Debug)]
pub struct AgentAdmin;

impl AdminApi for AgentAdmin {
    fn answer(&self, name: &str, call: &Call) -> Result<Answer, Refusal> {
        if call.method == Method::GET && call.path.trim_matches('/') == "healthz" {
            return Ok(Answer::json(&json!({ "agent": name })));
        }
        let what = format!("an agent does not support {} {}", call.method, call.path);
        let fix = "it answers GET /healthz and /v1/logs; ask an edge for the rest";
        Err(Refusal::new(StatusCode::NOT_FOUND, what, fix))
    }
}
