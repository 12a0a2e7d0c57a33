//! The coordinator for operators: whether it is there, which edges it knows, and what cannot be done while it is away.

use super::desk::Desk;
use crate::coordinator::View;
use serde_json::{Value, json};
use std::fmt::Write;

/// What is known now.
pub(super) fn shown(desk: &Desk) -> Value {
    let Some(coordinator) = &desk.coordinator else {
        return json!({ "edge": desk.edge, "state": "none" });
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
        "edge": desk.edge,
        "state": if away.is_some() { "away" } else { "there" },
        "store": view.store,
        "away_ms": away.as_ref().map(|(since, _)| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        "why": away.map(|(_, why)| why),
        "cannot": view.cannot,
        "edges": edges.collect::<Vec<_>>(),
        "serves": served,
    })
}

/// Counts as Prometheus reads them.
pub(super) fn prometheus(desk: &Desk) -> String {
    let Some(coordinator) = &desk.coordinator else { return String::new() };
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
        writeln!(out, "# TYPE marram_{name} {kind}\nmarram_{name}{{edge=\"{}\"}} {value}", desk.edge)
            .expect("writing to a string never fails");
    }
    out
}
