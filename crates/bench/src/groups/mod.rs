//! `marram bench groups`: flows of two classes, which policies replicate at different intervals to different edges, and the same flows in
//! one group or in many. Pico Replication's 4.5.3 and 4.5.4.
//!
//! ```text
//! f20 ... f100   so many flows, three of low priority (1 Mbit/s, 100 epochs a second, to one edge) for each of high priority
//!                (4 Mbit/s, 1,000 epochs a second, to another edge): open loops of 1,400 B each way
//! g1 ... g40     40 flows that ask 3,500 times a second together, 1,000 epochs a second, spread over 1 to 40 groups
//! blocks:        f20 f40 f60 f80 f100 | f40 ... f20 | ...      one after the other; the rest is idle
//! ```

mod scene;

use crate::epoch::flows::{Flows, Heard, Sizes};
use crate::plan::Amount;
use crate::report::{Bar, Report};
use crate::{Plan, cpu, progress, stats};
use scene::Scene;
use std::time::{Duration, Instant};

/// Flows of both classes together.
const FLOWS: [usize; 5] = [20, 40, 60, 80, 100];
/// Of so many flows one is of high priority.
const CLASSES: usize = 4;
/// 1 and 4 Mbit/s in messages of 1,400 B, each way.
const LOW_PER_S: f64 = 1e6 / (1_400.0 * 8.0);
const HIGH_PER_S: f64 = 4.0 * LOW_PER_S;
/// Groups over which the flows of the second part are spread.
const GROUPS: [usize; 6] = [1, 2, 5, 10, 20, 40];
/// What they ask together, as in 4.5.4.
const GROUPED_PER_S: f64 = 3_500.0;

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let amount = plan.amount(9, Duration::from_millis(1_500));
    let mut report = Report::new("groups");
    let scene = Scene::start(plan)?;
    if !scene.first {
        report.note("WARNING: real-time priority is not allowed here: waits for a core are a part of the figures, and epochs end late");
    }
    if plan.wants("f") {
        classes(&scene, &amount, &mut report)?;
    }
    if plan.wants("g") {
        grouped(&scene, &amount, &mut report)?;
    }
    for flows in scene.all() {
        let (lost, repeated) = flows.lost_and_repeated();
        report.add_lost(lost, repeated);
    }
    describe(&mut report);
    Ok(report)
}

/// Flows of two classes, more and more of them.
fn classes(scene: &Scene, amount: &Amount, report: &mut Report) -> anyhow::Result<()> {
    let mut p95_ms: Vec<[Vec<f64>; 2]> = FLOWS.iter().map(|_| Default::default()).collect();
    let mut busy_pct: Vec<Vec<f64>> = FLOWS.iter().map(|_| Vec::new()).collect();
    for round in 0..amount.rounds {
        progress(&format!("groups: classes, round {} of {}", round + 1, amount.rounds));
        for index in 0..FLOWS.len() {
            let at = (round + index) % FLOWS.len();
            let (busy, ticks) = cpu::machine_ticks();
            let block = class_block(scene, at, amount.block, round as u64 + 1)?;
            let (busy_now, ticks_now) = cpu::machine_ticks();
            busy_pct[at].push(100.0 * ratio(busy_now - busy, ticks_now - ticks));
            for (all, p95_of_block) in p95_ms[at].iter_mut().zip(block) {
                all.push(p95_of_block);
            }
        }
    }
    let median = |at: usize, class: usize| stats::median(&p95_ms[at][class]);
    for (at, count) in FLOWS.iter().enumerate() {
        report.metric(&format!("f{count}.low_p95_ms"), median(at, 0));
        report.metric(&format!("f{count}.high_p95_ms"), median(at, 1));
        report.metric(&format!("f{count}.cores_busy_pct"), stats::median(&busy_pct[at]));
    }
    // Within a round, so that a slow minute of the machine is in both.
    let pairs = p95_ms[3][1].iter().zip(&p95_ms[0][1]).map(|(f80, f20)| f80 / f20);
    let f80_vs_f20 = stats::median(&pairs.collect::<Vec<_>>());
    report.metric_with_bar("high_f80_vs_f20", f80_vs_f20, Bar::Most(1.2));
    Ok(())
}

