//! `marram bench replay`: records a session of many small messages while it runs, and replays the recording: messages a second of
//! the replay, compared with those of the session.
//!
//! ```text
//! live:    client -- agent -- edge -- cell        40,000 messages of a byte, 32 in flight
//! record:  POST /v1/sessions/ID/record --> file: log, messages, seed or checkpoint, state hash
//! replay:  the file, in this process, handler by handler, again and again
//! ```
//! Each replay must end in the recorded state hash: a fast replay that computes something else is a
//! failure and not a figure.

use super::report::Report;
use super::{Plan, progress, stats};
use anyhow::{Context, ensure};
use bytes::Bytes;
use hyper::Method;
use marram_admin::client::ApiClient;
use marram_cluster::{AgentSide, TestCluster, free_address};
use marram_sandbox::{Images, Keyring, Replayer};
use marram_wire::recording::Recording;
use serde_json::Value;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

const APP: &str = "counter";
/// A step of a floating-point accumulator, answered by a line. The cell's work for it is small, so
/// that the handling of messages and log shows.
const COMMAND: &[u8] = b"f";
/// Messages in flight of a client: fewer than any buffer on the path holds.
const IN_FLIGHT: usize = 32;
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("replay");
    // No checkpoint happens meanwhile: the log stays below the bytes that an end keeps without one.
    let (messages, rounds) = if plan.quick { (2_000, 5) } else { (40_000, 25) };
    progress(&format!("replay: a session of {messages} messages"));
    let mut cluster = TestCluster::new(plan.layout("bench-replay", 1, ""), |place| {
        let rest = "protect = \"endpoints\"\n[keep]\nrecovery_target = \"1h\"\n";
        Ok(vec![plan.cells.manifest(place, APP, "counter", rest)?])
    })?;
    cluster.start_edges("")?;
    let (edges, address) = (cluster.edge_addresses(), free_address()?);
    let listen = format!("[[listen]]\naddress = \"{address}\"\napp = \"{APP}\"\nprotocol = \"udp\"\n");
    cluster.start_agent_with(AgentSide::Client, &edges, &listen)?;
    let live_per_s = live(address, messages)?;
    let client = cluster.edges[0].client()?;
    progress("replay: the recording");
    let (mut recording, record_ms) = record(&client)?;
    let app = client.call(Method::GET, &format!("/v1/images/{}", recording.about.image), Bytes::new())?;
    recording.apps.push((recording.about.image, app));
    let (entries, replay_per_s) = replay(&cluster.directory.path().join("images"), recording, rounds)?;
    ensure!(
        entries > messages as u64,
        "the recording has {entries} entries and not the session's {messages}"
    );
    report.metric("live_per_s", live_per_s);
    report.metric("replay_per_s", replay_per_s);
    report.metric("replay_vs_live", replay_per_s / live_per_s);
    report.metric("replayed_messages", entries);
    report.metric("record_ms", record_ms);
    report.baseline(
        "live",
        "the same session as its client and cell had it, through agent and edge, in the same run",
    );
    report.note(format!(
        "messages of a byte, {IN_FLIGHT} in flight; every replay ended in the state hash that the edge took"
    ));
    Ok(report)
}

/// Messages a second through a session, one datagram each. The client keeps [`IN_FLIGHT`] messages
/// in flight in groups: it sends that many and then waits for all of their answers.
fn live(address: SocketAddr, messages: usize) -> anyhow::Result<f64> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut answer = [0; 512];
    let mut exchange = |count: usize| -> anyhow::Result<()> {
        for _ in 0..count {
            socket.send(COMMAND)?;
        }
        for _ in 0..count {
            socket.recv(&mut answer).context("the cell did not answer")?;
        }
        Ok(())
    };
    // The session begins, and one-time work is done.
    exchange(1)?;
    let begun = Instant::now();
    for _ in 0..messages / IN_FLIGHT {
        exchange(IN_FLIGHT)?;
    }
    exchange(messages % IN_FLIGHT)?;
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    Ok(messages as f64 / begun.elapsed().as_secs_f64())
}

/// The recording of the only session, and how long the edge took to make it, in milliseconds.
///
/// The edge asks the ends for log and messages, so its time grows with what they keep.
fn record(client: &ApiClient) -> anyhow::Result<(Recording, f64)> {
    let list: Value = client.json(Method::GET, "/v1/sessions")?;
    let session = list["sessions"][0]["session"].as_str().context("the edge does not know the session")?;
    let begun = Instant::now();
    let file = client.call(Method::POST, &format!("/v1/sessions/{session}/record"), Bytes::new())?;
    let record_ms = begun.elapsed().as_secs_f64() * 1e3;
    Ok((Recording::decode(&file)?, record_ms))
}

/// The number of the recording's entries, and how many are replayed a second.
///
/// The replayer runs as `marram replay` does; between rounds it starts from the beginning with a
/// new cell.
fn replay(images: &Path, recording: Recording, rounds: usize) -> anyhow::Result<(u64, f64)> {
    let mut replayer = Replayer::new(recording, &Images::open(images)?, Keyring::default())?;
    let wanted = replayer.recording().about.state.context("the edge took no state hash")?;
    let (mut rates, mut entries) = (Vec::new(), 0);
    for round in 0..rounds {
        if round > 0 {
            replayer.rewind()?;
        }
        let begun = Instant::now();
        while replayer.step()?.is_some() {}
        let spent = begun.elapsed().as_secs_f64();
        entries = replayer.entries();
        ensure!(replayer.state_hash() == Some(wanted), "the replay ended in another state than the session");
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        rates.push(entries as f64 / spent);
    }
    Ok((entries, stats::median(&rates)))
}
