//! The pause of a cell with much state that gets a new backup: its whole state is copied while it runs.
//!
//! ```text
//! backed by B -- B is stopped -- A runs alone -- B is woken: base copied ............ backed by B
//!                                 (usual waits)   |<-- the longest wait, less the median one -->|
//! ```
//! An epoch ends with each message, so that no wait is for the end of an epoch. The client asks again a millisecond after each answer.

use crate::epoch::scene::{Owner, run_first, start_owner, wait_for_backups, wait_until};
use crate::pinger::{self, Pinger};
use crate::report::{Bar, Report};
use crate::{Plan, cpu, progress, stats};
use anyhow::Context;
use hyper::Method;
use marram_admin::client::ApiClient;
use marram_cluster::TestCluster;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const APP: &str = "ballast";
const SERVER: &str = "echo";
const BYTES: u64 = 100 << 20;
const PACE: Duration = Duration::from_millis(1);

pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let repeats = if plan.quick { 1 } else { 5 };
    let mut layout = plan.layout("bench-base", 2, "");
    Plan::raise_limits(&mut layout, BYTES);
    let mut cluster = TestCluster::new(layout, |place| {
        let rest = format!(
            "server = \"{SERVER}\"\nprotect = \"epoch\"\n[epoch]\nevery = \"message\"\nalone_after = \"0s\"\n\
             [quotas]\nmemory = \"160MiB\"\nhandler_time = \"30s\"\n"
        );
        Ok(vec![plan.cells.manifest(place, APP, "ballast", &rest)?])
    })?;
    let Owner { extra, listens, store: _store } = start_owner(plan, &mut cluster, SERVER, &[APP])?;
    let mut stream = Pinger::fill(*listens.first().context("one app has one listener")?, BYTES)?;
    cluster.start_edge(1, &extra)?;
    let owner = cluster.edges[0].client()?;
    wait_for_backups(&owner, 1)?;
    // Where it is not allowed, figures have more spread.
    let _ = run_first(&mut cluster);
    let (mut pauses, mut usual, mut number) = (Vec::new(), Vec::new(), 0);
    for repeat in 0..repeats {
        progress(&format!("takeover: a base of 100 MiB, {} of {repeats}", repeat + 1));
        cluster.edges[1].stop();
        wait_until(|| is_alone(&owner), "the edge does not run its session alone")?;
        let alone = ask_during(&mut stream, &mut number, || {
            std::thread::sleep(Duration::from_secs(1));
            Ok(())
        })?;
        let edge = &cluster.edges[1];
        let copied = ask_during(&mut stream, &mut number, || {
            edge.wake();
            wait_for_backups(&owner, 1)
        })
        .with_context(|| cluster.logs.tail(30))?;
        let longest = |waits: &[f64]| waits.iter().copied().fold(0.0, f64::max) - stats::median(waits);
        pauses.push(longest(&copied));
        usual.push(longest(&alone));
    }
    report.metric_with_bar("base_pause_max_ms", pauses.iter().copied().fold(0.0, f64::max), Bar::Most(2.0));
    report.metric("base.pause_p50_ms", stats::median(&pauses));
    report.metric("base.undisturbed_p50_ms", stats::median(&usual));
    report.metric("base.repeats", repeats);
    report.note(
        "base_pause: the longest wait of a client that asks a millisecond after each answer, less its median one, while 100 MiB are copied to a \
         new backup; undisturbed: the same in a second without a backup",
    );
    Ok(())
}

fn is_alone(owner: &ApiClient) -> anyhow::Result<bool> {
    let list = owner.json(Method::GET, "/v1/sessions")?;
    Ok(list["sessions"][0]["backup"] == "alone")
}

/// Asks until `work` is done; returns the waits in milliseconds.
fn ask_during(
    stream: &mut TcpStream,
    number: &mut u64,
    work: impl FnOnce() -> anyhow::Result<()> + Send,
) -> anyhow::Result<Vec<f64>> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            cpu::run_first();
            let mut waits = Vec::new();
            while !done.load(Ordering::Acquire) {
                *number += 1;
                let asked = Instant::now();
                let (_, answered) = pinger::ask(stream, b'E', 0, *number)?;
                waits.push(asked.elapsed().as_secs_f64() * 1e3);
                anyhow::ensure!(answered == *number, "the answer to {number} is that to {answered}");
                std::thread::sleep(PACE);
            }
            Ok(waits)
        });
        let worked = work();
        done.store(true, Ordering::Release);
        let waits = asker.join().expect("it does not panic");
        worked?;
        waits
    })
}
