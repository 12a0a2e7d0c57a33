//! `marram bench classify`: image classification by a neural network, a cell for each client compared with a process for each
//! client.
//!
//! Three kinds of processes represent a user without cells. The cells are compared with a process that runs the same module and
//! nothing else. The children of the second kind also have the thread that stops handlers after a slice, as a shard has for all of
//! its cells. The third is a native program, which is not confined.
//!
//! A computation takes milliseconds, longer than a slice: cells of many clients share a shard's
//! time in turns, while the kernel divides it among processes. What is compared is throughput and
//! the longest waits, with hundreds of clients.

mod clients;
mod worker;

pub(super) use clients::arrivals;
pub(super) use worker::Worker;

use super::report::{Bar, Report};
use super::stats::Tail;
use super::{Plan, progress, start, stats};
use anyhow::Context;
use clients::Clients;
use marram_cluster::TestCluster;
use start::Running;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

const APP: &str = "classify";
/// How many clients there are.
const CLIENTS: [usize; 2] = [100, 500];
/// Rates of the open loop, as fractions of the processes' capacity.
const LOADS: [f64; 2] = [0.75, 0.9];
/// The native server's file name, in the directory of the cells' modules.
const NATIVE: &str = "classify-process";

/// All servers, and their addresses.
struct Stage {
    _cluster: TestCluster,
    _servers: Vec<Running>,
    cells: SocketAddr,
    processes: SocketAddr,
    ticking: SocketAddr,
    native: SocketAddr,
}

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("classify");
    let stage = Stage::set(plan)?;
    for count in CLIENTS.into_iter().filter(|count| plan.wants(&format!("c{count}"))) {
        compare(plan, count, &stage, &mut report)?;
    }
    report.baseline(
        "processes",
        "a small process forks for each connection; the child runs the same module in a cell of its own, without a thread beside it; \
         no agent, nothing is protected",
    );
    report.baseline(
        "ticking_processes",
        "the same, each child with a thread that wakes every millisecond while it works",
    );
    report.baseline(
        "native_processes",
        "the same network compiled for this machine, a process a client, with one thread; nothing confines it",
    );
    report.note(
        "cells: through an agent and an edge with two shards, protected by endpoints, with a recovery target of 25 ms; clients, agent and edge share the cores",
    );
    report.note(
        "p99, and all figures without a load in their names: closed loop, each client asks again when it has its answer, so that both \
         sides do all they can; p99 is the median of the blocks",
    );
    report.note(
        "tail_vs_processes: p99 over median of the cells, divided by the same of the processes. In a closed loop of N clients the mean wait \
         is N divided by the throughput. The processes' p99 with 500 clients is 1.3 times their mean, so cells could reach 0.6 of it only \
         with more throughput than the same code has in processes",
    );
    report.note(
        "at_75 and at_90: open loop at 75 % and 90 % of what the processes do in the closed loop, from when an image was due to its answer",
    );
    Ok(report)
}

impl Stage {
    /// Starts all servers, and lets each worker print its address first.
    fn set(plan: &Plan) -> anyhow::Result<Self> {
        let native = plan.cells.directory().join(NATIVE);
        anyhow::ensure!(
            native.is_file(),
            "{} is missing, the native baseline: `cargo xtask bench classify` builds it",
            native.display()
        );
        let mut layout = plan.layout("bench-classify", 1, "");
        // The edge and the processes have the same number of cores.
        layout.shards = 2;
        let mut cluster = TestCluster::new(layout, |place| {
            let quotas = "protect = \"endpoints\"\n[keep]\nrecovery_target = \"25ms\"\n[quotas]\nmemory = \"16MiB\"\nnan = \"native\"\n";
            Ok(vec![plan.cells.manifest(place, APP, "classify", quotas)?])
        })?;
        cluster.start_edges("")?;
        let edges = cluster.edge_addresses();
        let listens = cluster.start_client_agent(&edges, &[APP])?;
        let cells = listens.first().context("one app has one listener")?.address;
        let images = cluster.directory.path().join("bench-images").display().to_string();
        let module = plan.cells.module("classify").display().to_string();
        let mut servers = Vec::new();
        let mut listens = |mut server: Running| -> anyhow::Result<SocketAddr> {
            let address = server.line()?.trim().parse()?;
            servers.push(server);
            Ok(address)
        };
        // `--ticks` gives the worker's children the thread that preempts handlers.
        let worker = |ticks: &[&str]| {
            let mut arguments = vec!["classify".to_owned(), module.clone(), images.clone()];
            arguments.extend(ticks.iter().map(|word| (*word).to_owned()));
            start::start(plan, &arguments)
        };
        let processes = listens(worker(&[])?)?;
        let ticking = listens(worker(&["--ticks"])?)?;
        let native = listens(start::start_command(&mut Command::new(native))?)?;
        Ok(Self { _cluster: cluster, _servers: servers, cells, processes, ticking, native })
    }
}

/// Results of a closed loop for one variant, by block.
#[derive(Default)]
struct Closed {
    per_s: Vec<f64>,
    p50: Vec<f64>,
    tail: Tail,
}

