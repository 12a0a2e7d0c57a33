//! `marram ps`: lists sessions, with filters and a sort order.
//!
//! The order is applied here, as the filters are (`wanted.rs`). An edge's list is sorted on its own: rows of several edges are
//! not mixed.

use super::operate::{Edges, listing};
use super::wanted::{self, Wanted, age_ms};
use super::{Failure, emit, inspect};
use clap::{Args, ValueEnum};
use marram_node::text::counted;
use serde_json::{Value, json};
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;

/// `marram ps`
#[derive(Args)]
pub(super) struct Ps {
    #[command(flatten)]
    edges: Edges,
    #[command(flatten)]
    wanted: Wanted,
    /// Sort by this field; counts in descending order.
    #[arg(long, value_enum, value_name = "FIELD")]
    sort: Option<Order>,
    /// Identifiers only, each once, as in `marram kill $(marram ps -q --app shop)`.
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    Session,
    App,
    Phase,
    /// The oldest first.
    Age,
    Consumed,
    Produced,
    LogBytes,
    Recoveries,
}

/// Columns, by the names of fields in the answers; `HEADINGS` has their titles, in the same order.
const FIELDS: [&str; 12] = [
    "session",
    "app",
    "phase",
    "shard",
    "age",
    "protect",
    "keepers",
    "consumed",
    "produced",
    "log_bytes",
    "recoveries",
    "stages",
];
/// "Here": those counters begin again when an edge takes a session over.
const HEADINGS: [&str; 12] = [
    "SESSION",
    "APP",
    "PHASE",
    "SHARD",
    "AGE",
    "PROTECT",
    "KEEPERS",
    "CONSUMED HERE",
    "PRODUCED HERE",
    "LOG BYTES",
    "RECOVERIES",
    "STAGES",
];

pub(super) fn run(arguments: &Ps) -> Result<(), Failure> {
    let now_ms = wanted::now_ms();
    let (answers, failed) = arguments.edges.listed("/v1/sessions")?;
    // It is no error, since the app may just have none.
    for line in arguments.wanted.without_sessions(&answers) {
        eprintln!("marram: {line}");
    }
    let answers: Vec<Value> = answers.iter().map(|answer| arguments.choose(answer, now_ms)).collect();
    if arguments.quiet {
        emit(&identifiers(&answers));
    } else if !answers.is_empty() {
        let several = arguments.edges.are_several();
        arguments.edges.show(&answers, || {
            let (mut fields, mut headings) = (FIELDS.to_vec(), HEADINGS.to_vec());
            if rows(&answers).any(|row| row["key"].is_string()) {
                fields.push("key");
                headings.push("KEY");
            }
            if rows(&answers).any(|row| row["clients"].is_u64()) {
                fields.push("clients");
                headings.push("CLIENTS");
            }
            if rows(&answers).any(|row| row["form"].is_string()) {
                fields.push("form_now");
                headings.push("BACKUP GETS");
            }
            // Rarely one moves, and then for a moment.
            if rows(&answers).any(|row| row["moving"].is_string()) {
                fields.push("moving");
                headings.push("MOVES");
            }
            listing(&aged(&answers, now_ms), several, "sessions", &fields, &headings) + &waiting(&answers)
        });
    }
    failed.map_or(Ok(()), Err)
}

/// The line about sessions that edges refuse for now, which are not in their lists.
fn waiting(answers: &[Value]) -> String {
    match answers.iter().filter_map(|answer| answer["waiting"].as_u64()).sum() {
        0 => String::new(),
        count => {
            format!(
                "{} to be admitted; `marram logs` shows why\n",
                counted(count, "session") + if count == 1 { " waits" } else { " wait" }
            )
        }
    }
}

fn rows(answers: &[Value]) -> impl Iterator<Item = &Value> {
    answers.iter().flat_map(|answer| answer["sessions"].as_array()).flatten()
}

/// Each identifier once: a session with a standby is in several lists.
/// For `$(...)` in a shell: one a line and nothing else.
fn identifiers(answers: &[Value]) -> String {
    let (mut seen, mut out) = (BTreeSet::new(), String::new());
    for id in rows(answers).filter_map(|row| row["session"].as_str()) {
        if seen.insert(id) {
            out += &format!("{id}\n");
        }
    }
    out
}

