//! How much memory agents take for a crowd whose edge is killed now and then, and how much is left when the crowd has gone.
//!
//! The answers have 16 KiB: what an agent keeps of them until a checkpoint covers it is what takes memory.

use super::clients::Crowd;
use super::scene::{Begin, File, Scene, Servers, resident_mib};
use super::show_wrong;
use crate::report::{Bar, Report};
use crate::{Plan, progress};
use anyhow::Context;
use std::time::{Duration, Instant};

/// Clients of `agent_rss_mib`, and of `rss_vs_budget`.
const SOME: usize = 1_000;
const MANY: usize = 10_000;
/// What an agent may take for [`MANY`] clients.
const BUDGET_MIB: f64 = 1024.0;
/// The setting that grants an agent this budget, as lines of its configuration.
const BUDGET_SETTING: &str = "[limits]\nmemory = \"1GiB\"\n";
/// The clients stop when an agent takes this much, so that the machine does not run out of memory.
const STOP_MIB: f64 = 4.0 * BUDGET_MIB;
/// Time between two looks at the agents' memory.
const LOOK: Duration = Duration::from_millis(50);

/// The agents' memory with [`SOME`] clients, and after them.
pub(super) fn some(plan: &Plan, servers: &Servers, report: &mut Report) -> anyhow::Result<()> {
    progress(&format!("crowd: memory of agents with {SOME} clients"));
    let mut scene = Scene::start(plan, servers, SOME, Begin::OnFirstEdge, "")?;
    let mut crowd = scene.connect(servers, File::Large, SOME)?;
    let most = run(plan, &mut scene, &mut crowd, SOME)?;
    show_wrong(report, &crowd);
    drop(crowd);
    scene.wait_until_empty()?;
    // Memory may go back a little later.
    std::thread::sleep(Duration::from_secs(if plan.quick { 1 } else { 5 }));
    let after = scene.agents()?.map(|agent| resident_mib(agent).0);
    for (side, (most, after)) in ["client_", ""].iter().zip(most.into_iter().zip(after)) {
        report.metric(&format!("{side}agent_rss_mib"), most);
        report.metric(&format!("{side}agent_rss_after_mib"), after);
    }
    Ok(())
}

/// The memory of the agent that takes more, with [`MANY`] clients, over its budget.
pub(super) fn many(plan: &Plan, servers: &Servers, report: &mut Report) -> anyhow::Result<()> {
    let clients = if plan.quick { SOME } else { MANY };
    progress(&format!("crowd: memory of agents with {clients} clients"));
    let mut scene = Scene::start(plan, servers, clients, Begin::OnFirstEdge, BUDGET_SETTING)?;
    let mut crowd = scene.connect(servers, File::Large, clients)?;
    let [client, server] = run(plan, &mut scene, &mut crowd, clients)?;
    show_wrong(report, &crowd);
    report.metric_with_bar("rss_vs_budget", client.max(server) / BUDGET_MIB, Bar::Most(1.0));
    Ok(())
}

/// Busy clients whose edge is killed twice: the most that each agent took.
fn run(plan: &Plan, scene: &mut Scene, crowd: &mut Crowd, clients: usize) -> anyhow::Result<[f64; 2]> {
    let time = Duration::from_secs(if plan.quick { 1 } else { 10 });
    let agents = scene.agents()?;
    for _ in 0..2 {
        let stopped = crowd.during(|| fills(agents, time)).with_context(|| scene.said())?;
        if stopped || crowd.wrong().1.is_some() {
            break;
        }
        let (owner, _) = scene.owner(clients)?;
        crowd.during(|| scene.cluster.respawn(owner)).with_context(|| scene.said())??;
    }
    crowd.during(|| fills(agents, time)).with_context(|| scene.said())?;
    Ok(agents.map(|agent| resident_mib(agent).1))
}

/// Waits for a while; returns early, with true, when an agent takes too much.
fn fills(agents: [u32; 2], time: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < time {
        if agents.iter().any(|agent| resident_mib(*agent).0 > STOP_MIB) {
            return true;
        }
        std::thread::sleep(LOOK);
    }
    false
}
