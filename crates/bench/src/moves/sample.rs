//! One second of a flow, with or without a move that begins with it, and the time around it.
//!
//! ```text
//!            |<--------- 1 s --------->|  rest  |
//! windows  |..|..|..|..|..|..|..|..|..|          of 50 ms; some before the second
//! ```
//! Where it comes from is asked when the flow is over, so that no question delays a message.

use super::flow::{Fate, Flow};
use super::scene::{move_away, wait_for, wait_for_checkpoint};
use crate::{progress, stats};
use marram_cluster::TestCluster;
use std::time::{Duration, Instant};

/// What a throughput is measured over, and what the smallest one within that is.
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const WINDOW: Duration = Duration::from_millis(50);
/// Windows of a second, and those before it.
pub(super) const WINDOWS: u32 = 20;
pub(super) const WINDOWS_BEFORE: u32 = 10;
/// How long after a second its last messages may take, and the flow rests.
const REST: Duration = Duration::from_millis(300);

/// When seconds without a move began, and seconds with one.
#[derive(Default)]
pub(super) struct Begun {
    shams: Vec<Instant>,
    moves: Vec<Instant>,
}

/// Lets seconds without a move and seconds with one pass, in turn, `count` of each.
pub(super) fn alternate(cluster: &TestCluster, count: usize, name: &str) -> anyhow::Result<Begun> {
    wait_for(Instant::now(), SECOND);
    let mut begun = Begun::default();
    for number in 0..count {
        progress(&format!("move: {name}, {} of {count}", number + 1));
        let sham = Instant::now();
        wait_for(sham, SECOND + REST);
        begun.shams.push(sham);
        let moved = move_away(cluster, |_, _| Ok(()))?;
        wait_for(moved.asked, SECOND + REST);
        wait_for_checkpoint(&moved.new)?;
        begun.moves.push(moved.asked);
    }
    Ok(begun)
}

impl Begun {
    /// The samples of the seconds without a move, and of those with one.
    pub(super) fn samples(&self, flow: &Flow) -> [Vec<Sample>; 2] {
        [&self.shams, &self.moves].map(|all| all.iter().map(|from| Sample::of(flow, *from)).collect())
    }
}

/// One second of a flow.
pub(super) struct Sample {
    /// Messages received in the second, and in each window, those before the second included.
    pub(super) received: f64,
    pub(super) windows: Vec<f64>,
    /// Of the messages that were due in the second and arrived, in milliseconds.
    pub(super) latencies: Vec<f64>,
    pub(super) dropped: usize,
    /// How late the client itself was, at most.
    pub(super) late_max_ms: f64,
}

impl Sample {
    fn of(flow: &Flow, from: Instant) -> Self {
        let windows = flow.windows(from - WINDOW * WINDOWS_BEFORE, WINDOW, WINDOWS_BEFORE + WINDOWS);
        Self::new(windows, &flow.sample(from, SECOND))
    }

    fn new(windows: Vec<f64>, fates: &[Fate]) -> Self {
        let latencies: Vec<f64> = fates.iter().filter_map(|fate| fate.latency_ms).collect();
        Self {
            received: windows.iter().skip(WINDOWS_BEFORE as usize).sum(),
            dropped: fates.len() - latencies.len(),
            late_max_ms: fates.iter().map(|fate| fate.late_ms).fold(0.0, f64::max),
            windows,
            latencies,
        }
    }

    /// The least that was received within a window of the second.
    pub(super) fn least(&self) -> f64 {
        self.windows.iter().skip(WINDOWS_BEFORE as usize).copied().fold(f64::INFINITY, f64::min)
    }

    pub(super) fn longest(&self) -> f64 {
        self.latencies.iter().copied().fold(0.0, f64::max)
    }

    /// For how long messages were sent whose latency exceeds a limit, in milliseconds, at this rate.
    pub(super) fn over_for_ms(&self, limit: f64, per_s: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        let over = self.latencies.iter().filter(|latency| **latency > limit).count() as f64;
        over / per_s * 1e3
    }
}

/// The median of a figure of samples.
pub(super) fn median(samples: &[Sample], figure: impl Fn(&Sample) -> f64) -> f64 {
    stats::median(&samples.iter().map(figure).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbance_lasts_as_long_as_what_exceeds_the_limit_is_sent() {
        let fate = |latency_ms| Fate { late_ms: 0.5, latency_ms };
        let fates = [Some(1.0), Some(5.0), None, Some(3.0), Some(1.0)].map(fate);
        let windows = [vec![9.0; WINDOWS_BEFORE as usize], vec![4.0, 2.0, 3.0]].concat();
        let sample = Sample::new(windows, &fates);
        assert!((sample.over_for_ms(2.0, 1_000.0) - 2.0).abs() < 1e-9);
        let figures = [sample.longest(), sample.least(), sample.received, sample.late_max_ms];
        assert_eq!((figures, sample.dropped), ([5.0, 2.0, 9.0, 0.5], 1));
    }
}