impl Closed {
    fn add(&mut self, clients: &mut Clients, block: Duration) -> anyhow::Result<()> {
        let (per_s, waits_ms) = clients.closed_loop(block)?;
        self.per_s.push(per_s);
        self.p50.push(stats::median(&waits_ms));
        self.tail.add(&waits_ms);
        Ok(())
    }

    /// Ratio of the p99 to the median; where there are too few values for a p99, of the longest wait.
    fn spread(&self) -> f64 {
        self.tail.value() / stats::median(&self.p50)
    }

    /// The median of the ratios of this variant's throughput to the other's, block by block.
    fn throughput_over(&self, other: &Self) -> f64 {
        stats::median(
            &self.per_s.iter().zip(&other.per_s).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>(),
        )
    }
}

/// Measures with one number of clients; the variants alternate by block.
fn compare(plan: &Plan, count: usize, stage: &Stage, report: &mut Report) -> anyhow::Result<()> {
    progress(&format!("classify: {count} clients"));
    let (blocks, block) = if plan.quick { (1, 1) } else { (5, 3) };
    let block = Duration::from_secs(block);
    let mut cells = Clients::connect(stage.cells, count)?;
    let mut processes = Clients::connect(stage.processes, count)?;
    let mut native = Clients::connect(stage.native, count)?;
    anyhow::ensure!(cells.answer() == processes.answer(), "cells and processes answer differently");
    // The arithmetic may differ in the last bits between instruction sets, so only the class is compared.
    anyhow::ensure!(cells.class() == native.class(), "cells and native processes see different things");
    let (mut of_cells, mut of_processes) = (Closed::default(), Closed::default());
    let (mut of_ticking, mut of_native) = (Closed::default(), Closed::default());
    for number in 1..=blocks {
        progress(&format!("classify: {count} clients, closed loop, block {number} of {blocks}"));
        of_processes.add(&mut processes, block)?;
        of_cells.add(&mut cells, block)?;
        of_native.add(&mut native, block)?;
        // Their threads would wake during the other variants' blocks, so these clients live for their own block only.
        of_ticking.add(&mut Clients::connect(stage.ticking, count)?, block)?;
    }
    let group = format!("c{count}");
    let (name, ratio) = of_cells.tail.over(&of_processes.tail, &format!("{group}.p99_vs_processes"));
    report.metric_with_bar(&name, ratio, Bar::Most(0.6));
    report.metric(&format!("{group}.throughput_vs_processes"), of_cells.throughput_over(&of_processes));
    for (name, other) in [("ticking_", &of_ticking), ("native_", &of_native)] {
        let (p99, ratio) = of_cells.tail.over(&other.tail, &format!("{group}.p99_vs_{name}processes"));
        report.metric(&p99, ratio);
        report.metric(&format!("{group}.throughput_vs_{name}processes"), of_cells.throughput_over(other));
    }
    let sides = [
        ("", &of_cells),
        ("processes_", &of_processes),
        ("ticking_processes_", &of_ticking),
        ("native_processes_", &of_native),
    ];
    for (name, side) in sides {
        report.metric(&format!("{group}.{name}images_per_s"), stats::median(&side.per_s));
        report.metric(&format!("{group}.{name}p50_ms"), stats::median(&side.p50));
        report.tail(&format!("{group}.{name}p99_ms"), &side.tail);
    }
    report.metric(&format!("{group}.tail_vs_processes"), of_cells.spread() / of_processes.spread());
    let capacity = stats::median(&of_processes.per_s);
    for load in LOADS {
        open(&mut cells, &mut processes, (capacity, load), (blocks, block), &group, report)?;
    }
    Ok(())
}

/// The same rate for both variants, a fraction of the processes' capacity.
///
/// `capacity` is in images a second. The processes come first in each block, the cells second,
/// always with the same arrivals.
fn open(
    cells: &mut Clients,
    processes: &mut Clients,
    (capacity, load): (f64, f64),
    (blocks, block): (usize, Duration),
    group: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let percent = format!("{:.0}", load * 100.0);
    let (mut of_cells, mut of_processes) = (Waits::default(), Waits::default());
    for number in 1..=blocks {
        progress(&format!("classify: {group}, open loop at {percent} %, block {number} of {blocks}"));
        of_processes.add(&processes.waits_ms(capacity * load, block)?);
        of_cells.add(&cells.waits_ms(capacity * load, block)?);
    }
    let (name, ratio) =
        of_cells.tail.over(&of_processes.tail, &format!("{group}.p99_vs_processes_at_{percent}"));
    report.metric(&name, ratio);
    for (name, side) in [("", &of_cells), ("processes_", &of_processes)] {
        report.metric(&format!("{group}.{name}p50_ms_at_{percent}"), stats::median(&side.p50));
        report.tail(&format!("{group}.{name}p99_ms_at_{percent}"), &side.tail);
    }
    Ok(())
}

/// Percentiles by block. If the machine pauses for a third of a second, only one block is affected.
#[derive(Default)]
struct Waits {
    p50: Vec<f64>,
    tail: Tail,
}

impl Waits {
    fn add(&mut self, waits_ms: &[f64]) {
        self.p50.push(stats::median(waits_ms));
        self.tail.add(waits_ms);
    }
}
