//! `marram bench middlebox`: the latency that a firewall for each client, and a monitor behind it, add between client and
//! memcached server, compared with the cell `forward` in their place.
//!
//! ```text
//! plain:    client -- agent -- [forward]            -- agent -- memcached
//! firewall: client -- agent -- [firewall]           -- agent -- memcached
//! chain:    client -- agent -- [firewall][monitor]  -- agent -- memcached
//! ```
//! All three run at once in one edge, with one session for each client and app. What differs is the
//! code in the cell, so the differences are what a function of the network costs, without agents
//! and sockets.

use super::load::Load;
use super::memcached::Processes;
use super::report::Report;
use super::{Plan, cpu, progress, stats};
use anyhow::Context;
use marram_cluster::{TempDir, TestCluster};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The cells between client and server; the first app is the baseline of the others.
const APPS: [(&str, &[&str]); 3] =
    [("plain", &["forward"]), ("firewall", &["firewall"]), ("chain", &["firewall", "monitor"])];
/// Numbers of clients; each client has its own cells.
const CLIENTS: [usize; 5] = [1, 250, 500, 1_000, 2_000];
/// Rate of the open loop, as a fraction of the baseline's capacity.
const LOAD: f64 = 0.5;
const SERVER: &str = "memcached";
/// The rules that the firewall ships with, except for the rate: a single client sends as fast as it receives answers.
const RULES: &str = r#"deny client prefix "TRACE "
deny client prefix "CONNECT "
deny client contains "/../"
deny client contains "/etc/passwd"
default client allow
default server allow
limit client rate 1000000/s burst 100000
"#;

/// How much is measured. Longer blocks for more clients are not needed: with more clients a block
/// has more answers.
struct Extent {
    blocks: usize,
    block: Duration,
}

/// Results of each app with one number of clients, by block.
#[derive(Default)]
struct Found {
    /// Mean time to an answer in the closed loop, in which each client sends its next request when it has its answer, in
    /// microseconds.
    closed_us: [Vec<f64>; APPS.len()],
    /// CPU time of edge and agents for an answer in the closed loop, in microseconds.
    cpu_us: [Vec<f64>; APPS.len()],
    /// Percentiles of the open loop, in microseconds.
    p50_us: [Vec<f64>; APPS.len()],
    p99_us: [Vec<f64>; APPS.len()],
}

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let extent = if plan.quick {
        Extent { blocks: 1, block: Duration::from_millis(500) }
    } else {
        Extent { blocks: 7, block: Duration::from_millis(800) }
    };
    let mut report = Report::new("middlebox");
    plan.over_all_wires(&mut report, |plan, report| over(plan, &extent, report))?;
    describe(&mut report);
    Ok(report)
}

/// Measures with all numbers of clients, over one kind of wires.
fn over(plan: &Plan, extent: &Extent, report: &mut Report) -> anyhow::Result<()> {
    let wanted: Vec<usize> = CLIENTS.into_iter().filter(|count| plan.wants(&format!("n{count}"))).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let (mut cluster, _server, addresses) = start(plan)?;
    let _core = cpu::OneCore::enter_other()?;
    let groups = cluster.groups();
    let mut found = Vec::new();
    for count in wanted {
        progress(&format!("middlebox: {}{count} clients", plan.wires.prefix()));
        let measured = measure(&groups, &addresses, count, extent)
            .with_context(|| format!("the last lines of edge and agents:\n{}", cluster.logs.tail(10)))?;
        found.push((count, measured));
    }
    show(&found, report);
    Ok(())
}

/// Starts all servers on one core: an edge, agents on both sides, and memcached. Returns the addresses for clients of each app.
fn start(plan: &Plan) -> anyhow::Result<(TestCluster, Processes, Vec<SocketAddr>)> {
    let _core = cpu::OneCore::enter()?;
    let most = CLIENTS[CLIENTS.len() - 1];
    let server = Processes::start(1, (APPS.len() + 1) * most)?;
    let mut layout = plan.layout("bench-middlebox", 1, "");
    let stages: usize = APPS.iter().map(|(_, stages)| stages.len()).sum();
    writeln!(layout.edge_tables, "[limits]\ncells = {}", (stages + 1) * most)?;
    let mut cluster =
        TestCluster::new(layout, |place| APPS.iter().map(|app| manifest(plan, place, app)).collect())?;
    cluster.start_edges("")?;
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[(SERVER, server.addresses[0])])?;
    let listens = cluster.start_client_agent(&edges, &APPS.map(|(name, _)| name))?;
    Ok((cluster, server, listens.iter().map(|listen| listen.address).collect()))
}

