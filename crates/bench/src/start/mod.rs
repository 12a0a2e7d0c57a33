//! `marram bench start`: how soon a new client has its own cell, compared with the cost of a process for each client.
//!
//! ```text
//! cells      Nursery, in this process: started ahead, not ahead, beside many, in a burst, as chains
//! processes  fork; fork + exec of the smallest program
//! race       two processes that start cells, against one: shards do not slow each other down
//! handover   a connection from process to process
//! ping       all of it: clients of a running edge, on a schedule
//! ```

mod handover;
mod ping;
mod tiny;
mod worker;

pub(super) use worker::{Worker, end_with_benchmark};

use super::report::{Bar, Report};
use super::{Plan, progress, stats};
use anyhow::Context;
use marram_cluster::TempDir;
use marram_sandbox::{Images, bench::Nursery};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// Living cells beside the one that is started, as in the paper.
const LIVING: usize = 2_000;
/// The number of living cells that a shard may be asked to hold.
const MANY: usize = 10_000;
/// Clients that arrive at once.
const BURST: usize = 1_000;
/// Stages of the chain.
const STAGES: usize = 10;
/// How long two shards start cells at the same time, and how long one does so alone, in milliseconds.
const RACE_MS: u64 = 300;

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("start");
    let rounds = if plan.quick { 200 } else { 5_000 };
    let place = TempDir::new("bench-start")?;
    let images = Images::open(place.path())?;
    if plan.wants("cells") {
        let activate = cached(&images, rounds, &mut report)?;
        let crowded = crowd(&images, LIVING, rounds, &mut report)?;
        report.metric_with_bar("at_2000_live_vs_alone", crowded / activate, Bar::Most(1.3));
        crowd(&images, MANY, rounds, &mut report)?;
        burst(&images, &mut report)?;
        chain(&images, rounds / 5, &mut report)?;
        processes(plan, &place, rounds / 10, activate, &mut report)?;
    }
    if plan.wants("race") {
        race(plan, &place, &mut report)?;
    }
    if plan.wants("handover") {
        handover::run(plan, rounds / 5, &mut report)?;
    }
    if plan.wants("ping") {
        ping::run(plan, &mut report)?;
    }
    report.note(
        "activate: from nothing to the answer to a new client's first message, which writes eight pages",
    );
    Ok(report)
}

/// One start after another, with the warm pool refilled in between, as an idle shard does.
///
/// `activate_p50_us` has the bar of docs/benchmarks.md. Whole lives take turns between two apps, so
/// that a slot often had the other one's cell before. Returns the median, in microseconds.
fn cached(images: &Images, rounds: usize, report: &mut Report) -> anyhow::Result<f64> {
    progress("start: cached cells");
    let mut nursery = Nursery::new(images, 2, 1, 64)?;
    nursery.stock();
    for round in 0..32 {
        nursery.live(round % 2)?;
    }
    let activations = one_by_one(&mut nursery, rounds)?;
    let lives =
        (0..rounds).map(|round| nursery.live(round % 2).map(micros)).collect::<Result<Vec<_>, _>>()?;
    let activate = stats::median(&activations);
    report.metric_with_bar("activate_p50_us", activate, Bar::Most(5.0));
    report.tail("activate_p99_us", &stats::Tail::of(&activations));
    report.metric_with_bar("lifecycle_p50_us", stats::median(&lives), Bar::Most(40.0));
    let mut unprepared = Nursery::new(images, 1, 1, 64)?;
    let mut slow = Vec::new();
    for _ in 0..rounds {
        let (cell, ns) = unprepared.activate(0)?;
        unprepared.end(cell);
        slow.push(micros(ns));
    }
    report.metric("activate_used_slot_p50_us", stats::median(&slow));
    report.note(
        "activate is the cached start: the cell was started ahead, while the shard was idle, and waited for its \
         client. activate_used_slot: nothing was started ahead; another client used the slot before",
    );
    Ok(activate)
}

/// Microseconds of each start. Before the next start, the cell ends and the warm pool is refilled.
fn one_by_one(nursery: &mut Nursery, rounds: usize) -> anyhow::Result<Vec<f64>> {
    let mut activations = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let (cell, ns) = nursery.activate(0)?;
        nursery.end(cell);
        nursery.stock();
        activations.push(micros(ns));
    }
    Ok(activations)
}

/// The same beside many living cells, and the memory of each of those.
///
/// Memory is that of this process, before and after, divided by the cells: dirty pages, page tables
/// and the engine's own structures.
fn crowd(images: &Images, living: usize, rounds: usize, report: &mut Report) -> anyhow::Result<f64> {
    progress(&format!("start: beside {living} living cells"));
    let mut nursery = Nursery::new(images, 1, 1, u32::try_from(living + 1_000)?)?;
    nursery.stock();
    let before = resident_kib()?;
    for _ in 0..living {
        nursery.activate(0)?;
    }
    let kib = resident_kib()?.saturating_sub(before);
    nursery.stock();
    let crowded = stats::median(&one_by_one(&mut nursery, rounds)?);
    report.metric(&format!("activate_at_{living}_live_p50_us"), crowded);
    #[expect(clippy::cast_precision_loss, reason = "KiB of some thousand cells")]
    let kib_each = kib as f64 / nursery.living() as f64;
    let rss = if living == LIVING {
        "rss_per_cell_kib".to_owned()
    } else {
        format!("rss_per_cell_at_{living}_kib")
    };
    report.metric(&rss, kib_each);
    Ok(crowded)
}

