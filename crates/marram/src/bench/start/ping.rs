//! New clients of a running edge: each pings once from a connection of its own, is answered, and leaves. Through the same
//! agent, to an app that gives each a cell of its own, and to one whose single cell runs already.

use super::super::report::{Bar, Report};
use super::super::{Plan, peer, progress, stats};
use crate::harness::{Lab, Listen};
use anyhow::Context;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const OWN: &str = "own";
const SHARED: &str = "shared";
const PING: &[u8] = b"version\r\n";
/// What memcached's answer to that ends with.
const END: &[u8] = b"\r\n";

pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let mut lab = Lab::new(plan.layout("bench-start-ping", 1, ""), |place| {
        let manifest = |name, rest| plan.cells.manifest(place, name, "memcached", rest);
        let own = "protect = \"endpoints\"\n[quotas]\nmemory = \"8MiB\"\nscratch = \"0B\"\n";
        let shared = "cell = \"shared\"\nprotect = \"none\"\n[quotas]\nmemory = \"8MiB\"\nscratch = \"0B\"\n";
        Ok(vec![manifest(OWN, own)?, manifest(SHARED, shared)?])
    })?;
    lab.start_edges("")?;
    let edges = lab.edge_addresses();
    let listens = lab.start_client_agent(&edges, &[OWN, SHARED])?;
    let address = |name: &str| {
        let of_app = listens.iter().find(|listen: &&Listen| listen.app == name);
        of_app.map(|listen| listen.address).context("each app has a listener")
    };
    let (own, shared) = (address(OWN)?, address(SHARED)?);
    let mut server = super::start(plan, &["serve".into()])?;
    let forking: SocketAddr = server.line()?.trim().parse()?;
    let pings = if plan.quick { 50 } else { 1_000 };
    for (every, name) in [(Duration::from_millis(10), "10ms"), (Duration::from_millis(1), "1ms")] {
        progress(&format!("start: a new client every {name}"));
        // Turn by turn, so that what disturbs the machine disturbs all three; and what a visit leaves to be done when it has
        // had its answer (a process ends, a cell is removed) disturbs both of the others as often.
        let (mut to_own, mut to_shared, mut to_forked) = (Vec::new(), Vec::new(), Vec::new());
        let begun = Instant::now();
        for round in 0..pings {
            wait_until(begun + every * (3 * round));
            let first = if round % 2 == 0 { (own, &mut to_own) } else { (shared, &mut to_shared) };
            first.1.push(ping(first.0)?);
            wait_until(begun + every * (3 * round + 1));
            let second = if round % 2 == 0 { (shared, &mut to_shared) } else { (own, &mut to_own) };
            second.1.push(ping(second.0)?);
            wait_until(begun + every * (3 * round + 2));
            to_forked.push(ping(forking)?);
        }
        let added = stats::percentile(&to_own, 90.0) - stats::percentile(&to_shared, 90.0);
        if every == Duration::from_millis(1) {
            report.metric_with_bar("jit_added_p90_us", added, Bar::Most(30.0));
        } else {
            report.metric(&format!("jit_{name}_added_p90_us"), added);
        }
        for (who, times) in [("own", &to_own), ("running", &to_shared)] {
            report.metric(&format!("jit_{name}_{who}_p50_us"), stats::median(times));
            report.metric(&format!("jit_{name}_{who}_p90_us"), stats::percentile(times, 90.0));
        }
        report.metric(&format!("process_{name}_p90_us"), stats::percentile(&to_forked, 90.0));
    }
    report.baseline(
        "running cell",
        "the same module, agent and edge with cell = \"shared\": its cell runs already",
    );
    report.baseline(
        "process",
        "a small process that accepts and forks, without exec, for each connection; no agent in between",
    );
    report.note("jit: connect, 9 bytes, answer; a cell of its own is protected by endpoints, the shared one by nothing");
    Ok(())
}

/// One client's whole visit, to its answer, in microseconds.
fn ping(address: SocketAddr) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let mut stream: TcpStream = peer::connect(address)?;
    stream.write_all(PING)?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 256]);
    while !answer.ends_with(END) {
        let len = stream.read(&mut buffer).context("no answer came")?;
        anyhow::ensure!(len > 0, "the connection ended without an answer");
        answer.extend_from_slice(&buffer[..len]);
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6)
}

/// Sleeps most of the way and spins the rest, so that clients come when they are said to.
fn wait_until(then: Instant) {
    let spin = Duration::from_micros(200);
    if let Some(rest) = then.checked_duration_since(Instant::now() + spin) {
        std::thread::sleep(rest);
    }
    while Instant::now() < then {
        std::hint::spin_loop();
    }
}
