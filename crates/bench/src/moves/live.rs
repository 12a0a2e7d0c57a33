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
use super::scene::{Conditions, LARGE, Scene, move_away, sent, wait_for, wait_for_checkpoint};
use super::stop;
use crate::report::{Bar, Report};
use crate::{Plan, progress, stats};
use anyhow::Context;
use marram_cluster::TestCluster;
use std::time::{Duration, Instant};

/// A wait spans the hand-over if it ends at most so long before or after the report of the new owner is read.
const NEAR: Duration = Duration::from_millis(10);
/// Names and bytes of the states.
const STATES: [(&str, u64); 4] = [
    ("state_64kib", 64 << 10),
    ("state_1mib", 1 << 20),
    ("state_10mib", 10 << 20),
    ("state_185mib", 185 << 20),
];
/// Names of the rates, in pages of 4 KiB that change in a second.
const RATES: [(&str, u64); 3] = [("r0", 0), ("r1k", 1_000), ("r10k", 10_000)];

/// Measures all states with all rates.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    for (state, bytes) in STATES {
        let parts: Vec<Part> = RATES
            .iter()
            .map(|rate| Part { state, bytes, rate: *rate })
            .filter(|part| part.is_wanted(plan))
            .collect();
        if parts.is_empty() {
            continue;
        }
        let blackouts = one_state(plan, bytes, &parts, report)?;
        if bytes < LARGE {
            continue;
        }
        for (part, blackout) in parts.iter().zip(blackouts) {
            let count = if plan.quick { 2 } else { 10 };
            let gaps = stop::gaps_ms(plan, &part.name(), (bytes, part.rate.1), count)?;
            let (name, gap) = (part.name(), stats::median(&gaps));
            report.metric(&format!("{name}.stop_gap_p50_ms"), gap);
            report.metric_with_bar(&format!("{name}.live_vs_stop"), gap / blackout, Bar::Least(50.0));
        }
    }
    Ok(())
}

/// One state with one rate.
struct Part {
    state: &'static str,
    bytes: u64,
    /// Its name, and the pages.
    rate: (&'static str, u64),
}

impl Part {
    fn name(&self) -> String {
        format!("{}.{}", self.state, self.rate.0)
    }

    /// Whether any of its figures is.
    fn is_wanted(&self, plan: &Plan) -> bool {
        let last = if self.bytes >= LARGE { ".live_vs_stop" } else { "" };
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
        report.tail(&format!("{name}.blackout_p99_ms"), &stats::Tail::of(&self.blackouts));
        report.metric(&format!("{name}.longest_p50_ms"), stats::median(&self.longest));
        report.metric(&format!("{name}.undisturbed_p50_ms"), stats::median(&self.undisturbed));
        report.metric(&format!("{name}.total_p50_ms"), stats::median(&self.totals));
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
fn one_state(plan: &Plan, bytes: u64, parts: &[Part], report: &mut Report) -> anyhow::Result<Vec<f64>> {
    let scene = Scene::start(plan, Conditions { bytes, stand_by: true, delay: None })?;
    let count = match (plan.quick, bytes >= LARGE) {
        (true, _) => 3,
        (false, false) => 100,
        (false, true) => 20,
    };
    let mut blackouts = Vec::new();
    for part in parts {
        let name = part.name();
        let client = Client::new(scene.stream.try_clone()?, part.rate.1);
        let moves = client.asks_during(|| {
            (0..count).try_fold(Moves::default(), |mut moves, number| {
                progress(&format!("move: {name}, {} of {count}", number + 1));
                one_move(&scene.cluster, &client, &mut moves)?;
                anyhow::Ok(moves)
            })
        });
        let moves = moves.with_context(|| scene.said())?;
        moves.show(&name, (bytes, part.rate.0), report);
        blackouts.push(stats::median(&moves.blackouts));
    }
    notes(report);
    Ok(blackouts)
}

/// Moves the session to the other edge. Then as much time passes without a move, and until the new owner's checkpoint is kept.
fn one_move(cluster: &TestCluster, client: &Client, moves: &mut Moves) -> anyhow::Result<()> {
    let mut before = ([0; 2], [0; 2]);
    let moved = move_away(cluster, |old, new| {
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
    wait_for_checkpoint(&moved.new)?;
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
