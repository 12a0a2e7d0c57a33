//! The game `pong`: how evenly its 60 ticks a second reach a player, while other games run on the same edge.
//!
//! A tick is a timer of the cell; it is late if the shard runs something else, or if the edge, the
//! agents or the clients have no core. The other games compete for the same shard, with the same
//! timers.

use super::super::report::{Bar, Report};
use super::super::{Plan, progress, stats};
use super::talk::Player;
use anyhow::Context;
use marram_cluster::TestCluster;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// How late a tick may be.
const JITTER_MS_MAX: f64 = 4.0;
/// Ticks a second.
const RATE: f64 = 60.0;
/// Games beside the measured one.
const OTHERS: usize = 9;

/// Measures and adds the figures to the report.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let (repeats, time) = if plan.quick { (1, Duration::from_secs(3)) } else { (5, Duration::from_secs(10)) };
    let mut cluster = TestCluster::new(plan.layout("bench-apps-pong", 1, ""), |place| {
        Ok(vec![plan.cells.manifest(place, "pong", "pong", "protect = \"endpoints\"\n")?])
    })?;
    cluster.start_edges("")?;
    let edges = cluster.edge_addresses();
    let address = cluster.start_client_agent(&edges, &["pong"])?.first().context("one listener")?.address;
    let over = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (0..OTHERS)
        .map(|seed| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                while !over.load(Relaxed) {
                    play(address, seed, Duration::from_secs(1), &mut Vec::new())?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    let mut jitter = stats::Tail::default();
    for repeat in 0..repeats {
        progress(&format!("apps: pong, {} of {repeats}", repeat + 1));
        let (mut late, begun) = (Vec::new(), Instant::now());
        while begun.elapsed() < time {
            play(address, 100, time.saturating_sub(begun.elapsed()), &mut late)?;
        }
        jitter.add(&late);
        report.metric("pong_ticks_watched", late.len());
    }
    over.store(true, Relaxed);
    for other in others {
        other.join().map_err(|_| anyhow::anyhow!("a player panicked"))??;
    }
    let name = jitter.name("pong_tick_jitter_p99_ms");
    report.metric_with_bar(&name, jitter.value(), Bar::Most(JITTER_MS_MAX));
    report.note(
        "pong: how far an observed tick is from its place in a sequence of 60 a second, early or late, in a game of \
         one player beside nine others; the median of the repeats' p99",
    );
    Ok(())
}

/// Plays a game without touching a key, until it is over or `time` has passed. Adds each tick's deviation from its expected time,
/// in milliseconds.
///
/// A tick's time is compared with a line through all ticks of the game: the median of the offsets
/// stands for its start, so that a constant delay of the network is no jitter.
fn play(address: SocketAddr, seed: usize, time: Duration, late: &mut Vec<f64>) -> anyhow::Result<()> {
    let mut player = Player::connect(address)?;
    player.say(&format!("start {seed}"))?;
    let begun = Instant::now();
    let mut offsets = Vec::new();
    while begun.elapsed() < time {
        let (line, heard) = player.hear()?;
        if line.starts_with("over") {
            break;
        }
        let tick: Option<f64> = line.split(' ').next().and_then(|word| word.parse().ok());
        if let Some(tick) = tick {
            offsets.push((heard - begun).as_secs_f64() * 1e3 - tick * 1e3 / RATE);
        }
    }
    if offsets.is_empty() {
        return Ok(());
    }
    // The median offset is the start of the game's clock.
    let middle = stats::median(&offsets);
    late.extend(offsets.iter().map(|offset| (offset - middle).abs()));
    Ok(())
}
