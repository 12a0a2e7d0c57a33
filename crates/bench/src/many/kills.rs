//! How long the clients of a cell hear nothing when its edge is killed and its standby goes on.
//!
//! ```text
//! clients ── agent ──┬── edge A ┐ one has the cell, the other one stands by; the one that has it is killed while clients speak,
//!                    └── edge B ┘ and started again afterwards
//! gap:  of each client, the longest time between two deliveries
//! ```

use super::crowd::Crowd;
use super::{Mode, SPEAKERS};
use crate::epoch::scene::{figures, run_first, wait_until};
use crate::report::{Bar, Report};
use crate::{Plan, progress, standby, stats};
use anyhow::Context;
use hyper::Method;
use marram_cluster::{AgentSide, TestCluster, TestStore, free_address};
use std::time::Duration;

const KILLS: usize = 7;
/// How long clients speak, and when the edge is killed.
const SPOKEN: Duration = Duration::from_secs(1);
const KILLED_AT: Duration = Duration::from_millis(500);

/// Kills the edge of a cell with so many clients, several times.
pub(super) fn measure(plan: &Plan, mode: Mode, count: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut scene = Scene::start(plan, mode, count)?;
    let kills = if plan.quick { 1 } else { KILLS };
    let mut gaps_ms = Vec::new();
    for kill in 0..kills {
        progress(&format!("many: {count} clients, kill {} of {kills}", kill + 1));
        gaps_ms.push(scene.kill().with_context(|| scene.cluster.logs.tail(20))?);
    }
    report.add_lost(scene.crowd.lost, scene.crowd.repeated);
    let (name, gap_ms) = (format!("c{count}.gap_p50_ms"), stats::median(&gaps_ms));
    if count == 100 {
        report.metric_with_bar(&name, gap_ms, Bar::Most(20.0));
    } else {
        report.metric(&name, gap_ms);
    }
    report.metric(&format!("c{count}.gap_max_ms"), gaps_ms.iter().copied().fold(0.0, f64::max));
    report.metric(&format!("c{count}.kills"), kills);
    Ok(())
}

struct Scene {
    crowd: Crowd,
    cluster: TestCluster,
    extra: String,
    _store: TestStore,
}

impl Scene {
    fn start(plan: &Plan, mode: Mode, count: usize) -> anyhow::Result<Self> {
        let mut cluster = TestCluster::new(plan.layout("bench-many-kills", 2, ""), |place| {
            let fields = format!("cell = \"shared\"\n{}", mode.fields);
            Ok(vec![plan.cells.manifest(place, "hub", "hub", &fields)?])
        })?;
        let store = TestStore::start(&plan.program, &cluster.logs)?;
        let extra = format!("{}\n{}", standby::stand_by(&cluster), store.field());
        cluster.start_edges(&extra)?;
        let listen = free_address()?;
        let tables = format!("[[listen]]\naddress = \"{listen}\"\napp = \"hub\"\n");
        let edges = cluster.edge_addresses();
        cluster.start_agent_with(AgentSide::Client, &edges, &tables)?;
        // An edge counts as started again once both agents have found it.
        cluster.start_agent_with(AgentSide::Server, &edges, "[servers]\nnone = \"127.0.0.1:9\"\n")?;
        let owner = cluster.edges[0].client()?;
        wait_until(|| Ok(figures(&owner, ["other_edges"])? == [1]), "the edges do not reach each other")?;
        let _ = run_first(&mut cluster);
        progress(&format!("many: {count} clients join"));
        let crowd = Crowd::join(listen, count).with_context(|| cluster.logs.tail(20))?;
        Ok(Self { crowd, cluster, extra, _store: store })
    }

    /// The edge that has the cell, if the other one stands by for it.
    fn owner(&self) -> anyhow::Result<Option<usize>> {
        for edge in 0..2 {
            let list = self.cluster.edges[edge].client()?.json(Method::GET, "/v1/sessions")?;
            let mut rows = list["sessions"].as_array().into_iter().flatten();
            if rows.any(|row| row["phase"] == "running" && row["backup"] == "backed") {
                return Ok(Some(edge));
            }
        }
        Ok(None)
    }

    /// Kills the edge that has the cell while clients speak. The median of their gaps, in milliseconds.
    fn kill(&mut self) -> anyhow::Result<f64> {
        wait_until(|| Ok(self.owner()?.is_some()), "the cell has no standby")?;
        let owner = self.owner()?.context("it had a standby a moment ago")?;
        let _ = run_first(&mut self.cluster);
        let (crowd, edges) = (&mut self.crowd, &mut self.cluster.edges);
        let heard = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(KILLED_AT);
                edges[owner].kill();
            });
            crowd.speak(SPOKEN, SPEAKERS)
        })?;
        self.cluster.respawn_with(owner, &self.extra)?;
        Ok(stats::median(&heard.gaps_ms))
    }
}
