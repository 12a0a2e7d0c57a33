//! `marram bench density`: many small tenants, each with its own memcached: a shared cell on one edge, compared with a process.
//!
//! ```text
//! cells      tenant i -- gate i -- shared cell i         all in one edge: supervisor, gates, one shard
//! processes  tenant i -- memcached i                     one process with one thread each
//! ```
//! Servers have one core, clients the other. One variant is paused while the other one is measured,
//! since its mere wake-ups would be part of the other's figures; the control `unpaused` shows how
//! much that changes.

mod tenants;

use super::load::{Answered, Capacity, Load};
use super::memcached::Processes;
use super::report::{Bar, Report};
use super::stats::Tail;
use super::{Plan, cpu, progress, stats};
use anyhow::Context;
use std::net::SocketAddr;
use std::time::Duration;
use tenants::Cells;

/// Numbers of tenants that are measured. In ascending order; a quick run leaves out the last one.
const TENANTS: [usize; 4] = [1, 100, BARRED, MANY];
/// The bars apply to this number.
const BARRED: usize = 300;
/// With this many tenants, the cells must have at least the processes' capacity, a tail about as much shorter as with fewer
/// tenants, and no dropped request.
const MANY: usize = 1_000;
/// Least number of clients, over all tenants.
const CLIENTS_MIN: usize = 64;
/// Rates of the open loop for both variants, in per cent of the processes' capacity. The bars apply to the last.
const LOADS: [u32; 3] = [25, 50, 75];
/// Index of the load to which the bars apply.
const LAST: usize = LOADS.len() - 1;
/// The most that the cells' p99 may be, as a fraction of the processes': with [`BARRED`] tenants, and with [`MANY`].
const P99_MOST: f64 = 0.34;
const P99_MOST_OF_MANY: f64 = 1.0 / 3.0;
/// The least ratio of the cells' capacity with [`MANY`] tenants to that with [`BARRED`].
const CAPACITY_LEAST: f64 = 0.75;

/// A variant that resumes first does the work that came due during the pause.
const SETTLE: Duration = Duration::from_millis(100);

/// How much is measured. Times of one block.
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
    let counts = if plan.quick && plan.only.is_none() { &TENANTS[..3] } else { &TENANTS[..] };
    let mut capacities = Vec::new();
    for count in counts.iter().filter(|count| plan.wants(&format!("n{count}"))) {
        capacities.push((*count, compare(plan, *count, &extent, &mut report)?));
    }
    let of = |count| capacities.iter().find(|(of, _)| *of == count).map(|(_, capacities)| *capacities);
    if let (Some(many), Some(some)) = (of(MANY), of(BARRED)) {
        report.metric_with_bar("n1000.capacity_vs_n300", many.0 / some.0, Bar::Least(CAPACITY_LEAST));
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
        "one variant is paused (SIGSTOP) while the other one is measured: three hundred memcached have a thousand \
         threads that wake by themselves; unpaused: a control, measured again without the pause",
    );
    report.note("clients_busy: near 1, capacity is the clients' and not the variant's");
    report.note("memory: proportional set size of all processes of a variant, after everything");
    Ok(report)
}

/// Results of one variant.
#[derive(Default)]
struct Found {
    capacity: Vec<f64>,
    clients_busy: Vec<f64>,
    /// By load: the medians and the tails of the blocks.
    p50: [Vec<f64>; LOADS.len()],
    tail: [Tail; LOADS.len()],
    drops: u64,
}

impl Found {
    fn add_capacity(&mut self, capacity: &Capacity) {
        self.capacity.push(capacity.per_s);
        self.clients_busy.push(capacity.clients_busy);
    }

    fn add(&mut self, load: usize, answered: &Answered) {
        self.p50[load].push(stats::median(&answered.waits_us));
        self.tail[load].add(&answered.waits_us);
        self.drops += answered.drops;
    }
}

/// Measures with one number of tenants; returns the capacity of the cells and that of the processes.
///
/// # Errors
/// With the last lines of the edge's log, which say why a cell or a gate did not answer.
fn compare(plan: &Plan, count: usize, extent: &Extent, report: &mut Report) -> anyhow::Result<(f64, f64)> {
    progress(&format!("density: {count} tenants"));
    let (mut cells, processes) = {
        let _core = cpu::OneCore::enter()?;
        (Cells::start(plan, count)?, Processes::start(count, 1_024)?)
    };
    let measured = |others| {
        measure(&cells, &processes, extent, others)
            .with_context(|| format!("the last lines of the edge:\n{}", cells.said()))
    };
    let (of_cells, of_processes) = measured(Others::StandStill)?;
    if count >= BARRED {
        progress(&format!("density: {count} tenants, without pauses"));
        let (of_cells, of_processes) = measured(Others::Run)?;
        show_control(report, count, &of_cells, &of_processes);
    }
    #[expect(clippy::cast_precision_loss, reason = "KiB of some processes")]
    let memory = (cells.memory_kib()? as f64, processes.memory_kib() as f64);
    show(report, count, &of_cells, &of_processes, memory);
    Ok((stats::median(&of_cells.capacity), stats::median(&of_processes.capacity)))
}

