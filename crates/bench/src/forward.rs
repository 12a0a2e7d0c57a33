//! `marram bench forward`: what protection adds to the time of a message. The app `forward` runs twice behind the same agents and
//! the same edge, protected and not; blocks of both alternate with blocks over a chain of stock relays.
//!
//! ```text
//! client -- agent -- edge (cell `forward`) -- agent -- echo server        protected / none
//! client -- HAProxy -- HAProxy -- HAProxy -- echo server                  as many hops
//!
//! blocks:  P N R | N P R | P N R | ...     P protected, N none, R relays; the order of P and N alternates
//! ```
//! `added` figures are medians of differences between neighbouring blocks, so a machine that gets
//! slower for a second affects both sides of a difference. Their interval is a bootstrap over
//! blocks (`stats::estimate`).

use super::baseline::{self, Chain};
use super::report::{Bar, Report};
use super::{Plan, cpu, peer, progress, stats};
use anyhow::Context;
use marram_cluster::{TempDir, TestCluster};
use marram_testbed::{Counts, Relay};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// The two apps, protected and not.
pub(super) const PROTECTED: &str = "forward";
pub(super) const BARE: &str = "forward-none";
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
    /// Round trips for which the bytes on the wire are counted.
    counted: usize,
}

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let amount = if plan.quick {
        Amount { blocks: 8, messages: 200, large: 100, counted: 1_000 }
    } else {
        Amount { blocks: 40, messages: 1_000, large: 400, counted: 5_000 }
    };
    let mut report = Report::new("forward");
    baseline::require("haproxy", "haproxy")?;
    plan.over_all_wires(&mut report, |plan, report| {
        if plan.wants("latency") {
            latency(plan, &amount, report)?;
        }
        if plan.wants("throughput") {
            throughput(plan, &amount, report)?;
        }
        if plan.wants("wire_bytes") {
            wire_bytes(plan, &amount, report)?;
        }
        Ok(())
    })?;
    report.note("encrypted: the same over wires of TLS 1.3, as between machines; the relays pass plain TCP on there too");
    report.baseline("none", "the same agents and edge, with protect = \"none\"");
    Ok(report)
}

fn cluster(plan: &Plan) -> anyhow::Result<TestCluster> {
    let mut cluster =
        TestCluster::new(plan.layout("bench-forward", 1, ""), |place| manifests(plan, place, SERVER))?;
    cluster.start_edges("")?;
    Ok(cluster)
}

/// Writes the manifests of both apps.
pub(super) fn manifests(plan: &Plan, place: &TempDir, server: &str) -> anyhow::Result<Vec<PathBuf>> {
    // Different quotas, so that the two apps are separate images.
    let manifest = |name: &str, protect: &str, scratch: &str| {
        let rest =
            format!("server = \"{server}\"\nprotect = \"{protect}\"\n[quotas]\nscratch = \"{scratch}\"\n");
        plan.cells.manifest(place, name, "forward", &rest)
    };
    Ok(vec![manifest(PROTECTED, "endpoints", "16MiB")?, manifest(BARE, "none", "15MiB")?])
}

/// Starts both agents and connects a client to each app.
fn connect(
    cluster: &mut TestCluster,
    client_edges: &[SocketAddr],
    server_edges: &[SocketAddr],
    server: SocketAddr,
) -> anyhow::Result<[TcpStream; 2]> {
    cluster.start_server_agent(server_edges, &[(SERVER, server)])?;
    let listens = cluster.start_client_agent(client_edges, &[PROTECTED, BARE])?;
    let mut streams = Vec::new();
    for listen in &listens {
        let mut stream = peer::connect(listen.address)?;
        // After these round trips the session exists and caches are warm.
        peer::round_trips(&mut stream, &[7; SMALL], 200)?;
        streams.push(stream);
    }
    streams.try_into().map_err(|_| anyhow::anyhow!("two apps have two listeners"))
}

/// Results of one block of a variant. All blocks of a variant have the same number of messages.
struct Block {
    /// The median round trip.
    round_trip_us: f64,
    /// CPU time of all of Marram's processes for a message through the cell.
    cpu_us: f64,
}

/// Measures one block. CPU time includes what agents and edge do beside messages, such as
/// heartbeats: it is what a user pays.
fn block(stream: &mut TcpStream, groups: &[u32], messages: usize) -> anyhow::Result<Block> {
    let before = cpu::spent_ns(groups);
    let times = peer::round_trips(stream, &[0x5a; SMALL], messages)?;
    let spent = cpu::spent_ns(groups).saturating_sub(before);
    // A round trip is two messages through the cell.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of one block")]
    let cpu_us = spent as f64 / 1e3 / (2.0 * messages as f64);
    Ok(Block { round_trip_us: stats::median(&times), cpu_us })
}

/// Small messages, one in flight, with all processes on one core.
fn latency(plan: &Plan, amount: &Amount, report: &mut Report) -> anyhow::Result<()> {
    let _core = cpu::OneCore::enter()?;
    let server = peer::echo_server()?;
    let mut cluster = cluster(plan)?;
    let addresses = cluster.edge_addresses();
    let [mut protected, mut bare] = connect(&mut cluster, &addresses, &addresses, server)?;
    let chain = Chain::start(baseline::HOPS, server, &cluster.directory, &cluster.logs)?;
    let mut relay = peer::connect(chain.address)?;
    let groups = cluster.groups();
    let mut blocks: [Vec<Block>; 2] = [Vec::new(), Vec::new()];
    let mut relays = Vec::new();
    for number in 0..amount.blocks {
        progress(&format!("forward: small messages, block {} of {}", number + 1, amount.blocks));
        let mut measure = |variant: usize| {
            let stream = if variant == 0 { &mut protected } else { &mut bare };
            block(stream, &groups, amount.messages).map(|block| blocks[variant].push(block))
        };
        // The first of the two finds other caches than the second, so the order alternates.
        measure(number % 2)?;
        measure(1 - number % 2)?;
        relays.push(stats::median(&peer::round_trips(&mut relay, &[0x5a; SMALL], amount.messages)?));
    }
    report_latency(&blocks, &relays, report);
    report.baseline("haproxy", &chain.command);
    Ok(())
}

