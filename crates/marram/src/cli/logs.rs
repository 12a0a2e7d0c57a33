//! `marram logs`: recent and new log lines of edges, recorders and agents, merged by time.
//!
//! ```text
//! thread a process: GET /v1/logs, reconnect ──News──▶ begin: collect all existing lines, sort by time
//!                                           (10,000)  go_on: show new ones as they come
//! ```
//!
//! Order is kept within one process. Between processes it is by their clocks for existing lines,
//! and by arrival for new ones. A slow terminal blocks the threads and so the servers' streams,
//! which then drop lines and say how many; it never delays the processes that log.

use super::Failure;
use super::operate::{Edges, can_be_session, failure};
use clap::Args;
use marram_admin::HEARTBEAT;
use marram_admin::client::{ApiClient, ClientError};
use marram_config::units::{Name, Time};
use marram_node::logging::Level;
use marram_shard::suggest;
use serde_json::Value;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

/// The default number of lines.
const LINES: usize = 100;
/// Most lines that wait to be shown; a connection with more lines blocks.
const WAITING_MAX: usize = 10_000;
/// How long edges may take to send their recent lines before those of the others are shown.
const PATIENCE: Duration = Duration::from_secs(3);
/// First and longest wait before an edge that is away is asked again; the wait doubles.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// `marram logs`
#[derive(Args)]
pub(super) struct Logs {
    #[command(flatten)]
    edges: Edges,
    #[command(flatten)]
    wanted: Wanted,
}

/// The filter for lines.
#[derive(Args, Clone)]
struct Wanted {
    /// Also show new lines as they are logged, and reconnect to edges whose connection breaks.
    #[arg(short, long)]
    follow: bool,
    /// Only lines about this app, such as what its cells print.
    #[arg(long)]
    app: Option<Name>,
    /// Only lines about this session.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only lines of this level and above.
    #[arg(long, value_enum)]
    level: Option<Level>,
    /// Only lines of at most this age, such as "10m".
    #[arg(long, value_name = "TIME")]
    since: Option<Time>,
    /// How many of the existing lines: 100 if left out, or all with --since.
    #[arg(short = 'n', long = "lines", value_name = "COUNT")]
    lines: Option<usize>,
}

impl Wanted {
    /// With `--since` the time alone decides.
    fn last(&self) -> Option<usize> {
        self.lines.or_else(|| self.since.is_none().then_some(LINES))
    }

    /// The request to an edge; `seen` is the last line that it has sent already.
    /// After a reconnection only `run` and `after` matter: the lines between are asked for,
    /// regardless of their age.
    fn path(&self, seen: Option<(u64, u64)>) -> String {
        let mut path = String::from("/v1/logs?");
        let mut ask = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(path, "{name}={value}&");
        };
        if let Some(app) = &self.app {
            ask("app", &app.0);
        }
        if let Some(session) = &self.session {
            ask("session", session);
        }
        if let Some(level) = self.level {
            ask("level", &level.name());
        }
        if self.follow {
            ask("follow", &1);
        }
        match seen {
            Some((run, after)) => {
                ask("run", &run);
                ask("after", &after);
            }
            None => {
                if let Some(since) = self.since {
                    ask("since_ms", &since.0.as_millis());
                }
                if let Some(last) = self.last() {
                    ask("last", &last);
                }
            }
        }
        path.truncate(path.len() - 1);
        path
    }
}

/// An event of one edge's connection.
/// With the position of the edge on the command line.
enum News {
    Line(String),
    /// It cannot be reached, or the connection broke.
    Away(ClientError),
    /// It has no more lines.
    Over,
}

/// The state of one edge.
/// What is known of one process: from its connection's events, in their order.
#[derive(Default)]
struct Seen {
    url: String,
    name: String,
    /// It has sent its existing lines.
    /// Also if there were none.
    caught_up: bool,
    /// It was reported that it is away.
    away: bool,
    over: bool,
    /// It refused the request, or could not be reached.
    failure: Option<Failure>,
}

pub(super) fn run(arguments: &Logs) -> Result<(), Failure> {
    let wanted = &arguments.wanted;
    if let Some(session) = &wanted.session {
        can_be_session(session)?;
    }
    let (sender, receiver) = mpsc::sync_channel(WAITING_MAX);
    let mut seen = Vec::new();
    for (place, (url, client)) in arguments.edges.clients()?.into_iter().enumerate() {
        seen.push(Seen { url: url.clone(), name: url, ..Seen::default() });
        let sender = sender.clone();
        let wanted = wanted.clone();
        thread::spawn(move || listen(place, &client, &wanted, &sender));
    }
    drop(sender);
    let (json, follow, several) = (arguments.edges.json, wanted.follow, seen.len() > 1);
    let mut screen = Screen { json, follow, several, seen, shown: Cell::new(false) };
    if screen.begin(&receiver, wanted.last()) {
        screen.go_on(&receiver);
    }
    if let Some(app) = wanted.app.as_ref().filter(|_| !screen.shown.get()) {
        explain_nothing(&arguments.edges, app);
    }
    let failures = screen.seen.into_iter().filter_map(|seen| seen.failure).collect();
    Failure::all(failures).map_or(Ok(()), Err)
}

