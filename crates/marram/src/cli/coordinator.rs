//! `marram coordinator`: whether an edge's coordinator is reachable, and the edges that it knows; to accept what its store has lost;
//! where shared cells are; and to serve the store without an edge.
//!
//! Each edge is asked for its own view: two edges may disagree, for example while one of them
//! cannot reach the store.

use super::Failure;
use super::cells;
use super::operate::{Edges, PATIENCE, text};
use super::serve;
use bytes::Bytes;
use clap::{Args, Subcommand};
use hyper::Method;
use marram_node::text::table;
use serde_json::Value;

/// `marram coordinator`
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_help_heading = "Actions")]
pub(super) struct Coordinator {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    edges: Edges,
}

/// What else can be done.
#[derive(Subcommand)]
enum Action {
    /// Accept that the store has lost decisions which edges remember: it goes on under a new identity, and edges decide again.
    ///
    /// Before that, make sure that no two edges run the same sessions: stop all but one of each pair. Ask each edge that
    /// `marram coordinator` shows to remember more; edges that are away then must be asked when they are back.
    Accept(Edges),
    /// Show where the protected shared cells of the edges' apps are, and which of their edges are away.
    Cells(Edges),
    /// Give up the cell of an app whose edges are gone: its state is lost, and the next client begins a new one at the edge that is asked.
    ///
    /// It is refused while one of the cell's edges is registered, unless that one is said to be dead.
    GiveUp(cells::GiveUp),
    /// Serve the coordinator's store on a machine without an edge.
    Serve(serve::StoreServer),
}

pub(super) fn run(arguments: &Coordinator) -> Result<(), Failure> {
    match &arguments.action {
        None => {
            let text = |answers: &[Value]| answers.iter().map(shown).collect::<Vec<_>>().join("\n");
            arguments.edges.list("/v1/coordinator", text)
        }
        Some(Action::Accept(edges)) => {
            let ask = (&Method::POST, "/v1/coordinator/accept", &Bytes::new());
            edges.ask_all(ask, 3 * PATIENCE, |answers| {
                format!("the store is now {}: decisions are taken again\n", text(&answers[0], "identity"))
            })
        }
        Some(Action::Cells(edges)) => cells::list(edges),
        Some(Action::GiveUp(arguments)) => cells::give_up(arguments),
        Some(Action::Serve(arguments)) => serve::store(arguments),
    }
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
    if answer["identity"].is_string() {
        let (identity, decisions) = (text(answer, "identity"), text(answer, "decisions"));
        out += &format!("the store is {identity}; decisions: {decisions}\n");
    }
    for doubt in answer["lost"].as_array().into_iter().flatten() {
        let who = doubt["edge"].as_str().map_or("this edge".into(), |edge| format!("edge {edge}"));
        out += &format!(
            "IT HAS LOST DECISIONS: {who} remembers {} of store {}. No decision is taken until `marram coordinator accept`\n",
            text(doubt, "decisions"),
            text(doubt, "identity")
        );
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
