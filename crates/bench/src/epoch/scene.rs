//! Two edges, of which one owns every session and the other one is the backup, with an app for each mode; and what they have done so far.
//!
//! ```text
//! clients -- agent -- edge A (owner) -- agent -- server        none, hz100, ... message: one app each, all behind the same processes
//!                       '-- epochs --> edge B (backup)         store: which edge may go on
//! ```
//! Agents know the first edge only, so that no session begins at the other one.

use super::flows::{Flows, Server};
use crate::{Plan, cpu, peer, received, standby};
use anyhow::Context;
use hyper::Method;
use marram_admin::client::ApiClient;
use marram_cluster::{AgentSide, TestCluster, TestEdge, TestStore, free_address};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The server, as manifests name it.
pub(super) const SERVER: &str = "origin";
/// How long any step may take.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// How often epochs end, and what is copied then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mode {
    pub(super) name: &'static str,
    /// The fields of the table `epoch` of its manifest; `None` without protection.
    epoch: Option<&'static str>,
}

/// All modes; the first is the baseline of the others.
pub(super) const MODES: [Mode; 8] = [
    Mode { name: "none", epoch: None },
    Mode { name: "hz100", epoch: Some("every = \"10ms\"") },
    Mode { name: "hz200", epoch: Some("every = \"5ms\"") },
    Mode { name: "hz1000", epoch: Some("every = \"1ms\"") },
    Mode { name: "hz2000", epoch: Some("every = \"500us\"") },
    Mode { name: "message", epoch: Some("every = \"message\"") },
    Mode { name: "whole40", epoch: Some(WHOLE_40) },
    Mode { name: "whole100", epoch: Some("every = \"10ms\"\nform = \"pages\"") },
];
/// Those that are bars, or measure the round trip to the backup, by their place.
pub(super) const HZ1000: usize = 3;
pub(super) const MESSAGE: usize = 5;
/// All cells with one backup are copied together 40 times a second, if the edge does that ([`TestEdge::copy_whole`]).
pub(crate) const WHOLE_40: &str = "every = \"25ms\"\nform = \"pages\"";

impl Mode {
    /// Whether all cells are copied together.
    pub(super) fn is_whole(self) -> bool {
        self.name.starts_with("whole")
    }
}

/// The processes, and the connections of each mode.
pub(super) struct Scene {
    pub(super) flows: Vec<Flows>,
    pub(super) server: Server,
    pub(super) cluster: TestCluster,
    /// Process groups of the owner and of the backup, and the owner's shard.
    groups: [u32; 2],
    shard: u32,
    _store: TestStore,
    /// Whether all that handle messages run before other processes.
    pub(super) first: bool,
}

impl Scene {
    /// Starts everything, with so many connections for each mode.
    pub(super) fn start(plan: &Plan, connections: usize) -> anyhow::Result<Self> {
        let server = Server::start()?;
        let mut cluster = TestCluster::new(plan.layout("bench-epoch", 2, ""), |place| {
            MODES.iter().map(|mode| manifest(plan, place, *mode)).collect()
        })?;
        cluster.agent_level = "info";
        cluster.edges.iter_mut().for_each(TestEdge::copy_whole);
        let store = TestStore::start(&plan.program, &cluster.logs)?;
        let extra = format!("{}\n{}", crate::standby::stand_by(&cluster), store.field());
        cluster.start_edge(0, &extra)?;
        let listens = MODES.map(|_| free_address()).into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        start_agents(&mut cluster, &server, &listens)?;
        // What waits for an agent's wires would wait for those to this edge, too.
        cluster.start_edge(1, &extra)?;
        let owner = cluster.edges[0].client()?;
        wait_until(|| Ok(figures(&owner, ["other_edges"])? == [1]), "the edges do not reach each other")?;
        let connect = |address: &SocketAddr| Flows::connect(*address, connections);
        let flows = listens.iter().map(connect).collect::<anyhow::Result<Vec<_>>>();
        let flows = flows.with_context(|| cluster.logs.tail(20))?;
        wait_for_backups(&owner, connections * (MODES.len() - 1))?;
        let mut group = |edge: usize| cluster.edges[edge].process().map(|process| process.id());
        let groups = [group(0).context("it runs")?, group(1).context("it runs")?];
        let shard = cpu::shards(groups[0]).next().context("an edge has a shard")?;
        let first = run_first(&mut cluster);
        Ok(Self { flows, server, cluster, groups, shard, _store: store, first })
    }

    /// What has been done so far.
    pub(super) fn totals(&self) -> anyhow::Result<Totals> {
        let names = [
            "epochs_total",
            "epoch_log_bytes_total",
            "epoch_page_bytes_total",
            "epochs_confirmed_total",
            "epoch_confirm_us_total",
            "epoch_confirm_p50_us_max",
        ];
        let [epochs, log_bytes, page_bytes, confirmed, confirm_us, confirm_p50_us] =
            figures(&self.cluster.edges[0].client()?, names)?;
        let sent_bytes = received::bytes(self.groups[1], self.cluster.edges[0].address());
        let [primary_ns, backup_ns] = self.groups.map(|group| cpu::spent_ns(&[group]));
        let (busy, ticks) = cpu::machine_ticks();
        let shard_ns = cpu::of_process_ns(self.shard);
        Ok(Totals {
            epochs,
            log_bytes,
            page_bytes,
            sent_bytes,
            confirmed,
            confirm_us,
            confirm_p50_us,
            shard_ns,
            primary_ns,
            backup_ns,
            busy,
            ticks,
        })
    }
}