/// If no line is about an app, and no such app is deployed, says so.
/// A misspelt name would otherwise look like an app that is silent.
fn explain_nothing(edges: &Edges, app: &Name) {
    // Edges that cannot be asked are reported elsewhere.
    let Ok((answers, _)) = edges.listed("/v1/apps") else { return };
    // Agents and recorders do not know apps.
    if answers.is_empty() {
        return;
    }
    let rows = answers.iter().filter_map(|answer| answer["apps"].as_array()).flatten();
    let names: BTreeSet<&str> = rows.filter_map(|row| row["name"].as_str()).collect();
    let app = &app.0;
    if !names.contains(app.as_str()) {
        let guess = suggest::did_you_mean(app, names);
        eprintln!("marram: no line is about `{app}`, and no such app is deployed{guess}");
    }
}

/// Reads one edge's lines until the receiver is gone or the edge has no more.
///
/// Only with `--follow` is a connection made again, with growing waits; a refusal ends it in either
/// case, since another attempt would be refused as well.
fn listen(place: usize, client: &ApiClient, wanted: &Wanted, sender: &SyncSender<(usize, News)>) {
    // An edge sends an empty line after a silence.
    let client = client.clone().with_patience(PATIENCE.max(HEARTBEAT.saturating_mul(3)));
    let (mut run, mut after, mut wait) = (None, 0, BACKOFF_MIN);
    loop {
        let seen = run.map(|run| (run, after));
        let ended = client.lines(&wanted.path(seen), |line| {
            if line.is_empty() {
                return true;
            }
            wait = BACKOFF_MIN;
            // A line that is no JSON object is shown as it is.
            let fields: Value = serde_json::from_str(line).unwrap_or_default();
            if let Some(this) = fields["run"].as_u64()
                && run.replace(this) != Some(this)
            {
                after = 0;
            }
            after = fields["number"].as_u64().unwrap_or(after);
            sender.send((place, News::Line(line.to_owned()))).is_ok()
        });
        let over = match ended {
            Ok(()) if !wanted.follow => Some(News::Over),
            // The edge has stopped in order.
            Ok(()) => None,
            Err(error) if wanted.follow && error.is_without_answer() => {
                if sender.send((place, News::Away(error))).is_err() {
                    return;
                }
                None
            }
            Err(error) => {
                if sender.send((place, News::Away(error))).is_err() {
                    return;
                }
                Some(News::Over)
            }
        };
        if let Some(over) = over {
            // The receiver may be gone.
            let _ = sender.send((place, over));
            return;
        }
        thread::sleep(wait);
        wait = BACKOFF_MAX.min(2 * wait);
    }
}

/// The output.
struct Screen {
    json: bool,
    follow: bool,
    several: bool,
    seen: Vec<Seen>,
    /// Whether any line was shown.
    shown: Cell<bool>,
}

