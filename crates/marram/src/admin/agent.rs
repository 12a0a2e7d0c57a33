//! What operators can ask an agent that has an address for them: whether it is there, and what it logged. Knows no session.

use super::routes::{Answer, Call, Refusal};
use super::server::Site;
use hyper::{Method, StatusCode};
use serde_json::json;

/// The agent, as seen by its admin API.
#[derive(Clone, Debug)]
pub struct AgentDesk {
    /// Its name.
    pub name: String,
    /// What must be shown as `Authorization: Bearer ...`, if anything.
    pub token: Option<String>,
}

impl Site for AgentDesk {
    fn name(&self) -> &str {
        &self.name
    }

    fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    fn answer(&self, call: &Call) -> Result<Answer, Refusal> {
        if call.method == Method::GET && call.path.trim_matches('/') == "healthz" {
            return Ok(Answer::json(&json!({ "agent": self.name })));
        }
        let what = format!("an agent has no {} {}", call.method, call.path);
        let fix = "it answers GET /healthz and /v1/logs; ask an edge for the rest";
        Err(Refusal::new(StatusCode::NOT_FOUND, what, fix))
    }
}
