//! The coordinator, for operators: whether it is reachable, which edges it knows, and what is impossible while it is away.
//!
//! It shows the coordinator client's last view (`marram_node::coordinator`), which may be seconds
//! old, and asks the store only for a session's standby. Nothing here changes anything, and no
//! session depends on it.

use super::answer::Answer;
use super::state::AdminState;
use hyper::StatusCode;
use marram_http::Refusal;
use marram_node::coordinator::View;
use marram_shard::coordinator::{Ask, AskAnswer};
use marram_wire::id::SessionId;
use serde_json::{Value, json};
use std::fmt::Write;

/// The present state.
///
/// `state` is "none" without a `[coordinator]`, else "there" or "away"; `why`, `away_ms` and
/// `cannot` describe an absence. `serves` is null unless this edge serves the store.
pub(super) fn shown(state: &AdminState) -> Value {
    let Some(coordinator) = &state.coordinator else {
        return json!({ "edge": state.edge, "state": "none" });
    };
    let view = coordinator.view();
    let away = coordinator.away();
    let edges = view.edges.iter().map(|(name, registration, holds)| {
        let images: Vec<Value> =
            holds.iter().map(|held| json!({ "app": held.app, "image": held.image.to_string() })).collect();
        json!({
            "name": name,
            "addresses": registration.addresses,
            "admin": registration.admin,
            "shards": registration.shards,
            "sessions": registration.sessions,
            "draining": registration.draining,
            "images": images,
        })
    });
    let served = coordinator.served().map(|figures| {
        json!({
            "keys": figures.keys,
            "bytes": figures.bytes,
            "leases": figures.leases,
            "revision": figures.revision,
        })
    });
    json!({
        "edge": state.edge,
        "state": if away.is_some() { "away" } else { "there" },
        "store": view.store,
        "away_ms": away.as_ref().map(|(since, _)| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        "why": away.map(|(_, why)| why),
        "cannot": view.cannot,
        "edges": edges.collect::<Vec<_>>(),
        "serves": served,
    })
}

/// The standby of any edge's session, as the coordinator knows it.
///
/// # Errors
/// With 404 if there is no coordinator or it knows no standby, 503 if it is away.
pub(super) fn stands_by(state: &AdminState, session: SessionId) -> Result<Answer, Refusal> {
    let Some(coordinator) = &state.coordinator else {
        let fix = "write `[coordinator]` into its configuration, or ask the edge that owns the session";
        return Err(Refusal::new(StatusCode::NOT_FOUND, "this edge has no coordinator", fix));
    };
    match coordinator.ask(Ask::Standby { session }) {
        AskAnswer::Standby(Some(found)) => Ok(Answer::json(&json!({
            "session": session.to_string(),
            "owner": found.owner,
            "generation": found.at.generation.to_string(),
            "standby": found.at.standby,
            "hot": found.at.hot,
        }))),
        AskAnswer::Standby(None) => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "the coordinator knows no standby for that session",
            "look with `marram ps`: sessions that are over, or have no standby, are not listed, nor are those of an \
             edge with an expired lease",
        )),
        AskAnswer::Away(why) | AskAnswer::Refused(why) => Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the coordinator gave no answer: {why}"),
            "`marram coordinator` shows its state",
        )),
        other => Err(Refusal::bug(&format!("the coordinator answered {other:?}"))),
    }
}

/// Metrics in Prometheus' format.
pub(super) fn prometheus(state: &AdminState) -> String {
    let Some(coordinator) = &state.coordinator else { return String::new() };
    let View { edges, figures, reports, .. } = coordinator.view();
    let away = coordinator.away();
    let count = |count: usize| count as u64;
    let mut lines = vec![
        ("coordinator_away", "gauge", u64::from(away.is_some())),
        ("coordinator_away_seconds", "gauge", away.map_or(0, |(since, _)| since.as_secs())),
        ("coordinator_edges", "gauge", count(edges.len())),
        ("coordinator_requests_total", "counter", figures.requests),
        ("coordinator_failures_total", "counter", figures.failures),
        ("coordinator_absences_total", "counter", figures.absences),
        ("coordinator_leases_lost_total", "counter", figures.leases_lost),
        ("coordinator_parts_written_total", "counter", figures.parts_written),
        ("coordinator_parts_refused_total", "counter", figures.parts_refused),
        ("coordinator_reports_waiting", "gauge", count(reports.0)),
        ("coordinator_reports_dropped_total", "counter", reports.1),
    ];
    if let Some(served) = coordinator.served() {
        lines.extend([
            ("store_keys", "gauge", count(served.keys)),
            ("store_bytes", "gauge", count(served.bytes)),
            ("store_leases", "gauge", count(served.leases)),
            ("store_revision", "counter", served.revision),
        ]);
    }
    let mut out = String::new();
    for (name, kind, value) in lines {
        writeln!(out, "# TYPE marram_{name} {kind}\nmarram_{name}{{edge=\"{}\"}} {value}", state.edge)
            .expect("writing to a string never fails");
    }
    out
}