/// Reports the differences with their bars, and the medians of each variant without.
fn report_latency(blocks: &[Vec<Block>; 2], relays: &[f64], report: &mut Report) {
    let paired = |value: fn(&Block) -> f64| {
        let pairs = blocks[0].iter().zip(&blocks[1]);
        stats::estimate(&pairs.map(|(protected, bare)| value(protected) - value(bare)).collect::<Vec<_>>())
    };
    let added = paired(|block| block.round_trip_us);
    report.metric_with_bar("added_p50_us", added.middle, Bar::Most(10.0));
    report.metric("added_ci95_us", vec![added.low, added.high]);
    let cpu = paired(|block| block.cpu_us);
    report.metric_with_bar("added_cpu_us_per_message", cpu.middle, Bar::Most(3.0));
    report.metric("added_cpu_ci95_us", vec![cpu.low, cpu.high]);
    let [protected, bare] = [0, 1].map(|variant: usize| {
        stats::median(&blocks[variant].iter().map(|b| b.round_trip_us).collect::<Vec<_>>())
    });
    report.metric("endpoints_round_trip_p50_us", protected);
    report.metric("none_round_trip_p50_us", bare);
    let relay = stats::median(relays);
    report.metric("relay_round_trip_p50_us", relay);
    report.metric_with_bar("endpoints_vs_relay_p50", protected / relay, Bar::Most(1.5));
    report.note(
        "added_p50_us is for a whole round trip, which passes the cell twice; all processes share one core",
    );
}

/// Large messages, as many in flight as the connection allows, on all cores.
fn throughput(plan: &Plan, amount: &Amount, report: &mut Report) -> anyhow::Result<()> {
    let mut cluster = cluster(plan)?;
    let addresses = cluster.edge_addresses();
    let [mut protected, mut bare] = connect(&mut cluster, &addresses, &addresses, peer::echo_server()?)?;
    let groups = cluster.groups();
    let message = vec![0xa5; LARGE];
    let mut blocks: [Vec<LargeBlock>; 2] = [Vec::new(), Vec::new()];
    for number in 0..amount.blocks {
        progress(&format!("forward: large messages, block {} of {}", number + 1, amount.blocks));
        let mut measure = |variant: usize| {
            let stream = if variant == 0 { &mut protected } else { &mut bare };
            large_block(stream, &groups, &message, amount.large).map(|block| blocks[variant].push(block))
        };
        measure(number % 2)?;
        measure(1 - number % 2)?;
    }
    let pairs = blocks[0].iter().zip(&blocks[1]);
    let ratios: Vec<f64> = pairs.map(|(protected, bare)| protected.rate / bare.rate).collect();
    let ratio = stats::estimate(&ratios);
    report.metric_with_bar("throughput_ratio", ratio.middle, Bar::Least(0.9));
    report.metric("throughput_ci95", vec![ratio.low, ratio.high]);
    for (name, blocks) in ["endpoints", "none"].into_iter().zip(&blocks) {
        let middle =
            |value: &dyn Fn(&LargeBlock) -> f64| stats::median(&blocks.iter().map(value).collect::<Vec<_>>());
        report.metric(&format!("{name}_mb_per_s"), middle(&|block| block.rate));
        let each = (0..groups.len()).map(|group| middle(&|block| block.cpu_us[group])).collect::<Vec<_>>();
        report.metric(&format!("{name}_cpu_us_per_64kib"), each);
    }
    report
        .note("*_cpu_us_per_64kib is for a whole echo: of the client's agent, the server's agent, the edge");
    Ok(())
}

/// Results of one block of large messages.
struct LargeBlock {
    /// MB a second.
    rate: f64,
    /// CPU time of each group of processes for an echo.
    cpu_us: Vec<f64>,
}

/// The same for one block of throughput; the CPU time is that of each group of processes alone.
fn large_block(
    stream: &mut TcpStream,
    groups: &[u32],
    message: &[u8],
    count: usize,
) -> anyhow::Result<LargeBlock> {
    let spent = || groups.iter().map(|group| cpu::spent_ns(&[*group])).collect::<Vec<_>>();
    let before = spent();
    let rate = peer::throughput(stream, message, count)?;
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of one block")]
    let an_echo = |(after, before): (u64, &u64)| after.saturating_sub(*before) as f64 / 1e3 / count as f64;
    Ok(LargeBlock { rate, cpu_us: spent().into_iter().zip(&before).map(an_echo).collect() })
}

/// Bytes on the wires between ends and edge, beyond those of the messages. Plain wires have no TLS records; the log and the
/// checkpoints on them are encrypted in any case. The relays count what passes; they add no delay
/// here.
fn wire_bytes(plan: &Plan, amount: &Amount, report: &mut Report) -> anyhow::Result<()> {
    progress("forward: bytes on the wire");
    let mut cluster = cluster(plan)?;
    let edge = cluster.edge_addresses().first().copied().context("there is one edge")?;
    let (near, far) = (Relay::start(edge, Duration::ZERO)?, Relay::start(edge, Duration::ZERO)?);
    let [mut protected, _] =
        connect(&mut cluster, &[near.address()], &[far.address()], peer::echo_server()?)?;
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
