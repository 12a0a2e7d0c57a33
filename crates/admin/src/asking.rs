//! Questions to the edge's control. A question without an answer in time is refused.
//!
//! The control runs in the supervisor's loop and asks the shards; a shard that hangs does not
//! answer. A handler must never wait for it without a limit: there are eight threads for all
//! operators.

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
///
/// # Errors
/// With 503. The request may still take effect later, if the control or a shard was only slow.
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
