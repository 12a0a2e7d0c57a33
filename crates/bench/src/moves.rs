//! `marram bench move`: how long a client waits when its session is moved to another edge while it runs.
//!
//! ```text
//!          asked                            hand-over       owned by the other edge
//! operator --|----------- copy, replay ----------|--------------|-----> time
//! client   . . . . . . . . . . . . . . . . . . . [ blackout ] . . .     always one request in flight
//!            <------------------------ total ------------------->
//! ```
//! The blackout is the longest wait that ends near the moment at which the client's agent has the new owner, less the client's
//! median wait. Beside it stand the longest wait of the whole move, and the longest of as long a time without a move. The
//! state does not compress. The session moves back and forth.

use super::ballast::{APP, SERVER, counter};
use super::pinger::{self, Pinger};
use super::report::{Bar, Report};
use super::standby::stand_by;
use super::{Plan, peer, progress, stats};
use anyhow::Context;
use hyper::Method;
use marram_admin::client::ApiClient;
use marram_cluster::TestCluster;
use std::net::TcpStream;
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// A wait spans the hand-over if it ends at most so long before or after the report of the new owner is read.
const NEAR: Duration = Duration::from_millis(10);
/// Log lines that are shown if something fails.
const LINES: usize = 40;
/// Most pages that one request changes: more would be a wait of its own.
const PAGES_MAX: u64 = 64;
/// Names and bytes of the states.
const STATES: [(&str, u64); 4] = [
    ("state_64kib", 64 << 10),
    ("state_1mib", 1 << 20),
    ("state_10mib", 10 << 20),
    ("state_185mib", 185 << 20),
];
/// Names of the rates, in pages of 4 KiB that change in a second.
const RATES: [(&str, u64); 3] = [("r0", 0), ("r1k", 1_000), ("r10k", 10_000)];
/// States from this size on have other bars, and fewer moves.
const LARGE: u64 = 100 << 20;

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("move");
    for (state, bytes) in STATES {
        if RATES.iter().any(|(rate, _)| plan.wants(&format!("{state}.{rate}"))) {
            one_state(plan, state, bytes, &mut report)?;
        }
    }
    report.note(
        "blackout: the longest wait that ends within 10 ms of the new owner, less the client's median wait",
    );
    report.note("longest: the longest wait of the whole move; undisturbed: of as long a time without a move");
    report.note("bytes: sent to the other edge; bytes_ends: checkpoints that the ends stored, the new owner's first one included");
    report.note("rN: the client changes N thousand pages of 4 KiB a second, at most 64 with one request");
    Ok(report)
}

/// The bar of a blackout's median, in milliseconds.
fn bar(bytes: u64, rate: &str) -> Option<f64> {
    match rate {
        "r1k" if bytes < LARGE => Some(0.6),
        "r1k" => Some(2.0),
        "r10k" => Some(5.0),
        _ => None,
    }
}

/// Results of the moves of one scene: in milliseconds, and in bytes.
#[derive(Default)]
struct Moves {
    blackouts: Vec<f64>,
    longest: Vec<f64>,
    undisturbed: Vec<f64>,
    totals: Vec<f64>,
    /// What the other edge was sent.
    bytes: Vec<f64>,
    /// What the ends stored of checkpoints, until they had the new owner's first one.
    bytes_ends: Vec<f64>,
}

/// What an edge has sent to other edges, and what ends have stored for it.
fn sent(edge: &ApiClient) -> anyhow::Result<[u64; 2]> {
    let of = |name| anyhow::Ok(counter(edge, name)?.unwrap_or(0));
    Ok([of("keeper_bytes_total")?, of("checkpoint_bytes_total")?])
}

