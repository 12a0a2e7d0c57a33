//! `marram bench move`: what clients notice when their sessions are moved to another edge while they run.
//!
//! | module | subject |
//! |---|---|
//! | `live` | one session of a client that always asks, by the size of its state and the pages that change in a second |
//! | `stop` | the same session, but stopped before it is copied: what `live` is compared with |
//! | `far` | a session whose ends are far from both edges |
//! | `dip` | one busy TCP stream through a cell that computes: its throughput and its latency |
//! | `drain` | an edge with a thousand sessions is drained |
//!
//! `scene` and `client` are the parts of the first three; `flow` has the stream of `dip`, `sessions` the clients of `drain`, and `heard` says
//! what is wrong with what either received. The edges are beside each other, on one machine.

mod client;
mod dip;
mod drain;
mod far;
mod flow;
mod heard;
mod live;
mod scene;
mod sessions;
mod stop;

use crate::Plan;
use crate::report::Report;

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("move");
    live::run(plan, &mut report)?;
    if plan.wants("far_20ms_rtts") {
        far::run(plan, &mut report)?;
    }
    if plan.wants("tcp_dip_pct_1s") {
        dip::run(plan, &mut report)?;
    }
    if plan.wants("drain_1000") {
        drain::run(plan, &mut report)?;
    }
    Ok(report)
}
