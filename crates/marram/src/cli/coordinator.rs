//! `marram coordinator`: whether an edge's coordinator is reachable, and the edges that it knows.
//!
//! Each edge is asked for its own view: two edges may disagree, for example while one of them
//! cannot reach the store.

use super::Failure;
use super::operate::{Edges, text};
use marram_node::text::table;
use serde_json::Value;

pub(super) fn run(edges: &Edges) -> Result<(), Failure> {
    edges.list("/v1/coordinator", |answers| answers.iter().map(shown).collect::<Vec<_>>().join("\n"))
}

fn shown(answer: &Value) -> String {
    let edge = text(answer, "edge");
    if answer["state"] == "none" {
        return format!("{edge}: no coordinator; write `[coordinator]` into its configuration\n");
    }
    let mut out = format!("{edge}: the coordinator at {} is ", text(answer, "store"));
    match answer["away_ms"].as_u64() {
        None => out += "reachable\n",
        Some(away_ms) => {
            let cannot: Vec<&str> =
                answer["cannot"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            out += &format!("unreachable for {} s: {}\n", away_ms / 1_000, cannot.join(", "));
            out += &format!("why: {}\n", text(answer, "why"));
        }
    }
    if answer["serves"].is_object() {
        let of = |field: &str| text(&answer["serves"], field);
        let (keys, bytes, leases) = (of("keys"), of("bytes"), of("leases"));
        out += &format!("this edge serves the store: {keys} keys, {bytes} bytes, {leases} leases\n");
    }
    let rows: Vec<Vec<String>> = answer["edges"].as_array().into_iter().flatten().map(row).collect();
    out + &table::format(
        &["EDGE", "ADDRESSES", "ADMIN", "SHARDS", "SESSIONS", "IMAGES", "ACCEPTS SESSIONS"],
        &rows,
    )
}

fn row(edge: &Value) -> Vec<String> {
    let images = edge["images"].as_array().map_or(0, Vec::len);
    let takes = if edge["draining"].as_bool().unwrap_or(false) { "no" } else { "yes" };
    let of = |field: &str| text(edge, field);
    vec![
        of("name"),
        // `text` joins lists as if they were stages.
        of("addresses").replace(" > ", ", "),
        of("admin"),
        of("shards"),
        of("sessions"),
        images.to_string(),
        takes.to_owned(),
    ]
}
