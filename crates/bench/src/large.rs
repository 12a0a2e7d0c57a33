//! `marram bench large`: cells with much memory, and how long their checkpoints stop the shard that they share with others.
//!
//! ```text
//! client of much  --> cell with N MiB, changes most of its pages every few seconds --+
//! small neighbour --> cell with nothing, asked every millisecond --------------------+-- one shard of edge A; edge B is empty
//! ```
//! First nothing fails: no edge may be taken for dead because it copies memory. Then the owner is killed some times. The pause
//! is the edge's own: the longest time since its start for which its shard looked at no event. The neighbour's longest
//! wait is what that does to others, with all that the machine does beside it.

use super::ballast::{APP, SERVER, counter};
use super::pinger::{self, Pinger};
use super::report::{Bar, Report};
use super::{Plan, peer, progress, stats};
use anyhow::Context;
use marram_cluster::{AgentSide, TestCluster};
use std::time::{Duration, Instant};

/// Bytes of a page of the cell's state.
const PAGE: u64 = 4096;
/// Time between two changes of most of the state.
const PERIOD: Duration = Duration::from_secs(2);
/// With the default limit, a larger full checkpoint and two thirds as much of deltas leave no room for the next full one.
const DEFAULT_FITS_MEBIBYTES: u64 = 190;
/// Part of the pages that are changed, in percent.
const CHANGED_PERCENT: u64 = 60;

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("large");
    for mebibytes in [43, 100, 185, 300] {
        if plan.wants(&format!("m{mebibytes}")) {
            size(plan, mebibytes, &mut report)?;
        }
    }
    report.note("the cell changes 60 % of its pages every 2 s; a small cell on the same shard is asked every millisecond");
    report.note("above 190 MiB, edges and agents keep 1 GiB of checkpoints of a session (limits.checkpoints), otherwise 512 MiB");
    report.note("pause: the longest time since an edge's start for which its shard looked at no event, by the wall clock");
    Ok(report)
}

/// Everything for one size of the cell's state.
fn size(plan: &Plan, mebibytes: u64, report: &mut Report) -> anyhow::Result<()> {
    let name = format!("m{mebibytes}");
    progress(&format!("large: {name}"));
    let mut layout = plan.layout("bench-large", 2, "");
    if mebibytes > DEFAULT_FITS_MEBIBYTES {
        Plan::raise_limits(&mut layout, mebibytes << 20);
    }
    let mut cluster = TestCluster::new(layout, |place| {
        let quota = mebibytes + mebibytes / 2;
        let rest = format!(
            "server = \"{SERVER}\"\nprotect = \"endpoints\"\n[quotas]\nmemory = \"{quota}MiB\"\nhandler_time = \"30s\"\n"
        );
        Ok(vec![plan.cells.manifest(place, APP, "ballast", &rest)?])
    })?;
    // Both sessions begin on the first edge, which is alone: agents spread sessions over edges that are equally near.
    cluster.start_edge(0, "")?;
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[(SERVER, peer::echo_server()?)])?;
    let listens = cluster.start_client_agent(&edges, &[APP])?;
    let address = listens.first().context("one app has one listener")?.address;
    let mut much = Pinger::fill(address, mebibytes << 20)?;
    let neighbour = Pinger::start(peer::connect(address)?);
    cluster.respawn(1)?;

    // Nothing fails.
    let (seconds, kills) = if plan.quick { (8, 2) } else { (60, 10) };
    let start = cluster.logs.end();
    let pages = (mebibytes << 20) / PAGE * CHANGED_PERCENT / 100;
    let mut failed = None;
    let begun = Instant::now();
    let wait_ms = neighbour.longest_wait_ms(|| {
        while begun.elapsed() < Duration::from_secs(seconds) && failed.is_none() {
            failed = pinger::ask(&mut much, b'T', pages, begun.elapsed().as_secs()).err();
            std::thread::sleep(PERIOD);
        }
    })?;
    failed.map_or(Ok(()), |error| Err(error.context("the large cell failed")))?;
    let owned = |event: &_| TestCluster::is_report(AgentSide::Client, "owned", event);
    // The neighbour's session may begin after `start`; it has a first owner too.
    let recoveries = cluster.logs.count(start, owned).saturating_sub(1);
    let owner = cluster.edges[cluster.owner()?].client()?;
    let stored = counter(&owner, "checkpoint_bytes_total")?.unwrap_or(0);
    anyhow::ensure!(
        stored > mebibytes << 20,
        "the owner stored {stored} bytes of checkpoints, not the cell once"
    );
    let pause_us = counter(&owner, "pause_us_max")?.context("the edge reports its longest pause")?;
    #[expect(clippy::cast_precision_loss, reason = "microseconds of one pause, and a few recoveries")]
    let (pause_ms, recoveries) = (pause_us as f64 / 1e3, recoveries as f64);
    report.metric_with_bar(&format!("{name}.pause_max_ms"), pause_ms, Bar::Most(2.0));
    report.metric_with_bar(&format!("{name}.recoveries"), recoveries, Bar::Most(0.0));
    report.metric_with_bar(&format!("{name}.neighbour_wait_max_ms"), wait_ms, Bar::Most(10.0));
    report.metric(&format!("{name}.checkpoint_mib"), stored >> 20);

    // The owner dies.
    let pinger = Pinger::start(much);
    let mut gaps = Vec::new();
    for kill in 0..kills {
        progress(&format!("large: {name}, kill {} of {kills}", kill + 1));
        let (index, start) = (cluster.owner()?, cluster.logs.end());
        let edge = &mut cluster.edges[index];
        let wait_ms = pinger.longest_wait_ms(|| edge.kill());
        gaps.push(wait_ms.with_context(|| format!("the last lines:\n{}", cluster.logs.tail(60)))?);
        cluster.wait_for_owner(start)?;
        cluster.respawn(index)?;
    }
    report.metric(&format!("{name}.gap_p50_ms"), stats::median(&gaps));
    for client in [&neighbour, &pinger] {
        let (lost, repeated) = client.lost_and_repeated();
        report.add_lost(lost, repeated);
    }
    Ok(())
}
