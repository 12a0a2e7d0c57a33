//! Programs that embed their end of a session, with real edges that die.

mod messages;

use crate::support;
use marram_cluster::{TestCluster, free_address};
use marram_host::{Client, Connection, ConnectionKind, Event, Server, Settings, Timeouts};
use marram_wire::seeded::Seeded;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(90);

fn settings(cluster: &TestCluster) -> Settings {
    let token = std::fs::read_to_string(cluster.directory.path().join("token")).unwrap();
    let mut settings = Settings::new(cluster.edge_addresses().iter().map(ToString::to_string)).token(&token);
    // Edges that are killed here reset their connections; a slow edge must not be suspected.
    settings.timeouts.heartbeat_timeout = Duration::from_secs(5);
    settings
}

/// Reports of the only session's owner, at its begin and at each move: the edge, and whether another edge owned the session
/// before.
struct Moves {
    told: Receiver<(String, bool)>,
    owner: String,
}

impl Moves {
    /// These settings, with an observer for moves.
    fn of(settings: Settings) -> (Settings, Self) {
        let (sender, told) = channel();
        let settings = settings.observer(move |event| {
            if let Event::Owned { address, gap, .. } = event {
                // The test may have ended.
                let _ = sender.send((address.to_owned(), !gap.is_zero()));
            }
        });
        (settings, Self { told, owner: String::new() })
    }

    /// The first owner of the session.
    fn begun(&mut self, cluster: &TestCluster) -> usize {
        let (owner, moved) = self.told.recv_timeout(PATIENCE).unwrap();
        assert!(!moved, "it is new");
        self.owner = owner;
        self.edge(cluster)
    }

    /// The owner of the session after the previous one died.
    fn moved(&mut self, cluster: &TestCluster) -> usize {
        let (owner, moved) = self.told.recv_timeout(PATIENCE).unwrap();
        assert!(moved && owner != self.owner, "{} is dead, and it is at {owner}", self.owner);
        self.owner = owner;
        self.edge(cluster)
    }

    fn edge(&self, cluster: &TestCluster) -> usize {
        cluster.edges.iter().position(|edge| edge.address().to_string() == self.owner).unwrap()
    }
}

/// A server of this kind that `serve` runs, and a client that is ready, and is closed after `test`. Neither may drop a datagram.
fn between_ends(
    settings: Settings,
    kind: ConnectionKind,
    serve: fn(&Server),
    test: impl FnOnce(&Client, Moves),
) {
    let server = Server::start_as(settings.clone(), &[("peer", kind)]).unwrap();
    server.wait_ready(PATIENCE).unwrap();
    let (settings, moves) = Moves::of(settings);
    thread::scope(|scope| {
        scope.spawn(|| serve(&server));
        let _stops = Stops(&server);
        let client = Client::start(settings).unwrap();
        client.wait_ready(PATIENCE).unwrap();
        test(&client, moves);
        assert_eq!(client.datagrams_dropped(), 0);
        client.close().unwrap();
    });
    assert_eq!(server.datagrams_dropped(), 0);
}

fn cluster(purpose: &'static str, edges: usize) -> TestCluster {
    let mut cluster = support::cluster(purpose, edges, 1);
    cluster.start_edges("").unwrap();
    cluster
}

fn patient(connection: Connection) -> Connection {
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection.set_write_timeout(Some(PATIENCE)).unwrap();
    connection
}

/// The next session's connection.
fn accepted(server: &Server) -> Connection {
    patient(server.accept_timeout(PATIENCE).unwrap().expect("a session comes"))
}

/// Settings with changed timeouts.
fn impatient(change: impl FnOnce(&mut Timeouts)) -> Settings {
    let mut settings = Settings::new(["127.0.0.1:1"]);
    change(&mut settings.timeouts);
    settings
}

/// Stops a server at the end of the test, even if it fails, since another thread waits for the server.
struct Stops<'a>(&'a Server);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Echoes what each client sends, until the server is stopped.
fn serve(server: &Server) {
    for connection in server.incoming() {
        // Ends when its client does.
        thread::spawn(move || std::io::copy(&mut &connection, &mut &connection));
    }
}

