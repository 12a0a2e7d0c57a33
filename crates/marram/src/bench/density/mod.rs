//! `marram bench density`: many small tenants, each with a memcached of its own: a shared cell on one edge, against a process.

mod tenants;

use super::load::{Answered, Capacity, Load};
use super::memcached::Processes;
use super::report::{Bar, Report};
use super::{Plan, cpu, progress, stats};
use anyhow::Context;
use std::net::SocketAddr;
use std::time::Duration;
use tenants::Cells;

/// How many tenants there are.
const TENANTS: [usize; 4] = [1, 100, BARRED, MANY];
/// The bars are for this many.
const BARRED: usize = 300;
/// So many must not bring a side down: more is done than by processes, with a tail as much shorter as that of fewer tenants, and
/// nothing is left undone.
const MANY: usize = 1_000;
/// Clients at least, over all tenants.
const CLIENTS_MIN: usize = 64;
/// What the open loop asks of both sides, in per cent of what the processes can do. The bars are for the last.
const LOADS: [u32; 3] = [25, 50, 75];

/// Whoever goes on after a rest first does what came due meanwhile.
const SETTLE: Duration = Duration::from_millis(100);

/// How much is measured.
struct Extent {
    blocks: usize,
    capacity: Duration,
    open: Duration,
}

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("density");
    let extent = if plan.quick {
        Extent { blocks: 1, capacity: Duration::from_millis(500), open: Duration::from_millis(500) }
    } else {
        Extent { blocks: 3, capacity: Duration::from_secs(1), open: Duration::from_millis(1_500) }
    };
    let counts = if plan.quick { &TENANTS[..3] } else { &TENANTS[..] };
    let mut capacities = Vec::new();
    for count in counts.iter().filter(|count| plan.wants(&format!("n{count}"))) {
        capacities.push((*count, compare(plan, *count, &extent, &mut report)?));
    }
    let of = |count| capacities.iter().find(|(of, _)| *of == count).map(|(_, capacities)| *capacities);
    if let (Some(many), Some(some)) = (of(MANY), of(BARRED)) {
        report.metric("n1000.capacity_vs_n300", many.0 / some.0);
        report.metric("n1000.processes_capacity_vs_n300", many.1 / some.1);
    }
    report.baseline("processes", "memcached -l 127.0.0.1 -t 1 -m 64 -u nobody");
    report.note(
        "135 B values, 100 keys a tenant, 95 % get, unmodified text protocol over TCP on loopback; every answer is checked",
    );
    report.note(
        "servers have one core: an edge with one shard and its own gates, or all processes; the clients, one thread, have \
         the other, and the kernel's part of receiving falls to whichever core sends",
    );
    report.note(
        "capacity: 64 clients, or one a tenant, of which each asks when it has its answer; latency: open loop at 75 % of the \
         processes' capacity unless said, from when a request was due; drops: answers that took more than a second",
    );
    report.note(
        "the side that is not measured stands still (SIGSTOP): three hundred memcached have a thousand threads that wake by themselves",
    );
    report.note("clients_busy: near 1, capacity is the clients' and not the side's");
    report.note("memory: proportional set size of all processes of a side, after everything");
    Ok(report)
}

/// What was found of one side.
#[derive(Default)]
struct Found {
    capacity: Vec<f64>,
    clients_busy: Vec<f64>,
    /// By load: percentiles of each block.
    p50: [Vec<f64>; LOADS.len()],
    p99: [Vec<f64>; LOADS.len()],
    drops: u64,
}

impl Found {
    fn add_capacity(&mut self, capacity: &Capacity) {
        self.capacity.push(capacity.per_s);
        self.clients_busy.push(capacity.clients_busy);
    }

    fn add(&mut self, load: usize, answered: &Answered) {
        self.p50[load].push(stats::median(&answered.waits_us));
        self.p99[load].push(stats::percentile(&answered.waits_us, 99.0));
        self.drops += answered.drops;
    }
}

