//! `marram bench rebalance`: an edge joins four others which have a thousand sessions, while each of their clients asks ten times a second.
//!
//! ```text
//!            connected            settled                        the last session has moved
//! fifth edge ----|-------------------|--------------------------------------|--------------> time
//! clients     . . . . . . . . . . . [ . . . passes of the four edges . . . . ] . . . . . . .
//!                <------------------------- seconds ------------------------>
//!                                     <------------- moving_s ------------->
//! ```
//! The app has `protect = "epoch"`, and a policy moves what belongs at an edge that joins, so many sessions a second and edge. The load of an edge
//! is how many sessions run on it; its spread is the largest over the mean. Every answer is checked.

use crate::ballast::{APP, SERVER, counter};
use crate::moves::heard::Wrong;
use crate::moves::scene::{said, wait_for};
use crate::moves::sessions::Sessions;
use crate::report::{Bar, Report};
use crate::standby::stand_by;
use crate::{Plan, peer, progress};
use anyhow::Context;
use hyper::Method;
use marram_cluster::{TestCluster, TestStore};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SESSIONS: usize = 1_000;
const SESSIONS_QUICK: usize = 60;
/// The edge that joins four others.
const JOINS: usize = 4;
/// How many sessions of an edge move in a second.
const PER_S: u32 = 50;
/// How long the clients ask before the edge joins, and when all has moved.
const BESIDE: Duration = Duration::from_secs(2);
/// How long any step may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two questions to the edges.
const PAUSE: Duration = Duration::from_millis(100);

/// What the edges say of the join.
struct Joined {
    seconds: f64,
    moving_s: f64,
    moved: u64,
}

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("rebalance");
    let count = if plan.quick { SESSIONS_QUICK } else { SESSIONS };
    progress(&format!("rebalance: {count} sessions on four edges"));
    let (mut cluster, store) = four(plan)?;
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[(SERVER, peer::echo_server()?)])?;
    let listens = cluster.start_client_agent(&edges, &[APP])?;
    let address = listens.first().context("one app has one listener")?.address;
    let opened = Sessions::open(address, count).with_context(|| said(&cluster));
    let mut sessions = opened?;
    wait_until_backed(&cluster, count).with_context(|| said(&cluster))?;
    let before = loads(&cluster)?;
    progress("rebalance: a fifth edge joins");
    let stop = AtomicBool::new(false);
    let joined = std::thread::scope(|scope| {
        let talks = scope.spawn(|| sessions.talk(&stop));
        wait_for(Instant::now(), BESIDE);
        let joined = join(&mut cluster, &store);
        wait_for(Instant::now(), BESIDE);
        stop.store(true, Ordering::Relaxed);
        talks.join().map_err(|_| anyhow::anyhow!("the clients panicked"))??;
        joined
    })
    .with_context(|| said(&cluster))?;
    if let (lost, Some(why)) = sessions.failed() {
        anyhow::bail!("{lost} of {count} clients lost their connection: {why}; {}", said(&cluster));
    }
    wait_until_backed(&cluster, count).with_context(|| said(&cluster))?;
    let after = loads(&cluster)?;
    report.metric("seconds", joined.seconds);
    report.metric("moving_s", joined.moving_s);
    report.metric("moved", joined.moved);
    report.metric("sessions", count);
    report.metric("load_spread_before", spread(&before[..JOINS]));
    // A few sessions are spread by chance.
    if plan.quick {
        report.metric("load_spread_after", spread(&after));
    } else {
        report.metric_with_bar("load_spread_after", spread(&after), Bar::Most(1.2));
    }
    let Wrong { lost, repeated, reordered, changed } = sessions.wrong();
    report.metric("reordered", reordered);
    report.metric("changed", changed);
    // An answer from a wrong state is a wrong one.
    report.add_lost(lost + reordered + changed, repeated);
    report.note(format!(
        "protect = \"epoch\", every 10 ms; {PER_S} sessions of each edge move in a second at most; seconds: from when the fifth edge is connected to all, \
         5 s of settling included, to the end of the last pass; moving: from the beginning of the first pass; load_spread: the most sessions of \
         an edge over the mean; before: of the four"
    ));
    Ok(report)
}

