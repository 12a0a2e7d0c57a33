//! A move between two edges that are near each other, of a session whose ends are both far from them.
//!
//! ```text
//! client's agent --- 20 ms --- edge A, edge B --- 20 ms --- server's agent
//! ```
//! The new owner needs the promise of both ends, which takes one round trip; the client's request goes to whichever edge owns the session.

use super::client::{Client, blackout_ms, lengths_ms};
use super::scene::{Conditions, Scene, move_away, wait_for, wait_for_checkpoint};
use crate::report::{Bar, Report};
use crate::{Plan, progress, stats};
use anyhow::Context;
use std::time::Duration;

/// One way.
const DELAY: Duration = Duration::from_millis(20);
const ROUND_TRIP: Duration = DELAY.saturating_mul(2);
/// A wait spans the hand-over if it ends at most so long before or after the report of the new owner is read: the next answer takes
/// a round trip.
const NEAR: Duration = ROUND_TRIP.saturating_mul(2);
const STATE: u64 = 1 << 20;
const PAGES_PER_S: u64 = 1_000;

/// Measures the gap in round trips.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let conditions = Conditions { bytes: STATE, stand_by: true, delay: Some(DELAY), ..Conditions::default() };
    let scene = Scene::start(plan, conditions)?;
    let client = Client::new(scene.stream.try_clone()?, PAGES_PER_S);
    let count = if plan.quick { 3 } else { 30 };
    let found: anyhow::Result<Vec<[f64; 3]>> = client.asks_during(|| {
        (0..count)
            .map(|number| {
                progress(&format!("move: far ends, {} of {count}", number + 1));
                one_move(&scene, &client)
            })
            .collect()
    });
    let found = found.with_context(|| scene.said())?;
    let of = |at: usize| stats::median(&found.iter().map(|figures| figures[at]).collect::<Vec<_>>());
    let gaps: Vec<f64> = found.iter().map(|figures| figures[0]).collect();
    let round_trip_ms = ROUND_TRIP.as_secs_f64() * 1e3;
    report.metric_with_bar("far_20ms_rtts", of(0) / round_trip_ms, Bar::Most(1.1));
    report.metric("far_20ms.gap_p50_ms", of(0));
    report.tail("far_20ms.gap_p99_ms", &stats::Tail::of(&gaps));
    report.metric("far_20ms.undisturbed_p50_ms", of(1));
    report.metric("far_20ms.total_p50_ms", of(2));
    report.metric("far_20ms.moves", count);
    report.add_lost(0, 0);
    report.note(
        "far_20ms: 1 MiB of state, 1,000 pages a second; every byte between agents and edges is held back for 20 ms each way, edges reach \
         each other at once; the gap is a blackout as above, of waits that end within 80 ms of the new owner",
    );
    Ok(())
}

/// The gap, the median wait, and the time that the move took, in milliseconds.
fn one_move(scene: &Scene, client: &Client) -> anyhow::Result<[f64; 3]> {
    let moved = move_away(&scene.cluster, |_, _| {
        client.waits().clear();
        Ok(())
    })?;
    wait_for(moved.owned.at, NEAR + ROUND_TRIP);
    let waits = client.waits().clone();
    let gap = blackout_ms(&waits, moved.owned.at, NEAR)?;
    wait_for_checkpoint(&moved.new)?;
    let total = moved.owned.at - moved.asked;
    Ok([gap, stats::median(&lengths_ms(&waits)), total.as_secs_f64() * 1e3])
}
