//! `marram bench recover`: how long a client waits when its edge dies or hangs. The cell holds incompressible state; its
//! checkpoint is stored only at an end; the edge that takes over is new and empty.
//!
//! ```text
//! client -- agent --+-- edge A (owner) --+-- agent -- server
//!                   '-- edge B (empty) --'
//! gap:  last answer of A ... kill ... promises, log and checkpoint from the ends, replay ... first answer of B
//! ```
//! After each kill the dead edge comes back empty and becomes the next one to take over, so that no
//! run profits from what an earlier one left. `edge_p50_ms` is by the clock of the edge that took
//! over, and a part of the gap.
//!
//! The baseline of `recover` are the paper's figures (CESSNA, section 7).

mod suspicion;

use super::ballast::{APP, SERVER, cluster, counter, session, wires};
use super::pinger::{self, Pinger};
use super::plan::Wires;
use super::report::{Bar, Report};
use super::{Plan, cpu, mass, peer, progress, stats};
use anyhow::Context;
use hyper::Method;
use marram_cluster::{LogEvent, RECORDER, TestCluster};
use marram_testbed::Relay;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Delay of a long wire, one way.
const REMOTE: Duration = Duration::from_millis(20);
/// How long a checkpoint may take to be stored.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("recover");
    plan.over_all_wires(&mut report, over)?;
    report.baseline(
        "CESSNA",
        "the paper's figures: 46 ms (10 MB), 83 ms (43 MB, local), 183 ms (43 MB, same region)",
    );
    report.note("a client that asks every millisecond; the gap is the longest time between two answers");
    report.note("encrypted: the same over wires of TLS 1.3, as between machines");
    Ok(report)
}

/// Runs all parts over one kind of wires.
fn over(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    // A 99th percentile needs this many kills.
    let (kills, hangs) = if plan.quick { (3, 2) } else { (100, 10) };
    for (name, size, bar) in [
        ("state_64kib", 64 << 10, None),
        ("state_1mib", 1 << 20, None),
        ("state_10mib", 10 << 20, Some(25.0)),
        ("state_43mib", 43 << 20, None),
    ] {
        if plan.wants(name) {
            local(plan, name, size, kills, hangs, bar, report)?;
        }
    }
    if plan.wants("replay") {
        replay(plan, report)?;
    }
    for (name, recorder) in [("remote_10mib", false), ("local_10mib", true)] {
        if plan.wants(name) {
            remote(plan, name, recorder, if plan.quick { 2 } else { 10 }, report)?;
        }
    }
    if plan.wants("false_suspicions") && plan.wires == Wires::Plain {
        suspicion::run(plan, report)?;
    }
    if plan.wants("mass") {
        mass::run(plan, if plan.quick { 50 } else { 1000 }, report)?;
    }
    Ok(())
}

/// A run with two edges, the second of which starts empty, and one session with `bytes` of state.
///
/// The state is in a checkpoint before the first kill, so that a recovery fetches it from an end.
struct Scene {
    cluster: TestCluster,
    pinger: Pinger,
    // The relays between agents and edges, where the wires are long.
    _relays: Vec<Relay>,
}

impl Scene {
    /// `delay` is that of the wires, one way; `recorder` starts one on the edges' machine.
    fn new(plan: &Plan, bytes: u64, delay: Option<Duration>, recorder: bool) -> anyhow::Result<Self> {
        let mut cluster = cluster(plan, "")?;
        cluster.start_edges("")?;
        if recorder {
            cluster.start_recorder("", "")?;
        }
        let (edges, relays) = wires(&cluster, delay)?;
        cluster.start_server_agent(&edges[1], &[(SERVER, peer::echo_server()?)])?;
        let listens = cluster.start_client_agent(&edges[0], &[APP])?;
        let address = listens.first().context("one app has one listener")?.address;
        let mut stream = Pinger::fill(address, bytes)?;
        wait_for_checkpoint(&cluster, &mut stream)?;
        Ok(Self { cluster, pinger: Pinger::start(stream), _relays: relays })
    }

    /// Kills the owner and starts it again with an empty directory.
    ///
    /// The CPU time is taken between the kill and some answers after it, on the edge that stays, so
    /// it has the restore in it.
    fn kill(&mut self) -> anyhow::Result<Recovery> {
        let (index, start) = (self.cluster.owner()?, self.cluster.logs.end());
        let other = self.cluster.other(index).context("there is another edge")?;
        let group =
            self.cluster.edges[other].process().map(|process| process.id()).into_iter().collect::<Vec<_>>();
        let before = cpu::spent_ns(&group);
        let edge = &mut self.cluster.edges[index];
        let gap_ms = self.pinger.longest_wait_ms(|| edge.kill())?;
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of one recovery")]
        let cpu_ms = cpu::spent_ns(&group).saturating_sub(before) as f64 / 1e6;
        self.cluster.wait_for_owner(start)?;
        self.cluster.respawn(index)?;
        Ok(Recovery { gap_ms, cpu_ms })
    }

