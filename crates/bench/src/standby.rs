//! `marram bench standby`: how long a session is without an owner when its edge is killed and another edge is its standby, and
//! what the standby costs while nothing fails.
//!
//! The client's gap is the longest time between two answers to a client that sends requests continuously, so it includes
//! everything. The agent's gap is a part of that: from the moment at which the client's agent notices that the owner is gone to
//! the chosen log of the next owner. It includes promises and replay, and does not include detection.
//!
//! ```text
//!           kill      agent notices        chosen log sent     first answer
//! client ----|-------------|---------------------|-----------------|-----> time
//!            <----------------- client_gap -------------------------->
//!                          <----- p50, p99 ------>
//!                           <-- edge: promises asked .. first release ->
//! ```

use super::ballast::{APP, counter, wires};
use super::pinger;
use super::report::{Bar, Report};
use super::{Plan, cpu, peer, progress, stats};
use anyhow::Context;
use hyper::Method;
use marram_cluster::TestCluster;
use marram_testbed::Relay;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const SERVER: &str = "echo";
/// Delay of a long wire, one way.
const REMOTE: Duration = Duration::from_millis(20);
/// How long an edge may take to be ready to take over.
const PATIENCE: Duration = Duration::from_secs(60);
/// Messages that a cell has consumed since its last checkpoint when its edge dies.
const MESSAGES: u64 = 50;

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("standby");
    let kills = if plan.quick { 3 } else { 30 };
    if plan.wants("hot") {
        // A 99th percentile needs this many kills.
        let kills = if plan.quick { kills } else { 100 };
        let taken = takeovers(plan, "hot", &Scene::hot(), kills)?;
        report.metric_with_bar("hot_p50_ms", stats::median(&taken.gaps_ms), Bar::Most(1.0));
        report.tail("hot_p99_ms", &stats::Tail::of(&taken.gaps_ms));
        taken.more("hot", &mut report);
    }
    if plan.wants("warm_50_messages") {
        let taken = takeovers(plan, "warm, 50 messages", &Scene::warm(0), kills)?;
        report.metric_with_bar("warm_50_messages_p50_ms", stats::median(&taken.gaps_ms), Bar::Most(1.0));
        taken.more("warm_50_messages", &mut report);
    }
    if plan.wants("warm_10mib") {
        let taken = takeovers(plan, "warm, 10 MiB", &Scene::warm(10 << 20), kills.div_ceil(3))?;
        report.metric_with_bar("warm_10mib_p50_ms", stats::median(&taken.gaps_ms), Bar::Most(3.0));
        taken.more("warm_10mib", &mut report);
    }
    if plan.wants("endpoints") {
        // The cost of the same kill without a standby.
        let taken = takeovers(plan, "endpoints", &Scene::endpoints(0), kills.div_ceil(3))?;
        report.metric("endpoints_p50_ms", stats::median(&taken.gaps_ms));
        taken.more("endpoints", &mut report);
        let taken = takeovers(plan, "endpoints, 10 MiB", &Scene::endpoints(10 << 20), kills.div_ceil(5))?;
        report.metric("endpoints_10mib_p50_ms", stats::median(&taken.gaps_ms));
        taken.more("endpoints_10mib", &mut report);
    }
    if plan.wants("hot_20ms_link") {
        let scene = Scene { delay: Some(REMOTE), messages: 5, ..Scene::hot() };
        let taken = takeovers(plan, "hot, links of 20 ms", &scene, kills.div_ceil(3))?;
        let round_trip_ms = 2.0 * REMOTE.as_secs_f64() * 1e3;
        let trips = stats::median(&taken.gaps_ms) / round_trip_ms;
        report.metric_with_bar("hot_20ms_link_rtts", trips, Bar::Most(1.2));
        let edge = stats::median(&taken.edges_ms) / round_trip_ms;
        report.metric("hot_20ms_link.edge_rtts", edge);
        taken.more("hot_20ms_link", &mut report);
    }
    if plan.wants("overhead") {
        overhead(plan, &mut report)?;
    }
    report.baseline(
        "endpoints",
        "the same kills and the same traffic in this run, with protect = \"endpoints\"",
    );
    report.note(
        "client_gap: as the client sees it: the longest time between two answers when it sends requests \
         continuously, detection included",
    );
    report.note(
        "p50 and p99 without that name: the part of it from when the client's agent notices the loss of the owner to \
         the next owner's chosen log",
    );
    report.note(
        "edge: from asking for promises to the first release, by the clock of the edge that takes over",
    );
    report.note(
        "links of 20 ms: every byte between agents and edges is held back for 20 ms each way; edges reach each other at once",
    );
    Ok(report)
}

