//! One session of a client that always asks, moved back and forth.
//!
//! ```text
//!          asked                            hand-over       owned by the other edge
//! operator --|----------- copy, replay ----------|--------------|-----> time
//! client   . . . . . . . . . . . . . . . . . . . [ blackout ] . . .     always one request in flight
//!            <------------------------ total ------------------->
//! ```
//! The blackout is the longest wait that ends near the moment at which the client's agent has the new owner, less the client's
//! median wait. Beside it stand the longest wait of the whole move, and the longest of as long a time without a move. Large states
//! are also moved by `stop`, for comparison.

use super::client::{Client, blackout_ms, lengths_ms};
use super::scene::{Conditions, LARGE, Scene, is_owned, move_away, sent, wait_for};
use super::stop;
use crate::ballast::counter;
use crate::report::{Bar, Report};
use crate::{Plan, progress, stats};
use anyhow::Context;
use marram_cluster::TestCluster;
use std::time::{Duration, Instant};

/// A wait spans the hand-over if it ends at most so long before or after the report of the new owner is read.
const NEAR: Duration = Duration::from_millis(10);

/// One state of the session.
#[derive(Clone, Copy)]
struct State {
    name: &'static str,
    bytes: u64,
    /// Whether nothing is kept at ends, as with a container that is moved.
    unprotected: bool,
}

const STATES: [State; 6] = [
    State { name: "state_64kib", bytes: 64 << 10, unprotected: false },
    State { name: "state_1mib", bytes: 1 << 20, unprotected: false },
    State { name: "state_10mib", bytes: 10 << 20, unprotected: false },
    State { name: "state_185mib", bytes: 185 << 20, unprotected: false },
    State { name: "state_350mib", bytes: 350 << 20, unprotected: true },
    State { name: "state_638mib", bytes: 638 << 20, unprotected: true },
];

/// Names of the rates, in pages of 4 KiB that change in a second.
const RATES: [(&str, u64); 3] = [("r0", 0), ("r1k", 1_000), ("r10k", 10_000)];

/// Measures all states with all rates.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    for state in STATES {
        let parts: Vec<Part> = RATES
            .iter()
            .map(|rate| Part { state, rate: *rate })
            .filter(|part| part.is_wanted(plan))
            .collect();
        if parts.is_empty() {
            continue;
        }
        let blackouts = one_state(plan, state, &parts, report)?;
        if state.bytes < LARGE {
            continue;
        }
        for (part, blackout) in parts.iter().zip(blackouts) {
            let count = if plan.quick { 2 } else { 10 };
            let gaps = stop::gaps_ms(plan, &part.name(), (state.bytes, part.rate.1), count)?;
            let (name, gap) = (part.name(), stats::median(&gaps));
            report.metric(&format!("{name}.stop_gap_p50_ms"), gap);
            report.metric_with_bar(&format!("{name}.live_vs_stop"), gap / blackout, Bar::Least(50.0));
        }
    }
    Ok(())
}

/// One state with one rate.
struct Part {
    state: State,
    /// Its name, and the pages.
    rate: (&'static str, u64),
}

impl Part {
    fn name(&self) -> String {
        format!("{}.{}", self.state.name, self.rate.0)
    }