/// One number of tenants; the cells' capacity, and that of processes.
fn compare(plan: &Plan, count: usize, extent: &Extent, report: &mut Report) -> anyhow::Result<(f64, f64)> {
    progress(&format!("density: {count} tenants"));
    let (mut cells, processes) = {
        let _core = cpu::OneCore::enter()?;
        (Cells::start(plan, count)?, Processes::start(count, 1_024)?)
    };
    let (of_cells, of_processes) = measure(&cells, &processes, extent)
        .with_context(|| format!("what the edge said last:\n{}", cells.said()))?;
    #[expect(clippy::cast_precision_loss, reason = "KiB of some processes")]
    let memory = (cells.memory_kib()? as f64, processes.memory_kib() as f64);
    show(report, count, &of_cells, &of_processes, memory);
    Ok((stats::median(&of_cells.capacity), stats::median(&of_processes.capacity)))
}

/// Both sides, block by block in turn.
fn measure(cells: &Cells, processes: &Processes, extent: &Extent) -> anyhow::Result<(Found, Found)> {
    let _core = cpu::OneCore::enter_other()?;
    let connect = |addresses: &[SocketAddr]| Load::connect(addresses, CLIENTS_MIN.div_ceil(addresses.len()));
    let (mut to_cells, mut to_processes) = (connect(&cells.addresses)?, connect(&processes.addresses)?);
    let (mut of_cells, mut of_processes) = (Found::default(), Found::default());
    let turn = |of_cells: bool| {
        cells.rest(!of_cells);
        processes.rest(of_cells);
        std::thread::sleep(SETTLE);
    };
    for _ in 0..extent.blocks {
        turn(false);
        of_processes.add_capacity(&to_processes.capacity(extent.capacity)?);
        turn(true);
        of_cells.add_capacity(&to_cells.capacity(extent.capacity)?);
    }
    let capacity = stats::median(&of_processes.capacity);
    for (load, percent) in LOADS.into_iter().enumerate() {
        let rate = capacity * f64::from(percent) / 100.0;
        for _ in 0..extent.blocks {
            turn(false);
            of_processes.add(load, &to_processes.open_loop(rate, extent.open)?);
            turn(true);
            of_cells.add(load, &to_cells.open_loop(rate, extent.open)?);
        }
    }
    cells.rest(false);
    processes.rest(false);
    Ok((of_cells, of_processes))
}

fn show(report: &mut Report, count: usize, cells: &Found, processes: &Found, memory_kib: (f64, f64)) {
    let median = |values: &[f64]| stats::median(values);
    let last = LOADS.len() - 1;
    let capacity = median(&cells.capacity) / median(&processes.capacity);
    let p99 = median(&cells.p99[last]) / median(&processes.p99[last]);
    let memory = memory_kib.0 / memory_kib.1;
    #[expect(clippy::cast_precision_loss, reason = "answers of some seconds")]
    let drops = cells.drops as f64;
    let figures = [
        ("p99_vs_processes", p99, (count >= BARRED).then_some(Bar::Most(1.0 / 3.0))),
        ("memory_vs_processes", memory, (count == BARRED).then_some(Bar::Most(0.1))),
        ("capacity_vs_processes", capacity, (count == MANY).then_some(Bar::Least(1.0))),
        ("drops", drops, (count == MANY).then_some(Bar::Most(0.0))),
    ];
    for (name, figure, bar) in figures {
        let name = format!("n{count}.{name}");
        match bar {
            Some(bar) => report.metric_with_bar(&name, figure, bar),
            None => report.metric(&name, figure),
        }
    }
    let mut metric = |name: &str, figure: f64| report.metric(&format!("n{count}.{name}"), figure);
    metric("p50_us", median(&cells.p50[last]));
    metric("p99_us", median(&cells.p99[last]));
    metric("processes_p50_us", median(&processes.p50[last]));
    metric("processes_p99_us", median(&processes.p99[last]));
    for (load, percent) in LOADS.into_iter().enumerate().take(last) {
        metric(&format!("p50_at_{percent}_us"), median(&cells.p50[load]));
        metric(&format!("p99_at_{percent}_us"), median(&cells.p99[load]));
        metric(&format!("processes_p50_at_{percent}_us"), median(&processes.p50[load]));
        metric(&format!("processes_p99_at_{percent}_us"), median(&processes.p99[load]));
    }
    metric("per_s", median(&cells.capacity));
    metric("processes_per_s", median(&processes.capacity));
    metric("clients_busy", median(&cells.clients_busy));
    metric("processes_clients_busy", median(&processes.clients_busy));
    metric("memory_kib", memory_kib.0);
    metric("processes_memory_kib", memory_kib.1);
    report.metric(&format!("n{count}.processes_drops"), processes.drops);
}
