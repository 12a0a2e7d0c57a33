//! `marram coordinator cells` and `give-up`: where the protected shared cells of apps are, and giving one up whose edges are gone.

use super::Failure;
use super::operate::{Edges, PATIENCE, short, text};
use anyhow::anyhow;
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use marram_config::units::Name;
use marram_node::text::table;
use serde_json::Value;
use std::collections::BTreeMap;

/// `marram coordinator give-up`
#[derive(Args)]
pub(super) struct GiveUp {
    /// The app.
    app: Name,
    /// Which slot, of an app with one cell for each key: all cells in it are given up.
    #[arg(long, value_name = "NUMBER")]
    slot: Option<u32>,
    /// An edge of the cell that is registered, and is dead or has lost the cell; repeat it for the other one.
    #[arg(long = "dead", value_name = "NAME")]
    dead: Vec<Name>,
    #[command(flatten)]
    edges: Edges,
}

pub(super) fn list(edges: &Edges) -> Result<(), Failure> {
    edges.list("/v1/coordinator/cells", shown)
}

/// One row for each cell: edges with the same version of an app tell of the same one.
fn shown(answers: &[Value]) -> String {
    let cells = answers.iter().filter_map(|answer| answer["cells"].as_array()).flatten();
    let rows: BTreeMap<(String, String, Option<u64>), Vec<String>> = cells
        .map(|cell| ((text(cell, "app"), text(cell, "image"), cell["slot"].as_u64()), row(cell)))
        .collect();
    let rows: Vec<Vec<String>> = rows.into_values().collect();
    table::format(&["APP", "IMAGE", "SLOT", "PRIMARY", "BACKUP", "STATE"], &rows)
}

fn row(cell: &Value) -> Vec<String> {
    let away: Vec<&str> = cell["away"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let state = match (cell["begun"].as_bool(), cell["waits"].as_bool()) {
        (Some(false), _) => "no client has asked for it".to_owned(),
        (_, Some(true)) => {
            format!("WAITS for {}; if it does not come back: `marram coordinator give-up`", away.join(", "))
        }
        _ if away.is_empty() => "there".to_owned(),
        _ => format!("{} is away", away.join(", ")),
    };
    let of = |field: &str| text(cell, field);
    let slot = cell["slot"].as_u64().map_or_else(|| "-".to_owned(), |slot| slot.to_string());
    vec![of("app"), short(&of("image")).to_owned(), slot, of("primary"), of("backup"), state]
}

pub(super) fn give_up(arguments: &GiveUp) -> Result<(), Failure> {
    if arguments.edges.are_several() {
        let why = "the next client begins the cell at the edge that is asked: name one with --edge";
        return Err(Failure::Usage(anyhow!(why)));
    }
    let slot = arguments.slot.map_or_else(String::new, |slot| format!("/slots/{slot}"));
    let mut path = format!("/v1/coordinator/cells/{}{slot}/give-up", arguments.app.0);
    for Name(edge) in &arguments.dead {
        path += &format!("/{edge}");
    }
    let ask = (&Method::POST, path.as_str(), &Bytes::new());
    arguments.edges.ask_all(ask, 3 * PATIENCE, |answers| given_up(&answers[0]))
}

fn given_up(answer: &Value) -> String {
    let (app, edge) = (text(answer, "app"), text(answer, "edge"));
    if !answer["given_up"].as_bool().unwrap_or(false) {
        return format!("there is nothing to give up: no other edge has the cell of app `{app}`\n");
    }
    let backup = match answer["backup"].as_str() {
        Some(backup) => format!(", with the backup `{backup}`"),
        None => ", without a backup".to_owned(),
    };
    let primary = text(answer, "primary");
    if let Some(slot) = answer["slot"].as_str() {
        return format!(
            "the cells in slot {slot} of app `{app}` are lost: they were at `{primary}`{backup}; the next clients begin new ones at `{edge}`\n"
        );
    }
    format!(
        "the cell of app `{app}` is lost: it was at `{primary}`{backup}; the next client begins a new one at `{edge}`\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cell_that_waits_for_its_edges_is_told_with_the_command() {
        let cell = |app: &str, away: Value, waits: bool| json!({ "app": app, "image": "ab".repeat(32), "begun": true, "primary": "a", "backup": "b", "away": away, "waits": waits });
        let begun = json!({ "app": "c", "image": "cd", "begun": false, "away": [], "waits": false });
        let one = json!({ "cells": [cell("x", json!(["a", "b"]), true), begun] });
        let other = json!({ "cells": [cell("x", json!(["a", "b"]), true), cell("y", json!(["b"]), false)] });
        let text = shown(&[one, other]);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(
            text.contains("WAITS for a, b; if it does not come back: `marram coordinator give-up`"),
            "{text}"
        );
        assert!(text.contains("b is away") && text.contains("no client has asked"), "{text}");
    }

    #[test]
    fn what_is_given_up_is_named() {
        let answer = json!({ "app": "x", "given_up": true, "primary": "a", "backup": null, "edge": "c" });
        assert!(
            given_up(&answer)
                .contains("it was at `a`, without a backup; the next client begins a new one at `c`")
        );
        let answer = json!({ "app": "x", "given_up": false, "edge": "c" });
        assert!(given_up(&answer).contains("nothing to give up"));
    }
}
