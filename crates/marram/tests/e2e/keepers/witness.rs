//! Sessions without a server and with the coordinator as their witness: edges ask it at each recovery, and wait while it is away.

use crate::support;
use marram_cluster::{TempDir, TestCluster, free_address};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Counts once more.
fn count(client: &mut BufReader<TcpStream>, number: u32) {
    client.get_mut().write_all(b"f").unwrap();
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    assert_eq!(line.split(' ').next(), Some(&*format!("count={number}")));
}

/// Polls an edge until one of its counters is not 0.
fn wait_for(cluster: &TestCluster, edge: usize, counter: &str) {
    let client = cluster.edges[edge].client().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let counted = || {
        let text = client.call(hyper::Method::GET, "/metrics", bytes::Bytes::new()).unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        let lines = text.lines().filter(|line| line.starts_with(&format!("marram_{counter}{{")));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    while counted() == 0 {
        assert!(Instant::now() < deadline, "{counter} stays 0; the last lines:\n{}", cluster.logs.tail(30));
        std::thread::yield_now();
    }
}

fn said(cluster: &TestCluster, start: usize, field: &str, words: &str) {
    let found = cluster.logs.wait(start, PATIENCE, |event| event.text(field).contains(words));
    assert!(found.is_some(), "no process says {words:?}; the last lines:\n{}", cluster.logs.tail(30));
}

#[test]
fn recoveries_ask_the_witness_and_wait_while_it_is_away() {
    let layout = support::layout("witness", |layout| layout.edges = 3);
    let keep = "[keep]\nlinger = \"2m\"\nwitness = \"strict\"\n";
    let watched = |place: &TempDir| Ok(vec![support::cells().manifest(place, "count", "counter", keep)?]);
    let mut cluster = TestCluster::new(layout, watched).unwrap();
    let store = free_address().unwrap();
    let token = cluster.directory.path().join("token").display().to_string();
    let table = |rest: &str| format!("coordinator = {{ {rest}, token_file = {token:?}, lease = \"5s\" }}");
    let (serves, asks) =
        (table(&format!("serve = \"{store}\"")), table(&format!("urls = [\"http://{store}\"]")));
    (1..3).for_each(|edge| cluster.start_edge(edge, &asks).unwrap());
    // Clients only know the edges that do not serve the store.
    let edges = cluster.edge_addresses()[1..].to_vec();
    let address = cluster.start_client_agent(&edges, &["count"]).unwrap()[0].address;
    cluster.start_edge(0, &serves).unwrap();
    let mut client = BufReader::new(TcpStream::connect(address).unwrap());
    client.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    (1..=3).for_each(|number| count(&mut client, number));
    let owner = 1 + cluster.owner().unwrap();
    let other = 3 - owner;
    wait_for(&cluster, owner, "witness_reports_total");
    // The witness confirms that the client has no older state.
    let start = cluster.logs.end();
    cluster.edges[owner].kill();
    count(&mut client, 4);
    wait_for(&cluster, other, "witness_asked_total");
    assert_eq!(cluster.logs.count(start, |event| event.text("reason").contains("older state")), 0);
    cluster.start_edge(owner, &asks).unwrap();
    // While the witness is away, no recovery can be confirmed.
    let start = cluster.logs.end();
    cluster.edges[0].kill();
    said(&cluster, start, "message", "the coordinator is unreachable");
    let start = cluster.logs.end();
    cluster.edges[other].kill();
    client.get_mut().write_all(b"f").unwrap();
    said(&cluster, start, "message", "the witness is unreachable");
    cluster.start_edge(0, &serves).unwrap();
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    assert_eq!(line.split(' ').next(), Some("count=5"));
}
