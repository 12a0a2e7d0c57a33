//! `marram move`: sends running sessions to another edge, or another shard of their edge, and waits until they are there.
//!
//! The edge that has a session begins the move, and knows its result afterwards. This command begins all moves, then asks for the
//! list of moves until it has the result of each.

use super::Failure;
use super::operate::{Edges, text};
use anyhow::anyhow;
use clap::Args;
use hyper::Method;
use marram_config::units::Name;
use marram_node::text::{counted, table};
use marram_shard::api::Destination;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// Time between two questions for results.
const POLL: Duration = Duration::from_millis(100);
/// Time between two lines about what is left.
const REPORT: Duration = Duration::from_secs(1);

/// `marram move`
#[derive(Args)]
pub(super) struct Move {
    /// Sessions' identifiers, as `marram ps` shows them, or their first digits.
    #[arg(required_unless_present = "apps", value_name = "SESSION")]
    sessions: Vec<String>,
    /// All sessions of this app that the asked edges have; repeat it for several.
    #[arg(long = "app", value_name = "NAME")]
    apps: Vec<Name>,
    /// The edge to which they move, or one shard of an edge: also of the edge where they are.
    #[arg(long, value_name = "EDGE[/SHARD]", required_unless_present = "cancel")]
    to: Option<Destination>,
    /// Stop the moves of these sessions: those that are not handed over yet stay.
    #[arg(long, conflicts_with_all = ["to", "no_wait", "dry_run"])]
    cancel: bool,
    /// Let the new move replace one of the same session to another edge that is not handed over yet, instead of being refused.
    #[arg(long, conflicts_with = "cancel")]
    replace: bool,
    /// Print which sessions would be moved, and move none.
    #[arg(long)]
    dry_run: bool,
    /// Return when the moves have begun.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    edges: Edges,
}

pub(super) fn run(arguments: &Move) -> Result<(), Failure> {
    let sessions = arguments.chosen()?;
    let to = &arguments.to.as_ref().map(Destination::to_string).unwrap_or_default()[..];
    let mut results = Results::default();
    for session in &sessions {
        let asked = if arguments.dry_run {
            Ok(())
        } else if arguments.cancel {
            arguments.edges.ask_first(&Method::DELETE, &format!("/v1/sessions/{session}/move")).map(drop)
        } else {
            let replace = if arguments.replace { "/replace" } else { "" };
            let path = format!("/v1/sessions/{session}/move/{to}{replace}");
            arguments.edges.ask_first(&Method::POST, &path).map(drop)
        };
        let state = match (arguments.cancel, arguments.dry_run) {
            (true, _) => "cancelled",
            (_, true) => "would move",
            _ => "begun",
        };
        results.begun(session, to, asked.map(|()| state));
    }
    if !(arguments.cancel || arguments.dry_run || arguments.no_wait) {
        results.wait(&arguments.edges)?;
    }
    arguments.edges.show(&results.rows(), || results.table());
    Failure::all(results.failures).map_or(Ok(()), Err)
}

impl Move {
    /// The sessions that the command line names, and those of its apps that are not at the edge yet.
    fn chosen(&self) -> Result<Vec<String>, Failure> {
        let mut chosen: Vec<String> =
            self.sessions.iter().map(|session| self.edges.whole(session)).collect::<Result<_, _>>()?;
        if self.apps.is_empty() {
            return Ok(chosen);
        }
        let (answers, failed) = self.edges.listed("/v1/sessions")?;
        if let Some(failed) = failed {
            return Err(failed);
        }
        for answer in &answers {
            let is_there = |row: &Value| self.to.as_ref().is_some_and(|to| is_at(to, answer, row));
            let rows = answer["sessions"].as_array().into_iter().flatten().filter(|row| !is_there(row));
            let of_app = |row: &&Value| self.apps.iter().any(|Name(app)| row["app"] == app.as_str());
            let owned = |row: &&Value| row["phase"] != "standing by";
            chosen.extend(rows.filter(of_app).filter(owned).map(|row| text(row, "session")));
        }
        if chosen.is_empty() {
            let apps: Vec<&str> = self.apps.iter().map(|Name(app)| app.as_str()).collect();
            let what = anyhow!("no edge that was asked has a session of {} to move", apps.join(", "));
            return Err(Failure::Refused(what));
        }
        chosen.sort_unstable();
        chosen.dedup();
        Ok(chosen)
    }
}

/// Whether a row of an edge's list is of a session that is there already.
fn is_at(to: &Destination, answer: &Value, row: &Value) -> bool {
    answer["edge"] == to.edge.as_str() && to.shard.is_none_or(|shard| row["shard"] == shard)
}

