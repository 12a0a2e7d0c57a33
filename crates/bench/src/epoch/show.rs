//! Figures and bars of measured blocks. It measures nothing.

use super::scene::{HZ1000, MESSAGE, MODES, Totals};
use super::{Block, Measured};
use crate::report::{Bar, Report};
use crate::stats;

/// Half of an epoch is waited for on average, and a whole one: the request waits for the end of its epoch, and so does the response,
/// which begins with the end of the request's.
const EPOCHS: f64 = 1.5;
const EPOCH_US: f64 = 1_000.0;

impl Measured {
    /// The median of a figure over the rounds.
    fn median(&self, mode: usize, of: impl Fn(&Block) -> f64) -> f64 {
        stats::median(&self.modes[mode].iter().map(of).collect::<Vec<_>>())
    }

    /// The median difference to the baseline in the same round.
    fn added(&self, mode: usize, of: impl Fn(&Block) -> f64) -> f64 {
        let pairs = self.modes[mode].iter().zip(&self.modes[0]);
        stats::median(&pairs.map(|(block, none)| of(block) - of(none)).collect::<Vec<_>>())
    }

    /// The same in percent of the baseline.
    fn added_pct(&self, mode: usize, of: impl Fn(&Block) -> f64) -> f64 {
        let pairs = self.modes[mode].iter().zip(&self.modes[0]);
        stats::median(&pairs.map(|(block, none)| (of(block) / of(none) - 1.0) * 100.0).collect::<Vec<_>>())
    }
}

fn p50(block: &Block) -> f64 {
    stats::percentile(&block.waits_us, 50.0)
}

fn p95(block: &Block) -> f64 {
    stats::percentile(&block.waits_us, 95.0)
}

fn deviation(block: &Block) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a count")]
    let count = block.waits_us.len().max(1) as f64;
    let mean = block.waits_us.iter().sum::<f64>() / count;
    (block.waits_us.iter().map(|wait| (wait - mean).powi(2)).sum::<f64>() / count).sqrt()
}

/// Epochs a second.
fn rate(block: &Block) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a count")]
    let epochs = (block.ended.epochs - block.begun.epochs) as f64;
    epochs / block.time.as_secs_f64()
}

/// How long an epoch waited for its confirmation, on average.
#[expect(clippy::cast_precision_loss, reason = "counts and microseconds of one block")]
fn confirm_us(block: &Block) -> f64 {
    let of = |of: fn(&Totals) -> u64| (of(&block.ended) - of(&block.begun)) as f64;
    of(|it| it.confirm_us) / of(|it| it.confirmed).max(1.0)
}

/// How busy all cores were together, with clients and server.
fn busy_pct(block: &Block) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "ticks of one block")]
    let of = |now: u64, then: u64| (now - then) as f64;
    100.0 * of(block.ended.busy, block.begun.busy) / of(block.ended.ticks, block.begun.ticks).max(1.0)
}

/// What throughput loses; 0 if it loses nothing.
fn drop_pct(closed: &Measured, mode: usize) -> f64 {
    -closed.added_pct(mode, |block| block.per_s)
}

/// The figures of one workload; the throughput is that of a closed loop.
pub(super) fn workload(name: &str, measured: &Measured, closed: &Measured, report: &mut Report) {
    for (mode, of) in MODES.iter().enumerate() {
        let mut metric =
            |figure: &str, value: f64| report.metric(&format!("{name}.{}.{figure}", of.name), value);
        metric("p50_us", measured.median(mode, p50));
        metric("p95_us", measured.median(mode, p95));
        metric("sd_us", measured.median(mode, deviation));
        metric("per_s", measured.median(mode, |block| block.per_s));
        metric("closed_loop_per_s", closed.median(mode, |block| block.per_s));
        metric("cpu_us", measured.median(mode, |block| block.each(|it| it.shard_ns) / 1e3));
        // Nanoseconds a transaction are microseconds for a thousand.
        metric("cpu_primary_s_per_1000", measured.median(mode, |block| block.each(|it| it.primary_ns) / 1e6));
        metric("cpu_backup_s_per_1000", measured.median(mode, |block| block.each(|it| it.backup_ns) / 1e6));
        metric("cores_busy_pct", measured.median(mode, busy_pct));
        if mode == 0 {
            continue;
        }
        metric("added_p50_us", measured.added(mode, p50));
        metric("added_p95_pct", measured.added_pct(mode, p95));
        metric("throughput_drop_pct", drop_pct(closed, mode));
        metric("cpu_added_pct", measured.added_pct(mode, |block| block.each(|it| it.shard_ns)));
        metric("achieved_hz", measured.median(mode, rate));
        metric("bytes_log", measured.median(mode, |block| block.each(|it| it.log_bytes)));
        metric("bytes_pages", measured.median(mode, |block| block.each(|it| it.page_bytes)));
        if measured.modes[mode].iter().all(|block| block.ended.sent_bytes.is_some()) {
            metric("bytes_sent", measured.median(mode, |block| block.each(|it| it.sent_bytes.unwrap_or(0))));
        }
        // Of a copy of all cells this would be the wait for the frame alone, which goes ahead of the pages.
        if !of.is_whole() {
            metric("confirm_mean_us", measured.median(mode, confirm_us));
        }
    }
}

