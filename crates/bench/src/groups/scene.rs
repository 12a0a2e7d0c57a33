//! An edge that owns all sessions, two that are their backups, and the listeners by which policies tell flows apart.
//!
//! ```text
//! clients -- agent -- edge A (owner) -- agent -- server      listener low:          every 10 ms, to B
//!                       '-- epochs --> edges B and C         listener high:         every 1 ms, to C
//!                                                            listeners g1 ... g40:  every 1 ms, to B, in so many groups
//! ```

use super::{CLASSES, FLOWS, GROUPS};
use crate::epoch::flows::{Flows, Server};
use crate::epoch::scene::{figures, run_first, wait_for_backups, wait_until};
use crate::{Plan, cpu, standby};
use anyhow::Context;
use marram_cluster::{AgentSide, TestCluster, TestStore, free_address};
use std::fmt::Write;
use std::net::SocketAddr;

/// The server, as the manifest names it.
const SERVER: &str = "origin";
const APP: &str = "inspected";
/// Flows that are spread over groups.
const GROUPED: usize = 40;

/// The processes, and the connections of each part.
pub(super) struct Scene {
    /// For each number of flows: those of the low class, and those of the high one.
    pub(super) classes: Vec<[Flows; 2]>,
    /// For each number of groups.
    pub(super) grouped: Vec<Flows>,
    pub(super) cluster: TestCluster,
    /// Process groups of the owner and of the backup of the flows in groups.
    groups: [u32; 2],
    /// Whether all that handle messages run before other processes.
    pub(super) first: bool,
    _store: TestStore,
}

impl Scene {
    pub(super) fn start(plan: &Plan) -> anyhow::Result<Self> {
        let server = Server::start()?;
        let mut layout = plan.layout("bench-groups", 3, "");
        layout.edge_tables = policies()?;
        let mut cluster = TestCluster::new(layout, |place| {
            let fields = format!("server = \"{SERVER}\"\nprotect = \"epoch\"\n");
            Ok(vec![plan.cells.manifest(place, APP, "inspector", &fields)?])
        })?;
        let store = TestStore::start(&plan.program, &cluster.logs)?;
        let extra = format!("{}\n{}", standby::stand_by(&cluster), store.field());
        cluster.start_edge(0, &extra)?;
        let listens = names().iter().map(|_| free_address()).collect::<anyhow::Result<Vec<SocketAddr>>>()?;
        start_agents(&mut cluster, &server, &listens)?;
        // What waits for an agent's wires would wait for those to these edges, too.
        cluster.start_edge(1, &extra)?;
        cluster.start_edge(2, &extra)?;
        let owner = cluster.edges[0].client()?;
        wait_until(|| Ok(figures(&owner, ["other_edges"])? == [2]), "the edges do not reach each other")?;
        let connected = connect(&listens).with_context(|| cluster.logs.tail(20));
        let (classes, grouped) = connected?;
        wait_for_backups(&owner, FLOWS.iter().sum::<usize>() + GROUPS.len() * GROUPED)?;
        are_as_policies_say(&owner)?;
        let mut group = |edge: usize| cluster.edges[edge].process().map(|process| process.id());
        let groups = [group(0).context("it runs")?, group(1).context("it runs")?];
        let first = run_first(&mut cluster);
        Ok(Self { classes, grouped, cluster, groups, first, _store: store })
    }

    /// All connections.
    pub(super) fn all(&self) -> impl Iterator<Item = &Flows> {
        self.classes.iter().flatten().chain(&self.grouped)
    }

    /// The processor time of the owner and the backup of the flows in groups, together.
    pub(super) fn spent_ns(&self) -> u64 {
        cpu::spent_ns(&self.groups)
    }
}

/// The listeners, which are also the names of the policies.
fn names() -> Vec<String> {
    let grouped = GROUPS.iter().map(|count| format!("g{count}"));
    ["low", "high"].into_iter().map(String::from).chain(grouped).collect()
}

fn policies() -> anyhow::Result<String> {
    let mut tables = String::new();
    let mut policy = |name: &str, every: &str, target: &str, groups: usize| {
        writeln!(
            tables,
            "[[policy]]\nname = \"{name}\"\nlistener = \"{name}\"\nevery = \"{every}\"\ntargets = [\"{target}\"]\ngroups = {groups}"
        )
    };
    policy("low", "10ms", "B-1", 1)?;
    policy("high", "1ms", "C-1", 1)?;
    for count in GROUPS {
        policy(&format!("g{count}"), "1ms", "B-1", count)?;
    }
    Ok(tables)
}

/// Agents that know the first edge.
fn start_agents(cluster: &mut TestCluster, server: &Server, listens: &[SocketAddr]) -> anyhow::Result<()> {
    let edge = [cluster.edges[0].address()];
    let servers = format!("learn = false\n[servers]\n{SERVER} = \"{}\"\n", server.address);
    cluster.start_agent_with(AgentSide::Server, &edge, &servers)?;
    let mut tables = String::from("learn = false\n");
    for (name, address) in names().iter().zip(listens) {
        writeln!(tables, "[[listen]]\nname = \"{name}\"\naddress = \"{address}\"\napp = \"{APP}\"")?;
    }
    cluster.start_agent_with(AgentSide::Client, &edge, &tables)
}

type Connected = (Vec<[Flows; 2]>, Vec<Flows>);

fn connect(listens: &[SocketAddr]) -> anyhow::Result<Connected> {
    let class = |count: &usize| {
        let high = count / CLASSES;
        Ok([Flows::connect(listens[0], count - high)?, Flows::connect(listens[1], high)?])
    };
    let classes = FLOWS.iter().map(class).collect::<anyhow::Result<Vec<_>>>()?;
    let grouped = listens[2..].iter().map(|address| Flows::connect(*address, GROUPED));
    Ok((classes, grouped.collect::<anyhow::Result<Vec<_>>>()?))
}

/// Every session must have the backup of its policy, and none may be without one: otherwise the figures are of something else.
fn are_as_policies_say(owner: &marram_admin::client::ApiClient) -> anyhow::Result<()> {
    let list = owner.json(hyper::Method::GET, "/v1/sessions")?;
    for row in list["sessions"].as_array().into_iter().flatten() {
        let target = if row["policy"] == "high" { "C-1" } else { "B-1" };
        let is_there = row["keepers"].as_array().into_iter().flatten().any(|it| it["name"] == target);
        anyhow::ensure!(row["policy"].is_string() && is_there, "a session is not as its policy says: {row}");
    }
    Ok(())
}
