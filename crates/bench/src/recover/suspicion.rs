//! How often a healthy edge is suspected while other work keeps every core busy, and whether one that hangs is still found then.

use super::{Plan, Report, Scene, progress};
use crate::report::Bar;
use marram_cluster::{AgentSide, LogEvent, TestCluster};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Measures for ten minutes beside a busy thread for each core. Both edges stay up all the while, so each suspicion is a wrong one.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let period = Duration::from_secs(if plan.quick { 20 } else { 600 });
    progress(&format!("recover: false suspicions, {} s beside busy cores", period.as_secs()));
    let mut scene = Scene::new(plan, 10 << 20, None, false)?;
    let cores = thread::available_parallelism()?.get();
    let over = AtomicBool::new(false);
    let (suspicions, gap_ms) = thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let measured = watch(&mut scene, period);
        over.store(true, Ordering::Relaxed);
        measured
    })?;
    #[expect(clippy::cast_precision_loss, reason = "few, or far too many")]
    report.metric_with_bar("false_suspicions", suspicions as f64, Bar::Most(0.0));
    report.metric("busy.hang_gap_ms", gap_ms);
    report.metric("busy.minutes", period.as_secs() / 60);
    report.note("false_suspicions: of two healthy edges by both agents, with a busy thread for each core; then one edge hangs");
    let (lost, repeated) = scene.pinger.lost_and_repeated();
    report.add_lost(lost, repeated);
    Ok(())
}

/// The number of suspicions in this time, and the client's wait when the owner hangs after it.
fn watch(scene: &mut Scene, period: Duration) -> anyhow::Result<(usize, f64)> {
    let (start, end) = (scene.cluster.logs.end(), Instant::now() + period);
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        thread::sleep(left.min(Duration::from_secs(1)));
    }
    let suspicions = scene.cluster.logs.count(start, is_suspicion);
    Ok((suspicions, scene.hang()?))
}

/// Whether an agent reports that it suspects an edge.
fn is_suspicion(event: &LogEvent) -> bool {
    let of = |side| TestCluster::is_report(side, "edge_down", event);
    (of(AgentSide::Client) || of(AgentSide::Server)) && event.fields["suspected"] == true
}
