//! Three edges, the first of which owns all flows, a store, and agents that know all edges; and the faults.

use crate::epoch::flows::{Flows, Server};
use crate::epoch::scene::{WHOLE_40, figures, run_first, wait_for_backups, wait_until};
use crate::{Plan, standby};
use anyhow::Context;
use hyper::Method;
use marram_cluster::{AgentSide, TestCluster, TestEdge, TestStore, free_address};
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

const SERVER: &str = "origin";
const EDGES: usize = 3;
/// The edge that owns the flows.
const OWNER: usize = 0;
/// Attempts to have all flows at that edge.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(300);
/// The apps, and how they are protected: their tables `epoch`.
const APPS: [(&str, Option<&str>); 3] =
    [("none", None), ("whole", Some(WHOLE_40)), ("groups", Some("every = \"1ms\""))];

/// What happens to the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Hang,
}

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Hang => "hang",
        }
    }
}

/// The processes.
pub(super) struct Scene {
    cluster: TestCluster,
    listens: Vec<SocketAddr>,
    extra: String,
    _store: TestStore,
}

impl Scene {
    pub(super) fn start(plan: &Plan) -> anyhow::Result<Self> {
        let mut cluster = TestCluster::new(plan.layout("bench-takeover", EDGES, ""), |place| {
            let manifest = |(name, epoch): (&str, Option<&str>)| {
                let none = String::from("protect = \"none\"");
                let protect = epoch.map_or(none, |table| format!("protect = \"epoch\"\n[epoch]\n{table}"));
                plan.cells.manifest(place, name, "inspector", &format!("server = \"{SERVER}\"\n{protect}\n"))
            };
            APPS.into_iter().map(manifest).collect()
        })?;
        cluster.edges.iter_mut().for_each(TestEdge::copy_whole);
        let store = TestStore::start(&plan.program, &cluster.logs)?;
        let extra = format!("{}\n{}", standby::stand_by(&cluster), store.field());
        cluster.start_edges(&extra)?;
        let edges = cluster.edge_addresses();
        let servers = format!("[servers]\n{SERVER} = \"{}\"\n", Server::start()?.address);
        cluster.start_agent_with(AgentSide::Server, &edges, &servers)?;
        let listens = APPS.map(|_| free_address()).into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        // All sessions ask the first edge of the list.
        let mut tables = String::from("spread = false\n");
        for ((app, _), address) in APPS.iter().zip(&listens) {
            writeln!(tables, "[[listen]]\naddress = \"{address}\"\napp = \"{app}\"")?;
        }
        cluster.start_agent_with(AgentSide::Client, &edges, &tables)?;
        Ok(Self { cluster, listens, extra, _store: store })
    }

    /// Connections of an app, whose sessions are all at the owner, and have their backups.
    pub(super) fn connect(&mut self, app: &str, count: usize) -> anyhow::Result<Flows> {
        let index = APPS.iter().position(|(name, _)| *name == app).context("it is an app")?;
        let owner = self.cluster.edges[OWNER].client()?;
        // Where it is not allowed, figures have more spread.
        let _ = run_first(&mut self.cluster);
        wait_until(
            || Ok(figures(&owner, ["other_edges"])? == [EDGES as u64 - 1]),
            "the edges do not reach each other",
        )?;
        for _ in 0..ATTEMPTS {
            let flows = Flows::connect(self.listens[index], count)?;
            if self.running(OWNER)? == count {
                if app != "none" {
                    wait_for_backups(&owner, count)?;
                }
                return Ok(flows);
            }
            drop(flows);
            // Agents measure how near the edges are.
            std::thread::sleep(PAUSE);
        }
        anyhow::bail!("not all flows begin at the first edge")
    }

    /// How many sessions an edge runs.
    fn running(&self, edge: usize) -> anyhow::Result<usize> {
        let list = self.cluster.edges[edge].client()?.json(Method::GET, "/v1/sessions")?;
        let rows = list["sessions"].as_array().into_iter().flatten();
        Ok(rows.filter(|row| row["phase"] == "running").count())
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Kill => self.cluster.edges[OWNER].kill(),
            Fault::Hang => self.cluster.edges[OWNER].stop(),
        }
    }

    /// The share of the sessions that the one of the other edges with fewer has.
    pub(super) fn split(&self) -> anyhow::Result<f64> {
        let of = [self.running(1)?, self.running(2)?];
        #[expect(clippy::cast_precision_loss, reason = "counts")]
        Ok(of[0].min(of[1]) as f64 / (of[0] + of[1]).max(1) as f64)
    }

    /// Starts the owner again, with nothing of its former life. Nothing may be connected.
    pub(super) fn restore(&mut self) -> anyhow::Result<()> {
        self.cluster.edges[OWNER].kill();
        self.cluster.respawn_with(OWNER, &self.extra)
    }

    pub(super) fn tail(&self) -> String {
        format!("the last log lines are\n{}", self.cluster.logs.tail(40))
    }
}
