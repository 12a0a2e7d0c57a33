//! An edge with a thousand sessions is drained, while each of their clients asks ten times a second.
//!
//! ```text
//!          POST /v1/drain                  the last session has its new owner     the edge stops
//! operator ------|------------------------------------|------------------------------|-----> time
//! clients   . . .[ before ] . [ the drain: moved_s .. ] . . . . . . . . . . . . . . . .
//!                              <------------------------- total_s ------------------>
//! ```
//! The gap of a session is its longest wait for an answer that came during the drain, less its median wait before. Two other edges stand by.
//! They start when all sessions are on the first one.

use super::heard::Wrong;
use super::scene::{PATIENCE, apart, layout, said, wait_for, wait_until};
use super::sessions::{Answered, STATE_BYTES, Sessions};
use crate::ballast::{APP, SERVER, counter};
use crate::report::{Bar, Report};
use crate::standby::stand_by;
use crate::stats::Tail;
use crate::{Plan, peer, progress, stats};
use anyhow::Context;
use hyper::Method;
use marram_cluster::{AgentSide, LogEvent, TestCluster};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SESSIONS: usize = 1_000;
/// Fewer sessions have no 99th percentile.
const SESSIONS_QUICK: usize = 100;
/// How long the clients ask before the drain, and after it.
const BEFORE: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_millis(500);

/// What one drain did.
struct Drained {
    /// One for each session, in milliseconds.
    gaps: Vec<f64>,
    /// Waits of all answers during the drain, and of as long a time before.
    live: Vec<f64>,
    live_before: Vec<f64>,
    moved_s: f64,
    total_s: f64,
    /// Sessions that the other edges had ready when they took them over.
    taken_over: u64,
    wrong: Wrong,
}

/// Measures drains, each with sessions of its own.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let (sessions, rounds) = if plan.quick { (SESSIONS_QUICK, 1) } else { (SESSIONS, 3) };
    let (mut gaps, mut live, mut before) = (Tail::default(), Tail::default(), Tail::default());
    let (mut gaps_p50, mut moved_s, mut total_s) = (Vec::new(), Vec::new(), Vec::new());
    let (mut wrong, mut taken_over) = (Wrong::default(), 0);
    for round in 0..rounds {
        progress(&format!("move: an edge with {sessions} sessions is drained, {} of {rounds}", round + 1));
        let drained = one_drain(plan, sessions)?;
        gaps.add(&drained.gaps);
        live.add(&drained.live);
        before.add(&drained.live_before);
        gaps_p50.push(stats::median(&drained.gaps));
        moved_s.push(drained.moved_s);
        total_s.push(drained.total_s);
        wrong.add(drained.wrong);
        taken_over += drained.taken_over;
    }
    report.metric("drain_1000.gap_p50_ms", stats::median(&gaps_p50));
    report.metric_with_bar(&gaps.name("drain_1000.gap_p99_ms"), gaps.value(), Bar::Most(10.0));
    report.metric("drain_1000.moved_s", stats::median(&moved_s));
    report.metric("drain_1000.total_s", stats::median(&total_s));
    report.tail("drain_1000.live_p99_ms", &live);
    report.tail("drain_1000.live_p99_before_ms", &before);
    report.metric("drain_1000.sessions", sessions * rounds);
    report.metric("drain_1000.taken_over", taken_over);
    report.metric("drain_1000.reordered", wrong.reordered);
    report.metric("drain_1000.changed", wrong.changed);
    // An answer that comes too early, or from a wrong state, is a wrong one.
    report.add_lost(wrong.lost + wrong.reordered + wrong.changed, wrong.repeated);
    report.note(format!(
        "drain_1000: {} KiB of state each; gap: a session's longest wait for an answer that came during the drain, less its median before; \
         waits count from when a question was due; moved: until the last session has its new owner; total: until the edge has stopped, at \
         least half a second",
        STATE_BYTES >> 10
    ));
    Ok(())
}