#[test]
fn both_ends_in_programs_and_every_byte_is_right_while_edges_die() {
    let mut cluster = cluster("host", 2);
    between_ends(settings(&cluster), ConnectionKind::Stream, serve, |client, mut moves| {
        let connection = patient(client.connect("forward").unwrap());
        let mut random = Seeded::new(7);
        let mut talk = |connection: &Connection, size: usize| {
            let bytes: Vec<u8> = (0..size).map(|_| random.word().to_le_bytes()[0]).collect();
            thread::scope(|scope| {
                scope.spawn(|| { &*connection }.write_all(&bytes).unwrap());
                let mut heard = vec![0; size];
                { connection }.read_exact(&mut heard).unwrap();
                assert_eq!(heard, bytes);
            });
        };
        talk(&connection, 100_000);
        let mut owner = moves.begun(&cluster);
        for _ in 0..3 {
            cluster.edges[owner].kill();
            talk(&connection, 300_000);
            let dead = std::mem::replace(&mut owner, moves.moved(&cluster));
            cluster.start_edge(dead, "").unwrap();
        }
        // After a half-close the data in flight still arrives, and then an orderly end.
        { &connection }.write_all(b"last words").unwrap();
        connection.shutdown_write().unwrap();
        let mut rest = String::new();
        { &connection }.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), connection.failure()), ("last words", None));
    });
}

#[test]
fn what_was_written_is_delivered_before_a_client_is_closed() {
    let cluster = cluster("host-close", 1);
    let server = Server::start(settings(&cluster), "peer").unwrap();
    let client = Client::start(settings(&cluster)).unwrap();
    let connection = patient(client.connect("forward").unwrap());
    let sent: Vec<u8> = (0..3_000_000u32).map(|at| at.to_le_bytes()[1]).collect();
    thread::scope(|scope| {
        let taken = scope.spawn(|| {
            let mut taken = Vec::new();
            accepted(&server).read_to_end(&mut taken).unwrap();
            taken
        });
        { &connection }.write_all(&sent).unwrap();
        drop(connection);
        client.close().unwrap();
        assert!(taken.join().unwrap() == sent, "3 MB arrive whole");
    });
}

#[test]
fn a_client_that_is_closed_at_once_has_said_what_it_said() {
    let cluster = cluster("host-brief", 1);
    let server = Server::start(settings(&cluster), "peer").unwrap();
    server.wait_ready(PATIENCE).unwrap();
    for round in 0..30_u8 {
        let client = Client::start(settings(&cluster)).unwrap();
        let mut connection = client.connect("forward").unwrap();
        connection.write_all(&[round; 100]).unwrap();
        drop(connection);
        thread::scope(|scope| {
            let closes = [0, 1].map(|_| {
                let client = client.clone();
                scope.spawn(move || client.close())
            });
            let mut taken = Vec::new();
            accepted(&server).read_to_end(&mut taken).unwrap();
            assert_eq!(taken, [round; 100]);
            closes.into_iter().for_each(|close| close.join().unwrap().unwrap());
        });
    }
    server.stop();
    server.close().unwrap();
}

