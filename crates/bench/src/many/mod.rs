//! `marram bench many`: one cell with many clients, to all of which it sends what one of them says; with a backup, and without any protection;
//! beside a channel of Redis with as many subscribers.
//!
//! ```text
//! client ──message──▶ agent ──▶ edge A: the cell `hub` ──▶ agent ──▶ all N clients          each delivery counts
//!                                  └── epochs or messages ──▶ edge B (backup)                where the app has one
//! blocks:  c1 none, epoch, standby, redis | c1 epoch, standby, redis, none | ... | c10 ...   the rest is idle
//! ```
//! A closed loop: a few clients speak, and each of them speaks again when it has its own message back.

mod crowd;
mod kills;
mod redis;

use crate::epoch::scene::{figures, run_first, wait_for_backups, wait_until};
use crate::plan::Amount;
use crate::report::{Bar, Report};
use crate::stats;
use crate::{Plan, progress, standby};
use anyhow::Context;
use crowd::{Crowd, Heard};
use marram_cluster::{AgentSide, TestCluster, TestStore, free_address};
use redis::{Channel, Redis};
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

/// Clients of one cell.
const CLIENTS: [usize; 4] = [1, 10, 100, 1_000];
/// Of these so many speak at most: enough that the edge is busy all the time.
const SPEAKERS: usize = 8;

/// How an app is protected.
#[derive(Clone, Copy)]
struct Mode {
    name: &'static str,
    /// Fields of its manifest.
    fields: &'static str,
}

/// The first is the baseline of the others.
const MODES: [Mode; 3] = [
    Mode { name: "none", fields: "protect = \"none\"\n" },
    Mode { name: "epoch", fields: "protect = \"epoch\"\n[epoch]\nevery = \"1ms\"\n" },
    Mode { name: "standby", fields: "protect = \"standby\"\nstandby = \"warm\"\n" },
];
const NONE: usize = 0;
const EPOCH: usize = 1;
const STANDBY: usize = 2;
/// A crowd of Redis comes behind those of the modes.
const REDIS: usize = MODES.len();

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let amount = plan.amount(7, Duration::from_millis(1_500));
    let mut report = Report::new("many");
    let counts: Vec<usize> = CLIENTS.into_iter().filter(|count| plan.wants(&format!("c{count}"))).collect();
    let mut scene = Scene::start(plan, &counts, &mut report)?;
    if !run_first(&mut scene.cluster) {
        report.note("WARNING: real-time priority is not allowed here: waits for a core are a part of the figures, and epochs end late");
    }
    for (at, count) in counts.iter().enumerate() {
        measure(&mut scene, at, *count, &amount, &mut report)?;
    }
    for crowd in scene.crowds.iter().flatten() {
        report.add_lost(crowd.lost, crowd.repeated);
    }
    if let Some(redis) = &scene.redis {
        report.baseline("redis", &redis.command);
    }
    drop(scene);
    for count in counts {
        kills::measure(plan, MODES[STANDBY], count, &mut report)?;
    }
    report.baseline("none", "the same cell, agents and edges in the same run, with protect = \"none\"");
    report.note(
        "cN: N clients of one cell, which sends 64 B of one client to all; 8 of them speak, or all if they are fewer, each when it has its own message \
         back. A delivery is one message at one client; p99 is from when it was sent to its arrival, of all deliveries",
    );
    report.note("clients, agents and both edges share the machine's cores; all clients are on one thread");
    report.note(
        "deliveries_vs_redis: with a warm standby, over as many subscribers of a channel of Redis, which has neither agents nor a backup, and keeps nothing",
    );
    report.note("gap: the longest time without a delivery when the edge is killed that has the cell; the median of the clients, then of the kills");
    Ok(report)
}

