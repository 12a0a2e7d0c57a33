//! Clusters with the cell `ballast`, which holds as much state as it is told to, and what their edges report.
//!
//! Used by every benchmark that kills an owner: `recover`, `standby`, `faults` and `mass`. Commands
//! and answers of the cell have 17 bytes (`pinger::command`); the admin API shows where the session
//! is and what is stored for it.

use super::Plan;
use anyhow::Context;
use hyper::Method;
use marram_admin::client::ApiClient;
use marram_cluster::TestCluster;
use marram_testbed::Relay;
use std::net::SocketAddr;
use std::time::Duration;

/// The app's name, and that of its module in the directory of cells.
pub(super) const APP: &str = "ballast";
/// The server, as the app's manifest names it.
pub(super) const SERVER: &str = "echo";

/// Two edges, none of which runs; `keep` is the content of the app's table `[keep]`.
pub(super) fn cluster(plan: &Plan, keep: &str) -> anyhow::Result<TestCluster> {
    TestCluster::new(plan.layout("bench-recover", 2, ""), |place| {
        let rest = format!(
            "server = \"{SERVER}\"\nprotect = \"endpoints\"\n[quotas]\nmemory = \"64MiB\"\n[keep]\n{keep}\n"
        );
        Ok(vec![plan.cells.manifest(place, APP, "ballast", &rest)?])
    })
}

/// The edges' addresses for the client's and the server's agent; these are relays where wires are long.
///
/// The relays end with the returned values; a wire through an ended relay breaks, so keep them as
/// long as the cluster.
pub(super) fn wires(
    cluster: &TestCluster,
    delay: Option<Duration>,
) -> anyhow::Result<([Vec<SocketAddr>; 2], Vec<Relay>)> {
    let addresses = cluster.edge_addresses();
    let Some(delay) = delay else { return Ok(([addresses.clone(), addresses], Vec::new())) };
    let mut relays = Vec::new();
    let mut behind = || {
        let start = |address: &SocketAddr| {
            let relay = Relay::start(*address, delay)?;
            let address = relay.address();
            relays.push(relay);
            Ok(address)
        };
        addresses.iter().map(start).collect::<anyhow::Result<Vec<_>>>()
    };
    let edges = [behind()?, behind()?];
    Ok((edges, relays))
}

/// The only session, as its owner's admin API shows it.
///
/// # Errors
/// If the edge does not answer, or lists no session, for example because it is no longer the owner.
pub(super) fn session(client: &ApiClient) -> anyhow::Result<serde_json::Value> {
    let list = client.json(Method::GET, "/v1/sessions")?;
    list["sessions"].get(0).cloned().context("the owner does not know its session")
}

/// A counter of an edge. `None` if the edge has no such line. The first line counts: an edge with
/// one shard has one line for each counter.
pub(super) fn counter(client: &ApiClient, name: &str) -> anyhow::Result<Option<u64>> {
    let text = client.call(Method::GET, "/metrics", bytes::Bytes::new())?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find(|line| line.starts_with(&format!("marram_{name}{{")));
    Ok(line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()))
}

/// The generator of the cell, by which a command changes a word of its state; 0 would stay 0, so callers avoid it.
pub(super) fn xorshift(mut word: u64) -> u64 {
    word ^= word << 13;
    word ^= word >> 7;
    word ^ word << 17
}
