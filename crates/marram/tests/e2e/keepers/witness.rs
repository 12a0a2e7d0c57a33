//! Sessions without a server and with the coordinator as their witness: edges ask it at each recovery, and wait while it is away.

use crate::support;
use hyper::Method;
use marram_cluster::{Layout, TempDir, TestCluster, free_address};
use serde_json::Value;
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

/// Three edges, of which the first one serves the store, and a client that has counted to 3.
struct Watched {
    cluster: TestCluster,
    client: BufReader<TcpStream>,
    /// What an edge's configuration says of the store, where it serves it and where it asks for it.
    serves: String,
    asks: String,
}

/// `stand_by`: each edge can take the sessions of the others.
fn watched(layout: Layout, stand_by: bool) -> Watched {
    let keep = "[keep]\nlinger = \"2m\"\nwitness = \"strict\"\n";
    let watched = |place: &TempDir| Ok(vec![support::cells().manifest(place, "count", "counter", keep)?]);
    let mut cluster = TestCluster::new(layout, watched).unwrap();
    let store = free_address().unwrap();
    let token = cluster.directory.path().join("token").display().to_string();
    let names: Vec<String> = cluster.edge_addresses().iter().map(ToString::to_string).collect();
    let standby = if stand_by { format!("standby = {{ edges = {names:?} }}\n") } else { String::new() };
    let table =
        |rest: &str| format!("{standby}coordinator = {{ {rest}, token_file = {token:?}, lease = \"5s\" }}");
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
    Watched { cluster, client, serves, asks }
}

#[test]
fn recoveries_ask_the_witness_and_wait_while_it_is_away() {
    let layout = support::layout("witness", |layout| layout.edges = 3);
    let Watched { mut cluster, mut client, serves, asks } = watched(layout, false);
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

fn ask(cluster: &TestCluster, edge: usize, method: Method, path: &str) -> Result<Value, String> {
    cluster.edges[edge].client().unwrap().json(method, path).map_err(|error| error.to_string())
}

/// The session that runs on an edge.
fn running(cluster: &TestCluster, edge: usize) -> Option<String> {
    let list = ask(cluster, edge, Method::GET, "/v1/sessions").unwrap();
    let mut running = list["sessions"].as_array().unwrap().iter().filter(|row| row["phase"] == "running");
    running.next().map(|row| row["session"].as_str().unwrap().to_owned())
}

/// The result of a move, which is asked for again until the edges have connected to each other.
fn moved(cluster: &TestCluster, from: usize, to: usize) -> Value {
    let name = ask(cluster, to, Method::GET, "/v1/edge").unwrap()["edge"].as_str().unwrap().to_owned();
    let path = format!("/v1/sessions/{}/move/{name}", running(cluster, from).expect("it runs there"));
    let deadline = Instant::now() + PATIENCE;
    while let Err(why) = ask(cluster, from, Method::POST, &path) {
        assert!(why.contains("is not connected") && Instant::now() < deadline, "{why}");
    }
    loop {
        let list = ask(cluster, from, Method::GET, "/v1/moves").unwrap();
        let row = list["moves"].as_array().unwrap().iter().find(|row| row["to"] == *name).cloned();
        if let Some(row) = row.filter(|row| row["state"] == "moved" || row["state"] == "failed") {
            return row;
        }
        assert!(Instant::now() < deadline, "{list}; {}", cluster.logs.tail(30));
    }
}

#[test]
fn sessions_move_unless_the_witness_is_away() {
    let layout = support::layout("witness-move", |layout| {
        (layout.edges, layout.agent_tables) = (3, support::UNSUSPECTING.into());
    });
    let Watched { mut cluster, mut client, .. } = watched(layout, true);
    let first = 1 + cluster.owner().unwrap();
    let second = 3 - first;
    // It has a past with the witness.
    wait_for(&cluster, first, "witness_reports_total");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let row = moved(&cluster, first, second);
        if row["state"] == "moved" {
            break;
        }
        // That edge may not have found the coordinator yet.
        let why = row["why"].as_str().unwrap_or_default();
        assert!(why.contains("cannot ask the witness"), "{row}; {}", cluster.logs.tail(30));
        assert!(Instant::now() < deadline, "{row}; {}", cluster.logs.tail(30));
    }
    wait_for(&cluster, second, "witness_asked_total");
    count(&mut client, 4);
    // It stays where its witness is away.
    let start = cluster.logs.end();
    cluster.edges[0].kill();
    said(&cluster, start, "message", "the coordinator is unreachable");
    let row = moved(&cluster, second, first);
    let why = row["why"].as_str().unwrap_or_default();
    assert!(row["state"] == "failed" && why.contains("cannot ask the witness"), "{row}");
    (5..=20).for_each(|number| count(&mut client, number));
    assert!(running(&cluster, second).is_some(), "{}", cluster.logs.tail(30));
}