/// All modes with so many clients, in rounds.
fn measure(
    scene: &mut Scene,
    at: usize,
    count: usize,
    amount: &Amount,
    report: &mut Report,
) -> anyhow::Result<()> {
    let variants = scene.crowds[at].len();
    let (mut per_s, mut p99_ms) = (vec![Vec::new(); variants], vec![Vec::new(); variants]);
    for round in 0..amount.rounds {
        progress(&format!("many: {count} clients, round {} of {}", round + 1, amount.rounds));
        for index in 0..variants {
            let mode = (round + index) % variants;
            let Heard { per_s: deliveries_per_s, waits_ms, .. } =
                scene.crowds[at][mode].speak(amount.block, SPEAKERS).with_context(|| {
                    format!("variant {mode} of {count} clients\n{}", scene.cluster.logs.tail(20))
                })?;
            per_s[mode].push(deliveries_per_s);
            p99_ms[mode].push(stats::percentile(&waits_ms, 99.0));
        }
    }
    for (mode, name) in MODES.iter().map(|mode| mode.name).chain(["redis"]).enumerate().take(variants) {
        // The keys of the unprotected app have no prefix.
        let prefix = if mode == NONE { String::new() } else { format!("{name}_") };
        report.metric(&format!("c{count}.{prefix}deliveries_per_s"), stats::median(&per_s[mode]));
        report.metric(&format!("c{count}.{prefix}p99_ms"), stats::median(&p99_ms[mode]));
    }
    let ratio = |one: usize, other: usize| {
        let ratios: Vec<f64> = per_s[one].iter().zip(&per_s[other]).map(|(one, other)| one / other).collect();
        stats::median(&ratios)
    };
    report.metric(&format!("c{count}.epoch_throughput_ratio"), ratio(EPOCH, NONE));
    let (name, standby) = (format!("c{count}.throughput_ratio"), ratio(STANDBY, NONE));
    if count == 100 {
        report.metric_with_bar(&name, standby, Bar::Least(0.9));
    } else {
        report.metric(&name, standby);
    }
    if variants > REDIS {
        report.metric(&format!("c{count}.deliveries_vs_redis"), ratio(STANDBY, REDIS));
    }
    Ok(())
}

/// The processes, and the clients of each app: by number, then by mode, and those of Redis if it is there.
struct Scene {
    crowds: Vec<Vec<Crowd>>,
    redis: Option<Redis>,
    cluster: TestCluster,
    _store: TestStore,
}

impl Scene {
    fn start(plan: &Plan, counts: &[usize], report: &mut Report) -> anyhow::Result<Self> {
        let apps: Vec<(String, Mode)> = counts
            .iter()
            .flat_map(|count| MODES.map(|mode| (format!("{}-{count}", mode.name), mode)))
            .collect();
        let mut cluster = TestCluster::new(plan.layout("bench-many", 2, ""), |place| {
            let manifest = |(name, mode): &(String, Mode)| {
                plan.cells.manifest(place, name, "hub", &format!("cell = \"shared\"\n{}", mode.fields))
            };
            apps.iter().map(manifest).collect()
        })?;
        let store = TestStore::start(&plan.program, &cluster.logs)?;
        let extra = format!("{}\n{}", standby::stand_by(&cluster), store.field());
        cluster.start_edge(0, &extra)?;
        let edge = [cluster.edges[0].address()];
        let mut tables = String::from("learn = false\n");
        let listens = apps.iter().map(|_| free_address()).collect::<anyhow::Result<Vec<SocketAddr>>>()?;
        for ((name, _), address) in apps.iter().zip(&listens) {
            writeln!(tables, "[[listen]]\naddress = \"{address}\"\napp = \"{name}\"")?;
        }
        cluster.start_agent_with(AgentSide::Client, &edge, &tables)?;
        cluster.start_edge(1, &extra)?;
        let owner = cluster.edges[0].client()?;
        wait_until(|| Ok(figures(&owner, ["other_edges"])? == [1]), "the edges do not reach each other")?;
        let redis = match Redis::start(&cluster.logs) {
            Ok(redis) => Some(redis),
            Err(error) => {
                report.add_not_run(format!("the comparison with Redis: {error:#}"));
                None
            }
        };
        let mut crowds = Vec::new();
        for (count, listens) in counts.iter().zip(listens.chunks_exact(MODES.len())) {
            progress(&format!("many: {count} clients join"));
            let join =
                |address: &SocketAddr| Crowd::join(*address, *count).with_context(|| cluster.logs.tail(20));
            let mut of_count = listens.iter().map(join).collect::<anyhow::Result<Vec<_>>>()?;
            if let Some(redis) = &redis {
                let channel = Channel::of(crowds.len());
                of_count.push(Crowd::subscribe(redis.address, &channel, (*count, SPEAKERS))?);
            }
            crowds.push(of_count);
        }
        // Outputs of a cell without one would not wait.
        wait_for_backups(&owner, counts.len() * (MODES.len() - 1))?;
        Ok(Self { crowds, redis, cluster, _store: store })
    }
}
