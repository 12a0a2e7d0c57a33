//! Routes, for operators: lists the rules and how often each decided, and replaces them, all at once.
//!
//! ```text
//! GET  ─▶ {"revision": 4, "routes": [...], ...}
//! PUT  ◀─ {"revision": 4, "routes": [...]}   409 if the rules are of another revision by now
//! ```
//!
//! The revision is optimistic locking: of two operators that edit the same list, the second gets the 409.
//! Rules that are set here last until the next start; the configuration is not changed.

use super::asking::ask;
use super::figures::escaped;
use super::state::AdminState;
use bytes::Bytes;
use hyper::StatusCode;
use marram_agent::{NotReplaced, Routing};
use marram_config::routes::WrittenRoute;
use marram_http::Refusal;
use marram_session::agent::routes::{RouteAction, RouteRule};
use marram_shard::api::Protect;
use marram_shard::control::{ControlAnswer, ControlRequest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A request to replace the rules.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    /// If set, the rules are replaced only if they have this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The new rules.
    pub routes: Vec<WrittenRoute>,
}

/// Rules, listeners and counts.
///
/// Rules and their counts are read at one moment; the counters of listeners are atomics and may be
/// newer.
pub(super) fn list(state: &AdminState) -> Value {
    let (revision, rules, defaults) = state.routing.rules();
    let routes: Vec<WrittenRoute> = rules.iter().map(|(rule, _)| rule.into()).collect();
    let hits: serde_json::Map<String, Value> =
        rules.iter().map(|(rule, hits)| (rule.name.clone(), json!(hits))).collect();
    let load = |count: &AtomicU64| count.load(Relaxed);
    let listeners = state.routing.listeners().map(|(listener, counts)| {
        json!({
            "name": listener.name,
            "address": listener.address.to_string(),
            "protocol": listener.protocol.name(),
            "app": listener.app,
            "begun": load(&counts.begun),
            "refused": load(&counts.refused),
            "flows": load(&counts.flows),
            "flows_refused": load(&counts.flows_refused),
        })
    });
    json!({
        "edge": state.edge,
        "revision": revision,
        "routes": routes,
        "hits": hits,
        "default_hits": defaults,
        "listeners": listeners.collect::<Vec<_>>(),
        "datagrams_dropped": state.routing.datagrams_dropped(),
    })
}

/// Replaces the rules, all at once or not at all. Open sessions are not affected.
pub(super) fn replace(state: &AdminState, body: &Bytes) -> Result<Value, Refusal> {
    let refuse = |status, what: String, fix: &str| Err(Refusal::new(status, what, fix));
    let replacement: Replacement = match serde_json::from_slice(body) {
        Ok(replacement) => replacement,
        Err(error) => {
            let what = format!("the routes cannot be read: {error}");
            return refuse(StatusCode::BAD_REQUEST, what, "send them with `marram route`");
        }
    };
    let mut rules = Vec::new();
    for route in &replacement.routes {
        match route.resolve() {
            Ok(rule) => rules.push(rule),
            Err((field, what)) => {
                return refuse(StatusCode::UNPROCESSABLE_ENTITY, of(&route.name, field, &what), "correct it");
            }
        }
    }
    // An app that is deployed between this check and the replacement was checked against the old
    // rules. A shard then refuses the sessions (`gate_promises_enough` in `marram-shard`).
    promises_kept(state, &rules)?;
    let names: Vec<String> = rules.iter().map(|rule| rule.name.clone()).collect();
    match state.routing.replace(replacement.revision, rules) {
        Ok(revision) => {
            tracing::info!(event = "routes", revision, count = names.len(), "routes are replaced");
            Ok(list(state))
        }
        Err(NotReplaced::Moved(revision)) => refuse(
            StatusCode::CONFLICT,
            format!("the routes were replaced meanwhile and are of revision {revision} now"),
            "look at them and try again",
        ),
        Err(NotReplaced::Refused(refused)) => {
            let name = names.get(refused.index).map_or("", |name| name);
            refuse(StatusCode::UNPROCESSABLE_ENTITY, of(name, refused.field, &refused.what), "correct it")
        }
    }
}