/// The manifest of an app: a single module, or a `[[stage]]` for each. Both get the rules as a
/// file.
fn manifest(plan: &Plan, place: &TempDir, (name, stages): &(&str, &[&str])) -> anyhow::Result<PathBuf> {
    place.write(&format!("apps/{name}/rules"), RULES)?;
    let files = |stage: &str, table: &str| match stage {
        "firewall" => format!("[[{table}]]\npath = \"/etc/rules\"\nsource = \"rules\"\n"),
        _ => String::new(),
    };
    let mut text = format!("name = \"{name}\"\nserver = \"{SERVER}\"\nprotect = \"endpoints\"\n");
    let module = |stage: &str| format!("module = {:?}\n", plan.cells.module(stage).display().to_string());
    if let [only] = stages {
        text += &format!("{}[quotas]\nmemory = \"4MiB\"\n{}", module(only), files(only, "files"));
    } else {
        for stage in *stages {
            let module = module(stage);
            write!(text, "[[stage]]\nname = \"{stage}\"\n{module}[stage.quotas]\nmemory = \"4MiB\"\n")?;
            text += &files(stage, "stage.files");
        }
    }
    place.write(&format!("apps/{name}/marram.toml"), text)
}

/// Measures with one number of clients; all apps alternate by block.
///
/// First all blocks of the closed loop, which also give the baseline's capacity; then all blocks of
/// the open loop at a fraction of that. The rate is the same for all apps, so that their tails can
/// be compared.
fn measure(groups: &[u32], addresses: &[SocketAddr], count: usize, extent: &Extent) -> anyhow::Result<Found> {
    let mut loads = addresses
        .iter()
        .map(|address| Load::connect(&[*address], count))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut found = Found::default();
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let clients = count as f64;
    for _ in 0..extent.blocks {
        for (index, load) in loads.iter_mut().enumerate() {
            let before = cpu::spent_ns(groups);
            let capacity = load.capacity(extent.block)?;
            let spent = cpu::spent_ns(groups).saturating_sub(before);
            found.closed_us[index].push(clients * 1e6 / capacity.per_s);
            #[expect(clippy::cast_precision_loss, reason = "nanoseconds of one block")]
            found.cpu_us[index].push(spent as f64 / 1e3 / capacity.answers);
        }
    }
    let rate = LOAD * clients * 1e6 / stats::median(&found.closed_us[0]);
    for _ in 0..extent.blocks {
        for (index, load) in loads.iter_mut().enumerate() {
            let answered = load.open_loop(rate, extent.block)?;
            found.p50_us[index].push(stats::median(&answered.waits_us));
            found.p99_us[index].push(stats::p99(&answered.waits_us)?);
        }
    }
    Ok(found)
}

/// The median of the differences between an app's blocks and those of the baseline measured beside them.
fn added(blocks: &[Vec<f64>; APPS.len()], app: usize) -> f64 {
    let pairs = blocks[app].iter().zip(&blocks[0]);
    stats::median(&pairs.map(|(with, without)| with - without).collect::<Vec<_>>())
}

/// Reports differences to the baseline first, and then each app's own figures below
/// `n<clients>.<app>`.
fn show(found: &[(usize, Found)], report: &mut Report) {
    for (app, (name, _)) in APPS.iter().enumerate().skip(1) {
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        let points: Vec<(f64, f64)> =
            found.iter().map(|(count, found)| (*count as f64, added(&found.closed_us, app))).collect();
        // A figure without a name is about the firewall alone.
        let prefix = if *name == "firewall" { String::new() } else { format!("{name}_") };
        // A slope needs two points.
        if points.len() > 1 {
            report.metric(&format!("{prefix}added_us_per_client"), stats::slope(&points));
        }
        for (count, found) in found {
            report.metric(&format!("{prefix}added_cpu_us_at_{count}"), added(&found.cpu_us, app));
            let metrics = [("p50", &found.p50_us), ("p99", &found.p99_us)];
            for (percentile, blocks) in metrics {
                report.metric(&format!("{prefix}added_{percentile}_us_at_{count}"), added(blocks, app));
            }
        }
    }
    for (count, found) in found {
        for (app, (name, _)) in APPS.iter().enumerate() {
            let group = format!("n{count}.{name}");
            report.metric(&format!("{group}_closed_mean_us"), stats::median(&found.closed_us[app]));
            report.metric(&format!("{group}_cpu_us"), stats::median(&found.cpu_us[app]));
            report.metric(&format!("{group}_p50_us"), stats::median(&found.p50_us[app]));
            report.metric(&format!("{group}_p99_us"), stats::median(&found.p99_us[app]));
        }
    }
}

/// What the figures mean, for people.
fn describe(report: &mut Report) {
    report.baseline(
        "plain",
        "the same agents, edge and server, with the cell `forward` in the place of the others",
    );
    report.note(
        "clients of a real memcached (135 B values, 95 % get), each through cells of its own, protected by endpoints; agents, \
         edge with one shard and server have one core, the clients, one thread, the other",
    );
    report.note(
        "added_us_per_client: how much longer the mean answer takes for each further client, if every client sends \
         its next request when it has its answer; the slope of a line through all numbers of clients",
    );
    report.note("added_cpu_us: additional processor time of edge and agents for an answer in the same runs");
    report.note(
        "added_p50 and added_p99: open loop at half of what the plain way can carry, from when a request was due",
    );
    report.note("encrypted: the same, all apps, over wires of TLS 1.3 between agents and edge");
}
