//! Two edges and one session, and moving it from where it is to the other one.
//!
//! What clients see of a move is not known here.

use crate::ballast::{APP, SERVER, counter, wires};
use crate::pinger::Pinger;
use crate::report::Report;
use crate::standby::stand_by;
use crate::{Plan, peer};
use anyhow::Context;
use hyper::Method;
use marram_admin::client::ApiClient;
use marram_cluster::{AgentSide, Layout, LogEvent, Namespace, TempDir, TestCluster, TestEdge};
use marram_testbed::{Link, Relay};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long any step may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a move may take: its edge gives up after this time.
const MOVE_PATIENCE: Duration = Duration::from_secs(130);
/// In scenes of unprotected sessions, which end with the wire of an end: a busy machine may stop an edge that copies much for longer than the
/// default allows.
const SUSPECT_AFTER: &str = "[timeouts]\nsuspect_after = \"2s\"\n";
/// How fast a move can be is measured, and not its limit.
const NO_LIMIT: &str = "move_bandwidth = \"0B\"\n";
/// Log lines that are shown if something fails.
const LINES: usize = 40;
/// Time between two questions to an edge: each costs it time.
const PAUSE: Duration = Duration::from_millis(5);
/// Time between two requests for a move that is refused.
const RETRY: Duration = Duration::from_millis(50);
/// States from this size on need raised limits; there are fewer moves of them, and these have other bars.
pub(super) const LARGE: u64 = 100 << 20;

/// Some edges, each on a machine of its own (a network namespace) where this process may make one. Wires are encrypted there, since an
/// edge that is not on loopback has to authenticate itself.
pub(super) fn layout(plan: &Plan, purpose: &'static str, edges: usize) -> Layout {
    let apart = Namespace::possible();
    Layout { namespaces: apart, encrypted: apart, ..plan.layout(purpose, edges, "") }
}

/// Makes these edges, and lets their machines reach each other.
pub(super) fn apart(
    layout: Layout,
    apps: impl FnOnce(&TempDir) -> anyhow::Result<Vec<PathBuf>>,
) -> anyhow::Result<TestCluster> {
    let cluster = TestCluster::new(layout, apps)?;
    let mut namespaces = cluster.edges.iter().filter_map(TestEdge::namespace);
    namespaces.try_for_each(|namespace| Link::of(namespace).reach_others())?;
    Ok(cluster)
}

/// Says where the edges are.
pub(super) fn note_places(report: &mut Report) {
    report.note(if Namespace::possible() {
        "each edge is in a network namespace of its own; wires are encrypted"
    } else {
        "WARNING: this process may not make network namespaces, so all edges are on loopback and wires are not encrypted; run it as root, \
         with `ip` installed"
    });
}

/// What a scene is made of.
#[derive(Clone, Copy, Default)]
pub(super) struct Conditions {
    /// Bytes of the session's state, which does not compress.
    pub(super) bytes: u64,
    /// Whether nothing is kept at ends, except while the session moves.
    pub(super) unprotected: bool,
    /// Whether the edges stand by for one another, without which nothing can be moved.
    pub(super) stand_by: bool,
    /// Of every byte between agents and edges, one way; edges reach each other at once.
    pub(super) delay: Option<Duration>,
}

/// Two edges with one session of `ballast`.
pub(super) struct Scene {
    pub(super) cluster: TestCluster,
    /// The client's connection.
    pub(super) stream: TcpStream,
    unprotected: bool,
    /// A wire through a relay that has ended breaks.
    _relays: Vec<Relay>,
}

impl Scene {
    /// Starts everything, and fills the state.
    pub(super) fn start(plan: &Plan, conditions: Conditions) -> anyhow::Result<Self> {
        let Conditions { bytes, unprotected, stand_by: stands_by, delay } = conditions;
        let mut layout = layout(plan, "bench-move", 2);
        if bytes >= LARGE {
            Plan::raise_limits(&mut layout, bytes);
        } else {
            layout.edge_tables = String::from("[limits]\n");
        }
        layout.edge_tables.push_str(NO_LIMIT);
        if unprotected {
            layout.edge_tables.push_str(SUSPECT_AFTER);
            layout.agent_tables.push_str(SUSPECT_AFTER);
        }
        let mut cluster = apart(layout, |place| {
            let memory = (bytes >> 20) * 3 / 2 + 16;
            let protect = if unprotected { "none" } else { "endpoints" };
            let rest = format!(
                "server = \"{SERVER}\"\nprotect = \"{protect}\"\n[quotas]\nmemory = \"{memory}MiB\"\nhandler_time = \"30s\"\n"
            );
            Ok(vec![plan.cells.manifest(place, APP, "ballast", &rest)?])
        })?;
        let extra = if stands_by { stand_by(&cluster) } else { String::new() };
        cluster.start_edges(&extra)?;
        let (edges, relays) = wires(&cluster, delay)?;
        cluster.start_server_agent(&edges[1], &[(SERVER, peer::echo_server()?)])?;
        let listens = cluster.start_client_agent(&edges[0], &[APP])?;
        let address = listens.first().context("one app has one listener")?.address;
        let stream = Pinger::fill(address, bytes)?;
        Ok(Self { cluster, stream, unprotected, _relays: relays })
    }

