//! `marram bench forward`: what protection adds to a message. The app `forward` runs twice behind the same agents and the
//! same edge, protected and not; blocks of both alternate with blocks over a chain of stock relays.

use super::baseline::Chain;
use super::report::{Bar, Report};
use super::{Plan, cpu, peer, progress, stats};
use crate::harness::{Counts, Lab, Relay};
use anyhow::Context;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PROTECTED: &str = "forward";
const BARE: &str = "forward-none";
const SERVER: &str = "echo";
/// Bytes of a small message, and of a large one.
const SMALL: usize = 64;
const LARGE: usize = 64 << 10;

/// How much is measured.
struct Amount {
    blocks: usize,
    /// Round trips in a block.
    messages: usize,
    /// Large messages in a block.
    large: usize,
    /// Round trips whose bytes on the wire are counted.
    counted: usize,
}

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let amount = if plan.quick {
        Amount { blocks: 8, messages: 200, large: 100, counted: 1_000 }
    } else {
        Amount { blocks: 60, messages: 500, large: 400, counted: 5_000 }
    };
    let mut report = Report::new("forward");
    let server = peer::echo_server()?;
    let mut lab = lab(plan)?;
    let addresses = lab.edge_addresses();
    let [protected, bare] = connect(&mut lab, &addresses, &addresses, server)?;
    let chain = Chain::start(server, &lab.place, &lab.journal)?;
    let relay = chain.as_ref().map(|chain| peer::connect(chain.address)).transpose()?;
    let groups: Vec<u32> = lab.groups();
    let mut variants = Variants { protected, bare, relay, groups };
    latency(&mut variants, &amount, &mut report)?;
    throughput(&mut variants, &amount, &mut report)?;
    match chain {
        Some(chain) => report.baseline(&chain.name, &chain.command),
        None => report.note("no relay to compare with: install haproxy, or nginx's stream module (libnginx-mod-stream)"),
    }
    report.baseline("none", "the same agents and edge, with protect = \"none\"");
    drop((variants, lab));
    wire_bytes(plan, server, &amount, &mut report)?;
    Ok(report)
}

fn lab(plan: &Plan) -> anyhow::Result<Lab> {
    let mut lab = Lab::new(plan.layout("bench-forward", 1, ""), |place| {
        // Other quotas, so that the two are images of their own.
        let manifest = |name: &str, protect: &str, scratch: &str| {
            let rest = format!("server = \"{SERVER}\"\nprotect = \"{protect}\"\n[quotas]\nscratch = \"{scratch}\"\n");
            plan.cells.manifest(place, name, "forward", &rest)
        };
        Ok(vec![manifest(PROTECTED, "endpoints", "16MiB")?, manifest(BARE, "none", "15MiB")?])
    })?;
    lab.start_edges("")?;
    Ok(lab)
}

/// Starts both agents and connects a client to each app.
fn connect(
    lab: &mut Lab,
    client_edges: &[SocketAddr],
    server_edges: &[SocketAddr],
    server: SocketAddr,
) -> anyhow::Result<[TcpStream; 2]> {
    lab.start_server_agent(server_edges, &[(SERVER, server)])?;
    let listens = lab.start_client_agent(client_edges, &[PROTECTED, BARE])?;
    let mut streams = Vec::new();
    for listen in &listens {
        let mut stream = peer::connect(listen.address)?;
        // The session is there, and everything is warm.
        peer::round_trips(&mut stream, &[7; SMALL], 200)?;
        streams.push(stream);
    }
    streams.try_into().map_err(|_| anyhow::anyhow!("two apps have two listeners"))
}

struct Variants {
    protected: TcpStream,
    bare: TcpStream,
    relay: Option<TcpStream>,
    /// Process groups of Marram.
    groups: Vec<u32>,
}