impl Screen {
    /// Shows the existing lines of all edges, sorted by time; false if the output is closed.
    fn begin(&mut self, receiver: &Receiver<(usize, News)>, last: Option<usize>) -> bool {
        let deadline = Instant::now() + PATIENCE;
        // An edge that is away does not hold up the others for longer than this.
        let mut lines = Vec::new();
        while !self.seen.iter().all(|seen| seen.caught_up || seen.away || seen.over) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((place, news)) = receiver.recv_timeout(left) else { break };
            lines.extend(self.take(place, news).map(|line| (place, line)));
        }
        // By the time in the line, not the time when the edge received it: lines of shards arrive later. The times are in RFC
        // 3339, so their order as text is the order in time.
        let said = |line: &Value| line["timestamp"].as_str().map(str::to_owned);
        lines.sort_by_cached_key(|(_, line)| (said(line), line["at_us"].as_u64()));
        let more = lines.len().saturating_sub(last.unwrap_or(usize::MAX));
        lines.drain(..more);
        lines.iter().all(|(place, line)| self.show(*place, line))
    }

    /// Shows new lines as they arrive.
    fn go_on(&mut self, receiver: &Receiver<(usize, News)>) {
        while !self.seen.iter().all(|seen| seen.over) {
            let Ok((place, news)) = receiver.recv() else { return };
            if let Some(line) = self.take(place, news)
                && !self.show(place, &line)
            {
                return;
            }
        }
    }

    /// Handles an event; returns the line to show, if there is one.
    /// Three kinds of lines are not for the output: the head, the mark that all existing lines were
    /// sent, and notes on lost lines; see `logs.rs` in `marram-admin`.
    fn take(&mut self, place: usize, news: News) -> Option<Value> {
        let seen = &mut self.seen[place];
        let text = match news {
            News::Line(text) => text,
            News::Over => {
                seen.over = true;
                return None;
            }
            News::Away(error) => {
                let again = error.is_without_answer();
                if again && !std::mem::replace(&mut seen.away, true) && self.follow {
                    eprintln!("marram: {} is unreachable: {error}", seen.name);
                }
                // If the edge comes back, the failure does not count in the end.
                seen.failure = Some(failure(&seen.url, error));
                return None;
            }
        };
        let line: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| serde_json::json!({ "message": text }));
        if let Some(name) = line["edge"].as_str().filter(|_| line["run"].is_u64()) {
            seen.name = name.to_owned();
            seen.failure = None;
            if std::mem::take(&mut seen.away) {
                eprintln!("marram: {name} is reachable again");
            }
            if let Some(missing) = line["missing"].as_u64().filter(|count| *count > 0) {
                eprintln!(
                    "marram: {name} keeps no more: {missing} older lines were dropped (`log.keep` sets how much it \
                     keeps)"
                );
            }
            return None;
        }
        if let Some(gone) = line["gone"].as_u64().filter(|_| line["number"].is_null()) {
            eprintln!("marram: {gone} lines of {} were dropped before they could be read", seen.name);
            return None;
        }
        if line["caught_up"].is_boolean() {
            seen.caught_up = true;
            return None;
        }
        Some(line)
    }

    /// False if the output is closed, as by `head`.
    fn show(&self, place: usize, line: &Value) -> bool {
        self.shown.set(true);
        let name = &self.seen[place].name;
        let shown = if self.json {
            let mut line = line.clone();
            // Lines of several processes differ in this field.
            line["who"] = name.as_str().into();
            // An agent's line may be about an edge.
            if line["edge"].is_null() {
                line["edge"] = name.as_str().into();
            }
            format!("{line}\n")
        } else {
            text(self.several.then_some(name), line)
        };
        let mut out = std::io::stdout().lock();
        out.write_all(shown.as_bytes()).and_then(|()| out.flush()).is_ok()
    }
}

/// A line for people.
/// Time, level, where it comes from, the message, then all other fields as `name=value`.
fn text(edge: Option<&String>, line: &Value) -> String {
    let field = |name: &str| line[name].as_str().unwrap_or_default();
    let mut out = format!("{} {:>5} ", field("timestamp"), field("level"));
    // An agent has no shards: `shard` in its lines is a shard of the edge that the line is about.
    // See `Reports` in `marram-agent`.
    let of_another = field("target").starts_with("marram_agent");
    let shard = line["shard"].as_u64().filter(|_| !of_another).map(|shard| format!("shard {shard}"));
    let cell = (field("target") == "guest").then(|| "cell".to_owned());
    let source: Vec<String> = edge.cloned().into_iter().chain(shard).chain(cell).collect();
    if !source.is_empty() {
        let _ = write!(out, "{}: ", source.join(" "));
    }
    out += field("message");
    for (name, value) in line.as_object().into_iter().flatten() {
        let shown = ["timestamp", "level", "target", "message", "number", "at_us"];
        if !shown.contains(&name.as_str()) && (name != "shard" || of_another) {
            let _ = match value {
                Value::String(text) => write!(out, " {name}={text}"),
                other => write!(out, " {name}={other}"),
            };
        }
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_says_when_how_bad_where_and_what() {
        let line = json!({
            "number": 1, "at_us": 2, "shard": 3, "timestamp": "T", "level": "WARN", "target": "guest",
            "message": "no sugar", "app": "tea", "stage": 0
        });
        assert_eq!(text(None, &line), "T  WARN shard 3 cell: no sugar app=tea stage=0\n");
        assert_eq!(text(Some(&"A".into()), &line), "T  WARN A shard 3 cell: no sugar app=tea stage=0\n");
        assert_eq!(
            text(None, &json!({ "level": "INFO", "timestamp": "T", "message": "up" })),
            "T  INFO up\n"
        );
        let of_an_edge = json!({
            "timestamp": "T", "level": "INFO", "target": "marram_agent::reports", "message": "edge up", "edge": "A", "shard": 1
        });
        assert_eq!(text(Some(&"web-1".into()), &of_an_edge), "T  INFO web-1: edge up edge=A shard=1\n");
    }
}
