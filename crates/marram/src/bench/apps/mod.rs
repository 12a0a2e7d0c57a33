//! `marram bench apps`: what whole applications gain by an edge, and what protection adds to them. One file an application, each of which
//! adds its keys to the report.

mod added;
mod background;
mod client;
mod compress;
mod nginx;
mod pong;
mod scrabble;
mod talk;

use super::Plan;
use super::report::Report;

/// An application: its name for `--only`, and what measures it.
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
    for (name, measure) in APPS.iter().filter(|(name, _)| plan.wants(name)) {
        super::progress(&format!("apps: {name}"));
        measure(plan, &mut report)?;
    }
    Ok(report)
}
