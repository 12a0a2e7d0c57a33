//! `marram bench noisy`: the latency of a quiet tenant beside ten hostile ones on the same shard and core, compared with that of
//! a quiet process beside ten such processes on the same core.
//!
//! ```text
//! core 1:  edge with one shard: 1 quiet + 10 hostile cells         | or: 1 + 10 processes
//! core 2:  agents, the quiet client, the hostile clients (nice 19) |
//! blocks:  alone, beside cells, beside processes, again
//! ```
//! The claim is about the shard's scheduler: a hostile tenant costs the quiet one at most two
//! slices in the tail (`p99_over_alone_slices`). That the kernel's scheduler does the same for
//! processes is the baseline.

mod clients;
mod guests;
mod process;

use super::report::{Bar, Report};
use super::start::{Running, start};
use super::{Plan, cpu, progress, stats};
use anyhow::Context;
use clients::Hostile;
use marram_cluster::{Listen, TempDir, TestCluster, TestEdge};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(super) use process::Worker;

/// The hostile kinds; there are [`EACH`] of each.
const HOSTILE: [Kind; 5] = [Kind::Loop, Kind::Flood, Kind::Growth, Kind::Timers, Kind::Connections];
const EACH: usize = 2;
/// The longest that a handler runs before another runs, in microseconds. As `SLICE_MS` of the
/// sandbox.
const SLICE_US: f64 = 1_000.0;
/// Time between two requests of the quiet client.
const EVERY: Duration = Duration::from_millis(1);
/// Requests at the start of a block that are not counted, since the hostile clients have only begun.
const LEAD_IN: usize = 500;
/// Name of the quiet app.
const QUIET: &str = "quiet";
/// How long hostile sessions may outlive their clients: longer than a handler may run.
const PEACE_PATIENCE: Duration = Duration::from_secs(20);
const LOOK_FOR_PEACE_EVERY: Duration = Duration::from_millis(50);

/// The behaviour of a cell, or of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Echoes its input.
    Echo,
    /// Never returns from its handler.
    Loop,
    /// Sends as much as it can.
    Flood,
    /// Takes as much memory as it gets, and writes on all of it.
    Growth,
    /// Sets timers that are always due.
    Timers,
    /// Does no harm, but has clients that connect and disconnect as fast as they can.
    Connections,
}

/// The times of all counted requests, in microseconds. Blocks are put together: a tail needs many
/// values, and a disturbance affects both variants alike.
#[derive(Default)]
struct Times {
    alone: Vec<f64>,
    beside: Vec<f64>,
}

impl Times {
    fn alone_p99(&self) -> anyhow::Result<f64> {
        stats::p99(&self.alone)
    }

    fn beside_p99(&self) -> anyhow::Result<f64> {
        stats::p99(&self.beside)
    }
}

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let (blocks, counted) = if plan.quick { (1, 500) } else { (5, 2_000) };
    let stage = Stage::set(plan)?;
    let cells = stage.cells(plan)?;
    // Not counted: the edge is still preparing what was just deployed for its first clients.
    beside(&[], &cells.quiet, counted)?;
    let (mut of_cells, mut of_processes) = (Times::default(), Times::default());
    for block in 1..=blocks {
        progress(&format!("noisy: alone, block {block} of {blocks}"));
        of_cells.alone.extend(beside(&[], &cells.quiet, counted)?);
        of_processes.alone.extend(beside(&[], &stage.quiet, counted)?);
        progress(&format!("noisy: beside ten hostile cells, block {block} of {blocks}"));
        of_cells.beside.extend(beside(&cells.targets, &cells.quiet, counted)?);
        progress(&format!("noisy: beside ten busy processes, block {block} of {blocks}"));
        // Dropping them ends them, after their clients.
        let (_processes, targets) = busy_processes(plan)?;
        of_processes.beside.extend(beside(&targets, &stage.quiet, counted)?);
        stage.wait_for_peace()?;
    }
    report(&of_cells, &of_processes)
}

/// The latencies of the quiet client while hostile clients use `targets`; all clients run on the core that does not serve.
fn beside(targets: &[(Kind, SocketAddr)], quiet: &TcpStream, counted: usize) -> anyhow::Result<Vec<f64>> {
    let _core = cpu::OneCore::enter_other()?;
    let _hostile = Hostile::start(targets);
    let count = u32::try_from(LEAD_IN + counted)?;
    let times = clients::ask_steadily(quiet, count, EVERY)?.split_off(LEAD_IN);
    let (median, p99) = (stats::median(&times), stats::p99(&times)?);
    progress(&format!("noisy: p50 {median:.0} us, p99 {p99:.0} us"));
    Ok(times)
}

/// The bar is for cells alone; the processes' figures are for comparison.
fn report(cells: &Times, processes: &Times) -> anyhow::Result<Report> {
    let mut report = Report::new("noisy");
    let (alone, beside) = (cells.alone_p99()?, cells.beside_p99()?);
    report.metric("p50_alone_us", stats::median(&cells.alone));
    report.metric("p50_beside_us", stats::median(&cells.beside));
    report.metric("p99_alone_us", alone);
    report.metric("p99_beside_us", beside);
    report.metric_with_bar("p99_over_alone_slices", (beside - alone) / SLICE_US, Bar::Most(2.0));
    report.metric("max_beside_us", stats::percentile(&cells.beside, 100.0));
    report.metric("process_p50_alone_us", stats::median(&processes.alone));
    report.metric("process_p50_beside_us", stats::median(&processes.beside));
    report.metric("process_p99_alone_us", processes.alone_p99()?);
    report.metric("process_p99_beside_us", processes.beside_p99()?);
    report.metric("p99_vs_processes", beside / processes.beside_p99()?);
    report.baseline(
        "processes",
        "an echo process and ten busy ones of the same kinds, on the shard's core, under the kernel's scheduler",
    );
    report.note(
        "64 bytes every millisecond, counted from when they were due; two endless loops, two floods, two that fill \
         64 MiB again and again, two with eight timers of 1 ns, two with clients that connect and disconnect",
    );
    report.note("the edge has one core for one shard and its supervisor; agents and clients have another, the hostile ones at the lowest priority");
    Ok(report)
}

