//! One busy TCP stream through a cell that computes, at half of its capacity, while its session is moved: throughput and latency.
//!
//! ```text
//! sham:   |<----- 1 s ----->|            nothing happens
//! move:   |<----- 1 s ----->|            begins with the request for the move
//! ```
//! Shams and moves alternate, twenty of each. The dip is that of the medians of the messages that the server received in the second. The added
//! latency is the median of the moves' longest latencies less that of the shams'; it lasts for as long as messages are sent whose latency
//! exceeds the shams' median longest one, less the same for a sham. A latency counts from when a message was due.

use super::flow::Flow;
use super::sample::{SECOND, Sample, alternate, median};
use super::scene::{apart, layout, said};
use super::sink::{Kind, ROUNDS, Server};
use crate::report::{Bar, Report};
use crate::standby::stand_by;
use crate::{Plan, progress, stats};
use anyhow::Context;
use marram_cluster::{AgentSide, TestCluster, free_address};

const APP: &str = "work";
const SERVER: &str = "origin";

/// Two edges with one session of `work`.
pub(super) struct BusyScene {
    pub(super) cluster: TestCluster,
    pub(super) flow: Flow,
}

impl BusyScene {
    /// Starts everything; a session of datagrams begins with the first one.
    pub(super) fn start(plan: &Plan, kind: Kind) -> anyhow::Result<Self> {
        let mut cluster = apart(layout(plan, "bench-dip", 2), |place| {
            let rest =
                format!("server = \"{SERVER}\"\nprotect = \"endpoints\"\n[quotas]\nmemory = \"16MiB\"\n");
            Ok(vec![plan.cells.manifest(place, APP, "work", &rest)?])
        })?;
        let extra = stand_by(&cluster);
        cluster.start_edges(&extra)?;
        let (edges, (server, address)) = (cluster.edge_addresses(), Server::start(kind)?);
        let own = free_address()?;
        let (scheme, protocol) = match kind {
            Kind::Stream => ("", "tcp"),
            Kind::Datagrams => ("udp://", "udp"),
        };
        let servers = format!("[servers]\n{SERVER} = \"{scheme}{address}\"\n");
        cluster.start_agent_with(AgentSide::Server, &edges, &servers)?;
        let listen = format!("[[listen]]\naddress = \"{own}\"\napp = \"{APP}\"\nprotocol = \"{protocol}\"\n");
        cluster.start_agent_with(AgentSide::Client, &edges, &listen)?;
        Ok(Self { flow: Flow::connect(kind, own, server)?, cluster })
    }
}

/// Measures.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let (count, time) = if plan.quick { (2, SECOND) } else { (20, 4 * SECOND) };
    let BusyScene { cluster, flow } = BusyScene::start(plan, Kind::Stream)?;
    progress("move: the capacity of a stream");
    let capacity = flow.capacity_per_s(time).with_context(|| said(&cluster))?;
    let per_s = capacity / 2.0;
    let begun = flow.paced(per_s, || alternate(&cluster, count, "a stream at half of its capacity"));
    let [shams, moves] = begun.with_context(|| said(&cluster))?.samples(&flow);
    show(&shams, &moves, per_s, report);
    report.metric("stream.capacity_per_s", capacity);
    report.metric("stream.moves", count);
    let wrong = flow.wrong();
    report.metric("stream.reordered", wrong.reordered);
    report.metric("stream.changed", wrong.changed);
    report.add_lost(wrong.lost + wrong.reordered + wrong.changed, wrong.repeated);
    report.note(format!(
        "stream: messages of 1 KiB, {ROUNDS} steps of a generator in the cell for each; at half of the capacity that the same stream had before"
    ));
    report.note(
        "latency_added_max: the median of the moves' longest latencies less that of the shams'; latency_added_for: how long messages were sent \
         with a longer latency than that of the shams, less the same for shams",
    );
    report.note(
        "client_late: how long after a message was due the client itself began to send it, a part of its latency; client and server have \
         real-time priority where they may, so this is how long the machine ran nothing",
    );
    Ok(())
}

fn show(shams: &[Sample], moves: &[Sample], per_s: f64, report: &mut Report) {
    let dip = |figure: fn(&Sample) -> f64| (1.0 - median(moves, figure) / median(shams, figure)) * 100.0;
    report.metric_with_bar("tcp_dip_pct_1s", dip(|it| it.received), Bar::Most(3.0));
    report.metric("stream.dip_pct_50ms", dip(Sample::least));
    let (sham, moving) = (median(shams, Sample::longest), median(moves, Sample::longest));
    report.metric_with_bar("latency_added_max_ms", moving - sham, Bar::Most(1.0));
    let over = |samples| median(samples, |it| it.over_for_ms(sham, per_s));
    report.metric_with_bar("latency_added_for_ms", over(moves) - over(shams), Bar::Most(20.0));
    report.metric("stream.latency_max_ms", moving);
    report.metric("stream.latency_max_sham_ms", sham);
    report.metric("stream.latency_p50_ms", median(shams, |it| stats::median(&it.latencies)));
    report.metric("stream.client_late_max_ms", median(moves, |it| it.late_max_ms));
    report.metric("stream.client_late_max_sham_ms", median(shams, |it| it.late_max_ms));
}