/// With ages in words, for people.
/// `age` is no field of the answers, and `--json` does not have it.
fn aged(answers: &[Value], now_ms: u64) -> Vec<Value> {
    let mut answers = answers.to_vec();
    for row in answers.iter_mut().filter_map(|answer| answer["sessions"].as_array_mut()).flatten() {
        if let Some(age_ms) = age_ms(row, now_ms) {
            row["age"] = json!(inspect::age(age_ms / 1_000));
        }
    }
    answers
}

impl Ps {
    /// The sessions in an edge's answer that match the filters, in the form of the answer.
    /// The answer keeps its other fields, for `--json`.
    fn choose(&self, answer: &Value, now_ms: u64) -> Value {
        let rows = answer["sessions"].as_array().into_iter().flatten();
        let mut rows: Vec<Value> = rows.filter(|row| self.wanted.fits(row, now_ms)).cloned().collect();
        if let Some(order) = self.sort {
            rows.sort_by(|a, b| order.compare(a, b));
        }
        let mut answer = answer.clone();
        answer["sessions"] = rows.into();
        answer
    }
}

impl Order {
    /// Rows without the field come first among texts and last among counts.
    fn compare(self, a: &Value, b: &Value) -> Ordering {
        let by_text = |field: &str| a[field].as_str().cmp(&b[field].as_str());
        let most_first = |field: &str| Reverse(a[field].as_u64()).cmp(&Reverse(b[field].as_u64()));
        match self {
            Self::Session => by_text("session"),
            Self::App => by_text("app"),
            Self::Phase => by_text("phase"),
            Self::Age => a["since_ms"].as_u64().cmp(&b["since_ms"].as_u64()),
            Self::Consumed => most_first("consumed"),
            Self::Produced => most_first("produced"),
            Self::LogBytes => most_first("log_bytes"),
            Self::Recoveries => most_first("recoveries"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arguments, Command};
    use super::*;
    use clap::Parser;

    fn answer() -> Value {
        let row = |session: &str,
                   app: &str,
                   protect: &str,
                   keepers: &[Value],
                   since_ms: u64,
                   consumed: u64| {
            json!({
                "session": session, "app": app, "protect": protect, "keepers": keepers, "since_ms": since_ms,
                "phase": "running", "consumed": consumed, "client_in_gate": session == "a",
                "server_in_gate": false, "server": (session != "c").then_some("host")
            })
        };
        let rows = [
            row("a", "shop", "none", &[], 9_000, 1),
            row("b", "shop", "standby (hot)", &[json!({ "name": "edge-b", "kind": "hot" })], 5_000, 3),
            row("c", "tea", "endpoints", &[], 1_000, 2),
            // A row of a recorder.
            json!({ "session": "d", "app": "tea", "phase": "recorded" }),
        ];
        json!({ "edge": "A", "sessions": rows })
    }

    fn printed(arguments: &str) -> String {
        let words = ["marram", "ps"].into_iter().chain(arguments.split_whitespace());
        let Command::Ps(ps) = Arguments::try_parse_from(words).unwrap().command else {
            panic!("{arguments}")
        };
        identifiers(&[ps.choose(&answer(), 10_000)]).split_whitespace().collect()
    }

    #[test]
    fn what_is_asked_for_is_listed_in_the_order_that_is_asked_for() {
        for (arguments, expected) in [
            ("", "abcd"),
            ("--app shop", "ab"),
            ("--app shop --app tea", "abcd"),
            ("--protect standby", "b"),
            ("--protect warm", ""),
            ("--phase recorded", "d"),
            ("--keeper edge-b", "b"),
            ("--keeper edge", ""),
            ("--keeper none", "ac"),
            ("--client gate", "a"),
            ("--client agent", "bc"),
            ("--server none", "c"),
            ("--server agent", "ab"),
            ("--older 2s", "bc"),
            ("--younger 6s --older 2s", "b"),
            ("--sort consumed", "bcad"),
            ("--sort age --client agent", "cb"),
        ] {
            assert_eq!(printed(arguments), expected, "{arguments}");
        }
    }
}
