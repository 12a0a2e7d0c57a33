//! The admin API of an agent with an admin address: its health, its figures and its log lines. Knows no session.
//!
//! An agent has nothing to deploy and no session that could be addressed from outside. `/v1/logs`
//! is answered by the server for every program (`server.rs`), before this is asked.

use super::answer::{Answer, Call};
use super::routing;
use super::server::AdminApi;
use hyper::{Method, StatusCode};
use marram_agent::Routing;
use marram_http::Refusal;
use serde_json::json;

/// The agent, as seen by its admin API.
#[derive(Clone, Debug)]
pub struct AgentAdmin {
    /// Its listeners, rules and counters.
    pub routing: Routing,
}

impl AdminApi for AgentAdmin {
    fn answer(&self, name: &str, call: &Call) -> Result<Answer, Refusal> {
        match (&call.method, call.path.trim_matches('/')) {
            (&Method::GET, "healthz") => return Ok(Answer::json(&json!({ "agent": name }))),
            (&Method::GET, "metrics") => {
                return Ok(Answer::text(routing::prometheus_of_agent(&self.routing, name)));
            }
            _ => {}
        }
        let what = format!("an agent does not support {} {}", call.method, call.path);
        let fix = "it answers GET /healthz, /metrics and /v1/logs; ask an edge for the rest";
        Err(Refusal::new(StatusCode::NOT_FOUND, what, fix))
    }
}
