//! New sessions go to the least loaded of several edges.

use crate::support;
use marram_cluster::{TestCluster, TestEdge};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that repeats the first byte of each connection and keeps the connection.
fn server() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut connections = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut byte = [0];
            if stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {
                connections.push(stream);
            }
        }
    });
    address
}

/// A client that was answered: its session has an owner.
fn client(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    stream
}

fn sessions(edge: &TestEdge) -> usize {
    let list = edge.client().unwrap().json(hyper::Method::GET, "/v1/sessions").unwrap();
    list["sessions"].as_array().unwrap().len()
}

/// Clients connect until every edge has a session. Returns them.
fn fill(cluster: &TestCluster, address: SocketAddr) -> Vec<TcpStream> {
    let (mut clients, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    // A busy machine may make one edge seem farther away than the other for a while.
    while cluster.edges.iter().any(|edge| sessions(edge) == 0) {
        assert!(Instant::now() < deadline, "{} sessions are all at one edge", clients.len());
        clients.push(client(address));
    }
    clients
}

#[test]
fn new_sessions_go_to_every_edge_and_to_one_that_lives() {
    let mut cluster = support::cluster("spread", 2, 1);
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("peer", server())]).unwrap();
    let address = cluster.start_client_agent(&edges, &["forward"]).unwrap()[0].address;
    let mut clients = fill(&cluster, address);
    cluster.edges[1].kill();
    clients.push(client(address));
}
