//! The faults of the edges while curl downloads. Each fault is triggered by bytes received and by reports of the agents, never by
//! the clock.
//!
//! ```text
//! 1/5  SIGKILL the owner                          recovery on the other edge
//! 2/5  SIGSTOP the owner, later SIGCONT           its late frames must be refused (I3)
//! 3/5  SIGKILL the owner, then the edge that recovers, within the recovery
//! ```
//!
//! The last two depend on moments that last a few milliseconds, so they are tried until the agents'
//! reports prove that the moment was met. `curl.hold` keeps data for the next attempt.

use super::curl::Curl;
use super::timeline::Timeline;
use anyhow::{Context, bail};
use marram_cluster::{AgentSide, LogEvent, TestCluster};
use std::time::Duration;

/// How long any one step may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for frames of a woken edge.
const ZOMBIE_PATIENCE: Duration = Duration::from_secs(2);
/// Recoveries are fast: how often to try to kill an edge within one.
const ATTEMPTS: usize = 30;

/// The faults that happened.
#[derive(Default, Debug)]
pub(super) struct Faults {
    /// SIGKILLs to edges, all of them.
    pub(super) kills: usize,
    /// SIGSTOPs that were followed by SIGCONT.
    pub(super) stops: usize,
    /// Kills of an edge between the report that a session is orphaned and the report that it has an owner again.
    pub(super) kills_in_recovery: usize,
    pub(super) recoveries: usize,
    pub(super) zombies_refused: usize,
    /// Time in milliseconds during which the session had no owner, for each recovery.
    pub(super) gaps_ms: Vec<f64>,
    /// Why some faults did not happen.
    pub(super) interrupted: Option<String>,
}

impl Faults {
    /// Result if the download ended before all faults happened.
    pub(super) fn interrupted(why: &anyhow::Error) -> Self {
        Self { interrupted: Some(format!("{why:#}")), ..Self::default() }
    }
}

/// Triggers all faults during a download of `size` bytes.
pub(super) fn play(
    cluster: &mut TestCluster,
    curl: &Curl,
    size: u64,
    timeline: &Timeline,
) -> anyhow::Result<Faults> {
    let mut faults = Faults::default();
    curl.wait_for(size / 5, PATIENCE)?;
    kill_the_owner(cluster, curl, timeline)?;
    curl.wait_for(size * 2 / 5, PATIENCE)?;
    faults.stops = stop_the_owner(cluster, curl, timeline)?;
    curl.wait_for(size * 3 / 5, PATIENCE)?;
    faults.kills = 1 + kill_within_a_recovery(cluster, curl, timeline)?;
    faults.kills_in_recovery = 1;
    curl.wait_for(size, PATIENCE)?;
    let owned = cluster.logs.all(0, |event| TestCluster::is_report(AgentSide::Client, "owned", event));
    let gap_ms =
        |event: &LogEvent| std::time::Duration::from_micros(event.number("gap_us")).as_secs_f64() * 1e3;
    // The first owner is the session's beginning.
    faults.gaps_ms = owned.iter().skip(1).map(gap_ms).collect();
    faults.recoveries = owned.len().saturating_sub(1);
    faults.zombies_refused = cluster.logs.count(0, |event| event.name() == "zombie_refused");
    Ok(faults)
}

/// Starts an edge again and waits until both agents have a wire to it.
fn respawn(cluster: &mut TestCluster, index: usize, timeline: &Timeline) -> anyhow::Result<()> {
    cluster.respawn(index)?;
    timeline.say(&format!("edge {} is up: same address, empty directory", cluster.edges[index].who()));
    Ok(())
}

/// The edge that was killed comes back empty, for the faults that follow.
fn kill_the_owner(cluster: &mut TestCluster, curl: &Curl, timeline: &Timeline) -> anyhow::Result<()> {
    let (index, start) = (cluster.owner()?, cluster.logs.end());
    timeline.fault(
        &format!("SIGKILL to edge {}, which owns the session", cluster.edges[index].who()),
        curl.bytes(),
    );
    cluster.edges[index].kill();
    cluster.wait_for_owner(start)?;
    // So that data is left for the faults that follow, however long the edge takes to start.
    curl.hold();
    respawn(cluster, index, timeline)?;
    curl.go_on();
    Ok(())
}