/// What became of each session.
#[derive(Default)]
struct Results {
    rows: BTreeMap<String, Value>,
    /// The sessions whose result is not known yet.
    open: Vec<String>,
    failures: Vec<Failure>,
}

impl Results {
    /// A move was asked for.
    fn begun(&mut self, session: &str, to: &str, asked: Result<&str, Failure>) {
        let (state, why) = match asked {
            Ok(state) => {
                if state == "begun" {
                    self.open.push(session.to_owned());
                }
                (state, Value::Null)
            }
            Err(failure) => {
                let why = json!(format!("{:#}", failure.parts().1));
                self.failures.push(failure);
                ("refused", why)
            }
        };
        let row = json!({ "session": session, "to": to, "state": state, "ms": Value::Null, "why": why });
        self.rows.insert(session.to_owned(), row);
    }

    /// Asks until the result of each move is known.
    fn wait(&mut self, edges: &Edges) -> Result<(), Failure> {
        let (all, mut reported) = (self.open.len(), Instant::now());
        while !self.open.is_empty() {
            thread::sleep(POLL);
            let (answers, failed) = edges.listed("/v1/moves")?;
            let is_whole = failed.is_none();
            self.take(&answers, is_whole);
            if let Some(failed) = failed.filter(|_| answers.is_empty()) {
                return Err(failed);
            }
            if reported.elapsed() >= REPORT && !self.open.is_empty() {
                reported = Instant::now();
                eprintln!("{} of {} done", all - self.open.len(), counted(all as u64, "move"));
            }
        }
        Ok(())
    }

    /// Takes the results from the lists of moves. A move that is in no list, though all edges answered, ended with its shard.
    fn take(&mut self, answers: &[Value], is_whole: bool) {
        let listed: BTreeMap<String, &Value> = answers
            .iter()
            .flat_map(|answer| answer["moves"].as_array())
            .flatten()
            .map(|row| (text(row, "session"), row))
            .collect();
        for session in std::mem::take(&mut self.open) {
            let to = self.rows.get(&session).map(|row| text(row, "to")).unwrap_or_default();
            let row = match listed.get(&session) {
                Some(row) if row["to"] != to.as_str() => {
                    let why = format!("a later move to {} replaced this one", text(row, "to"));
                    json!({ "session": session, "to": to, "state": "failed", "why": why })
                }
                Some(row) if row["state"] == "moved" || row["state"] == "failed" => (*row).clone(),
                None if is_whole => {
                    let why = "the shard that had the session died: its ends ask other edges";
                    json!({ "session": session, "state": "failed", "why": why })
                }
                _ => {
                    self.open.push(session);
                    continue;
                }
            };
            if row["state"] == "failed" {
                let what = anyhow!("session {session} stays: {}", text(&row, "why"));
                self.failures.push(Failure::Refused(what));
            }
            self.rows.insert(session, row);
        }
    }

    fn rows(&self) -> Vec<Value> {
        self.rows.values().cloned().collect()
    }

    fn table(&self) -> String {
        let fields = ["session", "to", "state", "ms", "why"];
        let cells = |row: &Value| fields.iter().map(|field| text(row, field)).collect();
        let rows: Vec<Vec<String>> = self.rows.values().map(cells).collect();
        table::format(&["SESSION", "TO", "STATE", "MS", "WHY"], &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_is_open_until_a_list_has_its_result() {
        let mut results = Results::default();
        for session in ["aa", "bb", "cc"] {
            results.begun(session, "east", Ok("begun"));
        }
        let list = |state: &str| {
            json!({ "moves": [
                { "session": "aa", "to": "east", "state": state, "ms": 5 },
                { "session": "bb", "to": "east", "state": "failed", "why": "it is full" },
            ] })
        };
        results.take(&[list("copying")], false);
        assert_eq!(results.open, ["aa", "cc"]);
        results.take(&[list("moved")], true);
        assert!(results.open.is_empty());
        let states: Vec<String> = results.rows().iter().map(|row| text(row, "state")).collect();
        assert_eq!(states, ["moved", "failed", "failed"]);
        let failed = Failure::all(results.failures).unwrap();
        let text = format!("{:#}", failed.parts().1);
        assert!(text.contains("session bb stays: it is full") && text.contains("cc"), "{text}");
    }

    #[test]
    fn a_move_that_another_one_replaced_has_failed() {
        let mut results = Results::default();
        results.begun("aa", "east", Ok("begun"));
        results.take(&[json!({ "moves": [{ "session": "aa", "to": "west", "state": "copying" }] })], true);
        assert!(results.open.is_empty());
        let row = results.rows().remove(0);
        assert_eq!((text(&row, "to"), text(&row, "state")), ("east".into(), "failed".into()));
        assert!(text(&row, "why").contains("later move to west"), "{row}");
    }
}
