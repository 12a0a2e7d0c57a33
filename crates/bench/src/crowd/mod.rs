//! `marram bench crowd`: many busy clients of nginx behind two edges with two agents, whose edge is killed; compared with HAProxy.
//!
//! ```text
//! N clients, one thread -- agent --+-- edge A --+-- agent -- nginx, one worker
//!                                  '-- edge B --'
//! N clients, one thread ------- HAProxy, one thread ------- nginx, one worker
//! N clients, one thread ----------------------------------- nginx, one worker
//! ```
//! The other benchmarks look at one busy session, or at many that are mostly idle. Here every
//! client asks again when it has its answer, so that sessions share the cores, the wires and the
//! edge that recovers them.

mod answer;
mod clients;
mod gaps;
mod pace;
mod resident;
mod scene;
mod wait;

use super::Plan;
use super::report::Report;
use clients::Crowd;
use scene::Servers;

/// Numbers of clients.
const CLIENTS: [usize; 3] = [10, 100, 1_000];
/// The most clients at a time, with those of the other sides.
const CLIENTS_MAX: usize = 10_000;

/// A part that has figures of its own: its name for `--only`, and the function that measures it.
type Part = (&'static str, fn(&Plan, &Servers, &mut Report) -> anyhow::Result<()>);

const PARTS: [Part; 4] = [
    ("new_connections", pace::new_connections),
    ("agent_rss", resident::some),
    ("rss_vs_budget", resident::many),
    ("idle_7000", gaps::idle),
];

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    scene::raise_descriptor_limit(CLIENTS_MAX)?;
    let (servers, mut report) = (Servers::start()?, Report::new("crowd"));
    for count in CLIENTS.into_iter().filter(|count| plan.wants(&format!("n{count}"))) {
        pace::kept(plan, &servers, count, &mut report)?;
        gaps::busy(plan, &servers, count, &mut report)?;
    }
    for (_, measure) in PARTS.iter().filter(|(name, _)| plan.wants(name)) {
        measure(plan, &servers, &mut report)?;
    }
    report.baseline("haproxy", &servers.proxy.command);
    report.baseline("direct", "nginx, one process: `master_process off`");
    report.baseline("none", "the same agents and edges, with protect = \"none\"");
    report.note(
        "every client asks again when it has its answer; each byte of each answer is checked, and that it answers the \
         client's own last request. 1 KiB of body; 16 KiB where memory is measured",
    );
    report.note(
        "no process is pinned: the clients (one thread, which sleeps when nothing has arrived), nginx, HAProxy, agents and \
         shards share all cores",
    );
    report.note(
        "gap: each client's longest wait from a request to its answer that ends after the kill, until a second after all are \
         back, over all kills. Clients stay busy while the edge comes back; killed_share: the least share of the sessions that were on the \
         edge that was killed",
    );
    report.note(
        "cpu_us: processor time of an answer, of agents and edges or of HAProxy; clients_busy: near 1, the clients' thread was the limit",
    );
    report.note(
        "rss: VmHWM of an agent with 1,000 clients through two kills, and its VmRSS after all sessions have ended; without a prefix \
         the server's agent. rss_vs_budget: of the larger agent with 10,000 clients, over its `limits.memory` of 1 GiB",
    );
    report.note(
        "idle: all clients ask at the moment of the kill; the time from it until the last one has its answer",
    );
    Ok(report)
}

/// Adds what was lost or repeated, and why the first answer was.
fn show_wrong(report: &mut Report, crowd: &Crowd) {
    let ((lost, repeated), failure) = crowd.wrong();
    report.add_lost(lost, repeated);
    if let Some(failure) = failure {
        report.note(format!("the first wrong answer: {failure}"));
    }
}
