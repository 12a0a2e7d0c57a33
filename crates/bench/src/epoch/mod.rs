//! `marram bench epoch`: what it costs to hold every output until another edge has what produced it, at several numbers of epochs a
//! second, through the cell `inspector`. Pico Replication's 4.5.2 and 4.5.4.
//!
//! ```text
//! fixed25, 50, 75   1,400 B each way, an open loop at that share of what the unprotected app does in the closed loop of the same run
//! http              about 10 KB each way, a closed loop; the server is so far away that the unprotected p95 is that of the paper
//! blocks:  none hz100 hz200 hz1000 hz2000 message whole40 whole100 | hz100 hz200 ... none | ...     one after the other; the rest is idle
//! ```
//! Added time is by differences within a round of blocks, medians over rounds. The paper's other side is Remus: `whole40` and `whole100`
//! copy all cells together.

pub(crate) mod flows;
pub(crate) mod scene;
mod show;

use crate::plan::Amount;
use crate::report::Report;
use crate::{Plan, progress, stats};
use flows::{Heard, Sizes};
use scene::{MESSAGE, MODES, Scene, Totals};
use std::time::Duration;

/// Connections of each mode: enough that in a closed loop they keep the machine busy although outputs are held.
const CONNECTIONS: usize = 64;
/// The paper's unprotected p95 of HTTP transactions, in microseconds.
const HTTP_P95_US: f64 = 54_480.0;
/// The first guess of how far away the server of HTTP is.
const HTTP_DELAY: Duration = Duration::from_millis(50);
/// Requests a second while the round trip to the backup is measured.
const CALM_PER_S: f64 = 1_000.0;

/// What is sent.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// So many requests a second.
    Open(f64),
    Closed(Sizes),
}

/// One block of one mode.
struct Block {
    waits_us: Vec<f64>,
    /// From the begin to the last answer.
    time: Duration,
    /// Transactions a second, of all connections.
    per_s: f64,
    begun: Totals,
    ended: Totals,
}

impl Block {
    /// What a sum has grown by, for each transaction.
    #[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of one block")]
    fn each(&self, of: impl Fn(&Totals) -> u64) -> f64 {
        of(&self.ended).saturating_sub(of(&self.begun)) as f64 / self.waits_us.len().max(1) as f64
    }
}

/// The blocks of all modes under one load: by mode, then by round.
struct Measured {
    modes: Vec<Vec<Block>>,
}

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let amount = plan.amount(9, Duration::from_millis(1_500));
    let mut report = Report::new("epoch");
    let mut scene = Scene::start(plan, CONNECTIONS)?;
    if !scene.first {
        report.note("WARNING: real-time priority is not allowed here: waits for a core are a part of the figures, and epochs end late");
    }
    let rtt_us = backup_rtt_us(&scene, &amount)?;
    report.metric("backup_rtt_p50_us", rtt_us);
    if ["fixed25", "fixed50", "fixed75"].iter().any(|part| plan.wants(part)) {
        fixed(plan, &scene, &amount, rtt_us, &mut report)?;
    }
    if plan.wants("http") {
        http(&mut scene, &amount, &mut report)?;
    }
    for flows in &scene.flows {
        let (lost, repeated) = flows.lost_and_repeated();
        report.add_lost(lost, repeated);
    }
    show::describe(&mut report);
    Ok(report)
}

/// The median time from the end of an epoch to its confirmation, with little load and an epoch for each message.
fn backup_rtt_us(scene: &Scene, amount: &Amount) -> anyhow::Result<f64> {
    progress("epoch: the round trip to the backup");
    let block =
        block(scene, MESSAGE, Load::Open(CALM_PER_S), amount.block.max(Duration::from_millis(500)), 1)?;
    #[expect(clippy::cast_precision_loss, reason = "microseconds")]
    Ok(block.ended.confirm_p50_us as f64)
}

/// The closed loop, and the three open ones.
fn fixed(
    plan: &Plan,
    scene: &Scene,
    amount: &Amount,
    rtt_us: f64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let closed = measure(scene, "closed loop", Load::Closed(Sizes::Fixed), amount)?;
    let rates: Vec<f64> = closed.modes[0].iter().map(|block| block.per_s).collect();
    let capacity = stats::median(&rates);
    report.metric("capacity_per_s", capacity);
    for (name, share) in [("fixed25", 0.25), ("fixed50", 0.5), ("fixed75", 0.75)] {
        if plan.wants(name) {
            let measured = measure(scene, name, Load::Open(capacity * share), amount)?;
            show::workload(name, &measured, &closed, report);
            show::beyond_epochs(name, &measured, rtt_us, report);
        }
    }
    Ok(())
}

fn http(scene: &mut Scene, amount: &Amount, report: &mut Report) -> anyhow::Result<()> {
    let load = Load::Closed(Sizes::Http);
    scene.server.set_delay(HTTP_DELAY);
    progress("epoch: http, how far the server is");
    let near = block(scene, 0, load, amount.block, 1)?;
    let missing_us = HTTP_P95_US - stats::percentile(&near.waits_us, 95.0);
    let delay_us = (HTTP_DELAY.as_secs_f64() * 1e6 + missing_us).max(1.0);
    scene.server.set_delay(Duration::from_secs_f64(delay_us / 1e6));
    report.metric("http.server_away_us", delay_us);
    let measured = measure(scene, "http", load, amount)?;
    show::workload("http", &measured, &measured, report);
    show::http_bars(&measured, report);
    scene.server.set_delay(Duration::ZERO);
    Ok(())
}

/// Rounds of a block of each mode. Each round begins with another mode.
fn measure(scene: &Scene, name: &str, load: Load, amount: &Amount) -> anyhow::Result<Measured> {
    let mut modes: Vec<Vec<Block>> = MODES.iter().map(|_| Vec::new()).collect();
    for round in 0..amount.rounds {
        progress(&format!("epoch: {name}, round {} of {}", round + 1, amount.rounds));
        for index in 0..MODES.len() {
            let mode = (round + index) % MODES.len();
            modes[mode].push(block(scene, mode, load, amount.block, round as u64 + 2)?);
        }
    }
    Ok(Measured { modes })
}

fn block(scene: &Scene, mode: usize, load: Load, time: Duration, seed: u64) -> anyhow::Result<Block> {
    let flows = &scene.flows[mode];
    let begun = scene.totals()?;
    let heard = match load {
        Load::Open(per_s) => flows.open_loop(per_s, time, Sizes::Fixed, seed),
        Load::Closed(sizes) => flows.closed_loop(time, sizes, seed << 32),
    };
    let ended = scene.totals()?;
    let (mut waits_us, mut last, mut per_s) = (Vec::new(), Duration::ZERO, 0.0);
    for Heard { answered, broken } in heard {
        if let Some(broken) = broken {
            let (name, tail) = (MODES[mode].name, scene.cluster.logs.tail(20));
            return Err(broken.context(format!("a connection of {name} broke; the last lines:\n{tail}")));
        }
        let Some(own) = answered.last() else { continue };
        last = last.max(own.at);
        // Of each connection by its own last answer: else transactions that are long, for the time, would be cut off.
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        let count = answered.len() as f64;
        per_s += count / own.at.as_secs_f64();
        waits_us.extend(answered.iter().map(|it| it.wait().as_secs_f64() * 1e6));
    }
    Ok(Block { waits_us, time: last, per_s, begun, ended })
}