/// A way to protect a session, and the cell's state and messages when its edge dies. The bars of
/// docs/benchmarks.md are for the scenes that `run` names; others may be made from these.
#[derive(Clone)]
struct Scene {
    protect: &'static str,
    /// The kind of its keepers, as the owner lists it; `None` without keepers.
    keepers: Option<&'static str>,
    /// The state is filled once; it does not change between kills, so a warm standby has it in its
    /// checkpoint.
    state_bytes: u64,
    /// Each of them is in the log behind the last checkpoint, and is replayed by the next owner
    /// unless it has replayed it before.
    messages: u64,
    /// `None` for wires as they are; otherwise one way, between agents and edges, but not between
    /// edges.
    delay: Option<Duration>,
}

impl Scene {
    fn hot() -> Self {
        let protect = "protect = \"standby\"\nstandby = \"hot\"";
        Self { protect, keepers: Some("hot"), state_bytes: 0, messages: MESSAGES, delay: None }
    }

    fn warm(state_bytes: u64) -> Self {
        let protect = "protect = \"standby\"\nstandby = \"warm\"";
        Self { protect, keepers: Some("warm"), state_bytes, messages: MESSAGES, delay: None }
    }

    fn endpoints(state_bytes: u64) -> Self {
        let protect = "protect = \"endpoints\"";
        Self { protect, keepers: None, state_bytes, messages: MESSAGES, delay: None }
    }

    fn cluster(&self, plan: &Plan) -> anyhow::Result<TestCluster> {
        let rest = format!(
            // The cell takes only the checkpoints that a new keeper or owner needs, so that the log after the last one has
            // `messages` messages.
            "server = \"{SERVER}\"\n{}\n[quotas]\nmemory = \"64MiB\"\n[keep]\nrecovery_target = \"1h\"\n",
            self.protect
        );
        TestCluster::new(plan.layout("bench-standby", 2, ""), |place| {
            Ok(vec![plan.cells.manifest(place, APP, "ballast", &rest)?])
        })
    }
}

/// Results of the kills of one scene.
#[derive(Default)]
struct Taken {
    /// As the agent measured them: the report of the next owner has the time since the loss.
    gaps_ms: Vec<f64>,
    /// As the client measured them.
    waits_ms: Vec<f64>,
    /// As the edge measured them that took over.
    edges_ms: Vec<f64>,
    /// Messages that the next owner replayed.
    replayed: Vec<f64>,
    /// How many of the kills ended in a takeover by a standby.
    takeovers: u64,
}

impl Taken {
    /// Reports what is not the headline of a scene.
    fn more(&self, group: &str, report: &mut Report) {
        report.metric(&format!("{group}.client_gap_p50_ms"), stats::median(&self.waits_ms));
        report.tail(&format!("{group}.client_gap_p99_ms"), &stats::Tail::of(&self.waits_ms));
        report.metric(&format!("{group}.edge_p50_ms"), stats::median(&self.edges_ms));
        report.metric(&format!("{group}.replayed_p50"), stats::median(&self.replayed));
        report.metric(&format!("{group}.taken_over"), self.takeovers);
        report.metric(&format!("{group}.kills"), self.gaps_ms.len());
    }
}

/// Fields of each edge's configuration: all edges are standbys of each other.
pub(super) fn stand_by(cluster: &TestCluster) -> String {
    let edges: Vec<String> = cluster.edge_addresses().iter().map(ToString::to_string).collect();
    format!("standby = {{ edges = {edges:?} }}")
}