/// Stops the owner until the session has moved, and wakes it; repeats this until the edge sends a frame that must be refused,
/// since an edge that was stopped between two messages sends nothing. Returns the number of stops.
fn stop_the_owner(cluster: &mut TestCluster, curl: &Curl, timeline: &Timeline) -> anyhow::Result<usize> {
    for stops in 1..=ATTEMPTS {
        // In the middle of the stream, not in one of curl's pauses.
        curl.wait_for(curl.bytes() + 1, PATIENCE)?;
        let (index, start) = (cluster.owner()?, cluster.logs.end());
        let who = cluster.edges[index].who();
        cluster.edges[index].stop();
        timeline.fault(&format!("SIGSTOP to edge {who}, which owns the session"), curl.bytes());
        cluster.wait_for_owner(start)?;
        anyhow::ensure!(cluster.owner()? != index, "the session did not leave the stopped edge");
        let start = cluster.logs.end();
        timeline
            .fault(&format!("SIGCONT to edge {who}: it does not know that it was replaced"), curl.bytes());
        cluster.edges[index].wake();
        // So that data is left if the edge has to be stopped again.
        curl.hold();
        let refused = |event: &LogEvent| event.name() == "zombie_refused";
        let heard = cluster.logs.wait(start, ZOMBIE_PATIENCE, refused).is_some();
        // The next fault needs this edge to recover the session.
        cluster.wait_until_usable(index)?;
        curl.go_on();
        if heard {
            timeline.say(&format!("frames of edge {who} are refused: its generation is over"));
            return Ok(stops);
        }
        timeline.say(&format!("edge {who} sent no frame: trying again"));
    }
    bail!("in {ATTEMPTS} attempts the resumed edge sent no frame that had to be refused")
}

/// Kills the owner, then the edge that recovers the session, before the recovery is complete. Returns the number of kills.
fn kill_within_a_recovery(
    cluster: &mut TestCluster,
    curl: &Curl,
    timeline: &Timeline,
) -> anyhow::Result<usize> {
    let mut kills = 0;
    for _ in 0..ATTEMPTS {
        let index = cluster.owner()?;
        let Some(other) = (0..cluster.edges.len()).find(|other| *other != index) else {
            bail!("there is one edge only")
        };
        let start = cluster.logs.end();
        let (who, next) = (cluster.edges[index].who(), cluster.edges[other].who());
        timeline.fault(
            &format!("SIGKILL to edge {who}; edge {next} follows as soon as it recovers the session"),
            curl.bytes(),
        );
        cluster.edges[index].kill();
        // On a busy machine the other edge may be opening a generation already: then the session never has no owner.
        let noticed = |event: &LogEvent| {
            event.name() == "orphaned" || TestCluster::is_report(AgentSide::Client, "owned", event)
        };
        cluster.logs.wait(start, PATIENCE, noticed).context("no agent noticed that the edge died")?;
        cluster.edges[other].kill();
        // So that the session still exists for the next attempt, however long both edges take to start.
        curl.hold();
        kills += 2;
        let recovered =
            cluster.logs.count(start, |event| TestCluster::is_report(AgentSide::Client, "owned", event));
        respawn_both(cluster, index, other, timeline)?;
        // An owner reported before the second kill does not count.
        let mut owners = 0;
        let again = cluster.logs.wait(start, PATIENCE, |event| {
            owners += usize::from(TestCluster::is_report(AgentSide::Client, "owned", event));
            owners > recovered
        });
        again.context("no edge recovered the session when both were running again")?;
        // Between the two kills there was no owner, so the second one met a recovery.
        if recovered == 0 {
            curl.go_on();
            timeline.say(&format!("edge {next} was killed during the recovery that it had begun"));
            return Ok(kills);
        }
        timeline.say(&format!("edge {next} recovered before the signal: trying again"));
    }
    bail!("{ATTEMPTS} times the recovery was over before the kill")
}

fn respawn_both(
    cluster: &mut TestCluster,
    first: usize,
    second: usize,
    timeline: &Timeline,
) -> anyhow::Result<()> {
    respawn(cluster, first, timeline)?;
    respawn(cluster, second, timeline)
}