fn of(route: &str, field: &str, what: &str) -> String {
    format!("route `{route}`: `{field}` {what}")
}

/// A gate's sessions end with this edge (docs/protocol.md, "Failure model"): refuses a rule for an app that promises otherwise.
fn promises_kept(state: &AdminState, rules: &[RouteRule]) -> Result<(), Refusal> {
    let ControlAnswer::Apps(apps) = ask(state, ControlRequest::Apps)? else {
        return Err(Refusal::bug("the control gave an unexpected answer"));
    };
    for rule in rules {
        let RouteAction::App(name) = &rule.action else { continue };
        let promises = |app: &&marram_shard::api::App| {
            let reached = state.gates_reach_cell(app.shared, app.protect);
            app.name == *name && app.protect != Protect::None && !reached
        };
        if let Some(app) = apps.iter().find(promises) {
            if app.shared {
                let what = "leads from a gate that reaches this edge alone to an app with one cell in all edges: its clients would wait for \
                            ever for a cell that runs elsewhere";
                let fix = "name the edges that may have the cell in `[gates] edges` of this edge's configuration, this one among them, or let \
                           its clients connect to `marram agent client`";
                return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, of(&rule.name, "app", what), fix));
            }
            let what = format!(
                "leads from a gate of this edge to an app with protect = \"{}\": the client ends of these sessions \
                 would be in this edge and not survive it",
                app.protect.written()
            );
            let fix =
                "let its clients connect to `marram agent client`, or deploy it with protect = \"none\"";
            return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, of(&rule.name, "app", &what), fix));
        }
    }
    Ok(())
}

/// Metrics of an edge's gates in Prometheus' format.
pub(super) fn prometheus(state: &AdminState) -> String {
    metrics(&state.routing, ("edge", &state.edge), "gate")
}

/// The same of an agent.
pub(super) fn prometheus_of_agent(routing: &Routing, name: &str) -> String {
    metrics(routing, ("agent", &escaped(name)), "agent")
}

/// Metrics of a program's listeners and of what its sessions keep. Names of routes and listeners have no character that needs escaping.
fn metrics(routing: &Routing, (kind_of, owner): (&str, &str), prefix: &str) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, lines: &[(String, u64)]| {
        if !lines.is_empty() {
            writeln!(out, "# TYPE marram_{name} {kind}").expect("writing to a string never fails");
        }
        for (labels, value) in lines {
            writeln!(out, "marram_{name}{{{kind_of}=\"{owner}\"{labels}}} {value}")
                .expect("writing to a string never fails");
        }
    };
    let (_, rules, defaults) = routing.rules();
    let hits: Vec<_> =
        rules.iter().map(|(rule, hits)| (format!(",route=\"{}\"", rule.name), *hits)).collect();
    family("route_hits", "counter", &hits);
    family("route_default_hits", "counter", &[(String::new(), defaults)]);
    let of_listeners = |count: fn(&marram_agent::ListenerCounts) -> &AtomicU64| -> Vec<_> {
        let line = |(listener, counts): (&marram_agent::Listener, _)| {
            (format!(",listener=\"{}\"", listener.name), count(counts).load(Relaxed))
        };
        routing.listeners().map(line).collect()
    };
    let mut of_program =
        |name: &str, kind: &str, lines: &[(String, u64)]| family(&format!("{prefix}_{name}"), kind, lines);
    of_program("begun", "counter", &of_listeners(|counts| &counts.begun));
    of_program("refused", "counter", &of_listeners(|counts| &counts.refused));
    of_program("flows", "gauge", &of_listeners(|counts| &counts.flows));
    of_program("flows_refused", "counter", &of_listeners(|counts| &counts.flows_refused));
    of_program("datagrams_dropped", "counter", &[(String::new(), routing.datagrams_dropped())]);
    let memory = routing.memory();
    let one = |count: &AtomicU64| [(String::new(), count.load(Relaxed))];
    of_program("memory_limit_bytes", "gauge", &one(&memory.max));
    of_program("memory_bytes", "gauge", &one(&memory.kept));
    of_program("slowed_sessions", "gauge", &one(&memory.slowed));
    of_program("slowed_total", "counter", &one(&memory.slowed_total));
    out
}