    /// Waits until the recorder has as much as the ends have, and both edges are connected to it.
    ///
    /// Otherwise a kill right after a recovery would be measured without the recorder's help.
    fn wait_for_recorder(&self) -> anyhow::Result<()> {
        let recorder = self.cluster.recorder.as_ref().context("a recorder was started")?.client()?;
        let edge = self.cluster.edges[self.cluster.owner()?].address().to_string();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let listed = recorder.json(Method::GET, "/v1/sessions")?;
            let kept = &listed["sessions"][0];
            let metrics = recorder.call(Method::GET, "/metrics", bytes::Bytes::new())?;
            let metrics = String::from_utf8_lossy(&metrics).into_owned();
            let wires = metrics
                .lines()
                .any(|line| line.starts_with("marram_recorder_wires{") && line.ends_with(" 2"));
            let whole = kept["checkpoint_bytes"].as_u64().is_some_and(|bytes| bytes > 10 << 20);
            if kept["phase"] == "recorded" && kept["edge"] == edge && whole && wires {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "the recorder does not keep the session: {listed}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops the owner until the session has moved; returns the client's wait in milliseconds.
    fn hang(&mut self) -> anyhow::Result<f64> {
        let (index, start) = (self.cluster.owner()?, self.cluster.logs.end());
        let edge = &self.cluster.edges[index];
        let gap = self.pinger.longest_wait_ms(|| edge.stop())?;
        self.cluster.wait_for_owner(start)?;
        self.cluster.edges[index].wake();
        self.cluster.respawn(index)?;
        Ok(gap)
    }
}

/// Results of one recovery.
struct Recovery {
    /// The client's wait.
    gap_ms: f64,
    /// CPU time of the edge that took over, including some answers: the wait would consist of this if nothing else ran on the
    /// machine.
    cpu_ms: f64,
}

/// Sends the cell messages until a checkpoint that covers its state is stored at an end. It must be
/// newer than those at the start, and not the session's first one: that may have been taken before
/// the state was filled.
fn wait_for_checkpoint(cluster: &TestCluster, stream: &mut TcpStream) -> anyhow::Result<()> {
    let client = cluster.edges[cluster.owner()?].client()?;
    let before = session(&client)?["checkpoints"].as_u64().unwrap_or(0);
    let deadline = Instant::now() + PATIENCE;
    let payload = vec![1; 60 << 10];
    loop {
        for _ in 0..10 {
            let echo = pinger::command(b'E', payload.len() as u64, 0);
            let message = [&echo[..], &payload].concat();
            peer::round_trips(stream, &message, 1)?;
        }
        if session(&client)?["checkpoints"].as_u64().unwrap_or(0) > before.max(1) {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "no checkpoint was stored for {PATIENCE:?}");
    }
}

/// Kills the owner `kills` times and lets it hang `hangs` times, with `bytes` of state. `bar` is
/// for the median gap of the kills.
fn local(
    plan: &Plan,
    name: &str,
    bytes: u64,
    kills: usize,
    hangs: usize,
    bar: Option<f64>,
    report: &mut Report,
) -> anyhow::Result<()> {
    progress(&format!("recover: {}{name}", plan.wires.prefix()));
    let mut scene = Scene::new(plan, bytes, None, false)?;
    let (mut gaps, mut cpus, mut edge) = (Vec::new(), Vec::new(), Vec::new());
    for kill in 0..kills {
        progress(&format!("recover: {}{name}, kill {} of {kills}", plan.wires.prefix(), kill + 1));
        let recovery = scene.kill()?;
        gaps.push(recovery.gap_ms);
        cpus.push(recovery.cpu_ms);
        edge.extend(recovery_ms(&scene.cluster)?);
    }
    let p50 = format!("{name}.client_gap_p50_ms");
    match bar {
        Some(most) => report.metric_with_bar(&p50, stats::median(&gaps), Bar::Most(most)),
        None => report.metric(&p50, stats::median(&gaps)),
    }
    report.tail(&format!("{name}.client_gap_p99_ms"), &stats::Tail::of(&gaps));
    report.metric(&format!("{name}.edge_cpu_p50_ms"), stats::median(&cpus));
    if !edge.is_empty() {
        report.metric(&format!("{name}.edge_p50_ms"), stats::median(&edge));
    }
    let mut gaps = Vec::new();
    for hang in 0..hangs {
        progress(&format!("recover: {}{name}, hang {} of {hangs}", plan.wires.prefix(), hang + 1));
        gaps.push(scene.hang()?);
    }
    let hang_bar = Bar::Most(if bar.is_some() { 120.0 } else { 400.0 });
    report.metric_with_bar(&format!("{name}.hang_gap_p50_ms"), stats::median(&gaps), hang_bar);
    let (lost, repeated) = scene.pinger.lost_and_repeated();
    report.add_lost(lost, repeated);
    Ok(())
}

/// The duration of the owner's only recovery by its own metric, from the first promise asked for to the first output released.
fn recovery_ms(cluster: &TestCluster) -> anyhow::Result<Option<f64>> {
    let micros = counter(&cluster.edges[cluster.owner()?].client()?, "recovery_us_total")?;
    #[expect(clippy::cast_precision_loss, reason = "microseconds of one recovery")]
    Ok(micros.map(|micros| micros as f64 / 1e3))
}

/// The time to replay one message: recoveries of sessions without a checkpoint, with many messages and with few.
///
/// No checkpoint is taken (`recovery_target = "1h"`), so the whole log is replayed. The difference
/// of the two gaps, divided by the messages, is free of what every recovery costs.
fn replay(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let rounds = if plan.quick { 2 } else { 8 };
    let messages: usize = if plan.quick { 2_000 } else { 20_000 };
    let (mut few, mut many, mut replayed) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        progress(&format!("recover: replay, round {} of {rounds}", round + 1));
        few.push(replay_once(plan, 1)?.0);
        let (gap, count) = replay_once(plan, messages)?;
        many.push(gap);
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        replayed.push(count as f64);
    }
    let extra_us = (stats::median(&many) - stats::median(&few)) * 1e3;
    let count = stats::median(&replayed).max(1.0);
    report.metric_with_bar("replay_us_per_message", extra_us / count, Bar::Most(2.0));
    report.metric("replayed_messages", count);
    Ok(())
}

/// The client's wait, in milliseconds, and how many messages the new owner replayed. `messages`
/// before the kill; the fault finds them all in the log.
fn replay_once(plan: &Plan, messages: usize) -> anyhow::Result<(f64, u64)> {
    let mut cluster = cluster(plan, "recovery_target = \"1h\"")?;
    cluster.start_edges("")?;
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[(SERVER, peer::echo_server()?)])?;
    let listens = cluster.start_client_agent(&edges, &[APP])?;
    let mut stream = peer::connect(listens.first().context("one app has one listener")?.address)?;
    for number in 0..messages {
        pinger::ask(&mut stream, b'E', 0, number as u64)?;
    }
    let pinger = Pinger::start(stream);
    let (index, start) = (cluster.owner()?, cluster.logs.end());
    let edge = &mut cluster.edges[index];
    let gap = pinger.longest_wait_ms(|| edge.kill())?;
    cluster.wait_for_owner(start)?;
    let replayed = counter(&cluster.edges[cluster.owner()?].client()?, "inputs_replayed_total")?;
    Ok((gap, replayed.unwrap_or(0)))
}