/// The p95 of the low and of the high class, in milliseconds, while both ask.
fn class_block(scene: &Scene, at: usize, time: Duration, seed: u64) -> anyhow::Result<[f64; 2]> {
    let [low, high] = &scene.classes[at];
    let high_count = FLOWS[at] / CLASSES;
    #[expect(clippy::cast_precision_loss, reason = "up to a hundred flows")]
    let rates = [LOW_PER_S * (FLOWS[at] - high_count) as f64, HIGH_PER_S * high_count as f64];
    let heard = std::thread::scope(|scope| {
        let low = scope.spawn(|| low.open_loop(rates[0], time, Sizes::Fixed, seed));
        let high = high.open_loop(rates[1], time, Sizes::Fixed, seed << 32);
        [low.join().expect("a client does not panic"), high]
    });
    let [low, high] = heard.map(|heard| waits_us(scene, heard));
    Ok([low?, high?].map(|waits_us| stats::percentile(&waits_us, 95.0) / 1e3))
}

/// The waits for all answers, in microseconds.
fn waits_us(scene: &Scene, heard: Vec<Heard>) -> anyhow::Result<Vec<f64>> {
    let mut waits_us = Vec::new();
    for Heard { answered, broken } in heard {
        if let Some(broken) = broken {
            let tail = scene.cluster.logs.tail(20);
            return Err(broken.context(format!("a connection broke; the last lines:\n{tail}")));
        }
        waits_us.extend(answered.iter().map(|it| it.wait().as_secs_f64() * 1e6));
    }
    Ok(waits_us)
}

/// The same flows in one group, and in more.
fn grouped(scene: &Scene, amount: &Amount, report: &mut Report) -> anyhow::Result<()> {
    let mut p50_us: Vec<Vec<f64>> = GROUPS.iter().map(|_| Vec::new()).collect();
    let mut cpu_pct: Vec<Vec<f64>> = GROUPS.iter().map(|_| Vec::new()).collect();
    for round in 0..amount.rounds {
        progress(&format!("groups: one to many, round {} of {}", round + 1, amount.rounds));
        for index in 0..GROUPS.len() {
            let at = (round + index) % GROUPS.len();
            let (begun, spent_ns) = (Instant::now(), scene.spent_ns());
            let flows: &Flows = &scene.grouped[at];
            let heard = flows.open_loop(GROUPED_PER_S, amount.block, Sizes::Fixed, round as u64 + 1);
            let waits_us = waits_us(scene, heard)?;
            let spent = Duration::from_nanos(scene.spent_ns() - spent_ns);
            cpu_pct[at].push(100.0 * spent.as_secs_f64() / begun.elapsed().as_secs_f64());
            p50_us[at].push(stats::percentile(&waits_us, 50.0));
        }
    }
    for (at, count) in GROUPS.iter().enumerate() {
        report.metric(&format!("g{count}.p50_us"), stats::median(&p50_us[at]));
        report.metric(&format!("g{count}.cpu_pct"), stats::median(&cpu_pct[at]));
    }
    let pairs = cpu_pct[GROUPS.len() - 1].iter().zip(&cpu_pct[0]).map(|(many, one)| many / one);
    report.metric_with_bar("cpu_g40_vs_g1", stats::median(&pairs.collect::<Vec<_>>()), Bar::Most(1.3));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "ticks of one block")]
fn ratio(part: u64, of: u64) -> f64 {
    part as f64 / of.max(1) as f64
}

fn describe(report: &mut Report) {
    report.baseline("f20", "the fewest flows, in the same run");
    report.baseline("g1", "the same flows in one group, in the same run");
    report.note(
        "fN: N flows through the cell `inspector`, open loops of 1,400 B each way: three quarters send 1 Mbit/s each, and policies end their epochs 100 \
         times a second; a quarter sends 4 Mbit/s each, with 1,000 epochs a second and another backup. A wait is from the time when a request is due to its answer",
    );
    report.note(
        "gN: 40 flows, 3,500 requests a second together, 1,000 epochs a second, spread over N groups; cpu_pct is of the owner and its backup together, \
         of one core",
    );
    report.note("clients, server, agents and edges share the machine's cores");
    report.note("paper: the high class is isolated up to 80 flows; it has a thread for each group");
}
