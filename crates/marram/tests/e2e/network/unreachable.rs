//! No peer is reachable: the connection waits, then fails, and the log says why.

use crate::support;
use marram_cluster::LogEvent;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Connects and waits for the end; no data may arrive before it.
fn fails(address: SocketAddr) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 16];
    match stream.read(&mut buffer) {
        Ok(0) => {}
        Ok(len) => panic!("{len} bytes from no one"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[test]
fn with_every_edge_down_a_connection_waits_and_then_fails_in_words() {
    let mut cluster =
        support::cluster_with("no-edge", |layout| layout.agent_tables += "edge_wait = \"300ms\"\n");
    // These edges are never started, so no process listens at their addresses.
    let edges = cluster.edge_addresses();
    let address = cluster.start_client_agent(&edges, &["forward"]).unwrap()[0].address;
    fails(address);
    let ended =
        cluster.logs.wait(0, PATIENCE, |event| event.name() == "ended").expect("the agent reports it").1;
    assert_eq!(ended.text("code"), "NoEdge", "{}", ended.fields);
    assert!(!ended.text("reason").is_empty(), "{}", ended.fields);
}

#[test]
fn with_the_server_down_a_connection_fails_in_words() {
    let mut cluster = support::cluster("no-server", 1, 1);
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    // No process listens on port 1.
    cluster.start_server_agent(&edges, &[("peer", "127.0.0.1:1".parse().unwrap())]).unwrap();
    let address = cluster.start_client_agent(&edges, &["forward"]).unwrap()[0].address;
    fails(address);
    let ended =
        cluster.logs.wait(0, PATIENCE, |event| event.name() == "ended").expect("the agents report it").1;
    assert!(!ended.text("reason").is_empty(), "{}", ended.fields);
}

#[test]
fn an_app_that_no_edge_has_fails_in_words() {
    let mut cluster = support::cluster("no-app", 1, 1);
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let address = cluster.start_client_agent(&edges, &["nonsuch"]).unwrap()[0].address;
    fails(address);
    let ended =
        cluster.logs.wait(0, PATIENCE, |event| event.name() == "ended").expect("the agent reports it").1;
    assert!(
        ended.text("reason").contains("nonsuch") || ended.text("code").contains("App"),
        "{}",
        ended.fields
    );
}

#[test]
fn a_server_that_no_agent_reaches_is_named_at_once() {
    let mut cluster = support::cluster("wrong-server", 1, 1);
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("pear", "127.0.0.1:1".parse().unwrap())]).unwrap();
    let address = cluster.start_client_agent(&edges, &["forward"]).unwrap()[0].address;
    // The session would wait for 30 s, and the test does not wait that long.
    let client = TcpStream::connect(address).unwrap();
    let waits = |event: &LogEvent| event.name() == "waiting";
    let waits = cluster.logs.wait(0, PATIENCE, waits).expect("the client's agent says so").1;
    assert_eq!((waits.text("code"), waits.text("app")), ("NoServerAgent", "forward"), "{}", waits.fields);
    let reason = waits.text("reason");
    assert!(
        reason.contains("`peer`") && reason.contains("an agent that reaches `pear` is connected"),
        "{}",
        waits.fields
    );
    let told = |event: &LogEvent| {
        let text = event.text("message");
        event.text("level") == "WARN" && text.contains("server `peer`") && text.contains("reach `pear`")
    };
    cluster.logs.wait(0, PATIENCE, told).expect("the edge says so, with the names that there are");
    drop(client);
    let manifest =
        support::cells().manifest(&cluster.directory, "again", "forward", "server = \"peer\"\n").unwrap();
    let edge = format!("http://{}", cluster.edges[0].admin());
    let output = Command::new(env!("CARGO_BIN_EXE_marram"))
        .arg("deploy")
        .arg(manifest)
        .args(["--edge", &edge])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("note: ") && said.contains("reach `pear`"),
        "{output:?}"
    );
}