/// 10 MiB of state, and 20 ms between every agent and every edge; with or without a recorder beside the edges.
///
/// The wires are as long as between a client's site and a far edge. A recorder beside the edges
/// then has what the ends would have to send over 20 ms and a slow path.
fn remote(plan: &Plan, name: &str, recorder: bool, kills: usize, report: &mut Report) -> anyhow::Result<()> {
    progress(&format!("recover: {}{name}", plan.wires.prefix()));
    let mut scene = Scene::new(plan, 10 << 20, Some(REMOTE), recorder)?;
    let (mut gaps, mut recalled) = (Vec::new(), 0_u32);
    for kill in 0..kills {
        progress(&format!("recover: {}{name}, kill {} of {kills}", plan.wires.prefix(), kill + 1));
        if recorder {
            scene.wait_for_recorder()?;
        }
        gaps.push(scene.kill()?.gap_ms);
        let owner = scene.cluster.edges[scene.cluster.owner()?].client()?;
        recalled += u32::from(counter(&owner, "recalled_total")?.is_some_and(|count| count > 0));
    }
    report.metric(&format!("{name}.client_gap_p50_ms"), stats::median(&gaps));
    report.tail(&format!("{name}.client_gap_p99_ms"), &stats::Tail::of(&gaps));
    if recorder {
        let asked = |event: &LogEvent| *event.who == *RECORDER && event.name() == "recalled";
        let whole = |event: &LogEvent| event.number("bytes") > 10 << 20;
        let found = scene.cluster.logs.all(0, asked).iter().filter(|event| whole(event)).count();
        anyhow::ensure!(found >= kills, "{found} of {kills} recoveries found their session at the recorder");
        // The other recoveries did not wait for the recorder.
        report.metric(&format!("{name}.recalled"), recalled);
        report.note("local: as remote, and a recorder on the edges' machine keeps what the ends keep");
    }
    let (lost, repeated) = scene.pinger.lost_and_repeated();
    report.add_lost(lost, repeated);
    report.note("remote: every byte between agents and edges is held back for 20 ms each way by a relay in user space");
    Ok(())
}
