//! Edges that no list of an agent has: agents learn them from those that they list, and sessions go there.

use crate::support;
use hyper::Method;
use marram_cluster::{AgentSide, TestCluster};
use serde_json::Value;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Edges that stand by for each other if `standby` says so, with apps.
fn edges(purpose: &'static str, count: usize, standby: impl Fn(&[String]) -> String) -> TestCluster {
    let mut cluster = support::cluster(purpose, count, 2);
    let names: Vec<String> = cluster.edge_addresses().iter().map(SocketAddr::to_string).collect();
    cluster.start_edges(&standby(&names)).unwrap();
    cluster
}

fn ask(cluster: &TestCluster, edge: usize, method: Method, path: &str) -> Value {
    cluster.edges[edge].client().unwrap().json(method, path).unwrap_or_default()
}

fn name(cluster: &TestCluster, edge: usize) -> String {
    ask(cluster, edge, Method::GET, "/v1/edge")["edge"].as_str().unwrap().to_owned()
}

/// The sessions that run on an edge.
fn running(cluster: &TestCluster, edge: usize) -> Vec<String> {
    let list = ask(cluster, edge, Method::GET, "/v1/sessions");
    let rows = list["sessions"].as_array().into_iter().flatten();
    let running = rows.filter(|row| row["phase"] == "running");
    running.map(|row| row["session"].as_str().unwrap().to_owned()).collect()
}

fn wait(cluster: &TestCluster, what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}; {}", cluster.logs.tail(40));
        thread::sleep(Duration::from_millis(10));
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn exchange(stream: &mut TcpStream, what: &[u8]) {
    let mut answer = vec![0; what.len()];
    stream.write_all(what).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, what);
}

/// Starts both agents, with these lists of edges and this field of their configuration. The result is where the client's agent listens.
fn start_agents(cluster: &mut TestCluster, [client, server]: [&[SocketAddr]; 2], learn: &str) -> SocketAddr {
    let listen = marram_cluster::free_address().unwrap();
    let servers = format!("{learn}\nservers = {{ peer = \"{}\" }}", support::serve::echo());
    cluster.start_agent_with(AgentSide::Server, server, &servers).unwrap();
    let tables = format!("{learn}\n[[listen]]\naddress = \"{listen}\"\napp = \"forward\"\n");
    cluster.start_agent_with(AgentSide::Client, client, &tables).unwrap();
    listen
}

/// Moves the only session from edge 0 to edge 1, and kills edge 0.
fn move_and_kill(cluster: &mut TestCluster, client: &mut TcpStream) {
    exchange(client, b"before the move");
    wait(cluster, "the session runs", || running(cluster, 0).len() == 1);
    let (session, to) = (running(cluster, 0).remove(0), name(cluster, 1));
    // Until both agents have wires to that edge, the move is refused.
    wait(cluster, "the session has moved", || {
        ask(cluster, 0, Method::POST, &format!("/v1/sessions/{session}/move/{to}"));
        thread::sleep(Duration::from_millis(50));
        running(cluster, 1) == [session.clone()]
    });
    exchange(client, b"after the move");
    cluster.edges[0].kill();
    exchange(client, b"without the edge that the agents list");
}

#[test]
fn a_session_moves_to_an_edge_that_its_agents_learned_of_and_survives_the_listed_one() {
    let mut cluster = edges("learning", 2, |names| format!("standby = {{ edges = {names:?} }}"));
    let listed = [cluster.edge_addresses()[0]];
    let listen = start_agents(&mut cluster, [&listed, &listed], "");
    let mut client = connect(listen);
    move_and_kill(&mut cluster, &mut client);
    // A new one finds the learned edge, too.
    exchange(&mut connect(listen), b"new");
}

/// The server's agent lists both edges, which do not know of each other. They learn it from that agent, and the client's agent from
/// them.
#[test]
fn edges_learn_of_one_another_from_an_agent_with_wires_to_both() {
    let mut cluster = edges("learning-edges", 2, |_| "standby = { learn = true }".into());
    let both = cluster.edge_addresses();
    let listen = start_agents(&mut cluster, [&both[..1], &both], "learn = true");
    let mut client = connect(listen);
    move_and_kill(&mut cluster, &mut client);
}

/// Neither edge lists the other one: they are registered at the same coordinator, which one of them serves.
#[test]
fn agents_learn_of_edges_that_are_registered_at_the_coordinator() {
    let mut cluster = support::cluster("learning-registered", 2, 2);
    let store = marram_cluster::free_address().unwrap();
    let table = |rest: &str| format!("coordinator = {{ {rest}, lease = \"5s\" }}");
    cluster.start_edge(1, &table(&format!("serve = \"{store}\""))).unwrap();
    cluster.start_edge(0, &table(&format!("urls = [\"http://{store}\"]"))).unwrap();
    let listed = [cluster.edge_addresses()[0]];
    // The agents are ready when they have wires to both.
    let listen = start_agents(&mut cluster, [&listed, &listed], "");
    let mut client = connect(listen);
    exchange(&mut client, b"before");
    wait(&cluster, "the session runs at the edge that is listed", || running(&cluster, 0).len() == 1);
    cluster.edges[0].kill();
    exchange(&mut client, b"without it");
    assert_eq!(running(&cluster, 1).len(), 1);
}

#[test]
fn an_agent_that_is_not_to_learn_uses_its_list_only() {
    let mut cluster = edges("learning-off", 2, |names| format!("standby = {{ edges = {names:?} }}"));
    cluster.edges[1].kill();
    let listed = [cluster.edge_addresses()[0]];
    let listen = start_agents(&mut cluster, [&listed, &listed], "learn = false");
    let names: Vec<String> = cluster.edge_addresses().iter().map(SocketAddr::to_string).collect();
    cluster.start_edge(1, &format!("standby = {{ edges = {names:?} }}")).unwrap();
    let mut client = connect(listen);
    exchange(&mut client, b"hello");
    wait(&cluster, "the session runs", || running(&cluster, 0).len() == 1);
    let (session, to) = (running(&cluster, 0).remove(0), name(&cluster, 1));
    wait(&cluster, "the other edge has said why it cannot take it", || {
        ask(&cluster, 0, Method::POST, &format!("/v1/sessions/{session}/move/{to}"));
        let moves = ask(&cluster, 0, Method::GET, "/v1/moves").to_string();
        moves.contains("is not connected to the edge")
    });
    let known = cluster.logs.all(0, |event| {
        event.name() == "edge_up" && event.text("edge") == cluster.edge_addresses()[1].to_string()
    });
    assert!(known.is_empty(), "no agent has connected to it");
}
