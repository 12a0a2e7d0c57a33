//! Requests and answers of the admin API, without their connections.

use bytes::Bytes;
use hyper::{Method, StatusCode};
use marram_http::{Body, Refusal};
use serde_json::{Value, json};

/// A complete request.
///
/// It has passed the guard, and its whole body is in memory.
pub struct Call {
    /// Handlers match method and path together; an unknown pair is 404, whichever of the two is
    /// unknown.
    pub(super) method: Method,
    pub(super) path: String,
    /// The part after the question mark, if any.
    pub(super) query: String,
    pub(super) body: Bytes,
}

/// A complete answer.
///
/// Its body may be a stream (`Body::Lines`), which then outlives the handler.
pub struct Answer {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    pub(super) body: Body,
}

impl Answer {
    pub(super) fn json(value: &Value) -> Self {
        Self { status: StatusCode::OK, content_type: "application/json", body: line(value).into() }
    }

    /// A file or a recording.
    pub(super) fn bytes(body: Bytes) -> Self {
        Self { status: StatusCode::OK, content_type: "application/octet-stream", body: body.into() }
    }

    /// In Prometheus' text format.
    pub(super) fn text(text: String) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: "text/plain; version=0.0.4",
            body: Bytes::from(text).into(),
        }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        let body = line(&json!({ "error": refusal.error(), "fix": refusal.fix() }));
        Self { status: refusal.status(), content_type: "application/json", body: body.into() }
    }
}

/// One JSON value and a new line, so that the answers of several edges can be concatenated and
/// still be read line by line.
fn line(value: &Value) -> Bytes {
    let mut text = value.to_string();
    text.push('\n');
    text.into()
}
