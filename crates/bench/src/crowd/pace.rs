//! How many answers a second there are, on kept connections and on new ones. Four sides alternate by block:
//!
//! ```text
//! ""       client -- agent -- two edges: cell `forward` -- agent -- nginx    protected
//! none     the same, unprotected
//! haproxy  client -- HAProxy, one thread -- nginx
//! direct   client -- nginx
//! ```

use super::clients::{Connections, Crowd, float};
use super::scene::{Begin, File, Scene, Servers};
use super::show_wrong;
use crate::report::{Bar, Report};
use crate::{Plan, cpu, progress, stats};
use anyhow::Context;
use std::time::Duration;

/// Prefixes of the figures of each side, in the order in which they are measured.
const SIDES: [&str; 4] = ["", "none_", "haproxy_", "direct_"];
const HAPROXY: usize = 2;
const DIRECT: usize = 3;
/// Clients that use a new connection for each request.
const NEW_CLIENTS: usize = 100;

/// Results of one side, by block.
#[derive(Default)]
struct Found {
    per_s: Vec<f64>,
    clients_busy: Vec<f64>,
    /// Processor time of an answer: of agents and edges, or of HAProxy, without nginx.
    cpu_us: Vec<f64>,
}

impl Found {
    fn per_s(&self) -> f64 {
        stats::median(&self.per_s)
    }
}

/// Measures with `count` clients that keep their connections.
pub(super) fn kept(plan: &Plan, servers: &Servers, count: usize, report: &mut Report) -> anyhow::Result<()> {
    let found = measure(plan, servers, Connections::Keep, count, report)?;
    let ratio = found[0].per_s() / found[HAPROXY].per_s();
    let name = format!("n{count}.rps_vs_haproxy");
    match count {
        100 => report.metric_with_bar(&name, ratio, Bar::Least(0.75)),
        _ => report.metric(&name, ratio),
    }
    report.metric(&format!("n{count}.rps_vs_direct"), found[0].per_s() / found[DIRECT].per_s());
    show(report, &format!("n{count}."), "rps", &found);
    Ok(())
}

/// Measures with a new connection for each request.
pub(super) fn new_connections(plan: &Plan, servers: &Servers, report: &mut Report) -> anyhow::Result<()> {
    let found = measure(plan, servers, Connections::New, NEW_CLIENTS, report)?;
    let ratio = found[0].per_s() / found[HAPROXY].per_s();
    report.metric_with_bar("new_connections_vs_haproxy", ratio, Bar::Least(0.6));
    report.metric("new_connections_vs_direct", found[0].per_s() / found[DIRECT].per_s());
    show(report, "new_connections_", "per_s", &found);
    Ok(())
}

/// Each side's figures, after its prefix.
fn show(report: &mut Report, group: &str, per_s: &str, found: &[Found]) {
    for (side, found) in SIDES.iter().zip(found) {
        report.metric(&format!("{group}{side}{per_s}"), found.per_s());
        report.metric(&format!("{group}{side}clients_busy"), stats::median(&found.clients_busy));
        if *side != SIDES[DIRECT] {
            report.metric(&format!("{group}{side}cpu_us"), stats::median(&found.cpu_us));
        }
    }
}

fn measure(
    plan: &Plan,
    servers: &Servers,
    connections: Connections,
    count: usize,
    report: &mut Report,
) -> anyhow::Result<Vec<Found>> {
    let (blocks, time) =
        if plan.quick { (1, Duration::from_millis(400)) } else { (5, Duration::from_secs(2)) };
    let mut scene = Scene::start(plan, servers, count, Begin::Anywhere, "")?;
    let [protected, bare] = scene.addresses;
    let addresses = [protected, bare, servers.proxy.address, servers.nginx.address];
    let (ours, theirs) = (scene.cluster.groups(), servers.proxy.groups());
    let groups = [&ours[..], &ours[..], &theirs[..], &[]];
    let mut crowds = Vec::new();
    for address in addresses {
        let target = servers.target(address, File::Small);
        crowds.push(Crowd::connect(target, connections, count).with_context(|| scene.said())?);
    }
    let mut found: Vec<Found> = SIDES.iter().map(|_| Found::default()).collect();
    for block in 0..blocks {
        progress(&format!("crowd: {count} clients, {connections:?}, block {} of {blocks}", block + 1));
        for ((crowd, found), groups) in crowds.iter_mut().zip(&mut found).zip(groups) {
            let before = cpu::spent_ns(groups);
            let pace = crowd.pace(time).with_context(|| scene.said())?;
            found.per_s.push(pace.per_s);
            found.clients_busy.push(pace.clients_busy);
            found.cpu_us.push(float(cpu::spent_ns(groups).saturating_sub(before)) / 1e3 / pace.answers);
        }
    }
    crowds.iter().for_each(|crowd| show_wrong(report, crowd));
    Ok(found)
}
