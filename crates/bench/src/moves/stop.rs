//! The same session, but stopped before it is copied: what a live move is compared with.
//!
//! ```text
//! edge     SIGTERM ---- agents ask another edge ---- both ends promise it: the session stands still
//! ends                                                  `-- the whole state, the log --> restored, replayed: it runs
//! client   . . . . . . . . . . . . . . . . . . . . . .  [ ---------------- gap ---------------- ] . . .
//! ```
//! The product has no move that stops first. Closest to one is an edge that shuts down while no edge stands by: it serves the session until the
//! next edge is promised, and nothing is copied to that edge before. The whole state is copied while the session stands still.
//!
//! This is a lower bound of what a stop-and-copy move takes, in favour of the side that a live move is compared with: the ends have the state
//! sealed already, so nothing is read from the cell, compressed or sealed within the gap. What is replayed is bounded by the app's recovery
//! target, which is the default, as for the live move. The session is always protected, since an unprotected one would end with its edge.

use super::client::{Client, blackout_ms};
use super::scene::{Conditions, Scene, wait_for, wait_for_checkpoint};
use crate::{Plan, progress};
use anyhow::Context;
use std::time::{Duration, Instant};

/// A gap of some hundred milliseconds ends at most so long before or after the report of the new owner is read.
const NEAR: Duration = Duration::from_millis(100);
/// How long the client asks before its edge shuts down.
const BEFORE: Duration = Duration::from_millis(500);

/// The gaps of a client that changes so many pages a second, in milliseconds, of `count` sessions that are stopped first.
pub(super) fn gaps_ms(
    plan: &Plan,
    name: &str,
    (bytes, pages_per_s): (u64, u64),
    count: usize,
) -> anyhow::Result<Vec<f64>> {
    let mut scene = Scene::start(plan, Conditions { bytes, ..Conditions::default() })?;
    let client = Client::new(scene.stream.try_clone()?, pages_per_s);
    let gaps = client.asks_during(|| {
        (0..count)
            .map(|number| {
                progress(&format!("move: {name}, stopped first, {} of {count}", number + 1));
                one_stop(&mut scene, &client)
            })
            .collect()
    });
    gaps.with_context(|| scene.said())
}

/// Shuts the session's edge down, and starts it again.
fn one_stop(scene: &mut Scene, client: &Client) -> anyhow::Result<f64> {
    let cluster = &mut scene.cluster;
    let from = cluster.owner()?;
    // The ends keep the state: otherwise the whole session would be replayed.
    wait_for_checkpoint(&cluster.edges[from].client()?)?;
    client.waits().clear();
    wait_for(Instant::now(), BEFORE);
    let start = cluster.logs.end();
    cluster.edges[from].terminate();
    let owned = cluster.wait_for_owner(start)?;
    wait_for(owned.at, NEAR);
    let gap = blackout_ms(&client.waits(), owned.at, NEAR)?;
    cluster.edges[from].process().context("the edge was running")?.wait()?;
    cluster.respawn(from)?;
    Ok(gap)
}
