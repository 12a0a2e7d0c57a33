//! `marram bench apps`: what whole applications gain by an edge, and what protection adds to them. Each application has a file,
//! which adds its keys to the report.
//!
//! Unlike the other benchmarks these run whole programs: what is measured is the time of a user's
//! action, not of a message.

mod added;
mod background;
mod client;
mod compress;
mod pong;
mod scrabble;
mod talk;

use super::baseline::require;
use super::report::Report;
use super::{Plan, Wires};

/// An application: its name for `--only`, and the function that measures it.
type App = (&'static str, fn(&Plan, &mut Report) -> anyhow::Result<()>);

const APPS: [App; 4] = [
    ("compress", compress::run),
    ("scrabble", scrabble::run),
    ("pong", pong::run),
    ("background", background::run),
];

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("apps");
    if plan.wants("compress") {
        require("nginx", "nginx")?;
    }
    plan.over_all_wires(&mut report, |plan, report| {
        // The figures of the other apps do not depend on the wires.
        let is_wanted = |name: &str| plan.wants(name) && (plan.wires == Wires::Plain || name == "background");
        for (name, measure) in APPS.iter().filter(|(name, _)| is_wanted(name)) {
            super::progress(&format!("apps: {}{name}", plan.wires.prefix()));
            measure(plan, report)?;
        }
        Ok(())
    })?;
    Ok(report)
}