/// What the other variant does during a measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    /// It is stopped.
    StandStill,
    /// It runs, without requests. A control, for the last load alone.
    Run,
}

/// Measures both variants; they alternate by block.
///
/// First the capacities of both, then the open loops, whose rates are fractions of the processes'
/// capacity, so that both sides get the same requests at the same rate.
fn measure(
    cells: &Cells,
    processes: &Processes,
    extent: &Extent,
    others: Others,
) -> anyhow::Result<(Found, Found)> {
    let _core = cpu::OneCore::enter_other()?;
    let connect = |addresses: &[SocketAddr]| Load::connect(addresses, CLIENTS_MIN.div_ceil(addresses.len()));
    let (mut to_cells, mut to_processes) = (connect(&cells.addresses)?, connect(&processes.addresses)?);
    let (mut of_cells, mut of_processes) = (Found::default(), Found::default());
    let turn = |of_cells: bool| {
        if others == Others::StandStill {
            cells.rest(!of_cells);
            processes.rest(of_cells);
        }
        std::thread::sleep(SETTLE);
    };
    for _ in 0..extent.blocks {
        turn(false);
        of_processes.add_capacity(&to_processes.capacity(extent.capacity)?);
        turn(true);
        of_cells.add_capacity(&to_cells.capacity(extent.capacity)?);
    }
    let capacity = stats::median(&of_processes.capacity);
    let first = if others == Others::Run { LAST } else { 0 };
    for (load, percent) in LOADS.into_iter().enumerate().skip(first) {
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

/// The control's figures.
fn show_control(report: &mut Report, count: usize, cells: &Found, processes: &Found) {
    let group = format!("n{count}.unpaused");
    let (name, ratio) = cells.tail[LAST].over(&processes.tail[LAST], &format!("{group}.p99_vs_processes"));
    report.metric(&name, ratio);
    for (side, found) in [("", cells), ("processes_", processes)] {
        report.metric(&format!("{group}.{side}p50_us"), stats::median(&found.p50[LAST]));
        report.tail(&format!("{group}.{side}p99_us"), &found.tail[LAST]);
        report.metric(&format!("{group}.{side}per_s"), stats::median(&found.capacity));
    }
    let capacity = stats::median(&cells.capacity) / stats::median(&processes.capacity);
    report.metric(&format!("{group}.capacity_vs_processes"), capacity);
}

/// The ratios, some with a bar that depends on the number of tenants, and then each side's own
/// figures.
fn show(report: &mut Report, count: usize, cells: &Found, processes: &Found, memory_kib: (f64, f64)) {
    let median = |values: &[f64]| stats::median(values);
    let capacity = median(&cells.capacity) / median(&processes.capacity);
    let (p99_name, p99) = cells.tail[LAST].over(&processes.tail[LAST], "p99_vs_processes");
    let p99_bar = match count {
        MANY => Some(Bar::Most(P99_MOST_OF_MANY)),
        BARRED => Some(Bar::Most(P99_MOST)),
        _ => None,
    };
    let memory = memory_kib.0 / memory_kib.1;
    #[expect(clippy::cast_precision_loss, reason = "answers of some seconds")]
    let drops = cells.drops as f64;
    let figures = [
        (p99_name.as_str(), p99, p99_bar),
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
    for (load, percent) in LOADS.into_iter().enumerate() {
        let at = if load == LAST { String::new() } else { format!("at_{percent}_") };
        for (side, found) in [("", cells), ("processes_", processes)] {
            report.metric(&format!("n{count}.{side}p50_{at}us"), median(&found.p50[load]));
            report.tail(&format!("n{count}.{side}p99_{at}us"), &found.tail[load]);
        }
    }
    let mut metric = |name: &str, figure: f64| report.metric(&format!("n{count}.{name}"), figure);
    metric("per_s", median(&cells.capacity));
    metric("processes_per_s", median(&processes.capacity));
    metric("clients_busy", median(&cells.clients_busy));
    metric("processes_clients_busy", median(&processes.clients_busy));
    metric("memory_kib", memory_kib.0);
    metric("processes_memory_kib", memory_kib.1);
    report.metric(&format!("n{count}.processes_drops"), processes.drops);
}
