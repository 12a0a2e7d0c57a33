//! Clusters with the cell `ballast`, which holds as much state as it is told to, and what their edges report.

use super::Plan;
use anyhow::Context;
use hyper::Method;
use marram_admin::client::ApiClient;
use marram_cluster::TestCluster;
use marram_testbed::Relay;
use std::net::SocketAddr;
use std::time::Duration;

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
pub(super) fn session(client: &ApiClient) -> anyhow::Result<serde_json::Value> {
    let list = client.json(Method::GET, "/v1/sessions")?;
    list["sessions"].get(0).cloned().context("the owner does not know its session")
}

/// A counter of an edge.
pub(super) fn counter(client: &ApiClient, name: &str) -> anyhow::Result<Option<u64>> {
    let text = client.call(Method::GET, "/metrics", bytes::Bytes::new())?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find(|line| line.starts_with(&format!("marram_{name}{{")));
    Ok(line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()))
}