/// What an open loop adds beyond what epochs and round trips explain. The bars are for half of the capacity. There the cores may be
/// busy all the time, so other loads show the same.
pub(super) fn beyond_epochs(name: &str, measured: &Measured, rtt_us: f64, report: &mut Report) {
    let budget_us = EPOCHS * EPOCH_US + rtt_us;
    let has_bars = name == "fixed50";
    for (figure, value, bar) in [
        ("hz1000.over_budget_us", measured.added(HZ1000, p50) - budget_us, 200.0),
        ("message.over_rtt_us", measured.added(MESSAGE, p50) - 2.0 * rtt_us, 100.0),
    ] {
        let figure = format!("{name}.{figure}");
        if has_bars {
            report.metric_with_bar(&figure, value, Bar::Most(bar));
        } else {
            report.metric(&figure, value);
        }
    }
    if has_bars {
        let achieved_hz = measured.median(HZ1000, rate);
        report.metric_with_bar(&format!("{name}.hz1000.achieved_hz"), achieved_hz, Bar::Least(950.0));
    }
}

/// The bars of HTTP transactions.
pub(super) fn http_bars(measured: &Measured, report: &mut Report) {
    let busiest = (0..MODES.len()).map(|mode| measured.median(mode, busy_pct)).fold(0.0, f64::max);
    if busiest > 60.0 {
        report.note(format!(
            "WARNING: http: the cores are busy for {busiest:.0} % of the time, more than 60: a part of the added time is waiting for a core"
        ));
    }
    let added_pct = measured.added_pct(HZ1000, p95);
    report.metric_with_bar("http.hz1000.added_p95_pct", added_pct, Bar::Most(10.0));
    report.metric_with_bar("http.hz1000.throughput_drop_pct", drop_pct(measured, HZ1000), Bar::Most(3.0));
}

/// The notes.
pub(super) fn describe(report: &mut Report) {
    report.baseline("none", "the same cell, agents and edges in the same run, with protect = \"none\"");
    report.baseline(
        "whole40, whole100",
        "the same in the same run, as Remus does it: 40 or 100 times a second all cells halt at one moment, what they have changed is copied, \
         they go on, and no output leaves before the backup has stored the pages of all (demo-edge --whole, form = \"pages\")",
    );
    report.note(
        "fixedN: 1,400 B each way, an open loop at N % of capacity_per_s, which the unprotected app reaches in a closed loop of 64 connections; \
         throughput_drop_pct is of that closed loop, the same for all three",
    );
    report.note(
        "http: requests and answers of 10 KB on average, a closed loop of 64 connections; the server is so far away that the unprotected p95 is \
         about 54 ms, as in the paper",
    );
    report.note(
        "cpu_us, bytes: of a transaction; cpu_us is of the owner's shard, cpu_primary and cpu_backup are of whole edges; bytes_log is log and messages \
         to the backup, bytes_pages checkpoints of changed memory there, bytes_sent all that the backup has read from the owner's wires (ss)",
    );
    report.note(
        "over_budget_us: added p50, less one and a half epochs and backup_rtt_p50_us; over_rtt_us: less two of those. backup_rtt_p50_us is from the end \
         of an epoch to its confirmation, with 1,000 requests a second and an epoch for each message; confirm_mean_us is the mean of the \
         same in each mode",
    );
    report.note(
        "clients, server, agents and edges share the machine's cores; clients, server, the main threads of agents and shards have real-time priority \
         where it is allowed",
    );
    report.note("paper: p95 54.48 to 62.95 ms and 3.2 % less throughput at 1,000 Hz; Remus at 100 Hz 207.72 ms and 99.5 % less");
}