    /// Whether any of its figures is.
    fn is_wanted(&self, plan: &Plan) -> bool {
        let last = if self.state.bytes >= LARGE { ".live_vs_stop" } else { "" };
        plan.wants(&format!("{}{last}", self.name()))
    }
}

/// Says what the figures are.
fn notes(report: &mut Report) {
    report.note(
        "blackout: the longest wait that ends within 10 ms of the new owner, less the client's median wait",
    );
    report.note("longest: the longest wait of the whole move; undisturbed: of as long a time without a move");
    report.note("bytes: sent to the other edge; bytes_ends: checkpoints that the ends stored, the new owner's first one included");
    report.note(
        "live_vs_stop: stop_gap over blackout; stop_gap: the same wait when the edge shuts down and none stands by, so that the ends send the \
         whole state to the next edge while the session stands still",
    );
    report.note(
        "from state_350mib on: protect = \"none\", so the ends keep nothing before and after a move; stop_gap is that of a protected session with \
         as much state",
    );
    report.note("pause_max: the longest time since an edge's start for which its shard looked at no event; recoveries: owners that came without a move");
    report.note("rN: the client changes N thousand pages of 4 KiB a second, at most 64 with one request");
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

impl Moves {
    fn show(&self, name: &str, (bytes, rate): (u64, &str), report: &mut Report) {
        let blackout = stats::median(&self.blackouts);
        match bar(bytes, rate) {
            Some(bar) => report.metric_with_bar(&format!("{name}.blackout_p50_ms"), blackout, Bar::Most(bar)),
            None => report.metric(&format!("{name}.blackout_p50_ms"), blackout),
        }
        let tail = stats::Tail::of(&self.blackouts);
        let p99 = format!("{name}.blackout_p99_ms");
        match bar(bytes, rate).filter(|_| rate == "r1k" && tail.name(&p99) == p99) {
            Some(bar) => report.metric_with_bar(&p99, tail.value(), Bar::Most(4.0 * bar)),
            None => report.tail(&p99, &tail),
        }
        report.metric(&format!("{name}.longest_p50_ms"), stats::median(&self.longest));
        report.metric(&format!("{name}.undisturbed_p50_ms"), stats::median(&self.undisturbed));
        report.metric(&format!("{name}.total_ms"), stats::median(&self.totals));
        let (sent, stored) = (stats::median(&self.bytes), stats::median(&self.bytes_ends));
        if rate == "r0" && bytes >= 1 << 20 {
            #[expect(clippy::cast_precision_loss, reason = "a size")]
            let most = bytes as f64 * 1.05;
            report.metric_with_bar(&format!("{name}.bytes"), sent, Bar::Most(most));
            report.metric_with_bar(&format!("{name}.bytes_ends"), stored, Bar::Most(65_536.0));
        } else {
            report.metric(&format!("{name}.bytes"), sent);
            report.metric(&format!("{name}.bytes_ends"), stored);
        }
        report.metric(&format!("{name}.moves"), self.totals.len());
        // Every answer had the number of its question, or the client would have failed.
        report.add_lost(0, 0);
    }
}

/// The parts with one state; returns the median blackout of each.
fn one_state(plan: &Plan, state: State, parts: &[Part], report: &mut Report) -> anyhow::Result<Vec<f64>> {
    let State { bytes, unprotected, .. } = state;
    let scene = Scene::start(plan, Conditions { bytes, unprotected, stand_by: true, delay: None })?;
    let count = match (plan.quick, bytes >= LARGE) {
        (true, _) => 3,
        (false, false) => 100,
        (false, true) => 20,
    };
    let mut blackouts = Vec::new();
    for part in parts {
        let name = part.name();
        let client = Client::new(scene.stream.try_clone()?, part.rate.1);
        let start = scene.cluster.logs.end();
        let moves = client.asks_during(|| {
            (0..count).try_fold(Moves::default(), |mut moves, number| {
                progress(&format!("move: {name}, {} of {count}", number + 1));
                one_move(&scene, &client, &mut moves)?;
                anyhow::Ok(moves)
            })
        });
        let moves = moves.with_context(|| scene.said())?;
        moves.show(&name, (bytes, part.rate.0), report);
        let owners = scene.cluster.logs.count(start, is_owned);
        report.metric(&format!("{name}.recoveries"), owners.saturating_sub(moves.totals.len()));
        blackouts.push(stats::median(&moves.blackouts));
    }
    if bytes >= LARGE {
        report.metric(&format!("{}.pause_max_ms", state.name), pause_max_ms(&scene.cluster)?);
    }
    notes(report);
    Ok(blackouts)
}

/// The longest time for which the shard of an edge looked at no event.
fn pause_max_ms(cluster: &TestCluster) -> anyhow::Result<f64> {
    cluster.edges.iter().try_fold(0.0, |longest: f64, edge| {
        let pause_us =
            counter(&edge.client()?, "pause_us_max")?.context("an edge reports its longest pause")?;
        #[expect(clippy::cast_precision_loss, reason = "microseconds of one pause")]
        let pause_ms = pause_us as f64 / 1e3;
        anyhow::Ok(longest.max(pause_ms))
    })
}

/// Moves the session to the other edge. Then as much time passes without a move, and until the new owner's checkpoint is kept.
fn one_move(scene: &Scene, client: &Client, moves: &mut Moves) -> anyhow::Result<()> {
    let mut before = ([0; 2], [0; 2]);
    let moved = move_away(&scene.cluster, |old, new| {
        before = (sent(old)?, sent(new)?);
        client.waits().clear();
        Ok(())
    })?;
    let total = moved.owned.at - moved.asked;
    wait_for(moved.owned.at, 2 * NEAR);
    let waits = client.waits().clone();
    moves.blackouts.push(blackout_ms(&waits, moved.owned.at, NEAR)?);
    moves.longest.push(lengths_ms(&waits).into_iter().fold(0.0, f64::max));
    moves.totals.push(total.as_secs_f64() * 1e3);
    // What a client sees without a move does not include the new owner's checkpoint.
    scene.wait_for_checkpoint(&moved.new)?;
    let after = (sent(&moved.old)?, sent(&moved.new)?);
    let grown = |at: usize| (after.0[at] - before.0[at]) + (after.1[at] - before.1[at]);
    #[expect(clippy::cast_precision_loss, reason = "a size")]
    let (sent, stored) = (grown(0) as f64, grown(1) as f64);
    moves.bytes.push(sent);
    moves.bytes_ends.push(stored);
    client.waits().clear();
    wait_for(Instant::now(), total);
    let longest = client.waits().iter().map(|(_, wait)| *wait).max().unwrap_or_default();
    moves.undisturbed.push(longest.as_secs_f64() * 1e3);
    Ok(())
}