/// All rates with one state.
fn one_state(plan: &Plan, state: &str, bytes: u64, report: &mut Report) -> anyhow::Result<()> {
    let mut layout = plan.layout("bench-move", 2, "");
    if bytes >= LARGE {
        Plan::raise_limits(&mut layout);
    }
    let mut cluster = TestCluster::new(layout, |place| {
        let memory = (bytes >> 20) * 3 / 2 + 16;
        let rest = format!(
            "server = \"{SERVER}\"\nprotect = \"endpoints\"\n[quotas]\nmemory = \"{memory}MiB\"\nhandler_time = \"30s\"\n"
        );
        Ok(vec![plan.cells.manifest(place, APP, "ballast", &rest)?])
    })?;
    let extra = stand_by(&cluster);
    cluster.start_edges(&extra)?;
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[(SERVER, peer::echo_server()?)])?;
    let listens = cluster.start_client_agent(&edges, &[APP])?;
    let address = listens.first().context("one app has one listener")?.address;
    let stream = Pinger::fill(address, bytes)?;
    let count = match (plan.quick, bytes >= LARGE) {
        (true, _) => 3,
        (false, false) => 100,
        (false, true) => 20,
    };
    for (rate, pages) in RATES {
        let name = format!("{state}.{rate}");
        if !plan.wants(&name) {
            continue;
        }
        let client = Client::new(stream.try_clone()?, pages);
        let moves = std::thread::scope(|scope| {
            let talks = scope.spawn(|| client.talk());
            let moves = (0..count).try_fold(Moves::default(), |mut moves, number| {
                progress(&format!("move: {name}, {} of {count}", number + 1));
                one_move(&cluster, &client, &mut moves)?;
                anyhow::Ok(moves)
            });
            client.stop.store(true, Ordering::Relaxed);
            let talked = talks.join().map_err(|_| anyhow::anyhow!("the client panicked"))?;
            talked.and(moves)
        });
        let moves = moves.with_context(|| format!("the last log lines are\n{}", cluster.logs.tail(LINES)))?;
        let blackout = stats::median(&moves.blackouts);
        match bar(bytes, rate) {
            Some(bar) => report.metric_with_bar(&format!("{name}.blackout_p50_ms"), blackout, Bar::Most(bar)),
            None => report.metric(&format!("{name}.blackout_p50_ms"), blackout),
        }
        report.tail(&format!("{name}.blackout_p99_ms"), &stats::Tail::of(&moves.blackouts));
        report.metric(&format!("{name}.longest_p50_ms"), stats::median(&moves.longest));
        report.metric(&format!("{name}.undisturbed_p50_ms"), stats::median(&moves.undisturbed));
        report.metric(&format!("{name}.total_p50_ms"), stats::median(&moves.totals));
        let (sent, stored) = (stats::median(&moves.bytes), stats::median(&moves.bytes_ends));
        if rate == "r0" && bytes >= 1 << 20 {
            #[expect(clippy::cast_precision_loss, reason = "a size")]
            let most = bytes as f64 * 1.05;
            report.metric_with_bar(&format!("{name}.bytes"), sent, Bar::Most(most));
            report.metric_with_bar(&format!("{name}.bytes_ends"), stored, Bar::Most(65_536.0));
        } else {
            report.metric(&format!("{name}.bytes"), sent);
            report.metric(&format!("{name}.bytes_ends"), stored);
        }
        report.metric(&format!("{name}.moves"), moves.totals.len());
        // Every answer had the number of its question, or the client would have failed.
        report.add_lost(0, 0);
    }
    Ok(())
}

