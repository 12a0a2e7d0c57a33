//! Ends of connections and back-pressure: through agents and an edge, a client and its server must see the same of each other as
//! they would directly.

use crate::support;
use marram_cluster::{CellFiles, Layout, TestCluster};
use rustix::net::sockopt::set_socket_linger;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// The most data that may be held for a slow reader: windows, retained messages and the kernels' buffers at every hop.
const HELD_MAX: usize = 96 << 20;

/// One edge, both agents, and a server that this test implements.
struct World {
    cluster: TestCluster,
    server: TcpListener,
    address: SocketAddr,
}

impl World {
    /// Starts an edge, unless `edge_wait` sets how long clients wait for one.
    fn new(edge_wait: Option<&str>) -> Self {
        support::begin();
        let layout = Layout {
            purpose: "ends",
            program: env!("CARGO_BIN_EXE_marram").into(),
            edges: 1,
            shards: 1,
            encrypted: false,
            edge_tables: String::new(),
            agent_tables: format!("[timeouts]\nedge_wait = {:?}\n", edge_wait.unwrap_or("60s")),
            namespaces: false,
            admin: String::new(),
            images: crate::support::images(),
        };
        let cells = CellFiles::find(None).expect("built by `cargo xtask cells`");
        let manifest = "server = \"web\"\nprotect = \"endpoints\"\n";
        let apps = |place: &_| Ok(vec![cells.manifest(place, "forward", "forward", manifest)?]);
        let mut cluster = TestCluster::new(layout, apps).expect("a directory");
        let server = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let addresses = cluster.edge_addresses();
        if edge_wait.is_none() {
            cluster.start_edges("").expect("they start");
            let web = server.local_addr().expect("bound");
            cluster.start_server_agent(&addresses, &[("web", web)]).expect("it starts");
        }
        let listens = cluster.start_client_agent(&addresses, &["forward"]).expect("it starts");
        Self { cluster, server, address: listens[0].address }
    }

    /// Both ends of one connection.
    fn connect(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.address).expect("it listens");
        let (server, _) = self.server.accept().expect("a connection");
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
        }
        (client, server)
    }
}

/// Reads to the end of the stream.
fn all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an end in order");
    bytes
}

fn assert_reset(stream: &mut TcpStream, why: &str) {
    let error = stream.read_to_end(&mut Vec::new()).expect_err(why);
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{why}");
}

#[test]
fn each_direction_ends_on_its_own() {
    let world = World::new(None);
    for client_first in [true, false] {
        let (mut client, mut server) = world.connect();
        let (first, second) =
            if client_first { (&mut client, &mut server) } else { (&mut server, &mut client) };
        first.write_all(b"question").expect("open");
        first.shutdown(Shutdown::Write).expect("open");
        assert_eq!(all(second), b"question");
        second.write_all(&vec![7; 300_000]).expect("the other direction is open");
        second.shutdown(Shutdown::Write).expect("open");
        assert_eq!(all(first), vec![7; 300_000]);
    }
    let (client, mut server) = world.connect();
    drop(client);
    assert_eq!(all(&mut server), b"");
}

#[test]
fn a_failure_on_one_side_is_a_failure_on_the_other() {
    let world = World::new(None);
    for client_fails in [true, false] {
        let (mut client, mut server) = world.connect();
        client.write_all(b"hello").expect("open");
        server.read_exact(&mut [0; 5]).expect("open");
        let (victim, mut other) = if client_fails { (client, server) } else { (server, client) };
        set_socket_linger(&victim, Some(Duration::ZERO)).expect("a socket");
        drop(victim);
        assert_reset(&mut other, "the other side was reset");
    }
}

#[test]
fn a_server_that_is_down_is_a_connection_that_fails() {
    let World { cluster, server, address } = World::new(None);
    drop(server);
    let mut client = TcpStream::connect(address).expect("the agent listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    assert_reset(&mut client, "the server is down");
    let ended = cluster.logs.wait(0, PATIENCE, |event| event.name() == "ended");
    assert_eq!(ended.expect("it is reported").1.text("code"), "ServerDown");
}

#[test]
fn without_an_edge_a_connection_waits_and_then_fails() {
    let world = World::new(Some("1s"));
    let mut client = TcpStream::connect(world.address).expect("the agent listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    client.write_all(b"hello").expect("open");
    assert_reset(&mut client, "no edge could be reached");
    let ended = world.cluster.logs.wait(0, PATIENCE, |event| event.name() == "ended");
    assert_eq!(ended.expect("it is reported").1.text("code"), "NoEdge");
}

#[test]
fn a_slow_reader_stops_the_writer_and_loses_nothing() {
    let world = World::new(None);
    for client_writes in [true, false] {
        let (client, server) = world.connect();
        let (mut writer, mut reader) = if client_writes { (client, server) } else { (server, client) };
        writer.set_write_timeout(Some(Duration::from_secs(1))).expect("a socket");
        let bytes: Vec<u8> =
            (0..1 << 20).map(|at: u32| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let mut sent = 0;
        loop {
            match writer.write(&bytes[sent % bytes.len()..]) {
                Ok(count) => sent += count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(error) => panic!("{error}"),
            }
            assert!(sent < HELD_MAX, "{sent} bytes are held somewhere for a reader that does not read");
        }
        writer.shutdown(Shutdown::Write).expect("open");
        let got = all(&mut reader);
        assert_eq!(got.len(), sent);
        assert!(got.chunks(bytes.len()).all(|chunk| chunk == &bytes[..chunk.len()]));
    }
}

#[test]
fn an_edge_that_comes_back_in_time_saves_the_connection() {
    let mut world = World::new(None);
    let (mut client, mut server) = world.connect();
    client.write_all(b"one").expect("open");
    server.read_exact(&mut [0; 3]).expect("open");
    world.cluster.edges[0].kill();
    client.write_all(b"two").expect("open");
    world.cluster.start_edge(0, "").expect("it starts again");
    let mut two = [0; 3];
    server.read_exact(&mut two).expect("it comes through the new one");
    assert_eq!(&two, b"two");
}