/// Kills the owner repeatedly, and starts it again each time as the standby.
///
/// Before each kill a keeper must be ready, or the kill would be one of an unprotected session. The
/// counters are read from the edge that stays, before and after.
fn takeovers(plan: &Plan, name: &str, scene: &Scene, kills: usize) -> anyhow::Result<Taken> {
    let mut cluster = scene.cluster(plan)?;
    let extra = stand_by(&cluster);
    cluster.start_edges(&extra)?;
    let (edges, _relays): (_, Vec<Relay>) = wires(&cluster, scene.delay)?;
    cluster.start_server_agent(&edges[1], &[(SERVER, peer::echo_server()?)])?;
    let listens = cluster.start_client_agent(&edges[0], &[APP])?;
    let address = listens.first().context("one app has one listener")?.address;
    let mut stream = pinger::Pinger::fill(address, scene.state_bytes)?;
    let (mut taken, mut number) = (Taken::default(), 0);
    for kill in 0..kills {
        progress(&format!("standby: {name}, kill {} of {kills}", kill + 1));
        let index = cluster.owner()?;
        let other = cluster.other(index).context("there is another edge")?;
        if let Some(keepers) = scene.keepers {
            wait_for_keeper(&cluster, index, keepers)?;
        }
        let figures = |cluster: &TestCluster| -> anyhow::Result<[u64; 3]> {
            let client = cluster.edges[other].client()?;
            let one = |name| Ok::<_, anyhow::Error>(counter(&client, name)?.unwrap_or(0));
            Ok([one("recovery_us_total")?, one("inputs_replayed_total")?, one("takeovers_total")?])
        };
        let before = figures(&cluster)?;
        for _ in 0..scene.messages {
            ask(&mut stream, &mut number)?;
        }
        let start = cluster.logs.end();
        let wait_ms = kill_while_asking(&mut cluster, index, (&mut stream, &mut number))?;
        let owned = cluster.wait_for_owner(start)?;
        let after = figures(&cluster)?;
        #[expect(
            clippy::cast_precision_loss,
            reason = "microseconds of one takeover, and counts of messages"
        )]
        let [gap_us, edge_us, replayed] =
            [owned.number("gap_us"), after[0] - before[0], after[1] - before[1]].map(|it| it as f64);
        taken.gaps_ms.push(gap_us / 1e3);
        taken.edges_ms.push(edge_us / 1e3);
        taken.replayed.push(replayed);
        taken.waits_ms.push(wait_ms);
        taken.takeovers += after[2] - before[2];
        cluster.respawn_with(index, &extra)?;
    }
    Ok(taken)
}

/// Sends one numbered request; a wrong number is a lost or repeated message.
fn ask(stream: &mut TcpStream, number: &mut u64) -> anyhow::Result<()> {
    *number += 1;
    let (_, answered) = pinger::ask(stream, b'E', 0, *number)?;
    anyhow::ensure!(answered == *number, "the answer to {number} is that to {answered}");
    Ok(())
}

/// Kills an edge while the client continues to send requests; returns the longest wait for an answer, in milliseconds.
///
/// The kill happens on another thread, so the client has no pause in which it could hide.
fn kill_while_asking(
    cluster: &mut TestCluster,
    index: usize,
    (stream, number): (&mut TcpStream, &mut u64),
) -> anyhow::Result<f64> {
    let edge = &mut cluster.edges[index];
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| edge.kill());
        let mut longest = Duration::ZERO;
        let mut rest = 3;
        // Continues until the edge is dead, and for a few more answers: the first of them came from the new owner.
        while rest > 0 {
            rest -= u32::from(killer.is_finished());
            let asked = Instant::now();
            ask(stream, number)?;
            longest = longest.max(asked.elapsed());
        }
        Ok(longest.as_secs_f64() * 1e3)
    })
}

/// Whether a keeper of this kind could take over the session.
pub(super) fn is_kept(session: &serde_json::Value, kind: &str) -> bool {
    let keepers = session["keepers"].as_array();
    keepers.is_some_and(|all| all.iter().any(|keeper| keeper["kind"] == kind && keeper["ready"] == true))
}

