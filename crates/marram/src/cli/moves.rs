//! `marram move`: sends running sessions to another edge, or another shard of their edge, and waits until they are there.
//!
//! The edge that has a session begins the move, and knows its result afterwards. This command begins all moves, then asks for the
//! list of moves until it has the result of each.

use super::Failure;
use super::operate::{EdgeAnswers, Edges, text};
use super::wanted::{self, Wanted};
use anyhow::anyhow;
use clap::Args;
use hyper::Method;
use marram_node::text::{counted, table};
use marram_shard::api::Destination;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two questions for results.
const POLL: Duration = Duration::from_millis(100);
/// How long an edge gives no answer before its moves are given up.
pub(super) const AWAY: Duration = Duration::from_secs(10);
/// Time between two lines about what is left.
const REPORT: Duration = Duration::from_secs(1);

/// `marram move`
#[derive(Args)]
pub(super) struct Move {
    /// Sessions' identifiers, as `marram ps` shows them, or their first digits. Without them, the filters of `marram ps` or
    /// `--all` choose among the sessions of the edges that are asked; a session must match all filters.
    #[arg(value_name = "SESSION")]
    sessions: Vec<String>,
    /// All sessions of the edges that are asked.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    wanted: Wanted,
    /// The edge to which they move, or one shard of an edge: also of the edge where they are.
    #[arg(long, value_name = "EDGE[/SHARD]", required_unless_present = "cancel")]
    to: Option<Destination>,
    /// The sessions stay where they are: only their backups move to that edge, for apps with protect = "epoch".
    #[arg(long, conflicts_with_all = ["cancel", "force"])]
    backup: bool,
    /// Stop the moves of these sessions: those that are not handed over yet stay.
    #[arg(long, conflicts_with_all = ["to", "no_wait", "dry_run"])]
    cancel: bool,
    /// Let the new move replace one of the same session to another edge that is not handed over yet, instead of being refused.
    #[arg(long, conflicts_with = "cancel")]
    replace: bool,
    /// Move sessions also if no edge is known that could stand by for them afterwards, though their app asks for a standby.
    #[arg(long, conflicts_with = "cancel")]
    force: bool,
    /// Print which sessions would be moved, how much would be copied, and why others would stay; move none.
    #[arg(long)]
    dry_run: bool,
    /// Return when the moves have begun.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    edges: Edges,
}

pub(super) fn run(arguments: &Move) -> Result<(), Failure> {
    let to = &arguments.to.as_ref().map(Destination::to_string).unwrap_or_default()[..];
    arguments.check()?;
    let sessions = arguments.chosen(to)?;
    let how = arguments.how(to);
    if arguments.dry_run {
        return plan(&arguments.edges, &how, &sessions);
    }
    let mut results = Results::default();
    for session in &sessions {
        let (method, path, state) = if arguments.cancel {
            (Method::DELETE, format!("/v1/sessions/{session}/move"), "cancelled")
        } else {
            (Method::POST, format!("/v1/sessions/{session}/move/{how}"), "begun")
        };
        results.begun(session, to, arguments.edges.ask_first(&method, &path).map(|_| state));
    }
    if !(arguments.cancel || arguments.no_wait) {
        results.wait(&arguments.edges)?;
    }
    arguments.edges.show(&results.rows(), || results.table());
    Failure::all(results.failures).map_or(Ok(()), Err)
}

/// Asks the edges what the moves would be, and prints that. It fails if one of the sessions would stay.
fn plan(edges: &Edges, how: &str, sessions: &[String]) -> Result<(), Failure> {
    let (answers, failed) = edges.listed_late(&format!("/v1/moves/{how}"))?;
    // The sessions may be on that edge.
    if let Some(failed) = failed {
        return Err(failed);
    }
    let rows = planned(&answers, sessions);
    let stay = rows.iter().filter(|row| row["state"] != "would move").count();
    edges.show(&rows, || plan_table(&rows));
    if stay == 0 {
        return Ok(());
    }
    let all = counted(rows.len() as u64, "session");
    Err(Failure::Refused(anyhow!("{stay} of {all} would stay")))
}

