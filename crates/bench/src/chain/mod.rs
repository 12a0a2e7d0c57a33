//! `marram bench chain`: what each further stage adds to the time of a message, compared with a process for each stage.
//!
//! ```text
//! cell       this process -> [s1 s2 ... sn] -> this process          function calls
//! fed        this process -> socket -> process with [s1 ... sn] -> socket -> this process
//! processes  this process -> socket -> p1 -> socket -> p2 ... pn -> socket -> this process
//! crowded    as processes, all on one core
//! ```
//! Only `fed` and `processes` do the same work at both ends, so only their ratio has a bar; the
//! others show where the difference comes from: sockets and switches between processes, not the
//! code of a stage.

mod pipeline;
mod worker;

pub(super) use worker::Worker;

use super::cpu::OneCore;
use super::report::{Bar, Report};
use super::{Plan, progress, stats};
use bytes::Bytes;
use marram_cluster::TempDir;
use marram_sandbox::{Images, bench::BenchChain};
use pipeline::{Pipeline, WINDOW};
use std::time::Duration;

/// The least ratio of the chain's throughput to that of the processes, where the chain is fed through the same sockets.
const FED_LEAST: f64 = 3.0;
/// Stages of the longest chain; the bars are for this one.
const STAGES_MAX: usize = 6;
/// Bytes of a message.
const SIZES: [usize; 2] = [64, 1_024];
/// How long one variant runs before the next has its turn.
const BLOCK: Duration = Duration::from_millis(20);
/// Messages between checks of the time.
const BATCH: u32 = 256;

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("chain");
    let place = TempDir::new("bench-chain")?;
    let images = Images::open(place.path())?;
    let module = std::fs::read(plan.cells.module("forward"))?;
    let blocks = if plan.quick { 3 } else { 25 };
    for bytes in SIZES {
        for stages in 1..=STAGES_MAX {
            progress(&format!("chain: {stages} stages, messages of {bytes} B"));
            let mut sides = Sides {
                line: BenchChain::new(&images, &module, stages)?,
                fed: Pipeline::cell(plan, place.path(), stages, false)?,
                processes: Pipeline::processes(plan, stages, false)?,
                crowded: {
                    let _pinned = OneCore::enter()?;
                    Pipeline::processes(plan, stages, false)?
                },
                batched_fed: Pipeline::cell(plan, place.path(), stages, true)?,
                batched_processes: Pipeline::processes(plan, stages, true)?,
                message: vec![7; bytes].into(),
            };
            let costs = (0..blocks).map(|_| sides.turn()).collect::<anyhow::Result<Vec<_>>>()?;
            show(&mut report, stages, bytes, &costs);
        }
    }
    report
        .baseline("processes", "as many processes, each: read a message, write it on; SOCK_SEQPACKET pairs");
    report
        .note("stages are the cell `forward`; their dirty pages are watched and copied every 1,000 messages");
    report.note(format!(
        "processes have up to {WINDOW} messages in flight, and both cores; the process that feeds them is not counted as a stage, but \
         takes its share of the cores"
    ));
    report
        .note("on_one_core: the processes, and the process that feeds them, share a core, as the stages of a cell do");
    report.note("one_at_a_time: a message goes in when the last one came out");
    report.note("fed: the chain in a process of its own, fed through the same sockets as the processes are: both sides do the same work");
    report.note(
        "batched: both sides take all messages that wait, up to 64, before they write the first, so that a message that goes in does \
         not wake a process for itself; an edge reads and writes its connections in this way",
    );
    report.note(
        "cell_us, and every throughput_vs_processes without fed: in-process calls; the process that makes the messages hands them to the \
         chain by a function call, with no socket and no other process. What a stage adds, and not what a user gains",
    );
    Ok(report)
}

/// The variants that are compared.
struct Sides {
    /// A chain that is called directly.
    line: BenchChain,
    /// The same chain in a process, behind sockets.
    fed: Pipeline,
    processes: Pipeline,
    /// Processes that share one core.
    crowded: Pipeline,
    /// As `fed` and `processes`, but every process reads all messages that wait before it writes the first.
    batched_fed: Pipeline,
    batched_processes: Pipeline,
    message: Bytes,
}