/// The servers' core: an edge with all apps, and the quiet process.
struct Stage {
    cluster: TestCluster,
    quiet: TcpStream,
    _echo: Running,
}

/// Connections to the cells.
struct ToCells {
    quiet: TcpStream,
    targets: Vec<(Kind, SocketAddr)>,
    // Dropping this ends the agents of the quiet client and of the hostile ones.
    _clusters: [TestCluster; 2],
}

impl Stage {
    /// Starts the edge and the quiet process on the servers' core.
    fn set(plan: &Plan) -> anyhow::Result<Self> {
        let _core = cpu::OneCore::enter()?;
        let mut cluster = TestCluster::new(plan.layout("bench-noisy", 1, ""), apps)?;
        cluster.start_edges("")?;
        let (echo, address) = busy_process(plan, Kind::Echo)?;
        Ok(Self { cluster, quiet: clients::quiet(address)?, _echo: echo })
    }

    /// Waits until only the quiet client's session is left.
    ///
    /// A hostile session may outlive its client for as long as its handler may run. A block that
    /// begins before would not be one of a quiet edge.
    fn wait_for_peace(&self) -> anyhow::Result<()> {
        let edge = self.cluster.edges.first().context("there is an edge")?.client()?;
        let deadline = Instant::now() + PEACE_PATIENCE;
        loop {
            let list = edge.json(hyper::Method::GET, "/v1/sessions").map_err(|why| anyhow::anyhow!(why))?;
            let sessions = list["sessions"].as_array().map_or(0, Vec::len);
            if sessions <= 1 {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "{sessions} sessions are left after the hostile clients disconnected: what follows would not be \
                 measured alone"
            );
            std::thread::sleep(LOOK_FOR_PEACE_EVERY);
        }
    }

    /// Connects all clients through agents of their own, on the other core.
    fn cells(&self, plan: &Plan) -> anyhow::Result<ToCells> {
        let _core = cpu::OneCore::enter_other()?;
        let edges: Vec<SocketAddr> = self.cluster.edges.iter().map(TestEdge::address).collect();
        let agent = |purpose, apps: &[String]| -> anyhow::Result<(TestCluster, Vec<Listen>)> {
            let mut cluster = TestCluster::new(plan.layout(purpose, 0, ""), |_| Ok(Vec::new()))?;
            let apps: Vec<&str> = apps.iter().map(String::as_str).collect();
            let listens = cluster.start_client_agent(&edges, &apps)?;
            Ok((cluster, listens))
        };
        let (cluster, listens) = agent("bench-noisy-quiet", &[QUIET.to_owned()])?;
        let quiet = clients::quiet(listens.first().context("one app has one listener")?.address)?;
        let names: Vec<String> = hostile().map(|(_, name)| name).collect();
        let low_priority = std::thread::scope(|scope| {
            let start = || {
                clients::lowest_priority();
                agent("bench-noisy-hostile", &names)
            };
            scope.spawn(start).join().map_err(|_| anyhow::anyhow!("starting an agent panicked"))
        });
        let (hostile_cluster, listens) = low_priority??;
        let targets = hostile().zip(listens).map(|((kind, _), listen)| (kind, listen.address)).collect();
        Ok(ToCells { quiet, targets, _clusters: [cluster, hostile_cluster] })
    }
}

/// Kind and name of each hostile app.
fn hostile() -> impl Iterator<Item = (Kind, String)> {
    let name = |kind: Kind, number| format!("{}-{number}", format!("{kind:?}").to_lowercase());
    HOSTILE.into_iter().flat_map(move |kind| (1..=EACH).map(move |number| (kind, name(kind, number))))
}

/// Writes the manifests of all apps. No manifest names a tenant, so each app is a tenant of its own.
fn apps(place: &TempDir) -> anyhow::Result<Vec<PathBuf>> {
    let app = |(kind, name): (Kind, String)| {
        place.write(&format!("apps/{name}/guest.wasm"), guests::of(kind))?;
        let manifest = format!("name = \"{name}\"\nmodule = \"guest.wasm\"\n");
        place.write(&format!("apps/{name}/marram.toml"), manifest)
    };
    std::iter::once((Kind::Echo, QUIET.to_owned())).chain(hostile()).map(app).collect()
}

/// A process on the core that this thread runs on, and the address at which it listens.
fn busy_process(plan: &Plan, kind: Kind) -> anyhow::Result<(Running, SocketAddr)> {
    let kind = format!("{kind:?}").to_lowercase();
    let mut process = start(plan, &["noisy".into(), kind])?;
    let address = process.line()?.trim().parse()?;
    Ok((process, address))
}

/// The processes, which end when they are dropped, and where they listen.
type Busy = (Vec<Running>, Vec<(Kind, SocketAddr)>);

/// Ten busy processes, on the core that serves.
fn busy_processes(plan: &Plan) -> anyhow::Result<Busy> {
    let _core = cpu::OneCore::enter()?;
    let mut busy = Busy::default();
    for (kind, _) in hostile() {
        let (process, address) = busy_process(plan, kind)?;
        busy.0.push(process);
        busy.1.push((kind, address));
    }
    Ok(busy)
}