/// The plans of these sessions.
fn planned(answers: &[Value], sessions: &[String]) -> Vec<Value> {
    let plans = answers.iter().flat_map(|answer| answer["sessions"].as_array()).flatten();
    let plans: BTreeMap<String, &Value> = plans.map(|plan| (text(plan, "session"), plan)).collect();
    let none = |session: &String| {
        let why = "no edge that was asked has the session";
        json!({ "session": session, "app": Value::Null, "state": "refused", "bytes": Value::Null, "why": why })
    };
    sessions
        .iter()
        .map(|session| plans.get(session).map_or_else(|| none(session), |plan| (*plan).clone()))
        .collect()
}

fn plan_table(rows: &[Value]) -> String {
    let fields = ["session", "app", "state", "bytes", "why"];
    let cells = |row: &Value| fields.iter().map(|field| text(row, field)).collect();
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let moving = rows.iter().filter(|row| row["state"] == "would move");
    let bytes: u64 = moving.filter_map(|row| row["bytes"].as_u64()).sum();
    let unknown = rows.iter().filter(|row| row["state"] == "would move" && row["bytes"].is_null()).count();
    let table = table::format(&["SESSION", "APP", "PLAN", "COPIED BYTES", "WHY"], &cells);
    let unknown = match unknown {
        0 => String::new(),
        count => format!(
            ", and the state of {} of which no checkpoint was taken yet",
            counted(count as u64, "session")
        ),
    };
    format!("{table}\n{bytes} bytes would be copied{unknown}\n")
}

impl Move {
    /// The end of a path to the edge `to`.
    fn how(&self, to: &str) -> String {
        let word = |is_given: bool, word: &'static str| if is_given { word } else { "" };
        let (backup, replace) = (word(self.backup, "/backup"), word(self.replace, "/replace"));
        format!("{to}{backup}{replace}{}", word(self.force, "/force"))
    }

    /// Checks that sessions are chosen in one way.
    fn check(&self) -> Result<(), Failure> {
        let filtered = !self.wanted.is_empty();
        match (!self.sessions.is_empty(), self.all, filtered) {
            (true, false, false) | (false, true, false) | (false, false, true) => Ok(()),
            (false, false, false) => Err(Failure::Usage(anyhow!(
                "which sessions? Name them, or choose them with filters (such as --app) or --all"
            ))),
            (true, ..) => Err(Failure::Usage(anyhow!(
                "sessions are named, and chosen with filters or --all as well: leave out one of the two"
            ))),
            (false, true, true) => Err(Failure::Usage(anyhow!(
                "--all means every session, and filters leave some out: leave out one of the two"
            ))),
        }
    }

    /// The sessions that the command line names, or that match its filters.
    fn chosen(&self, to: &str) -> Result<Vec<String>, Failure> {
        if !self.sessions.is_empty() {
            let whole = self.sessions.iter().map(|session| self.edges.whole(session));
            // One that is named twice moves once.
            let chosen: BTreeSet<String> = whole.collect::<Result<_, _>>()?;
            return Ok(chosen.into_iter().collect());
        }
        let (answers, failed) = self.edges.listed("/v1/sessions")?;
        if let Some(failed) = failed {
            return Err(failed);
        }
        let chosen = self.matching(&answers, wanted::now_ms());
        if chosen.is_empty() { Err(self.none(&answers, to)) } else { Ok(chosen) }
    }

