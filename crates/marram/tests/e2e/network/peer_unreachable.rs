//! The machine of a client disappears without a packet: the client's sessions end, and their cells with them. Sessions of clients
//! that are only idle, or do not read, continue.

use crate::support;
use marram_cluster::{AgentSide, Namespace, TestCluster};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// More than the sockets between a server and a client that does not read can hold.
const FLOOD: usize = 64 << 20;

/// A server, and the connections that it accepts.
fn server() -> (SocketAddr, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, connections) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            if sender.send(stream).is_err() {
                return;
            }
        }
    });
    (address, connections)
}

struct World {
    cluster: TestCluster,
    /// The addresses for clients on this machine, and for those in the namespace.
    near: SocketAddr,
    far: SocketAddr,
    servers: Receiver<TcpStream>,
    /// The clients' other machine.
    away: Namespace,
}

impl World {
    /// `None` if this process may not make namespaces.
    fn new(purpose: &'static str) -> Option<Self> {
        if !Namespace::possible() {
            support::skip::skip("it takes the right to make network namespaces");
            return None;
        }
        let away = Namespace::new().unwrap();
        let mut cluster = support::cluster_with(purpose, |layout| {
            layout.agent_tables += "peer_unreachable = \"2s\"\n";
        });
        cluster.start_edges("").unwrap();
        let edges = cluster.edge_addresses();
        let (server, servers) = server();
        cluster.start_server_agent(&edges, &[("peer", server)]).unwrap();
        let port = marram_cluster::free_address().unwrap().port();
        let far = SocketAddr::new(away.gateway().into(), port);
        let near = marram_cluster::free_address().unwrap();
        let listen = |address| format!("[[listen]]\naddress = \"{address}\"\napp = \"forward\"\n");
        let tables = [near, far].map(listen).concat();
        cluster.start_agent_with(AgentSide::Client, &edges, &tables).unwrap();
        Some(Self { cluster, near, far, servers, away })
    }

    /// A client that has sent something, its connection at the server, and its session.
    fn converse(&self, connect: impl FnOnce() -> TcpStream) -> (TcpStream, TcpStream, String) {
        // Its session may begin as soon as it is connected.
        let start = self.cluster.logs.end();
        let mut client = connect();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"hi").unwrap();
        let mut server = self.servers.recv_timeout(PATIENCE).unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        server.read_exact(&mut [0; 2]).unwrap();
        let owned = self
            .cluster
            .logs
            .wait(start, PATIENCE, |event| TestCluster::is_report(AgentSide::Client, "owned", event));
        (client, server, owned.unwrap().1.text("session").to_owned())
    }

    fn far(&self) -> (TcpStream, TcpStream, String) {
        self.converse(|| self.away.connect(self.far).unwrap())
    }

    fn near(&self) -> (TcpStream, TcpStream, String) {
        self.converse(|| TcpStream::connect(self.near).unwrap())
    }

    fn wait_for_end(&self, session: &str) {
        let ended = |event: &marram_cluster::LogEvent| {
            TestCluster::is_report(AgentSide::Client, "ended", event) && event.text("session") == session
        };
        self.cluster.logs.wait(0, PATIENCE, ended).expect("its client is gone");
    }
}

#[test]
fn a_silent_client_on_a_lost_machine_is_detected() {
    let Some(world) = World::new("vanished-silent") else { return };
    let (mut client, mut server, alive) = world.near();
    let (_gone, mut its_server, session) = world.far();
    world.away.cut().unwrap();
    world.wait_for_end(&session);
    assert_ne!(session, alive);
    assert!(!matches!(its_server.read(&mut [0; 1]), Ok(1..)), "its server learns of it too");
    // The other client was idle for as long, and its machine is reachable.
    client.write_all(b"yes").unwrap();
    let mut heard = [0; 3];
    server.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"yes");
}

#[test]
fn a_client_on_a_lost_machine_is_detected_while_it_is_sent_data() {
    let Some(world) = World::new("vanished-told") else { return };
    let (_gone, mut server, session) = world.far();
    world.away.cut().unwrap();
    // In flight to a client that will never acknowledge it: the kernel would retry for a quarter of an hour.
    server.write_all(b"are you there").unwrap();
    world.wait_for_end(&session);
}

#[test]
fn a_client_that_is_there_and_does_not_read_is_waited_for() {
    let Some(world) = World::new("vanished-slow") else { return };
    let (mut slow, mut server, _) = world.near();
    let (_gone, _its_server, session) = world.far();
    let (full, is_full) = channel();
    let writer = thread::spawn(move || {
        server.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let (mut written, mut told) = (0, false);
        while written < FLOOD {
            match server.write(&[7; 65_536][..(FLOOD - written).min(65_536)]) {
                Ok(count) => written += count,
                // Nothing more fits: from now on the kernel probes the client's window, which stays closed.
                Err(_) if !told => told = full.send(()).is_ok(),
                Err(_) => {}
            }
        }
        written
    });
    is_full.recv_timeout(PATIENCE).expect("the client does not read");
    // A client that is gone is detected; in the same time a client that only does not read is not treated as gone.
    world.away.cut().unwrap();
    world.wait_for_end(&session);
    let mut read = 0;
    let mut buffer = vec![0; 1 << 20];
    while read < FLOOD {
        match slow.read(&mut buffer).expect("it was waited for") {
            0 => break,
            count => read += count,
        }
    }
    assert_eq!(writer.join().unwrap(), read, "not a byte is lost");
}
