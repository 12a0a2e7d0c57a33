//! Questions to the edge's control. A question without an answer in time is refused.

use super::state::AdminState;
use hyper::StatusCode;
use marram_http::Refusal;
use marram_node::edge::AskError;
use marram_shard::control::{ControlAnswer, ControlRequest};
use std::time::Duration;

/// How long shards may take to answer a request.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks the control.
pub(super) fn ask(state: &AdminState, request: ControlRequest) -> Result<ControlAnswer, Refusal> {
    ask_patiently(state, request, PATIENCE)
}

/// Asks the control, which may take this long to answer.
pub(super) fn ask_patiently(
    state: &AdminState,
    request: ControlRequest,
    patience: Duration,
) -> Result<ControlAnswer, Refusal> {
    state.control.ask(request, patience).map_err(|error| {
        let fix = match error {
            AskError::Busy | AskError::Overdue => "try again in a moment",
            AskError::Stopped => "ask another edge",
        };
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string(), fix)
    })
}