/// Starts everything, and drains the edge that has all sessions.
fn one_drain(plan: &Plan, count: usize) -> anyhow::Result<Drained> {
    let mut cluster = apart(layout(plan, "bench-drain", 3), |place| {
        let rest = format!("server = \"{SERVER}\"\nprotect = \"endpoints\"\n[quotas]\nmemory = \"16MiB\"\n");
        Ok(vec![plan.cells.manifest(place, APP, "ballast", &rest)?])
    })?;
    let extra = stand_by(&cluster);
    cluster.start_edge(0, &extra)?;
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[(SERVER, peer::echo_server()?)])?;
    let listens = cluster.start_client_agent(&edges, &[APP])?;
    let address = listens.first().context("one app has one listener")?.address;
    let mut sessions = Sessions::open(address, count)?;
    for other in [1, 2] {
        cluster.respawn_with(other, &extra)?;
    }
    wait_until_movable(&cluster, count)?;
    let (stop, before) = (AtomicBool::new(false), if plan.quick { BEFORE / 5 } else { BEFORE });
    let times = std::thread::scope(|scope| {
        let talks = scope.spawn(|| sessions.talk(&stop));
        wait_for(Instant::now(), before);
        let times = drain(&mut cluster, count);
        wait_for(Instant::now(), AFTER);
        stop.store(true, Ordering::Relaxed);
        talks.join().map_err(|_| anyhow::anyhow!("the clients panicked"))??;
        times
    })
    .with_context(|| said(&cluster))?;
    if let (lost, Some(why)) = sessions.failed() {
        anyhow::bail!("{lost} of {count} clients lost their connection: {why}");
    }
    let taken_over = [1, 2].map(|other| counter(&cluster.edges[other].client()?, "takeovers_total"));
    let taken_over = taken_over.into_iter().sum::<anyhow::Result<Option<u64>>>()?;
    let drained = times.figures(&sessions, before);
    Ok(Drained { taken_over: taken_over.unwrap_or(0), ..drained })
}

/// Waits until the first edge would move each of the sessions.
fn wait_until_movable(cluster: &TestCluster, count: usize) -> anyhow::Result<()> {
    let edge = cluster.edges[0].client()?;
    wait_until(|| {
        let plan = edge.json(Method::GET, "/v1/drain")?;
        let rows = plan["sessions"].as_array().context("a plan has sessions")?;
        Ok(rows.len() == count && rows.iter().all(|row| row["to"].is_string()))
    })
    .context("the edge that is to be drained does not have all sessions, or cannot move them")
}

/// The moments of a drain.
struct Times {
    asked: Instant,
    moved: Instant,
    stopped: Instant,
}

/// Drains the first edge.
fn drain(cluster: &mut TestCluster, count: usize) -> anyhow::Result<Times> {
    let edge = cluster.edges[0].client()?;
    let (start, asked) = (cluster.logs.end(), Instant::now());
    edge.json(Method::POST, "/v1/drain")?;
    // A session that is recovered again later is reported again, so sessions are counted and not reports.
    let mut owned = std::collections::BTreeSet::new();
    let last = cluster.logs.wait(start, PATIENCE, |event: &LogEvent| {
        if TestCluster::is_report(AgentSide::Client, "owned", event) {
            owned.insert(event.text("session").to_owned());
        }
        owned.len() == count
    });
    let (_, last) = last.with_context(|| format!("{} of {count} sessions have left", owned.len()))?;
    cluster.edges[0].process().context("the edge was running")?.wait()?;
    Ok(Times { asked, moved: last.at, stopped: Instant::now() })
}

impl Times {
    /// What the answers say, of clients that began to ask this long before the drain.
    fn figures(&self, sessions: &Sessions, before: Duration) -> Drained {
        let length = (self.moved - self.asked).min(before);
        // An answer belongs to the time in which it came.
        let during = |answer: &&Answered| answer.at >= self.asked && answer.due <= self.moved;
        let earlier = |answer: &&Answered| answer.at < self.asked;
        let just_before = |answer: &&Answered| earlier(answer) && answer.at + length >= self.asked;
        let waits = |answers: &[Answered], when: &dyn Fn(&&Answered) -> bool| -> Vec<f64> {
            answers.iter().filter(when).map(|answer| answer.wait_ms()).collect()
        };
        let (mut gaps, mut live, mut live_before) = (Vec::new(), Vec::new(), Vec::new());
        for answers in sessions.answers() {
            let own = waits(answers, &during);
            let longest = own.iter().copied().fold(0.0, f64::max);
            gaps.push(longest - stats::median(&waits(answers, &earlier)));
            live.extend(own);
            live_before.extend(waits(answers, &just_before));
        }
        Drained {
            gaps,
            live,
            live_before,
            moved_s: (self.moved - self.asked).as_secs_f64(),
            total_s: (self.stopped - self.asked).as_secs_f64(),
            taken_over: 0,
            wrong: sessions.wrong(),
        }
    }
}
