//! `marram bench faults`: real processes, each edge on its own machine (a network namespace), with every fault under every policy
//! at every moment for every kind of client. The clients' observations are the table of what survives what.
//!
//! ```text
//!               client --- agent (or gate of edge D) ---+
//!                                                       |    edges A, B, C: each in a namespace of its own,
//!    owner A <- the fault, at a moment                  +--- with its own link, disk and clock
//!    next owner B <- the second fault of mid-recovery   |
//!    C <- half of the faults of mid-move, to C          |
//!               server --- agent ----------------------'
//! ```
//! With `epoch` there is a coordinator beside them. Faults strike the session's backup and the coordinator then, too.
//!
//! What the product promises is that the conversation goes on: no byte lost, repeated or changed.
//! So the bars are zeros, and a run that misses one fails whatever its times are. How long a client
//! waited is a figure without a bar.
//!
//! A machine that cannot make a fault, for want of rights or of the kernel's support, reports the
//! combination as not run, with the reason.

mod axes;
mod listener;
mod model;
mod moment;
mod scene;
mod strike;
mod table;
mod talk;

use super::report::{Bar, Report};
use super::{Plan, progress};
use axes::{Client, Combination, Policy};
use listener::Listener;
use scene::{Means, Scene, Session};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;
use table::{GateDeath, Row, Table};
use talk::Talk;

/// Name of the fault in which a gate's machine dies.
const GATE_DIES: &str = "gate-dies";
/// How often each combination is run; once in a quick run.
const TRIALS: usize = 3;

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let began = Instant::now();
    let wanted: Vec<Combination> = Combination::all()
        .filter(|it| plan.wants(&it.name()) && (!plan.quick || plan.only.is_some() || it.is_sample()))
        .collect();
    let table = match Means::find() {
        Ok(means) => made(plan, means, &wanted)?,
        Err(why) => Table { rows: wanted.iter().map(|it| not_run(*it, why)).collect(), ..Table::default() },
    };
    let mut report = report(&table, wanted.len());
    report.metric("seconds", began.elapsed().as_secs());
    Ok(report)
}

/// The figures over all rows, the table, and the reasons why parts are missing.
fn report(table: &Table, wanted: usize) -> Report {
    let mut report = Report::new("faults");
    let promised = table.promised();
    #[expect(clippy::cast_precision_loss, reason = "counts, of which any is one too many")]
    for (name, count) in [
        ("promised_lost", promised.lost),
        ("promised_repeated", promised.repeated),
        ("promised_changed", promised.changed),
    ] {
        report.metric_with_bar(name, count as f64, Bar::Most(0.0));
    }
    report.add_lost(promised.lost + promised.changed, promised.repeated);
    let run = table.rows.iter().filter(|row| row.not_run.is_none()).count();
    let all = Combination::all().count();
    report.metric("combinations", all);
    report.metric("combinations_run", run);
    report.metric("combinations_not_run", wanted - run);
    report.metric("trials", table.rows.iter().map(|row| row.gaps_ms.len()).sum::<usize>());
    let hits: usize = table.rows.iter().map(|row| row.hits).sum();
    report.metric("moments_hit", hits);
    report.body(table.json(), table.markdown());
    report.note(format!("{run} of {all} combinations were run"));
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in &table.rows {
        if let Some(why) = &row.not_run {
            reasons.entry(why).or_default().push(row.combination.name());
        }
    }
    for (why, names) in reasons {
        report.add_not_run(format!("{} combinations ({}): {why}", names.len(), names.join(", ")));
    }
    report.note(format!(
        "{hits} faults took effect while the operation was still in progress; the others came right after it (`hits`)"
    ));
    report.note(
        "gaps: the median, over moments and trials, of the longest wait for an answer; client with an agent / behind another \
         edge's gate",
    );
    report.note(
        "clock: the monotonic and boot clocks of the three edges are 0, 30 and 15 days ahead (time namespaces), and the owner \
         is stopped in order; the machine's real-time clock is not touched",
    );
    report
}

/// A row without results.
fn not_run(combination: Combination, why: &str) -> Row {
    Row { not_run: Some(why.to_owned()), ..Row::new(combination) }
}

