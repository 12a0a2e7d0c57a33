//! How long each of many clients waits when the edge of all of them is killed: busy ones, and idle ones that ask at once.

use super::clients::Crowd;
use super::scene::{Begin, File, Scene, Servers};
use super::show_wrong;
use crate::report::{Bar, Report};
use crate::stats::{self, Tail};
use crate::{Plan, progress};
use anyhow::Context;
use std::time::Duration;

/// How many idle sessions lose their edge.
const IDLE: usize = 7_000;

/// Kills the edge of `count` busy clients, some times.
pub(super) fn busy(plan: &Plan, servers: &Servers, count: usize, report: &mut Report) -> anyhow::Result<()> {
    // With ten clients, ten kills give the hundred waits that a 99th percentile needs.
    let (kills, settle) =
        if plan.quick { (2, Duration::from_millis(300)) } else { (10, Duration::from_secs(1)) };
    let mut gaps = Vec::new();
    let what = format!("crowd: {count} busy clients");
    let share = each_kill(plan, servers, (count, kills, &what), report, |scene, crowd, owner| {
        gaps.extend(crowd.gaps_ms(settle, || scene.cluster.edges[owner].kill())?);
        // The clients go on while the dead edge comes back: they are busy all the time.
        crowd.during(|| scene.cluster.respawn(owner))?
    })?;
    let tail = Tail::of(&gaps);
    let name = tail.name(&format!("n{count}.gap_p99_ms"));
    report.metric(&format!("n{count}.gap_p50_ms"), stats::median(&gaps));
    report.metric(&format!("n{count}.killed_share"), share);
    match count {
        100 => report.metric_with_bar(&name, tail.value(), Bar::Most(60.0)),
        1_000 => report.metric_with_bar(&name, tail.value(), Bar::Most(250.0)),
        _ => report.metric(&name, tail.value()),
    }
    Ok(())
}

/// Kills the edge of many idle sessions, all of whose clients ask at once.
pub(super) fn idle(plan: &Plan, servers: &Servers, report: &mut Report) -> anyhow::Result<()> {
    let (sessions, kills) = if plan.quick { (500, 1) } else { (IDLE, 3) };
    let mut gaps = Vec::new();
    let what = format!("crowd: {sessions} idle sessions");
    let share = each_kill(plan, servers, (sessions, kills, &what), report, |scene, crowd, owner| {
        gaps.extend(crowd.idle_gaps_ms(|| scene.cluster.edges[owner].kill())?);
        scene.cluster.respawn(owner)
    })?;
    let max = gaps.iter().copied().fold(0.0, f64::max);
    report.metric_with_bar("idle_7000_max_ms", max, Bar::Most(400.0));
    report.metric("idle_7000_p50_ms", stats::median(&gaps));
    report.metric("idle_7000_killed_share", share);
    Ok(())
}

/// Connects the clients, and calls `kill` some times with the edge that has their sessions. Returns the least share of the sessions
/// that it had.
fn each_kill(
    plan: &Plan,
    servers: &Servers,
    (clients, kills, what): (usize, usize, &str),
    report: &mut Report,
    mut kill: impl FnMut(&mut Scene, &mut Crowd, usize) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let mut scene = Scene::start(plan, servers, clients, Begin::OnFirstEdge, "")?;
    let mut least = 1.0_f64;
    let mut crowd = scene.connect(servers, File::Small, clients)?;
    for number in 0..kills {
        progress(&format!("{what}, kill {} of {kills}", number + 1));
        let (owner, share) = scene.owner(clients)?;
        least = least.min(share);
        kill(&mut scene, &mut crowd, owner).with_context(|| scene.said())?;
        if crowd.wrong().1.is_some() {
            break;
        }
    }
    show_wrong(report, &crowd);
    Ok(least)
}