/// Waits until a keeper of this kind could take over the only session.
fn wait_for_keeper(cluster: &TestCluster, owner: usize, kind: &str) -> anyhow::Result<()> {
    let client = cluster.edges[owner].client()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let list = client.json(Method::GET, "/v1/sessions")?;
        if is_kept(&list["sessions"][0], kind) {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "no edge stands by for the session: {list}");
        std::thread::yield_now();
    }
}

/// One session with its owner and agents on one core, and its standby on the other.
struct Side {
    cluster: TestCluster,
    stream: TcpStream,
}

impl Side {
    fn new(plan: &Plan, scene: &Scene) -> anyhow::Result<Self> {
        let mut cluster = scene.cluster(plan)?;
        let extra = stand_by(&cluster);
        let other = cpu::OneCore::enter_other()?;
        cluster.start_edge(1, &extra)?;
        drop(other);
        let core = cpu::OneCore::enter()?;
        cluster.start_edge(0, &extra)?;
        let edges = cluster.edge_addresses();
        cluster.start_server_agent(&edges, &[(SERVER, peer::echo_server()?)])?;
        let listens = cluster.start_client_agent(&edges, &[APP])?;
        drop(core);
        let address = listens.first().context("one app has one listener")?.address;
        // If the first edge answered a little late, the agent did not choose it as the nearest; the next session may begin there.
        for _ in 0..20 {
            let stream = pinger::Pinger::fill(address, 0)?;
            if cluster.owner()? == 0 {
                if let Some(keepers) = scene.keepers {
                    wait_for_keeper(&cluster, 0, keepers)?;
                }
                return Ok(Self { cluster, stream });
            }
        }
        anyhow::bail!("no session began at the first edge");
    }

    /// Sends commands without waiting for their answers; returns megabytes a second, and the owner's nanoseconds for each
    /// command.
    ///
    /// The thread is pinned to the owner's core while it sends, as a client on the same machine
    /// would share it.
    fn block(&mut self, count: usize) -> anyhow::Result<(f64, f64)> {
        let _core = cpu::OneCore::enter()?;
        let payload = [7; 1007];
        let message = [&pinger::command(b'E', payload.len() as u64, 0)[..], &payload].concat();
        let group: Vec<u32> =
            self.cluster.edges[0].process().map(|process| process.id()).into_iter().collect();
        let before = cpu::spent_ns(&group);
        let rate = peer::throughput(&mut self.stream, &message, count)?;
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a second, and thousands")]
        Ok((rate, cpu::spent_ns(&group).saturating_sub(before) as f64 / count as f64))
    }
}

/// The same traffic with and without an edge that replays it; the two alternate.
///
/// The two sides have clusters of their own; only one has traffic at a time. The standby is on the
/// other core, so what is measured is the owner's part of feeding it.
fn overhead(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let (blocks, count) = if plan.quick { (3, 4_000) } else { (21, 20_000) };
    let mut sides = [Side::new(plan, &Scene::endpoints(0))?, Side::new(plan, &Scene::hot())?];
    let (mut slower, mut dearer) = (Vec::new(), Vec::new());
    for block in 0..blocks {
        progress(&format!("standby: overhead, block {} of {blocks}", block + 1));
        let order = if block % 2 == 0 { [0, 1] } else { [1, 0] };
        let mut found = [(0.0, 0.0); 2];
        for side in order {
            found[side] = sides[side].block(count)?;
        }
        slower.push((found[0].0 / found[1].0 - 1.0) * 100.0);
        dearer.push((found[1].1 / found[0].1 - 1.0) * 100.0);
    }
    let client = sides[1].cluster.edges[0].client()?;
    let lost = counter(&client, "keepers_lost_total")?.unwrap_or(0);
    let slower = stats::estimate(&slower);
    report.metric("overhead_vs_endpoints_pct", slower.middle);
    report.metric("overhead.low_pct", slower.low);
    report.metric("overhead.high_pct", slower.high);
    report.metric("overhead.owner_cpu_pct", stats::median(&dearer));
    report.metric("overhead.keepers_lost", lost);
    Ok(())
}