    /// Waits until the ends keep a checkpoint of this owner, if they keep any.
    pub(super) fn wait_for_checkpoint(&self, owner: &ApiClient) -> anyhow::Result<()> {
        if self.unprotected { Ok(()) } else { wait_for_checkpoint(owner) }
    }

    /// The last log lines, for an error.
    pub(crate) fn said(&self) -> String {
        said(&self.cluster)
    }
}

/// The last log lines, for an error.
pub(crate) fn said(cluster: &TestCluster) -> String {
    format!("the last log lines are\n{}", cluster.logs.tail(LINES))
}

/// A move that is over.
pub(super) struct Moved {
    /// When the edge was asked for it.
    pub(super) asked: Instant,
    /// The report that the client's agent has the new owner.
    pub(super) owned: LogEvent,
    /// The edge that the session left, and the one that has it now.
    pub(super) old: ApiClient,
    pub(super) new: ApiClient,
}

/// Moves the only session to the other edge. `begins` is called before each request: the first may be refused, since edges that
/// have just started may not have dialled each other yet.
pub(super) fn move_away(
    cluster: &TestCluster,
    mut begins: impl FnMut(&ApiClient, &ApiClient) -> anyhow::Result<()>,
) -> anyhow::Result<Moved> {
    let from = cluster.owner()?;
    let to = cluster.other(from).context("there is another edge")?;
    let (old, new) = (cluster.edges[from].client()?, cluster.edges[to].client()?);
    let name = new.json(Method::GET, "/v1/edge")?["edge"].as_str().context("an edge has a name")?.to_owned();
    let session = running(&old)?["session"].as_str().context("a session has a name")?.to_owned();
    let path = format!("/v1/sessions/{session}/move/{name}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        begins(&old, &new)?;
        let (start, asked) = (cluster.logs.end(), Instant::now());
        match old.json(Method::POST, &path) {
            Ok(_) => return Ok(Moved { asked, owned: wait_for_owner(cluster, start, to)?, old, new }),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// Waits for the report that this edge owns the session. Another edge may become its owner meanwhile, or the old one again.
fn wait_for_owner(cluster: &TestCluster, start: usize, edge: usize) -> anyhow::Result<LogEvent> {
    let owned = |event: &LogEvent| {
        is_owned(event) && cluster.edge_at(AgentSide::Client, event.text("edge")) == Some(edge)
    };
    let found = cluster.logs.wait(start, MOVE_PATIENCE, owned);
    Ok(found.with_context(|| format!("{} does not own the session", cluster.edges[edge].who()))?.1)
}

/// Whether the client's agent reports an owner.
pub(super) fn is_owned(event: &LogEvent) -> bool {
    TestCluster::is_report(AgentSide::Client, "owned", event)
}

/// Waits until the ends keep a checkpoint of this owner, which is part of the cost of a move.
pub(super) fn wait_for_checkpoint(owner: &ApiClient) -> anyhow::Result<()> {
    wait_until(|| Ok(running(owner)?["checkpoints"].as_u64().unwrap_or(0) > 0))
}

/// What an edge has sent to other edges, and what ends have stored for it.
pub(super) fn sent(edge: &ApiClient) -> anyhow::Result<[u64; 2]> {
    let of = |name| anyhow::Ok(counter(edge, name)?.unwrap_or(0));
    Ok([of("keeper_bytes_total")?, of("checkpoint_bytes_total")?])
}

/// The only session of an edge, if it runs there.
fn running(edge: &ApiClient) -> anyhow::Result<serde_json::Value> {
    let list = edge.json(Method::GET, "/v1/sessions")?;
    let mut rows = list["sessions"].as_array().into_iter().flatten();
    Ok(rows.find(|row| row["phase"] == "running").cloned().unwrap_or_default())
}

/// Asks every few milliseconds until the answer is yes.
pub(super) fn wait_until(mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        anyhow::ensure!(Instant::now() < deadline, "what is waited for did not happen within {PATIENCE:?}");
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Waits until this much time has passed since an instant.
pub(crate) fn wait_for(since: Instant, time: Duration) {
    std::thread::sleep((since + time).saturating_duration_since(Instant::now()));
}
