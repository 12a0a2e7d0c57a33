//! `marram bench takeover`: ten flows of 50 Mbit/s together go through the cell `inspector` of one edge, which is killed, or stopped.
//! Pico Replication's 4.5.1.
//!
//! ```text
//! 10 clients -- agent --+-- edge A (owner) --+-- agent -- server
//!                       +-- edge B (backup)--+       groups: 1,000 epochs a second; the flows are in two groups, by their backup
//!                       '-- edge C (backup)--'       none:   no flow outlives its edge
//!                                                    whole:  all flows are copied together 40 times a second, to one backup, as Remus does
//! latency:  mean of the second before the fault, and of one that begins half a second after it
//! gap:      a flow's longest wait for an answer around the fault, from when its request was due
//! ```

mod base;
mod scene;

use crate::epoch::flows::{Heard, Sizes};
use crate::report::{Bar, Report};
use crate::{Plan, progress, stats};
use anyhow::Context;
use scene::{Fault, Scene};
use std::time::Duration;

/// Requests and answers of 1,400 bytes each, both counted.
const PER_S: f64 = 50e6 / 8.0 / 2_800.0;
const FLOWS: usize = 10;
/// When the fault happens, and when what is measured ends.
const FAULT_AT: Duration = Duration::from_millis(1_200);
const END_AT: Duration = Duration::from_millis(3_000);
/// How long each of the two latencies is measured, and how long after the fault the second one begins.
const WINDOW: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_millis(500);

/// One fault's outcome.
struct Trial {
    /// Of each flow that was kept, in milliseconds.
    gaps_ms: Vec<f64>,
    /// Means, in milliseconds; the second one if there were answers.
    before_ms: f64,
    after_ms: Option<f64>,
    kept: usize,
    /// The share of the flows that the edge with fewer of them has.
    split: f64,
}

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("takeover");
    let [kills, hangs, bare] = if plan.quick { [2, 1, 1] } else { [20, 10, 3] };
    for (name, kills, hangs) in [("none", bare, 0), ("whole", kills, hangs), ("groups", kills, hangs)] {
        if plan.wants(name) {
            flows(plan, name, [kills, hangs], &mut report)?;
        }
    }
    if plan.wants("base_pause") {
        base::run(plan, &mut report)?;
    }
    describe(&mut report);
    Ok(report)
}

fn flows(plan: &Plan, name: &str, [kills, hangs]: [usize; 2], report: &mut Report) -> anyhow::Result<()> {
    let mut scene = Scene::start(plan)?;
    let (mut killed, mut hung) = (Vec::new(), Vec::new());
    for (fault, count, trials) in [(Fault::Kill, kills, &mut killed), (Fault::Hang, hangs, &mut hung)] {
        for number in 0..count {
            progress(&format!("takeover: {name}, {} {} of {count}", fault.name(), number + 1));
            let trial = trial(&mut scene, name, fault, number as u64 + 1, report);
            trials.push(trial.with_context(|| scene.tail())?);
        }
    }
    show(name, &killed, &hung, report);
    Ok(())
}

fn trial(
    scene: &mut Scene,
    name: &str,
    fault: Fault,
    seed: u64,
    report: &mut Report,
) -> anyhow::Result<Trial> {
    let flows = scene.connect(name, FLOWS)?;
    let heard = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(FAULT_AT);
            scene.strike(fault);
        });
        flows.open_loop(PER_S, END_AT, Sizes::Fixed, seed)
    });
    let split = scene.split()?;
    let (lost, repeated) = flows.lost_and_repeated();
    drop(flows);
    scene.restore()?;
    // What a flow without protection has lost is no error: its connection has ended, and both sides know it.
    report.add_lost(lost, repeated);
    Ok(outcome(&heard, split))
}

