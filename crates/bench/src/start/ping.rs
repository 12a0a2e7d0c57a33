//! New clients of a running edge: each sends one ping on its own connection, receives the answer, and leaves. The clients use the
//! same agent for an app that gives each client its own cell, and for an app with one shared cell that is already running.
//!
//! ```text
//! client k is due at begun + k * every:  connect --> "version\r\n" --> answer --> disconnect
//! own      a new session, with a cell of its own    (what is measured)
//! shared   a new session of a cell that runs        (what a session costs without a cell)
//! process  a fork for each connection
//! ```
//! The difference of `own` and `shared` is the price of a cell of one's own: the start, and the
//! protection by endpoints.

use super::super::cpu::OneCore;
use super::super::report::{Bar, Report};
use super::super::{Plan, progress, stats};
use anyhow::Context;
use marram_cluster::{Listen, TestCluster};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const OWN: &str = "own";
const SHARED: &str = "shared";
const PING: &[u8] = b"version\r\n";
/// End of memcached's answer to [`PING`].
const END: &[u8] = b"\r\n";
/// How long the last client may wait for its answer.
const PATIENCE: Duration = Duration::from_secs(60);
const EVENTS: usize = 256;

/// All servers are started on one core, the clients' thread stays on the other.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let serving = OneCore::enter()?;
    let mut cluster = TestCluster::new(plan.layout("bench-start-ping", 1, ""), |place| {
        let manifest = |name, rest| plan.cells.manifest(place, name, "memcached", rest);
        let own = "protect = \"endpoints\"\n[quotas]\nmemory = \"8MiB\"\nscratch = \"0B\"\n";
        let shared = "cell = \"shared\"\nprotect = \"none\"\n[quotas]\nmemory = \"8MiB\"\nscratch = \"0B\"\n";
        Ok(vec![manifest(OWN, own)?, manifest(SHARED, shared)?])
    })?;
    cluster.start_edges("")?;
    let edges = cluster.edge_addresses();
    let listens = cluster.start_client_agent(&edges, &[OWN, SHARED])?;
    let address = |name: &str| {
        let of_app = listens.iter().find(|listen: &&Listen| listen.app == name);
        of_app.map(|listen| listen.address).context("each app has a listener")
    };
    let (own, shared) = (address(OWN)?, address(SHARED)?);
    let mut server = super::start(plan, &["serve".into()])?;
    let forking: SocketAddr = server.line()?.trim().parse()?;
    drop(serving);
    let (blocks, pings) = if plan.quick { (1, 50) } else { (4, 250) };
    let _core = OneCore::enter_other()?;
    for (every, name) in [(Duration::from_millis(10), "10ms"), (Duration::from_millis(1), "1ms")] {
        progress(&format!("start: a new client every {name}"));
        let mut visits = [own, shared, forking].map(|address| Visits { address, times_us: Vec::new() });
        // The three variants alternate by block, so that a disturbance of the machine affects all.
        for _ in 0..blocks {
            for side in &mut visits {
                arrivals(side, every, pings)?;
            }
        }
        let [to_own, to_shared, to_forked] = visits.map(|side| side.times_us);
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
    report.note(
        "open loop: a client comes every 1 ms (or 10), whether or not those before were answered, and its time counts from when it was \
         due; clients have one core, all that serves the other",
    );
    Ok(())
}

/// One of the variants that are compared.
struct Visits {
    address: SocketAddr,
    /// Time from each client's due time to its answer, in microseconds.
    times_us: Vec<f64>,
}

/// A client without its answer yet.
struct Visit {
    /// Its wait counts from here and not from its connect, so a late connect is part of it.
    due: Instant,
    stream: TcpStream,
    asked: bool,
    answer: Vec<u8>,
}

/// Connects new clients at their due times, each on its own connection; waits until all are answered.
///
/// # Errors
/// If a connection fails, or a client has no answer [`PATIENCE`] after the last one was due.
fn arrivals(side: &mut Visits, every: Duration, count: usize) -> anyhow::Result<()> {
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(EVENTS));
    let mut visits: Vec<Option<Visit>> = Vec::with_capacity(count);
    let (begun, mut answered) = (Instant::now(), 0);
    while answered < count {
        let now = Instant::now();
        let due = begun + every * u32::try_from(visits.len())?;
        if visits.len() < count && due <= now {
            let mut stream = TcpStream::connect(side.address)?;
            let interests = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(visits.len()), interests)?;
            visits.push(Some(Visit { due, stream, asked: false, answer: Vec::new() }));
        }
        let last = begun + every * u32::try_from(count)?;
        anyhow::ensure!(now < last + PATIENCE, "{} of {count} clients were not answered", count - answered);
        // The loop never sleeps, so a client connects at its due time.
        match poll.poll(&mut events, Some(Duration::ZERO)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            let Some(visit) = &mut visits[event.token().0] else { continue };
            if visit.go_on().context("a client was not served")? {
                side.times_us.push(visit.due.elapsed().as_secs_f64() * 1e6);
                // The client disconnects.
                visits[event.token().0] = None;
                answered += 1;
            }
        }
    }
    Ok(())
}

impl Visit {
    /// Sends the request once connected, and reads what is available; returns whether the whole answer has arrived.
    fn go_on(&mut self) -> anyhow::Result<bool> {
        if !self.asked {
            if let Some(error) = self.stream.take_error()? {
                return Err(error).context("it cannot connect");
            }
            match self.stream.peer_addr() {
                Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
                connected => connected?,
            };
            self.stream.set_nodelay(true)?;
            self.stream.write_all(PING)?;
            self.asked = true;
        }
        let mut buffer = [0; 256];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => anyhow::bail!("the connection ended without an answer"),
                Ok(len) => self.answer.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            if self.answer.ends_with(END) {
                return Ok(true);
            }
        }
    }
}