#[test]
fn failures_are_distinguished_from_ends_with_reasons() {
    let cluster = cluster("host-fails", 1);
    let mut settings = settings(&cluster);
    settings.timeouts.drain = Duration::from_millis(300);
    let server = Server::start(settings.clone(), "peer").unwrap();
    server.wait_ready(PATIENCE).unwrap();
    let client = Client::start(settings.clone()).unwrap();
    // An app that does not exist.
    let connection = patient(client.connect("nonesuch").unwrap());
    let error = { &connection }.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(error.to_string().contains("nonesuch") && error.to_string().contains("session "), "{error}");
    // The client aborts; the server's program learns that this is not an orderly end.
    let connection = client.connect("forward").unwrap();
    { &connection }.write_all(b"x").unwrap();
    let taken = accepted(&server);
    { &taken }.read_exact(&mut [0; 1]).unwrap();
    connection.abort();
    let error = { &taken }.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(taken.failure().is_some());
    // This holds even if the client had already sent everything.
    let connection = client.connect("forward").unwrap();
    { &connection }.write_all(b"x").unwrap();
    connection.shutdown_write().unwrap();
    let taken = accepted(&server);
    assert_eq!({ &taken }.read_to_end(&mut Vec::new()).unwrap(), 1);
    connection.abort();
    loop {
        // The error appears at the write after the one that detects it.
        match { &taken }.write_all(b"y") {
            Ok(()) => thread::yield_now(),
            Err(error) => break assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
    }
    // More data than the library buffers without an edge: it is lost with the session, and the program gets the reason.
    let nowhere = free_address().unwrap();
    let mut elsewhere = settings.clone();
    elsewhere.edges = vec![nowhere.to_string()];
    elsewhere.timeouts.edge_wait = Duration::from_millis(300);
    let lost = Client::start(elsewhere).unwrap().connect("forward").unwrap();
    lost.set_read_timeout(Some(PATIENCE)).unwrap();
    thread::scope(|scope| {
        let written = scope.spawn(|| { &lost }.write_all(&vec![0; 64 << 20]));
        let error = { &lost }.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        assert!(error.to_string().starts_with("session "), "{error}");
        let error = written.join().unwrap().unwrap_err();
        assert!(error.to_string().starts_with("session "), "{error}");
    });
    // The agent in this program is stopped while a session is open.
    let connection = patient(client.connect("forward").unwrap());
    assert_eq!(client.clone().close().unwrap_err().kind(), ErrorKind::TimedOut);
    let error = { &connection }.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
    assert!(error.to_string().contains("has stopped"), "{error}");
    assert_eq!(client.connect("forward").unwrap_err().kind(), ErrorKind::NotConnected);
}

#[test]
fn many_connections_at_once_and_wrong_settings_are_named() {
    let cluster = cluster("host-wrong", 1);
    for (settings, says) in [
        (Settings::new(Vec::<String>::new()), "no edge is configured"),
        (Settings::new(["edge"]), "host:port"),
        (impatient(|timeouts| timeouts.peer_unreachable = Duration::ZERO), "timeouts.peer_unreachable"),
        (impatient(|timeouts| timeouts.heartbeat_timeout = timeouts.heartbeat_interval), "two heartbeats"),
    ] {
        let error = Client::start(settings).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    // A token other than the domain's.
    let wrong =
        Client::start(Settings::new([cluster.edge_addresses()[0].to_string()]).token(&"x".repeat(32)));
    let wrong = wrong.unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        let error = wrong.wait_ready(Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        // The edge's refusal may take a while to arrive.
        if error.to_string().contains("token") {
            break;
        }
        assert!(Instant::now() < until, "{error}");
    }
    // Many clients at once, each with its own data.
    let server = Server::start(settings(&cluster), "peer").unwrap();
    server.wait_ready(PATIENCE).unwrap();
    let client = Client::start(settings(&cluster)).unwrap();
    let mut connections: BTreeMap<u32, Connection> =
        (0..200).map(|number| (number, patient(client.connect("forward").unwrap()))).collect();
    for (number, connection) in &mut connections {
        connection.write_all(&number.to_le_bytes()).unwrap();
    }
    for _ in 0..200 {
        let mut taken = accepted(&server);
        let mut number = [0; 4];
        taken.read_exact(&mut number).unwrap();
        taken.write_all(&number).unwrap();
        let mut heard = [0; 4];
        let number = u32::from_le_bytes(number);
        connections.remove(&number).expect("once").read_exact(&mut heard).unwrap();
        assert_eq!(u32::from_le_bytes(heard), number);
    }
    assert!(server.accept_timeout(Duration::from_millis(1)).unwrap().is_none());
}
