//! The coordinator, for operators: whether it is reachable, which edges it knows, and what is impossible while it is away.
//!
//! It shows the coordinator client's last view (`marram_node::coordinator`), which may be seconds
//! old, and asks the store only for a session's standby. No session depends on it. The one change is
//! that an operator accepts what the store has lost.

use super::answer::Answer;
use super::state::AdminState;
use data_encoding::HEXLOWER;
use hyper::StatusCode;
use marram_http::Refusal;
use marram_node::coordinator::{Coordinator, View};
use marram_shard::coordinator::{Ask, AskAnswer, Remembers};
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
            "has_store": registration.has_store,
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
        "identity": view.shown.as_ref().map(|mark| HEXLOWER.encode(&mark.identity)),
        "decisions": view.shown.as_ref().map(|mark| mark.decisions),
        "lost": view.doubts.iter().map(doubt).collect::<Vec<_>>(),
        "edges": edges.collect::<Vec<_>>(),
        "serves": served,
    })
}

/// The coordinator, if there is one.
pub(super) fn coordinator(state: &AdminState) -> Result<&Coordinator, Refusal> {
    state.coordinator.as_ref().ok_or_else(|| {
        let fix = "ask an edge whose configuration has `[coordinator]`";
        Refusal::new(StatusCode::NOT_FOUND, "this edge has no coordinator", fix)
    })
}

/// Why the coordinator's answer is none.
pub(super) fn no_answer(answer: AskAnswer) -> Refusal {
    match answer {
        AskAnswer::Away(why) | AskAnswer::Refused(why) => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the coordinator gave no answer: {why}"),
            "`marram coordinator` shows its state",
        ),
        other => Refusal::bug(&format!("the coordinator answered {other:?}")),
    }
}

/// What an edge remembers and the store has lost.
fn doubt(doubt: &Remembers) -> Value {
    json!({
        "edge": doubt.edge,
        "identity": HEXLOWER.encode(&doubt.mark.identity),
        "decisions": doubt.mark.decisions,
    })
}

/// Accepts what the store has lost, and tells its new identity.
///
/// # Errors
/// With 404 if there is no coordinator, 409 if it has lost nothing, 503 if it is away.
pub(super) fn accept(state: &AdminState) -> Result<Answer, Refusal> {
    let coordinator = coordinator(state)?;
    if coordinator.view().doubts.is_empty() {
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            "the coordinator's store has lost nothing that this edge knows of",
            "`marram coordinator` at each edge shows which of them remembers more than the store has",
        ));
    }
    match coordinator.accept().map_err(|error| Refusal::bug(&error.to_string()))? {
        (AskAnswer::Done, identity) => Ok(Answer::json(&json!({ "identity": HEXLOWER.encode(&identity) }))),
        (AskAnswer::Away(why) | AskAnswer::Refused(why), _) => Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the coordinator gave no answer: {why}"),
            "`marram coordinator` shows its state",
        )),
        (other, _) => Err(Refusal::bug(&format!("the coordinator answered {other:?}"))),
    }
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
    let View { edges, figures, reports, shown, doubts, .. } = coordinator.view();
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
        ("coordinator_groups_removed_total", "counter", figures.groups_removed),
        ("coordinator_reports_waiting", "gauge", count(reports.0)),
        ("coordinator_reports_dropped_total", "counter", reports.1),
        ("coordinator_decisions", "gauge", shown.map_or(0, |mark| mark.decisions)),
        ("coordinator_lost", "gauge", count(doubts.len())),
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