/// Clients that arrive all at once: the first ones find cells in the warm pool, the others do not.
fn burst(images: &Images, report: &mut Report) -> anyhow::Result<()> {
    progress(&format!("start: {BURST} clients at once"));
    let mut nursery = Nursery::new(images, 1, 1, u32::try_from(BURST + 100)?)?;
    nursery.stock();
    let starts =
        (0..BURST).map(|_| nursery.activate(0).map(|(_, ns)| micros(ns))).collect::<Result<Vec<_>, _>>()?;
    report.metric("burst_1000_p50_us", stats::median(&starts));
    report.tail("burst_1000_p99_us", &stats::Tail::of(&starts));
    Ok(())
}

/// A client's cell of ten stages: all of them or none.
fn chain(images: &Images, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    progress(&format!("start: chains of {STAGES}"));
    let mut nursery = Nursery::new(images, 1, STAGES, 256)?;
    nursery.stock();
    let activations = one_by_one(&mut nursery, rounds)?;
    report.metric("chain10_p50_us", stats::median(&activations));
    report.tail("chain10_p99_us", &stats::Tail::of(&activations));
    Ok(())
}

/// The cost of a process for each client, forked from a small process without other work.
///
/// `activate` is the median start of a cell, for the ratios.
fn processes(
    plan: &Plan,
    place: &TempDir,
    rounds: usize,
    activate: f64,
    report: &mut Report,
) -> anyhow::Result<()> {
    progress("start: processes");
    let forks = figures(plan, &["forks".into(), rounds.to_string()])?;
    let fork = stats::median(&forks);
    report.metric("fork_p50_us", fork);
    report.metric("vs_fork", fork / activate);
    report.baseline("fork", "fork, eight page faults, _exit, waitpid, from a small process");
    let Some(server) = tiny::write(place)? else {
        report.note("vs_fork_exec was not measured: the minimal server is written for x86-64");
        return Ok(());
    };
    let server = server.display().to_string();
    let execs = stats::median(&figures(plan, &["execs".into(), rounds.to_string(), server])?);
    report.metric("fork_exec_p50_us", execs);
    report.metric_with_bar("vs_fork_exec", execs / activate, Bar::Least(50.0));
    report
        .baseline("fork+exec", "fork, exec of a static program of 200 bytes (socket, listen, exit), waitpid");
    Ok(())
}

/// Two processes that start cells at the same time, compared with one that does so alone.
///
/// Near 2 if they do not disturb each other. Two threads of one process would do less than one:
/// their page faults and slot resets interrupt each other.
fn race(plan: &Plan, place: &TempDir, report: &mut Report) -> anyhow::Result<()> {
    progress("start: two shards at once");
    let arguments = |name: &str| {
        let place = place.path().join(name).display().to_string();
        ["activations".to_owned(), RACE_MS.to_string(), place]
    };
    let blocks = if plan.quick { 3 } else { 15 };
    let mut ratios = Vec::new();
    for _ in 0..blocks {
        let alone = race_of(plan, &[arguments("images-0")])?;
        let both = race_of(plan, &[arguments("images-0"), arguments("images-1")])?;
        ratios.push(both / alone);
    }
    report.metric_with_bar("two_shards_vs_one", stats::median(&ratios), Bar::Least(1.8));
    Ok(())
}

/// Lets workers that are ready begin together; returns the sum of their counts.
///
/// All workers print a line when they are ready; the newline that they get starts them.
fn race_of(plan: &Plan, workers: &[[String; 3]]) -> anyhow::Result<f64> {
    let mut children = workers.iter().map(|it| start(plan, it)).collect::<anyhow::Result<Vec<_>>>()?;
    for child in &mut children {
        child.line().context("a worker did not get ready")?;
    }
    for child in &mut children {
        writeln!(child.child.stdin.as_mut().context("it has an input")?)?;
    }
    children.iter_mut().map(|child| Ok(child.line()?.trim().parse::<f64>()?)).sum()
}

/// A worker; dropping it ends it. Its input stays open, so that it notices the end of this process.
pub(super) struct Running {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Running {
    /// The next line that it prints.
    pub(super) fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        anyhow::ensure!(self.lines.read_line(&mut line)? > 0, "the worker ended early");
        Ok(line)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a worker with these arguments.
pub(super) fn start(plan: &Plan, arguments: &[String]) -> anyhow::Result<Running> {
    let mut command = Command::new(&plan.own);
    command.arg("worker").args(arguments);
    start_command(&mut command)
}

/// Starts a program that prints lines, and ends when its input does.
pub(super) fn start_command(command: &mut Command) -> anyhow::Result<Running> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start a worker of this benchmark")?;
    let lines = BufReader::new(child.stdout.take().context("it has an output")?);
    Ok(Running { child, lines })
}

/// A worker's figures, one on each line.
///
/// # Errors
/// If a line is no number, or there is none.
fn figures(plan: &Plan, arguments: &[String]) -> anyhow::Result<Vec<f64>> {
    let mut worker = start(plan, arguments)?;
    let mut figures = Vec::new();
    while let Ok(line) = worker.line() {
        figures.push(line.trim().parse()?);
    }
    anyhow::ensure!(!figures.is_empty(), "the worker measured nothing");
    Ok(figures)
}

/// The second field of `statm` counts pages of 4 KiB.
fn resident_kib() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).context("statm has a second field")?.parse()?;
    Ok(pages * 4)
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of one start")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}
