//! `marram drain`: shuts edges down gracefully, and shows before that, if asked to, how each session would leave. It can be
//! cancelled.

use super::Failure;
use super::operate::{Edges, PATIENCE, failure, text};
use anyhow::anyhow;
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use marram_admin::client::ClientError;
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

impl Drain {
    /// Of several edges, each would count on the others, which stop as well.
    fn check(&self) -> Result<(), Failure> {
        if self.edges.are_several() && !self.force {
            return Err(Failure::Usage(anyhow!(
                "each edge checks only for itself that sessions keep a standby: drain one after the other with `--wait`, or use `--force`"
            )));
        }
        Ok(())
    }
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
    arguments.check()?;
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

/// Waits until no edge listens any more.
fn wait(edges: &Edges) -> Result<(), Failure> {
    let mut running: Vec<(Edges, Instant)> = edges.each().map(|edge| (edge, Instant::now())).collect();
    while !running.is_empty() {
        thread::sleep(POLL);
        let mut still = Vec::new();
        for (edge, mut reported) in running {
            match progress(edge.list_of_one("/v1/drain")?) {
                Progress::Stopped => {
                    eprintln!("{}: stopped", edge.names());
                    continue;
                }
                Progress::Broken(error) => return Err(failure(&edge.names(), error)),
                Progress::Stays => {
                    return Err(Failure::Refused(anyhow!("{}: its drain was cancelled", edge.names())));
                }
                Progress::Waits(Some(what)) if reported.elapsed() >= REPORT => {
                    reported = Instant::now();
                    eprintln!("{}: {what}", edge.names());
                }
                Progress::Waits(_) => {}
            }
            still.push((edge, reported));
        }
        running = still;
    }
    Ok(())
}

/// How far an edge is that stops.
#[derive(Debug)]
enum Progress {
    /// It listens no more.
    Stopped,
    /// It does not drain any more.
    Stays,
    /// It does not say how far it is, and will not.
    Broken(ClientError),
    /// It runs, or may run. With what there is to say of that.
    Waits(Option<String>),
}

/// What an answer says, or that there is none. An edge that is only slow has not stopped: its machine must not be switched off.
fn progress(answer: Result<Value, ClientError>) -> Progress {
    match answer {
        Ok(answer) if answer["draining"] == false => Progress::Stays,
        Ok(answer) => {
            let sessions = answer["sessions"].as_array().map_or(0, |rows| rows.len() as u64);
            Progress::Waits(Some(format!("{} left", counted(sessions, "session"))))
        }
        // It answers nothing else any more, and is about to be gone.
        Err(ClientError::Refused { .. }) => Progress::Waits(None),
        Err(ClientError::Gone(_)) => Progress::Stopped,
        Err(ClientError::Silent(_) | ClientError::Unreachable(_)) => {
            Progress::Waits(Some("no answer; waiting".to_owned()))
        }
        Err(error @ ClientError::NotUnderstood(_)) => Progress::Broken(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arguments, Command};
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[test]
    fn only_an_edge_that_listens_no_more_has_stopped() {
        let said = |answer| match progress(answer) {
            Progress::Waits(what) => what.unwrap_or_default(),
            other => format!("{other:?}"),
        };
        assert_eq!(said(Ok(json!({ "edge": "east", "sessions": [1, 2] }))), "2 sessions left");
        assert_eq!(said(Ok(json!({ "edge": "east", "draining": false, "sessions": [] }))), "Stays");
        assert_eq!(said(Err(ClientError::Silent(PATIENCE))), "no answer; waiting");
        let slow = ClientError::Unreachable("east: connecting takes too long".into());
        assert_eq!(said(Err(slow)), "no answer; waiting");
        let refused = ClientError::Refused { status: 503, error: String::new(), fix: String::new() };
        assert_eq!(said(Err(refused)), "");
        assert_eq!(said(Err(ClientError::Gone("east: connection refused".into()))), "Stopped");
        assert!(said(Err(ClientError::NotUnderstood("a page".into()))).starts_with("Broken"));
    }

    #[test]
    fn several_edges_stop_one_after_the_other_or_by_force() {
        let checked = |arguments: &str| {
            let words = ["marram", "drain"].into_iter().chain(arguments.split_whitespace());
            match Arguments::try_parse_from(words).map(|parsed| parsed.command) {
                Ok(Command::Drain(parsed)) => {
                    parsed.check().err().map(|failure| failure.parts().1.to_string())
                }
                _ => panic!("{arguments}"),
            }
        };
        for arguments in ["", "--edge a:1", "--edge a:1 --edge b:1 --force --wait"] {
            assert_eq!(checked(arguments), None, "{arguments}");
        }
        let refused = checked("--edge a:1 --edge b:1 --wait").expect("each counts on the other");
        assert!(refused.contains("`--wait`") && refused.contains("`--force`"), "{refused}");
    }

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