/// Runs the wanted combinations, policy by policy.
///
/// All combinations of a policy use the same machines, one after the other: each must leave them as
/// it found them. If one cannot, its row has no result and the machines are made again.
fn made(plan: &Plan, means: Means, wanted: &[Combination]) -> anyhow::Result<Table> {
    let mut table = Table::default();
    let trials = if plan.quick { 1 } else { TRIALS };
    for policy in Policy::ALL {
        let wanted: Vec<Combination> = wanted.iter().copied().filter(|it| it.policy == policy).collect();
        let gate_dies = plan.wants(&format!("{GATE_DIES}.{}", policy.name()));
        let (wanted, impossible): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|it| means.missing(it.fault).is_none());
        for it in impossible {
            table.rows.push(not_run(it, means.missing(it.fault).unwrap_or_default()));
        }
        if wanted.is_empty() && !gate_dies {
            continue;
        }
        progress(&format!("faults: {}: starting its machines", policy.name()));
        let mut scene = Scene::new(plan, means, policy)?;
        for client in Client::ALL {
            let mut rows: Vec<Row> =
                wanted.iter().filter(|it| it.client == client).map(|it| Row::new(*it)).collect();
            // Every row once, then every row again.
            let mut turns: VecDeque<usize> = (0..trials).flat_map(|_| 0..rows.len()).collect();
            while let Err(why) = converse(&mut scene, client, &mut rows, &mut turns) {
                // That row has no result; the others run on new machines.
                let Some(turn) = turns.pop_front() else { return Err(why) };
                let row = &mut rows[turn];
                progress(&format!("faults: {}: NOT MADE: {why:#}", row.combination.name()));
                row.not_run = Some(format!("failed: {why:#}").lines().next().unwrap_or_default().to_owned());
                drop(scene);
                scene = Scene::new(plan, means, policy)?;
            }
            table.rows.append(&mut rows);
        }
        if gate_dies {
            progress(&format!("faults: {}: the gate is killed", policy.name()));
            let mut death = GateDeath::default();
            for _ in 0..trials {
                gate_death(&mut scene, &mut death)?;
            }
            table.gate.push((policy, death));
        }
    }
    Ok(table)
}

/// Runs these combinations in one conversation, and starts a new conversation only after a client lost its connection. `turns`
/// says which row is next; a row that fails is still the first.
///
/// # Errors
/// If a step between the faults fails, which says nothing about the session; the caller gives the
/// row up.
fn converse(
    scene: &mut Scene,
    client: Client,
    rows: &mut [Row],
    turns: &mut VecDeque<usize>,
) -> anyhow::Result<()> {
    let mut running: Option<(Session, Talk)> = None;
    while let Some(turn) = turns.front() {
        let row = &mut rows[*turn];
        progress(&format!("faults: {}, {} left", row.combination.name(), turns.len() - 1));
        let (session, mut talk) = match running.take() {
            Some(running) => running,
            None => scene.talk(client)?,
        };
        let struck = moment::make(scene, &session, &mut talk, row.combination, row.gaps_ms.len())?;
        row.gaps_ms.push(struck.gap.as_secs_f64() * 1e3);
        row.protected_ms.push(struck.protected.as_secs_f64() * 1e3);
        row.hits += usize::from(struck.hit);
        row.wrong.add(talk.wrong());
        row.wrong.add(scene.server.take());
        if talk.is_whole() {
            running = Some((session, talk));
        } else {
            let lost = talk.listener_lost().map(|why| format!("the listening client: {why}"));
            row.broken += usize::from(talk.why().is_some()) + usize::from(lost.is_some());
            // As for the talking client, which counts its own.
            row.wrong.lost += u64::from(lost.is_some());
            row.why = talk.why().map(str::to_owned).or(lost);
            let what = row.why.as_deref().unwrap_or("a wrong answer");
            progress(&format!(
                "faults: {}: BROKEN: {what}; the last lines:\n{}",
                row.combination.name(),
                // Edges dial one another, and themselves, all the time.
                scene.cluster.logs.tail_of(60, |event| event.text("message") != "wire closed")
            ));
        }
        turns.pop_front();
    }
    Ok(())
}

/// Kills the machine of a client's gate while another client, with an agent, has a conversation too.
///
/// The gate's client loses its connection, which is a promise that was never made; the other client
/// must not notice.
fn gate_death(scene: &mut Scene, death: &mut GateDeath) -> anyhow::Result<()> {
    death.runs += 1;
    let (_, mut other) = scene.talk(Client::Agent)?;
    // Where clients share the cell, one of them is behind the gate already.
    let mut own = if other.listener().is_none() { Some(scene.talk(Client::Gate)?.1) } else { None };
    if let Some(own) = &mut own {
        own.ask();
        death.wrong.add(own.wrong());
        own.begin_long();
    }
    other.begin_long();
    scene.kill_gate();
    other.finish_long();
    if let Some(own) = &mut own {
        own.finish_long();
    }
    for _ in 0..10 {
        other.ask();
    }
    other.check_state();
    let is_lost = match (&own, other.listener()) {
        (Some(own), _) => own.why().is_some(),
        (None, listener) => listener.is_some_and(Listener::wait_for_end),
    };
    death.connections_lost += usize::from(is_lost);
    death.others_lost += usize::from(other.why().is_some());
    death.others_wrong.add(other.wrong());
    // What the server received is correct up to its end, also from a client that is cut off.
    death.others_wrong.add(scene.server.take());
    scene.restore_gate()?;
    let (_, mut again) = scene.talk(Client::Gate)?;
    again.ask();
    death.again += usize::from(again.is_whole());
    Ok(())
}
