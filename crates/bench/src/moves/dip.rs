//! One busy TCP stream through a cell that computes, at half of its capacity, while its session is moved: throughput and latency.
//!
//! ```text
//! sham:   |<----- 1 s ----->|            nothing happens
//! move:   |<----- 1 s ----->|            begins with the request for the move
//! ```
//! Shams and moves alternate, twenty of each. The dip is that of the medians of the messages that the server received in the second. The added
//! latency is the median of the moves' longest latencies less that of the shams'; it lasts for as long as messages are sent whose latency
//! exceeds the shams' median longest one, less the same for a sham. A latency counts from when a message was due.

use super::flow::{Flow, ROUNDS, Server};
use super::scene::{move_away, said, wait_for, wait_for_checkpoint};
use crate::report::{Bar, Report};
use crate::standby::stand_by;
use crate::{Plan, progress, stats};
use anyhow::Context;
use marram_cluster::TestCluster;
use std::time::{Duration, Instant};

const APP: &str = "work";
const SERVER: &str = "origin";
/// What a throughput is measured over, and what the smallest one within that is.
const SECOND: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_millis(50);
/// How long after that its last messages may take, and the stream rests.
const REST: Duration = Duration::from_millis(300);

/// One second of the stream.
struct Sample {
    received: f64,
    /// The least that was received within [`WINDOW`].
    least: f64,
    latencies: Vec<f64>,
}

impl Sample {
    fn of(flow: &Flow, from: Instant) -> Self {
        let windows = (0..).map(|number| from + WINDOW * number).take_while(|begin| *begin < from + SECOND);
        Self {
            received: flow.arrivals_in(from, SECOND),
            least: windows.map(|begin| flow.arrivals_in(begin, WINDOW)).fold(f64::INFINITY, f64::min),
            latencies: flow.latencies_ms(from, SECOND),
        }
    }

    fn longest(&self) -> f64 {
        self.latencies.iter().copied().fold(0.0, f64::max)
    }

    /// For how long messages were sent whose latency exceeds a limit, in milliseconds, at this rate.
    fn over_for_ms(&self, limit: f64, per_s: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        let over = self.latencies.iter().filter(|latency| **latency > limit).count() as f64;
        over / per_s * 1e3
    }
}

/// The median of a figure of samples.
fn median(samples: &[Sample], figure: impl Fn(&Sample) -> f64) -> f64 {
    stats::median(&samples.iter().map(figure).collect::<Vec<_>>())
}

/// Measures.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let (count, time) = if plan.quick { (2, SECOND) } else { (20, 4 * SECOND) };
    let mut cluster = TestCluster::new(plan.layout("bench-dip", 2, ""), |place| {
        let rest = format!("server = \"{SERVER}\"\nprotect = \"endpoints\"\n[quotas]\nmemory = \"16MiB\"\n");
        Ok(vec![plan.cells.manifest(place, APP, "work", &rest)?])
    })?;
    let extra = stand_by(&cluster);
    cluster.start_edges(&extra)?;
    let (edges, (server, address)) = (cluster.edge_addresses(), Server::start()?);
    cluster.start_server_agent(&edges, &[(SERVER, address)])?;
    let listens = cluster.start_client_agent(&edges, &[APP])?;
    let flow = Flow::connect(listens.first().context("one app has one listener")?.address, server)?;
    progress("move: the capacity of a stream");
    let capacity = flow.capacity_per_s(time).with_context(|| said(&cluster))?;
    let per_s = capacity / 2.0;
    let found = flow.paced(per_s, || {
        wait_for(Instant::now(), SECOND);
        let (mut shams, mut moves) = (Vec::new(), Vec::new());
        for number in 0..count {
            progress(&format!("move: a stream at half of its capacity, {} of {count}", number + 1));
            shams.push(sham(&flow));
            moves.push(one_move(&cluster, &flow)?);
        }
        Ok((shams, moves))
    });
    let (shams, moves) = found.with_context(|| said(&cluster))?;
    show(&shams, &moves, per_s, report);
    report.metric("stream.capacity_per_s", capacity);
    report.metric("stream.moves", count);
    let wrong = flow.wrong();
    report.metric("stream.reordered", wrong.reordered);
    report.metric("stream.changed", wrong.changed);
    report.add_lost(wrong.lost + wrong.reordered + wrong.changed, wrong.repeated);
    report.note(format!(
        "stream: messages of 1 KiB, {ROUNDS} steps of a generator in the cell for each; at half of the capacity that the same stream had before"
    ));
    report.note(
        "latency_added_max: the median of the moves' longest latencies less that of the shams'; latency_added_for: how long messages were sent \
         with a longer latency than that of the shams, less the same for shams",
    );
    Ok(())
}

/// A second without a move.
fn sham(flow: &Flow) -> Sample {
    let begun = Instant::now();
    wait_for(begun, SECOND + REST);
    Sample::of(flow, begun)
}

/// The second that begins with the request for a move.
fn one_move(cluster: &TestCluster, flow: &Flow) -> anyhow::Result<Sample> {
    let moved = move_away(cluster, |_, _| Ok(()))?;
    wait_for(moved.asked, SECOND + REST);
    let sample = Sample::of(flow, moved.asked);
    wait_for_checkpoint(&moved.new)?;
    Ok(sample)
}

fn show(shams: &[Sample], moves: &[Sample], per_s: f64, report: &mut Report) {
    let dip = |figure: fn(&Sample) -> f64| (1.0 - median(moves, figure) / median(shams, figure)) * 100.0;
    report.metric_with_bar("tcp_dip_pct_1s", dip(|it| it.received), Bar::Most(3.0));
    report.metric("stream.dip_pct_50ms", dip(|it| it.least));
    let (sham, moving) = (median(shams, Sample::longest), median(moves, Sample::longest));
    report.metric_with_bar("latency_added_max_ms", moving - sham, Bar::Most(1.0));
    let over = |samples| median(samples, |it| it.over_for_ms(sham, per_s));
    report.metric_with_bar("latency_added_for_ms", over(moves) - over(shams), Bar::Most(20.0));
    report.metric("stream.latency_max_ms", moving);
    report.metric("stream.latency_max_sham_ms", sham);
    report.metric("stream.latency_p50_ms", median(shams, |it| stats::median(&it.latencies)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbance_lasts_as_long_as_what_exceeds_the_limit_is_sent() {
        let sample = Sample { received: 4.0, least: 0.0, latencies: vec![1.0, 5.0, 3.0, 1.0] };
        assert!((sample.over_for_ms(2.0, 1_000.0) - 2.0).abs() < 1e-9);
        assert!((sample.longest() - 5.0).abs() < 1e-9);
    }
}
