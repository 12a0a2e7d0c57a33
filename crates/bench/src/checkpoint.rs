//! `marram bench checkpoint`: how long a checkpoint pauses a cell, by the size of its memory and the number of pages it wrote.
//!
//! Runs in this process, without edges: the pause is a property of the sandbox. `faults` and
//! `recover` show what a client sees of it. The pages are written with bytes that do not compress,
//! so that encoding times and sizes are those of the worst session.

use super::report::{Bar, Report};
use super::{Plan, progress, stats};
use marram_cluster::TempDir;
use marram_sandbox::Images;
use marram_sandbox::bench::Workload;
use marram_session::cell::CheckpointBase;

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("checkpoint");
    let rounds = if plan.quick { 10 } else { 200 };
    let place = TempDir::new("bench-checkpoint")?;
    let images = Images::open(place.path())?;
    // The bars are for sizes of the paper's kind; the other sizes show how the pause grows.
    for (memory, pages, bar) in [
        (1_u64, 1_u32, None),
        (1, 16, None),
        (10, 1, None),
        (10, 16, Some(100.0)),
        (10, 256, None),
        (64, 1, Some(150.0)),
        (64, 256, None),
    ] {
        progress(&format!("checkpoint: {pages} dirty pages of {memory} MiB"));
        let mut workload = Workload::new(&images, memory << 20)?;
        // The first one is full and starts the tracking of dirty pages.
        workload.checkpoint(CheckpointBase::Image)?;
        let (mut pauses, mut encodes, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            workload.write(pages)?;
            let (checkpoint, _) = workload.checkpoint(CheckpointBase::Previous)?;
            pauses.push(micros(checkpoint.pause_ns));
            encodes.push(micros(checkpoint.encode_ns));
            #[expect(clippy::cast_precision_loss, reason = "sizes of checkpoints")]
            sizes.push(checkpoint.bytes as f64);
        }
        let plural = if pages == 1 { "page" } else { "pages" };
        let what = format!("{pages}_{plural}_of_{memory}mib");
        let pause = format!("pause_{what}_us");
        match bar {
            Some(most) => report.metric_with_bar(&pause, stats::median(&pauses), Bar::Most(most)),
            None => report.metric(&pause, stats::median(&pauses)),
        }
        report.tail(&format!("pause_p99_{what}_us"), &stats::Tail::of(&pauses));
        report.metric(&format!("encode_{what}_us"), stats::median(&encodes));
        report.metric(&format!("bytes_{what}"), stats::median(&sizes));
        report.metric("tracking", workload.tracking());
    }
    report.baseline("CESSNA", "the paper's figures for a whole checkpoint: 360 ms (10 MB), 121 ms (43 MB)");
    report.note("the pause is finding and copying the pages; encoding happens while the cell runs");
    Ok(report)
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of one checkpoint")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}