/// Moves the session to the other edge. Then as much time passes without a move, and until the new owner's checkpoint is kept.
fn one_move(cluster: &TestCluster, client: &Client, moves: &mut Moves) -> anyhow::Result<()> {
    let from = cluster.owner()?;
    let to = cluster.other(from).context("there is another edge")?;
    let (old, new) = (cluster.edges[from].client()?, cluster.edges[to].client()?);
    let name = new.json(Method::GET, "/v1/edge")?["edge"].as_str().context("an edge has a name")?.to_owned();
    let session = running(&old)?["session"].as_str().context("a session has a name")?.to_owned();
    let before = (sent(&old)?, sent(&new)?);
    client.waits().clear();
    let path = format!("/v1/sessions/{session}/move/{name}");
    let (mut start, mut asked) = (cluster.logs.end(), Instant::now());
    // Edges that have just started may not have dialled each other yet.
    let begun = Instant::now();
    while let Err(error) = old.json(Method::POST, &path) {
        if begun.elapsed() > PATIENCE {
            return Err(error.into());
        }
        std::thread::sleep(Duration::from_millis(50));
        client.waits().clear();
        (start, asked) = (cluster.logs.end(), Instant::now());
    }
    let owned = cluster.wait_for_owner(start)?;
    let total = owned.at - asked;
    wait_until(|| Ok(Instant::now() > owned.at + 2 * NEAR))?;
    let waits = client.waits().clone();
    let lengths: Vec<f64> = waits.iter().map(|(_, wait)| wait.as_secs_f64() * 1e3).collect();
    let near = waits.iter().filter(|(end, _)| *end + NEAR >= owned.at && *end <= owned.at + NEAR);
    let spans = near.map(|(_, wait)| *wait).max().context("an answer came near the hand-over")?;
    moves.blackouts.push(spans.as_secs_f64() * 1e3 - stats::median(&lengths));
    moves.longest.push(lengths.iter().copied().fold(0.0, f64::max));
    moves.totals.push(total.as_secs_f64() * 1e3);
    // The new owner takes a checkpoint, which is part of the move's cost, but not of what a client sees without a move.
    wait_until(|| Ok(running(&new)?["checkpoints"].as_u64().unwrap_or(0) > 0))?;
    let after = (sent(&old)?, sent(&new)?);
    let grown = |at: usize| (after.0[at] - before.0[at]) + (after.1[at] - before.1[at]);
    #[expect(clippy::cast_precision_loss, reason = "a size")]
    let (sent, stored) = (grown(0) as f64, grown(1) as f64);
    moves.bytes.push(sent);
    moves.bytes_ends.push(stored);
    client.waits().clear();
    let rest = Instant::now();
    wait_until(|| Ok(rest.elapsed() >= total))?;
    let longest = client.waits().iter().map(|(_, wait)| *wait).max().unwrap_or_default();
    moves.undisturbed.push(longest.as_secs_f64() * 1e3);
    Ok(())
}

/// The only session of an edge, if it runs there.
fn running(edge: &ApiClient) -> anyhow::Result<serde_json::Value> {
    let list = edge.json(Method::GET, "/v1/sessions")?;
    let mut rows = list["sessions"].as_array().into_iter().flatten();
    Ok(rows.find(|row| row["phase"] == "running").cloned().unwrap_or_default())
}

/// Asks every few milliseconds: each question to an edge costs it time.
fn wait_until(is_so: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        anyhow::ensure!(Instant::now() < deadline, "the move does not come to an end");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A client that always has one request in flight, and changes pages of the state at a rate.
struct Client {
    stream: TcpStream,
    pages_per_s: u64,
    stop: AtomicBool,
    /// When each answer came, and how long it was waited for.
    waits: Mutex<Vec<(Instant, Duration)>>,
}

impl Client {
    fn new(stream: TcpStream, pages_per_s: u64) -> Self {
        Self { stream, pages_per_s, stop: AtomicBool::new(false), waits: Mutex::default() }
    }

    fn waits(&self) -> MutexGuard<'_, Vec<(Instant, Duration)>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks until it is stopped. Each answer must be the one to its question.
    fn talk(&self) -> anyhow::Result<()> {
        let mut stream = self.stream.try_clone()?;
        let (begun, mut changed) = (Instant::now(), 0);
        for number in 0u64.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "pages"
            )]
            let due = (begun.elapsed().as_secs_f64() * self.pages_per_s as f64) as u64;
            let pages = due.saturating_sub(changed).min(PAGES_MAX);
            let (op, a) = if pages > 0 { (b'T', pages) } else { (b'E', 0) };
            let b = if pages > 0 { changed } else { number };
            let asked = Instant::now();
            let (first, second) = pinger::ask(&mut stream, op, a, b)?;
            let answered = Instant::now();
            anyhow::ensure!(
                first == a && (pages > 0 || second == b),
                "the answer to {number} is another one's"
            );
            changed += pages;
            self.waits().push((answered, answered - asked));
        }
        Ok(())
    }
}
