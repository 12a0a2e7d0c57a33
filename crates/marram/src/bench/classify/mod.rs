//! `marram bench classify`: images for a network, a cell a client against a process a client.

mod clients;
mod worker;

pub(super) use clients::arrivals;
pub(super) use worker::Worker;

use super::report::{Bar, Report};
use super::{Plan, progress, start, stats};
use crate::harness::Lab;
use anyhow::Context;
use clients::Clients;
use std::net::SocketAddr;
use std::time::Duration;

const APP: &str = "classify";
/// How many clients there are.
const CLIENTS: [usize; 2] = [100, 500];
/// What the open loop asks of both sides, as parts of what the processes can do. The paper's clients ask again as soon as they
/// are answered, which is all that can be done; the last of these comes nearest to that, and has the bar.
const LOADS: [f64; 2] = [0.75, 0.9];

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("classify");
    let mut layout = plan.layout("bench-classify", 1, "");
    // As many cores as the processes have.
    layout.shards = 2;
    let mut lab = Lab::new(layout, |place| {
        let quotas = "protect = \"endpoints\"\n[keep]\nrecovery_target = \"25ms\"\n[quotas]\nmemory = \"16MiB\"\nnan = \"native\"\n";
        Ok(vec![plan.cells.manifest(place, APP, "classify", quotas)?])
    })?;
    lab.start_edges("")?;
    let edges = lab.edge_addresses();
    let listens = lab.start_client_agent(&edges, &[APP])?;
    let cells = listens.first().context("one app has one listener")?.address;
    let images = lab.place.path().join("bench-images").display().to_string();
    let module = plan.cells.module("classify").display().to_string();
    let mut server = start::start(plan, &["classify".into(), module, images])?;
    let processes: SocketAddr = server.line()?.trim().parse()?;
    for count in CLIENTS.into_iter().filter(|count| plan.wants(&format!("c{count}"))) {
        compare(plan, count, cells, processes, &mut report)?;
    }
    report.baseline(
        "processes",
        "a small process forks for each connection; the child runs the same module in a cell of its own; no agent, nothing \
         is protected",
    );
    report.note(
        "cells: through an agent and an edge with two shards, protected by endpoints, with a recovery target of 25 ms; clients, agent and edge share the cores",
    );
    report.note(
        "p99: open loop at 75 % and at 90 % of the processes' throughput, from when an image was due to its answer, \
         medians of the blocks; p99_vs_processes is at 90 %",
    );
    Ok(report)
}

/// Percentiles of each block. A machine that stands still for a third of a second spoils one of them and not all.
#[derive(Default)]
struct Waits {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Waits {
    fn add(&mut self, waits_ms: &[f64]) {
        self.p50.push(stats::median(waits_ms));
        self.p99.push(stats::percentile(waits_ms, 99.0));
    }
}

/// One number of clients, block by block in turn.
fn compare(
    plan: &Plan,
    count: usize,
    cells: SocketAddr,
    processes: SocketAddr,
    report: &mut Report,
) -> anyhow::Result<()> {
    progress(&format!("classify: {count} clients"));
    let (blocks, block) = if plan.quick { (1, 1) } else { (5, 3) };
    let block = Duration::from_secs(block);
    let (mut cells, mut processes) = (Clients::connect(cells, count)?, Clients::connect(processes, count)?);
    anyhow::ensure!(cells.answer() == processes.answer(), "cells and processes answer differently");
    let (mut of_cells, mut of_processes, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..blocks {
        let capacity = processes.throughput(block)?;
        of_processes.push(capacity);
        of_cells.push(cells.throughput(block)?);
        ratios.push(of_cells[of_cells.len() - 1] / capacity);
    }
    let group = format!("c{count}");
    for load in LOADS {
        let rate = stats::median(&of_processes) * load;
        let (mut of_cells, mut of_processes) = (Waits::default(), Waits::default());
        for _ in 0..blocks {
            of_processes.add(&processes.waits_ms(rate, block)?);
            of_cells.add(&cells.waits_ms(rate, block)?);
        }
        let ratio = stats::median(&of_cells.p99) / stats::median(&of_processes.p99);
        let percent = load * 100.0;
        report.metric(&format!("{group}.p99_vs_processes_at_{percent:.0}"), ratio);
        if load == LOADS[LOADS.len() - 1] {
            report.metric_with_bar(&format!("{group}.p99_vs_processes"), ratio, Bar::Most(0.6));
        }
        let figures = [
            ("p50_ms", stats::median(&of_cells.p50)),
            ("p99_ms", stats::median(&of_cells.p99)),
            ("processes_p50_ms", stats::median(&of_processes.p50)),
            ("processes_p99_ms", stats::median(&of_processes.p99)),
        ];
        for (name, figure) in figures {
            report.metric(&format!("{group}.{name}_at_{percent:.0}"), figure);
        }
    }
    let figures = [
        ("throughput_vs_processes", stats::median(&ratios)),
        ("images_per_s", stats::median(&of_cells)),
        ("processes_images_per_s", stats::median(&of_processes)),
    ];
    for (name, figure) in figures {
        report.metric(&format!("{group}.{name}"), figure);
    }
    Ok(())
}
