//! `marram bench move`: what clients notice when their sessions are moved to another edge while they run.
//!
//! | module | subject |
//! |---|---|
//! | `live` | one session of a client that always asks, by the size of its state and the pages that change in a second |
//! | `stop` | the same session, but stopped before it is copied: what `live` is compared with |
//! | `far` | a session whose ends are far from both edges |
//! | `dip` | one busy TCP stream through a cell that computes: its throughput and its latency |
//! | `rates` | one flow of datagrams through that cell, at several rates: latency, drops, throughput |
//! | `drain` | an edge with a thousand sessions is drained |
//!
//! `scene` and `client` are the parts of the first three; `flow` has the client of `dip` and `rates`, `sink` their server, `sample` a second of
//! either, `sessions` the clients of `drain`, and `heard` says what is wrong with what these received. Each edge is in a network namespace of its
//! own, where this process may make one.

mod client;
mod dip;
mod drain;
mod far;
mod flow;
pub(crate) mod heard;
mod live;
mod rates;
mod sample;
pub(crate) mod scene;
pub(crate) mod sessions;
mod sink;
mod stop;

use crate::Plan;
use crate::report::Report;

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("move");
    scene::note_places(&mut report);
    live::run(plan, &mut report)?;
    if plan.wants("far_20ms_rtts") {
        far::run(plan, &mut report)?;
    }
    if plan.wants("tcp_dip_pct_1s") {
        dip::run(plan, &mut report)?;
    }
    rates::run(plan, &mut report)?;
    if plan.wants("drain_1000") {
        drain::run(plan, &mut report)?;
    }
    Ok(report)
}