/// Sums since the start, except for `confirm_p50_us`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    pub(super) epochs: u64,
    pub(super) log_bytes: u64,
    pub(super) page_bytes: u64,
    /// What the backup has received from the owner, on the wire; none if the kernel cannot be asked.
    pub(super) sent_bytes: Option<u64>,
    pub(super) confirmed: u64,
    pub(super) confirm_us: u64,
    /// The median wait of the latest epochs for their confirmation.
    pub(super) confirm_p50_us: u64,
    pub(super) shard_ns: u64,
    pub(super) primary_ns: u64,
    pub(super) backup_ns: u64,
    pub(super) busy: u64,
    pub(super) ticks: u64,
}

fn manifest(plan: &Plan, place: &marram_cluster::TempDir, mode: Mode) -> anyhow::Result<PathBuf> {
    let protect = match mode.epoch {
        None => String::from("protect = \"none\"\n"),
        Some(epoch) => format!("protect = \"epoch\"\n[epoch]\n{epoch}\n"),
    };
    plan.cells.manifest(place, mode.name, "inspector", &format!("server = \"{SERVER}\"\n{protect}"))
}

/// Agents that know the first edge.
fn start_agents(cluster: &mut TestCluster, server: &Server, listens: &[SocketAddr]) -> anyhow::Result<()> {
    let edge = [cluster.edges[0].address()];
    let servers = format!("learn = false\n[servers]\n{SERVER} = \"{}\"\n", server.address);
    cluster.start_agent_with(AgentSide::Server, &edge, &servers)?;
    let mut tables = String::from("learn = false\n");
    for (mode, address) in MODES.iter().zip(listens) {
        writeln!(tables, "[[listen]]\naddress = \"{address}\"\napp = \"{}\"", mode.name)?;
    }
    cluster.start_agent_with(AgentSide::Client, &edge, &tables)
}

/// Lets the shards and the agents run before other processes, as if nothing else ran on their machines. False if that is not allowed.
pub(crate) fn run_first(cluster: &mut TestCluster) -> bool {
    let edges: Vec<u32> =
        cluster.edges.iter_mut().filter_map(TestEdge::process).map(|process| process.id()).collect();
    let agents: Vec<u32> = cluster.agents().map(|process| process.id()).collect();
    let mut all = edges.into_iter().flat_map(cpu::shards).chain(agents);
    all.all(cpu::lets_run_first)
}

/// Counters and gauges of an edge; 0 for those that it does not have.
pub(crate) fn figures<const N: usize>(edge: &ApiClient, names: [&str; N]) -> anyhow::Result<[u64; N]> {
    let text = edge.call(Method::GET, "/metrics", bytes::Bytes::new())?;
    let text = String::from_utf8_lossy(&text);
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("marram_{name}{{")))?;
        line.rsplit_once(' ')?.1.parse().ok()
    };
    Ok(names.map(|name| value(name).unwrap_or(0)))
}

/// What [`start_owner`] has started.
pub(crate) struct Owner {
    /// What the configuration of an edge needs to be its backup.
    pub(crate) extra: String,
    /// Where clients of each app connect.
    pub(crate) listens: Vec<SocketAddr>,
    pub(crate) store: TestStore,
}

/// Starts a store, the first edge, and agents that know only this edge, so that no session begins at another one. The server echoes.
pub(crate) fn start_owner(
    plan: &Plan,
    cluster: &mut TestCluster,
    server: &str,
    apps: &[&str],
) -> anyhow::Result<Owner> {
    let store = TestStore::start(&plan.program, &cluster.logs)?;
    let extra = format!("{}\n{}", standby::stand_by(cluster), store.field());
    cluster.start_edge(0, &extra)?;
    let edge = [cluster.edges[0].address()];
    cluster.start_server_agent(&edge, &[(server, peer::echo_server()?)])?;
    let listens = cluster.start_client_agent(&edge, apps)?;
    Ok(Owner { extra, listens: listens.iter().map(|listen| listen.address).collect(), store })
}

/// Waits until so many sessions of an edge have a backup that a claim names.
pub(crate) fn wait_for_backups(owner: &ApiClient, count: usize) -> anyhow::Result<()> {
    let backed = || {
        let list = owner.json(Method::GET, "/v1/sessions")?;
        let rows = list["sessions"].as_array().into_iter().flatten();
        Ok(rows.filter(|row| row["backup"] == "backed").count() >= count)
    };
    wait_until(backed, "not every session has a backup")
}

/// Asks every few milliseconds until the answer is yes.
pub(crate) fn wait_until(mut is_so: impl FnMut() -> anyhow::Result<bool>, else_: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        anyhow::ensure!(Instant::now() < deadline, "{else_}, after {PATIENCE:?}");
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