/// Five edges, of which the first four run.
fn four(plan: &Plan) -> anyhow::Result<(TestCluster, TestStore)> {
    let mut layout = plan.layout("bench-rebalance", JOINS + 1, "");
    layout.edge_tables = format!("[[policy]]\nname = \"elastic\"\napp = \"{APP}\"\nrebalance = {PER_S}\n");
    let mut cluster = TestCluster::new(layout, |place| {
        let rest = format!(
            "server = \"{SERVER}\"\nprotect = \"epoch\"\n[epoch]\nevery = \"10ms\"\n[quotas]\nmemory = \"16MiB\"\n"
        );
        Ok(vec![plan.cells.manifest(place, APP, "ballast", &rest)?])
    })?;
    let store = TestStore::start(&plan.program, &cluster.logs)?;
    let extra = format!("{}\n{}", stand_by(&cluster), store.field());
    (0..JOINS).try_for_each(|edge| cluster.start_edge(edge, &extra))?;
    Ok((cluster, store))
}

/// Starts the fifth edge, and waits until the others have moved to it what belongs there.
fn join(cluster: &mut TestCluster, store: &TestStore) -> anyhow::Result<Joined> {
    let extra = format!("{}\n{}", stand_by(cluster), store.field());
    cluster.start_edge(JOINS, &extra)?;
    let until = |what: &str, is_so: &dyn Fn(usize) -> anyhow::Result<bool>| {
        let deadline = Instant::now() + PATIENCE;
        for edge in 0..JOINS {
            while !is_so(edge)? {
                anyhow::ensure!(Instant::now() < deadline, "{} {what}", cluster.edges[edge].who());
                std::thread::sleep(PAUSE);
            }
        }
        anyhow::Ok(Instant::now())
    };
    let figure = |edge: usize, name: &str| counter(&cluster.edges[edge].client()?, name);
    let has_joined = |edge| anyhow::Ok(figure(edge, "rebalance_passes_total")? > Some(0));
    let connected = until("does not reach the fifth edge", &|edge| {
        Ok(figure(edge, "other_edges")? == Some(JOINS as u64))
    })?;
    while !has_joined(0)? {
        anyhow::ensure!(connected.elapsed() < PATIENCE, "the fifth edge does not join");
        std::thread::sleep(PAUSE);
    }
    let settled = Instant::now();
    // The figure is there as long as a pass is.
    let last = until("does not move what belongs elsewhere", &|edge| {
        Ok(has_joined(edge)? && figure(edge, "rebalance_sessions_left")?.is_none())
    })?;
    let moved = (0..JOINS).map(|edge| figure(edge, "sessions_rebalanced_total"));
    let moved = moved.sum::<anyhow::Result<Option<u64>>>()?.unwrap_or(0);
    Ok(Joined { seconds: (last - connected).as_secs_f64(), moving_s: (last - settled).as_secs_f64(), moved })
}

/// How many sessions run on each edge that is up, and how many of all have a backup.
fn running(cluster: &TestCluster) -> anyhow::Result<(Vec<usize>, usize)> {
    let (mut loads, mut backed) = (Vec::new(), 0);
    for edge in cluster.edges.iter() {
        if !edge.is_running() {
            loads.push(0);
            continue;
        }
        let list = edge.client()?.json(Method::GET, "/v1/sessions")?;
        let rows = list["sessions"].as_array().context("an edge lists its sessions")?;
        let running = rows.iter().filter(|row| row["phase"] == "running");
        loads.push(running.clone().count());
        backed += running.filter(|row| row["backup"] == "backed").count();
    }
    Ok((loads, backed))
}

fn loads(cluster: &TestCluster) -> anyhow::Result<Vec<usize>> {
    Ok(running(cluster)?.0)
}

fn wait_until_backed(cluster: &TestCluster, count: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (loads, backed) = running(cluster)?;
        if (loads.iter().sum::<usize>(), backed) == (count, count) {
            return Ok(());
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "{backed} of {count} sessions have a backup; the edges run {loads:?}"
        );
        std::thread::sleep(PAUSE);
    }
}

/// The largest over the mean.
#[expect(clippy::cast_precision_loss, reason = "a thousand sessions")]
fn spread(loads: &[usize]) -> f64 {
    let (most, sum) = (loads.iter().max().copied().unwrap_or(0), loads.iter().sum::<usize>());
    (most * loads.len()) as f64 / sum.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn a_spread_is_the_largest_over_the_mean() {
        assert!((spread(&[250, 250, 250, 250]) - 1.0).abs() < 1e-9);
        assert!((spread(&[250, 250, 250, 250, 0]) - 1.25).abs() < 1e-9);
    }
}