fn outcome(heard: &[Heard], split: f64) -> Trial {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let kept: Vec<&Heard> = heard.iter().filter(|heard| heard.broken.is_none()).collect();
    let around = (FAULT_AT - WINDOW)..END_AT;
    let gap = |heard: &&Heard| {
        let waits = heard.answered.iter().filter(|it| around.contains(&it.due)).map(|it| ms(it.wait()));
        waits.fold(0.0, f64::max)
    };
    let mean = |from: Duration| {
        let all = heard.iter().flat_map(|heard| &heard.answered);
        let waits: Vec<f64> =
            all.filter(|it| (from..from + WINDOW).contains(&it.due)).map(|it| ms(it.wait())).collect();
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        (!waits.is_empty()).then(|| waits.iter().sum::<f64>() / waits.len() as f64)
    };
    Trial {
        gaps_ms: kept.iter().map(gap).collect(),
        before_ms: mean(FAULT_AT - WINDOW).unwrap_or(0.0),
        after_ms: mean(FAULT_AT + AFTER),
        kept: kept.len(),
        split,
    }
}

fn show(name: &str, killed: &[Trial], hung: &[Trial], report: &mut Report) {
    let all = || killed.iter().chain(hung);
    let is_kept = name != "none";
    let gaps = |trials: &[Trial]| trials.iter().flat_map(|it| it.gaps_ms.iter().copied()).collect::<Vec<_>>();
    let mut figure = |key: &str, value: f64, bar: Option<Bar>| {
        let key = format!("{name}.{key}");
        match bar.filter(|_| name == "groups") {
            Some(bar) => report.metric_with_bar(&key, value, bar),
            None => report.metric(&key, value),
        }
    };
    figure("latency_before_ms", stats::median(&all().map(|it| it.before_ms).collect::<Vec<_>>()), None);
    let after: Vec<f64> = all().filter_map(|it| it.after_ms).collect();
    if !after.is_empty() {
        figure("latency_after_ms", stats::median(&after), None);
    }
    for (key, trials, most) in [("gap_p50_ms", killed, 20.0), ("hang_gap_p50_ms", hung, 400.0)] {
        let gaps = gaps(trials);
        if !gaps.is_empty() {
            figure(key, stats::median(&gaps), Some(Bar::Most(most)));
            figure(&key.replace("p50", "max"), gaps.iter().copied().fold(0.0, f64::max), None);
        }
    }
    let kept: usize = all().map(|it| it.kept).sum();
    #[expect(clippy::cast_precision_loss, reason = "counts")]
    let kept_pct = 100.0 * kept as f64 / (FLOWS * all().count()).max(1) as f64;
    figure("flows_kept_pct", kept_pct, Some(Bar::Least(100.0)));
    if is_kept {
        let split = stats::median(&all().map(|it| it.split).collect::<Vec<_>>());
        figure("load_split", split, Some(Bar::Least(0.4)));
    }
    report.metric(&format!("{name}.kills"), killed.len());
    report.metric(&format!("{name}.hangs"), hung.len());
}

fn describe(report: &mut Report) {
    report.baseline("none", "the same flows in this run, with protect = \"none\"");
    report.baseline(
        "whole",
        "the same flows in this run, as Remus does it: 40 times a second all cells halt at one moment, what they have changed is copied to one \
         backup, and no output leaves before it has stored the pages of all",
    );
    report.note(
        "gap: a flow's longest wait for an answer, from when its request was due; p50 over all flows of all faults. Ten flows ask 2,232 times a second \
         together, 1,400 B each way",
    );
    report.note(
        "hang: the edge's processes are stopped (SIGSTOP). Agents and edges have their default timeouts: heartbeat = \"50ms\", suspect_after = \"200ms\"",
    );
    report.note(
        "load_split: the share of the flows that the one of the two targets with fewer has afterwards, the median over faults; the hash ring places \
         each flow by its random number",
    );
    report.note(
        "paper: 3 ms without protection, about 5 ms with two groups at 1,000 Hz, far more with Remus at 40 Hz; no flow is kept without",
    );
}