/// Microseconds for a message in one turn, by variant.
struct Cost {
    cell: f64,
    fed: f64,
    processes: f64,
    /// The processes on one core.
    crowded: f64,
    /// The processes with one message in flight.
    single: f64,
    batched_fed: f64,
    batched_processes: f64,
}

/// Which variant's figure to take from a turn.
type Figure = fn(&Cost) -> f64;

impl Sides {
    /// Runs a block of each variant, so that a disturbance of the machine affects all.
    fn turn(&mut self) -> anyhow::Result<Cost> {
        let cell = mean_us(|| Ok(Duration::from_nanos(self.line.pass_many(&self.message, BATCH)?)))?;
        let message = &self.message;
        let fed = mean_us(|| self.fed.pass_many(message, BATCH, WINDOW))?;
        let processes = mean_us(|| self.processes.pass_many(message, BATCH, WINDOW))?;
        let single = mean_us(|| self.processes.pass_many(message, BATCH, 1))?;
        let batched_fed = mean_us(|| self.batched_fed.pass_many(message, BATCH, WINDOW))?;
        let batched_processes = mean_us(|| self.batched_processes.pass_many(message, BATCH, WINDOW))?;
        let crowded = {
            let _pinned = OneCore::enter()?;
            mean_us(|| self.crowded.pass_many(message, BATCH, WINDOW))?
        };
        Ok(Cost { cell, fed, processes, crowded, single, batched_fed, batched_processes })
    }
}

/// Runs batches for the time of a block, after one to warm up; returns microseconds for a message.
fn mean_us(mut batch: impl FnMut() -> anyhow::Result<Duration>) -> anyhow::Result<f64> {
    batch()?;
    let (mut spent, mut messages) = (Duration::ZERO, 0.0);
    while spent < BLOCK {
        spent += batch()?;
        messages += f64::from(BATCH);
    }
    Ok(spent.as_secs_f64() * 1e6 / messages)
}

/// Reports ratios as medians of the turns' ratios, so that a turn that was disturbed counts once.
fn show(report: &mut Report, stages: usize, bytes: usize, costs: &[Cost]) {
    let median = |figure: Figure| stats::median(&costs.iter().map(figure).collect::<Vec<_>>());
    let group = format!("len{stages}_{bytes}b");
    let ratio = median(|cost| cost.processes / cost.fed);
    let name = format!("{group}.fed_throughput_vs_processes");
    if stages == STAGES_MAX {
        report.metric_with_bar(&name, ratio, Bar::Least(FED_LEAST));
    } else {
        report.metric(&name, ratio);
    }
    let figures: [(&str, Figure); 11] = [
        ("batched_fed_throughput_vs_processes", |cost| cost.batched_processes / cost.batched_fed),
        ("throughput_vs_processes", |cost| cost.processes / cost.cell),
        ("throughput_vs_processes_on_one_core", |cost| cost.crowded / cost.cell),
        ("throughput_vs_processes_one_at_a_time", |cost| cost.single / cost.cell),
        ("cell_us", |cost| cost.cell),
        ("fed_us", |cost| cost.fed),
        ("processes_us", |cost| cost.processes),
        ("processes_on_one_core_us", |cost| cost.crowded),
        ("processes_one_at_a_time_us", |cost| cost.single),
        ("batched_fed_us", |cost| cost.batched_fed),
        ("batched_processes_us", |cost| cost.batched_processes),
    ];
    for (name, figure) in figures {
        report.metric(&format!("{group}.{name}"), median(figure));
    }
    if stages == STAGES_MAX {
        #[expect(clippy::cast_precision_loss, reason = "some stages")]
        let stage = median(|cost| cost.cell) / stages as f64;
        let name =
            if bytes == SIZES[0] { "stage_p50_us".to_owned() } else { format!("stage_{bytes}b_p50_us") };
        report.metric_with_bar(&name, stage, Bar::Most(3.0));
    }
}
