//! `marram drain`: stops edges in order, and shows before that, if asked to, how each session would leave. It can be cancelled.

use super::Failure;
use super::operate::{Edges, PATIENCE, text};
use anyhow::anyhow;
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use marram_node::text::{counted, table};
use serde_json::Value;
use std::thread;
use std::time::{Duration, Instant};

/// Time between two questions for what is left.
const POLL: Duration = Duration::from_millis(200);
/// Time between two lines about what is left.
const REPORT: Duration = Duration::from_secs(1);

/// `marram drain`
#[derive(Args)]
pub(super) struct Drain {
    /// Stop also if sessions have no standby afterwards, though their app asks for one.
    #[arg(long)]
    force: bool,
    /// Print how each session would leave, and stop nothing.
    #[arg(long, conflicts_with_all = ["force", "wait"])]
    dry_run: bool,
    /// Return when the edges have stopped, and print meanwhile how many sessions are left.
    #[arg(long)]
    wait: bool,
    /// Let edges go on that drain and have not stopped yet: sessions that are still there stay, and new ones are accepted. Sessions
    /// that have left do not come back.
    #[arg(long, conflicts_with_all = ["force", "dry_run", "wait"])]
    cancel: bool,
    #[command(flatten)]
    edges: Edges,
}

/// Returns when the edges have begun, unless it is to wait: they stop by themselves.
pub(super) fn run(arguments: &Drain) -> Result<(), Failure> {
    let edges = &arguments.edges;
    if arguments.dry_run {
        return edges.list("/v1/drain", |answers| plan(answers, edges.are_several()));
    }
    if arguments.cancel {
        return edges.ask_all((&Method::POST, "/v1/drain/cancel", &Bytes::new()), PATIENCE, cancelled);
    }
    let path = if arguments.force { "/v1/drain/force" } else { "/v1/drain" };
    edges.ask_all((&Method::POST, path, &Bytes::new()), PATIENCE, |_| {
        "draining: sessions move to other edges, new ones are refused; `marram ps` shows the rest. The edge stops when none is \
         left, or after its `limits.drain` (30s unless configured); until then `marram drain --cancel` lets it go on\n"
            .to_owned()
    })?;
    if arguments.wait { wait(edges) } else { Ok(()) }
}

/// A table of how the sessions would leave, and what that means.
fn plan(answers: &[Value], several: bool) -> String {
    let (mut rows, mut unprotected) = (Vec::new(), 0);
    for answer in answers {
        for row in answer["sessions"].as_array().into_iter().flatten() {
            let edge = several.then(|| text(answer, "edge"));
            let how = match row["to"].as_str() {
                Some(edge) => format!("moves to {edge}"),
                None => format!("its agents look for another edge: {}", text(row, "why")),
            };
            unprotected += u64::from(row["unprotected"] == true);
            rows.push(edge.into_iter().chain([text(row, "session"), text(row, "app"), how]).collect());
        }
    }
    if rows.is_empty() {
        return "no sessions\n".to_owned();
    }
    let edge = several.then_some("EDGE");
    let headings: Vec<&str> = edge.into_iter().chain(["SESSION", "APP", "HOW IT LEAVES"]).collect();
    let table = table::format(&headings, &rows);
    if unprotected == 0 {
        return table;
    }
    let sessions = counted(unprotected, "session");
    format!(
        "{table}\n{sessions} would have no standby or backup afterwards, though the app asks for one: `--force` is needed\n"
    )
}

/// What is left of a drain that was cancelled: a line for each edge.
fn cancelled(answers: &[Value]) -> String {
    let mut lines = String::new();
    for answer in answers {
        let count = |key: &str| answer["sessions"][key].as_u64().unwrap_or(0);
        let (stay, moves, leave) = (count("stay"), count("moves_cancelled"), count("handed_over"));
        lines += &format!(
            "{}: goes on and takes new sessions; {} here",
            text(answer, "edge"),
            counted(stay, "session")
        );
        if moves > 0 {
            lines += &format!(", {} cancelled", counted(moves, "move"));
        }
        if leave > 0 {
            lines += &format!(", {} handed over already", counted(leave, "session"));
        }
        lines += "\n";
    }
    lines + "Sessions that have left stay where they are now: `marram move` can bring them back\n"
}

/// Waits until no edge answers any more.
fn wait(edges: &Edges) -> Result<(), Failure> {
    let mut running: Vec<(Edges, Instant)> = edges.each().map(|edge| (edge, Instant::now())).collect();
    while !running.is_empty() {
        thread::sleep(POLL);
        let mut failed = None;
        running.retain_mut(|(edge, reported)| match left(edge) {
            Ok(None) => {
                failed = Some(Failure::Refused(anyhow!("{}: its drain was cancelled", edge.names())));
                false
            }
            Ok(Some(sessions)) => {
                if reported.elapsed() >= REPORT {
                    *reported = Instant::now();
                    let sessions = counted(sessions, "session");
                    eprintln!("{}: {sessions} left", edge.names());
                }
                true
            }
            // It answers nothing else any more, and is about to be gone.
            Err(Failure::Refused(_)) => true,
            Err(Failure::Unreachable(_)) => {
                eprintln!("{}: stopped", edge.names());
                false
            }
            Err(failure) => {
                failed = Some(failure);
                false
            }
        });
        if let Some(failed) = failed {
            return Err(failed);
        }
    }
    Ok(())
}

/// How many sessions an edge has that it does not only stand by for; none if it does not drain any more.
fn left(edge: &Edges) -> Result<Option<u64>, Failure> {
    let answers = edge.ask(&Method::GET, "/v1/drain", &Bytes::new())?;
    let sessions = |answer: &Value| answer["sessions"].as_array().map_or(0, |rows| rows.len() as u64);
    let stays = answers.iter().any(|answer| answer["draining"] == false);
    Ok((!stays).then(|| answers.iter().map(sessions).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_plan_says_how_each_session_leaves_and_what_needs_force() {
        let row = |session: &str, to: Value, unprotected: bool| {
            let why = if to.is_null() { json!("no edge") } else { Value::Null };
            json!({ "session": session, "app": "chat", "to": to, "why": why, "unprotected": unprotected })
        };
        let answer = |rows: &[Value]| json!({ "edge": "east", "sessions": rows });
        assert_eq!(plan(&[answer(&[])], false), "no sessions\n");
        let text = plan(&[answer(&[row("aa", json!("west"), false), row("bb", Value::Null, false)])], true);
        assert!(
            text.contains("moves to west") && text.contains("EDGE") && !text.contains("--force"),
            "{text}"
        );
        assert!(text.contains("its agents look for another edge: no edge"), "{text}");
        let text = plan(&[answer(&[row("aa", json!("west"), true)])], false);
        assert!(text.contains("1 session would have no standby") && text.contains("--force"), "{text}");
    }

    #[test]
    fn what_is_left_of_a_cancelled_drain_is_told_for_each_edge() {
        let answer = |edge: &str, [stay, moves, handed_over]: [u64; 3]| {
            let counts = json!({ "stay": stay, "moves_cancelled": moves, "handed_over": handed_over });
            json!({ "edge": edge, "sessions": counts })
        };
        let text = cancelled(&[answer("east", [1, 0, 0]), answer("west", [7, 2, 1])]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "east: goes on and takes new sessions; 1 session here");
        assert!(
            lines[1].ends_with("7 sessions here, 2 moves cancelled, 1 session handed over already"),
            "{text}"
        );
        assert!(lines.len() == 3 && lines[2].contains("stay where they are now"), "{text}");
    }
}