    /// The sessions in the edges' lists that match the filters and that the command can be for: those that are not on the edge yet,
    /// or those that are being moved.
    fn matching(&self, answers: &[Value], now_ms: u64) -> Vec<String> {
        let rows = answers.iter().flat_map(|answer| {
            let is_there = |row: &&Value| self.to.as_ref().is_some_and(|to| is_at(to, answer, row));
            answer["sessions"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(move |row| self.cancel || !is_there(row))
        });
        // An edge that stands by for a session cannot move it.
        let rows = rows.filter(|row| row["phase"] != "standing by" && self.wanted.fits(row, now_ms));
        let rows = rows.filter(|row| !self.cancel || !row["moving"].is_null());
        let chosen: BTreeSet<String> = rows.map(|row| text(row, "session")).collect();
        chosen.into_iter().collect()
    }

    /// No session matches.
    fn none(&self, answers: &[Value], to: &str) -> Failure {
        let filters = if self.all { "" } else { " matches the filters and" };
        let what = if self.cancel {
            "is being moved".to_owned()
        } else {
            format!("could move to `{to}`: `marram ps` lists those that there are")
        };
        let mut text = format!("no session of the edges that were asked{filters} {what}");
        for line in self.wanted.without_sessions(answers) {
            text += &format!("\nmarram: {line}");
        }
        Failure::Refused(anyhow!("{text}"))
    }
}

/// Whether a row of an edge's list is of a session that is there already.
fn is_at(to: &Destination, answer: &Value, row: &Value) -> bool {
    answer["edge"] == to.edge.as_str() && to.shard.is_none_or(|shard| row["shard"] == shard)
}

/// The edges that gave no answer, and since when.
#[derive(Default)]
struct Away(BTreeMap<String, Instant>);

/// Which lists of moves are missing.
#[derive(PartialEq, Eq, Debug)]
enum Missing {
    None,
    /// Their edges may answer the next time.
    Some,
    /// Those of these edges, for so long that the command gives them up.
    Long(String),
}

impl Away {
    /// The lists of the edges that answered, and which are missing.
    fn sorted(&mut self, asked: EdgeAnswers, now: Instant) -> (Vec<Value>, Missing) {
        let (mut answers, mut silent) = (Vec::new(), BTreeMap::new());
        for (url, answer) in asked {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(_) => {
                    let since = self.0.get(&url).copied().unwrap_or(now);
                    silent.insert(url, since);
                }
            }
        }
        self.0 = silent;
        let missing = if self.0.is_empty() {
            Missing::None
        } else if self.0.values().all(|since| now.saturating_duration_since(*since) >= AWAY) {
            Missing::Long(self.0.keys().cloned().collect::<Vec<_>>().join(", "))
        } else {
            Missing::Some
        };
        (answers, missing)
    }
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
        let mut away = Away::default();
        while !self.open.is_empty() {
            thread::sleep(POLL);
            let (answers, missing) = away.sorted(edges.list_of_each("/v1/moves")?, Instant::now());
            self.take(&answers, &missing);
            if reported.elapsed() >= REPORT && !self.open.is_empty() {
                reported = Instant::now();
                let waiting = match self.limited(&answers) {
                    0 => String::new(),
                    count => {
                        format!("; {count} for which the copy waits for bandwidth (`limits.move_bandwidth`)")
                    }
                };
                eprintln!("{} of {} done{waiting}", all - self.open.len(), counted(all as u64, "move"));
            }
        }
        Ok(())
    }

    /// How many of the moves are slowed down by the bandwidth that they may use.
    fn limited(&self, answers: &[Value]) -> usize {
        let rows = answers.iter().flat_map(|answer| answer["moves"].as_array()).flatten();
        let open = rows.filter(|row| self.open.contains(&text(row, "session")));
        open.filter(|row| row["state"] == "copying" && row["why"].is_string()).count()
    }

    /// Takes the results from the lists of moves. A move that is in no list, though all edges answered, ended with its shard.
    fn take(&mut self, answers: &[Value], missing: &Missing) {
        let listed: BTreeMap<String, &Value> = answers
            .iter()
            .flat_map(|answer| answer["moves"].as_array())
            .flatten()
            .map(|row| (text(row, "session"), row))
            .collect();
        for session in std::mem::take(&mut self.open) {
            let to = self.rows.get(&session).map(|row| text(row, "to")).unwrap_or_default();
            let row = match (listed.get(&session), missing) {
                (Some(row), _) if row["to"] != to.as_str() => {
                    let why = format!("a later move to {} replaced this one", text(row, "to"));
                    json!({ "session": session, "to": to, "state": "failed", "why": why })
                }
                (Some(row), _) if row["state"] == "moved" || row["state"] == "failed" => (*row).clone(),
                (None, Missing::None) => {
                    let why = "the shard that had the session died: its ends ask other edges";
                    json!({ "session": session, "state": "failed", "why": why })
                }
                (None, Missing::Long(edges)) => {
                    let why = format!(
                        "{edges} does not answer, and no other edge lists the move; look with `marram ps` when it is back"
                    );
                    json!({ "session": session, "to": to, "state": "unknown", "why": why })
                }
                _ => {
                    self.open.push(session);
                    continue;
                }
            };
            if row["state"] == "unknown" {
                let what = anyhow!("session {session}: state unknown: {}", text(&row, "why"));
                self.failures.push(Failure::Unreachable(what));
            } else if row["state"] == "failed" {
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
    use super::super::{Arguments, Command};
    use super::*;
    use clap::Parser;

    fn parsed(arguments: &str) -> Result<Move, String> {
        let words = ["marram", "move"].into_iter().chain(arguments.split_whitespace());
        match Arguments::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Move(parsed) => Ok(parsed),
            _ => panic!("{arguments}"),
        }
    }

    #[test]
    fn sessions_are_chosen_as_ps_lists_them() {
        let row = |session: &str, app: &str, phase: &str, moving: Value| json!({ "session": session, "app": app, "phase": phase, "protect": "none", "moving": moving, "since_ms": 0 });
        let answers = [
            json!({ "edge": "west", "sessions": [
                row("aa", "shop", "running", Value::Null), row("bb", "tea", "running", json!("to east (copying)")),
                row("cc", "tea", "standing by", Value::Null),
            ] }),
            json!({ "edge": "east", "sessions": [
                row("cc", "tea", "running", Value::Null), row("aa", "shop", "standing by", Value::Null),
            ] }),
        ];
        for (arguments, expected) in [
            ("--all --to east", "aa bb"),
            ("--all --to west", "cc"),
            ("--all --to north", "aa bb cc"),
            ("--app tea --to north", "bb cc"),
            ("--app tea --to east --older 5s", "bb"),
            ("--app tea --to east --younger 5s", ""),
            ("--protect hot --to north", ""),
            ("--all --cancel", "bb"),
            ("--app shop --cancel", ""),
        ] {
            let parsed = parsed(arguments).unwrap();
            assert_eq!(parsed.matching(&answers, 10_000).join(" "), expected, "{arguments}");
        }
        let none = parsed("--app te --to east").unwrap().none(&answers, "east");
        let text = format!("{:#}", none.parts().1);
        assert!(text.contains("matches the filters and could move to `east`"), "{text}");
        assert!(text.contains("no session is of an app `te`") && text.contains("`tea`"), "{text}");
    }

    #[test]
    fn choices_that_contradict_one_another_are_refused() {
        for (arguments, said) in [
            ("--to east", "which sessions?"),
            ("aa --all --to east", "leave out one of the two"),
            ("aa --app tea --to east", "leave out one of the two"),
            ("--all --app tea --to east", "--all means every session"),
            ("--all --older 1s --to east", "--all means every session"),
            ("--all", "required"),
            ("--all --to east --cancel", "cannot be used with"),
            ("aa bb --to east", ""),
            ("--all --cancel", ""),
            ("--server none --older 1s --to east", ""),
        ] {
            let error = match parsed(arguments) {
                Ok(parsed) => {
                    parsed.check().err().map(|failure| failure.parts().1.to_string()).unwrap_or_default()
                }
                Err(error) => error,
            };
            assert!(error.contains(said) && error.is_empty() == said.is_empty(), "{arguments}: {error}");
        }
    }

    #[test]
    fn a_plan_has_each_session_and_what_is_copied() {
        let row = |session: &str, state: &str, bytes: Value, why: Value| json!({ "session": session, "app": "tea", "to": "b", "state": state, "bytes": bytes, "why": why });
        let answers = [json!({ "edge": "a", "sessions": [
            row("aa", "would move", json!(70), Value::Null), row("bb", "would move", Value::Null, Value::Null),
            row("cc", "refused", json!(9), json!("it is full")), row("dd", "would move", json!(1), Value::Null),
        ] })];
        let rows = planned(&answers, &["aa", "bb", "ee"].map(str::to_owned));
        let states: Vec<String> = rows.iter().map(|row| text(row, "state")).collect();
        assert_eq!(states, ["would move", "would move", "refused"]);
        let table = plan_table(&rows);
        assert!(table.contains("no edge that was asked has the session"), "{table}");
        assert!(table.contains("70 bytes would be copied, and the state of 1 session"), "{table}");
        assert_eq!(parsed("aa --to b --force --replace").unwrap().how("b"), "b/replace/force");
    }

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
        results.take(&[list("copying")], &Missing::Some);
        assert_eq!(results.open, ["aa", "cc"]);
        let limited = json!({ "session": "cc", "state": "copying", "why": "its copy waits for bandwidth" });
        let other = json!({ "session": "zz", "state": "copying", "why": "its copy waits for bandwidth" });
        assert_eq!(results.limited(&[list("copying"), json!({ "moves": [limited, other] })]), 1);
        results.take(&[list("moved")], &Missing::None);
        assert!(results.open.is_empty());
        let states: Vec<String> = results.rows().iter().map(|row| text(row, "state")).collect();
        assert_eq!(states, ["moved", "failed", "failed"]);
        let failed = Failure::all(results.failures).unwrap();
        let text = format!("{:#}", failed.parts().1);
        assert!(text.contains("session bb stays: it is full") && text.contains("cc"), "{text}");
    }

    #[test]
    fn a_move_of_an_edge_that_is_away_for_long_is_given_up() {
        let (mut away, start) = (Away::default(), Instant::now());
        let lists = |answering: &[&str]| -> EdgeAnswers {
            let list = |edge: &&str| {
                let moves = json!({ "moves": [{ "session": "bb", "to": "east", "state": "copying" }] });
                let answer =
                    if answering.contains(edge) { Ok(moves) } else { Err(Failure::Other(anyhow!("no"))) };
                ((*edge).to_owned(), answer)
            };
            ["west", "south"].iter().map(list).collect()
        };
        let mut missing =
            |answering: &[&str], after: Duration| away.sorted(lists(answering), start + after).1;
        let second = Duration::from_secs(1);
        assert_eq!(missing(&["west", "south"], Duration::ZERO), Missing::None);
        assert_eq!(missing(&["south"], second), Missing::Some);
        assert_eq!(missing(&["south"], AWAY), Missing::Some);
        // The list of the other edge is needed as well.
        assert_eq!(missing(&[], AWAY + second), Missing::Some);
        assert_eq!(missing(&["south"], AWAY + second), Missing::Long("west".into()));
        assert_eq!(missing(&["west"], AWAY + 2 * second), Missing::Some, "it is back");

        let mut results = Results::default();
        for session in ["aa", "bb"] {
            results.begun(session, "east", Ok("begun"));
        }
        let answers: Vec<Value> =
            lists(&["south"]).into_iter().filter_map(|(_, answer)| answer.ok()).collect();
        results.take(&answers, &Missing::Long("west".into()));
        assert_eq!(results.open, ["bb"], "an edge that answers lists it");
        assert_eq!(text(&results.rows().remove(0), "state"), "unknown");
        let failed = Failure::all(results.failures).unwrap();
        let (status, what) = failed.parts();
        let what = what.to_string();
        assert!(status == 4 && what.contains("state unknown: west does not answer"), "{status}: {what}");
        assert!(what.contains("`marram ps`"), "{what}");
    }

    #[test]
    fn an_edge_s_name_is_what_its_configuration_accepts() {
        use marram_config::units::Name;
        for text in ["a", "edge-1_2.b", ".a", "", "a b", "a?", "..", &"a".repeat(64), &"a".repeat(65)] {
            assert_eq!(text.parse::<Destination>().is_ok(), text.parse::<Name>().is_ok(), "{text}");
        }
        let double =
            parsed("0123456789ABCDEF0123456789abcdef 0123456789abcdef0123456789abcdef --to east").unwrap();
        assert_eq!(double.chosen("east").ok(), Some(vec!["0123456789abcdef0123456789abcdef".to_owned()]));
    }

    #[test]
    fn a_move_that_another_one_replaced_has_failed() {
        let mut results = Results::default();
        results.begun("aa", "east", Ok("begun"));
        results.take(
            &[json!({ "moves": [{ "session": "aa", "to": "west", "state": "copying" }] })],
            &Missing::None,
        );
        assert!(results.open.is_empty());
        let row = results.rows().remove(0);
        assert_eq!((text(&row, "to"), text(&row, "state")), ("east".into(), "failed".into()));
        assert!(text(&row, "why").contains("later move to west"), "{row}");
    }
}
