//! One flow of datagrams through a cell that computes, at several rates, while its session is moved: latency, drops and throughput.
//!
//! ```text
//! rate      25, 50, 75, 90 % of what the flow carries without drops; at each, seconds without a move and seconds with one alternate
//! drops     datagrams for which a socket had no room: nothing within a session is dropped
//! windows   |..|..|..|..| 0 |..|..|..|..|..|..|..|      throughput in windows of 50 ms from half a second before the request on
//! ```
//! As FreeFlow's 3.4.4 measures one UDP flow.

use super::dip::BusyScene;
use super::sample::{SECOND, Sample, WINDOW, WINDOWS, WINDOWS_BEFORE, alternate, median};
use super::scene::said;
use super::sink::Kind;
use crate::report::Report;
use crate::{Plan, progress, stats};
use anyhow::Context;

/// Names of the rates, and their shares of the capacity.
const RATES: [(&str, f64); 4] =
    [("dip.rate_25", 0.25), ("dip.rate_50", 0.5), ("dip.rate_75", 0.75), ("dip.rate_90", 0.9)];

/// Measures the rates that are wanted.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let rates: Vec<_> = RATES.iter().filter(|(name, _)| plan.wants(name)).collect();
    if rates.is_empty() {
        return Ok(());
    }
    let (count, time) = if plan.quick { (2, SECOND) } else { (10, 4 * SECOND) };
    let BusyScene { cluster, flow } = BusyScene::start(plan, Kind::Datagrams)?;
    progress("move: the capacity of a flow of datagrams");
    let capacity = flow.capacity_per_s(time).with_context(|| said(&cluster))?;
    report.metric("dip.capacity_per_s", capacity);
    for (name, share) in rates {
        let per_s = capacity * share;
        let begun = flow.paced(per_s, || alternate(&cluster, count, name));
        let [shams, moves] = begun.with_context(|| said(&cluster))?.samples(&flow);
        show(name, &shams, &moves, per_s, report);
    }
    let wrong = flow.wrong();
    report.metric("dip.reordered", wrong.reordered);
    report.metric("dip.changed", wrong.changed);
    // A datagram that a socket dropped is no loss of the session's.
    report.add_lost(wrong.reordered + wrong.changed, wrong.repeated);
    report.note(
        "dip.rate_N: datagrams of 1 KiB at N % of what the flow carries without drops; latencies of all that were due in the second after the \
         request; max: the median of the moves' longest; drop: those that never came, since a socket had no room for them",
    );
    report.note(
        "dip.rate_N.throughput: in windows of 50 ms, in percent of the rate: before: the median of the half second before; least: within the \
         second; after: the median of its second half; by_50ms: the medians of all windows, from half a second before the request on",
    );
    Ok(())
}

fn show(name: &str, shams: &[Sample], moves: &[Sample], per_s: f64, report: &mut Report) {
    report.metric(&format!("{name}.sent_per_s"), per_s);
    for (samples, suffix) in [(moves, ""), (shams, "_sham")] {
        let all: Vec<f64> = samples.iter().flat_map(|it| it.latencies.iter().copied()).collect();
        let mut metric = |figure: &str, unit: &str, value: f64| {
            report.metric(&format!("{name}.{figure}{suffix}_{unit}"), value);
        };
        metric("latency_p50", "ms", stats::median(&all));
        metric("latency_p99", "ms", stats::percentile(&all, 99.0));
        metric("latency_max", "ms", median(samples, Sample::longest));
        metric("client_late_max", "ms", median(samples, |it| it.late_max_ms));
        let dropped: usize = samples.iter().map(|it| it.dropped).sum();
        #[expect(clippy::cast_precision_loss, reason = "counts")]
        let share = dropped as f64 / (dropped + all.len()).max(1) as f64;
        metric("drop", "pct", share * 100.0);
        metric("throughput_least", "pct", median(samples, Sample::least) / per_window(per_s) * 100.0);
    }
    let by_window = by_window(moves, per_s);
    let (before, second) = by_window.split_at(WINDOWS_BEFORE as usize);
    let after = &second[WINDOWS as usize / 2..];
    report.metric(&format!("{name}.throughput_before_pct"), stats::median(before));
    report.metric(&format!("{name}.throughput_after_pct"), stats::median(after));
    let whole: Vec<f64> = by_window.iter().map(|value| value.round()).collect();
    report.metric(&format!("{name}.throughput_by_50ms_pct"), whole);
    report.metric(&format!("{name}.moves"), moves.len());
}

/// What a window has at this rate.
fn per_window(per_s: f64) -> f64 {
    per_s * WINDOW.as_secs_f64()
}

/// The median of each window, in percent of the rate.
fn by_window(samples: &[Sample], per_s: f64) -> Vec<f64> {
    let count = (WINDOWS_BEFORE + WINDOWS) as usize;
    let of = |window: usize| median(samples, |it| it.windows.get(window).copied().unwrap_or(0.0));
    (0..count).map(|window| of(window) / per_window(per_s) * 100.0).collect()
}