/// Small messages, one in flight.
fn latency(variants: &mut Variants, amount: &Amount, report: &mut Report) -> anyhow::Result<()> {
    let (mut added, mut added_cpu, mut medians) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new(), Vec::new()]);
    let message = [0x5a; SMALL];
    for block in 0..amount.blocks {
        progress(&format!("forward: small messages, block {} of {}", block + 1, amount.blocks));
        let measure = |stream: &mut TcpStream, groups: &[u32]| -> anyhow::Result<(f64, f64)> {
            let before = cpu::spent_ns(groups);
            let times = peer::round_trips(stream, &message, amount.messages)?;
            #[expect(clippy::cast_precision_loss, reason = "nanoseconds of one block")]
            let spent = cpu::spent_ns(groups).saturating_sub(before) as f64 / 1e3;
            Ok((stats::median(&times), spent))
        };
        // Whichever goes first meets other caches: take turns.
        let (protected, bare) = if block % 2 == 0 {
            let protected = measure(&mut variants.protected, &variants.groups)?;
            (protected, measure(&mut variants.bare, &variants.groups)?)
        } else {
            let bare = measure(&mut variants.bare, &variants.groups)?;
            (measure(&mut variants.protected, &variants.groups)?, bare)
        };
        if let Some(relay) = &mut variants.relay {
            medians[2].push(stats::median(&peer::round_trips(relay, &message, amount.messages)?));
        }
        // A round trip is two messages through the cell.
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        let messages = 2.0 * amount.messages as f64;
        added.push((protected.0 - bare.0) / 2.0);
        added_cpu.push((protected.1 - bare.1) / messages);
        medians[0].push(protected.0);
        medians[1].push(bare.0);
    }
    let difference = stats::estimate(&added);
    report.metric_with_bar("added_p50_us", difference.middle, Bar::Most(10.0));
    report.metric("added_ci95_us", vec![difference.low, difference.high]);
    let cpu = stats::estimate(&added_cpu);
    report.metric_with_bar("added_cpu_us_per_message", cpu.middle, Bar::Most(3.0));
    report.metric("added_cpu_ci95_us", vec![cpu.low, cpu.high]);
    let [protected, bare, relay] = medians.map(|values| stats::median(&values));
    report.metric("endpoints_round_trip_p50_us", protected);
    report.metric("none_round_trip_p50_us", bare);
    if variants.relay.is_some() {
        report.metric("relay_round_trip_p50_us", relay);
        report.metric_with_bar("endpoints_vs_relay_p50", protected / relay, Bar::Most(1.5));
    }
    report.note("a round trip passes the cell twice; added_* are for one message");
    Ok(())
}

/// Large messages, as many in flight as fit.
fn throughput(variants: &mut Variants, amount: &Amount, report: &mut Report) -> anyhow::Result<()> {
    let message = vec![0xa5; LARGE];
    let (mut ratios, mut rates) = (Vec::new(), [Vec::new(), Vec::new()]);
    for block in 0..amount.blocks.min(20) {
        progress(&format!("forward: large messages, block {} of {}", block + 1, amount.blocks.min(20)));
        let measure = |stream: &mut TcpStream| peer::throughput(stream, &message, amount.large);
        let (protected, bare) = if block % 2 == 0 {
            let protected = measure(&mut variants.protected)?;
            (protected, measure(&mut variants.bare)?)
        } else {
            let bare = measure(&mut variants.bare)?;
            (measure(&mut variants.protected)?, bare)
        };
        ratios.push(protected / bare);
        rates[0].push(protected);
        rates[1].push(bare);
    }
    let ratio = stats::estimate(&ratios);
    report.metric_with_bar("throughput_ratio", ratio.middle, Bar::Least(0.9));
    report.metric("throughput_ci95", vec![ratio.low, ratio.high]);
    report.metric("endpoints_mb_per_s", stats::median(&rates[0]));
    report.metric("none_mb_per_s", stats::median(&rates[1]));
    Ok(())
}

/// Bytes on the wires between ends and edge, beyond those of the messages. The wires are plain here, so that TLS records
/// are apart; the log and the checkpoints in them are sealed as always.
fn wire_bytes(plan: &Plan, server: SocketAddr, amount: &Amount, report: &mut Report) -> anyhow::Result<()> {
    progress("forward: bytes on the wire");
    let mut lab = lab(plan)?;
    let edge = lab.edge_addresses().first().copied().context("there is one edge")?;
    let (near, far) = (Relay::start(edge, Duration::ZERO)?, Relay::start(edge, Duration::ZERO)?);
    let [mut protected, _bare] = connect(&mut lab, &[near.address()], &[far.address()], server)?;
    let before = [near.counts(), far.counts()];
    peer::round_trips(&mut protected, &[0x5a; SMALL], amount.counted)?;
    let after = [near.counts(), far.counts()];
    #[expect(clippy::cast_precision_loss, reason = "a few megabytes")]
    let added = |bytes: fn(&Counts) -> u64| {
        let sum = |counts: &[Counts; 2]| counts.iter().map(bytes).sum::<u64>();
        // Each round trip brings one message from each end to the edge, and one from the edge to each end.
        (sum(&after) - sum(&before)) as f64 / (2.0 * amount.counted as f64) - SMALL as f64
    };
    report.metric_with_bar("wire_bytes_in", added(|counts| counts.forth), Bar::Most(8.0));
    report.metric_with_bar("wire_bytes_out", added(|counts| counts.back), Bar::Most(16.0));
    report.note("wire_bytes_* count all frames of both ends' wires: acknowledgements, heartbeats and checkpoints, too");
    Ok(())
}
