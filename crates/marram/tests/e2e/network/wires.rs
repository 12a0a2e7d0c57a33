//! How an edge treats peers that are not agents, or that violate the protocol: real sockets, real program.

use crate::support;
use bytes::BytesMut;
use marram_cluster::{Layout, LogEvent, TestCluster};
use marram_transport::{AgentKey, plain_answer};
use marram_wire::frame::{Frame, Greet, Ping, Reader};
use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Versions 1 to 1, shard 0, no TLS, no token.
const PREAMBLE: &[u8] = b"MARM\x01\x01\x00\x00";
const WELCOME: &[u8] = b"MARM\x00\x01\x02\x00";

/// One edge without apps; its only peers are these tests.
fn edge(encrypted: bool, tables: &str) -> TestCluster {
    support::begin();
    let layout = Layout {
        purpose: "wires",
        program: env!("CARGO_BIN_EXE_marram").into(),
        edges: 1,
        shards: 1,
        encrypted,
        edge_tables: tables.into(),
        agent_tables: String::new(),
        namespaces: false,
        admin: String::new(),
        images: crate::support::images(),
    };
    let mut cluster = TestCluster::new(layout, |_| Ok(Vec::new())).expect("a directory");
    cluster.start_edge(0, "").expect("it starts");
    wait(&cluster, "cell pool ready", "");
    cluster
}

/// Waits for a log line with this message and with `says` in its `why` or `error`.
fn wait(cluster: &TestCluster, message: &str, says: &str) -> LogEvent {
    let wanted = |event: &LogEvent| {
        let why = format!("{}{}", event.text("why"), event.text("error"));
        event.text("message") == message && why.contains(says)
    };
    let found = cluster.logs.wait(0, PATIENCE, wanted);
    found
        .unwrap_or_else(|| panic!("no {message:?} with {says:?}; the last lines:\n{}", cluster.logs.tail(20)))
        .1
}

fn connect(cluster: &TestCluster) -> TcpStream {
    let stream = TcpStream::connect(cluster.edges[0].address()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// All bytes that the edge sends until it closes the connection.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => {}
        // If the edge has not read all of our bytes, its kernel resets the connection.
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    all
}

/// A wire up to the edge's welcome; every byte is sent separately.
fn agent(cluster: &TestCluster) -> (TcpStream, Reader) {
    let mut stream = connect(cluster);
    stream.set_nodelay(true).expect("a socket");
    let write = |mut stream: &TcpStream, bytes: &[u8]| {
        bytes.iter().for_each(|byte| stream.write_all(&[*byte]).expect("open"));
    };
    write(&stream, PREAMBLE);
    let nonce = nonce(&mut stream);
    let answer = plain_answer(&AgentKey::generate().expect("random"), None, nonce);
    let greet = Greet { version_oldest: 1, version_newest: 1, servers: Vec::new() };
    write(&stream, &[&answer, &Frame::from(greet).to_bytes()[..]].concat());
    let mut reader = Reader::default();
    let frame = next(&mut stream, &mut reader);
    assert!(matches!(frame, Frame::Welcome(_)), "{frame:?}");
    (stream, reader)
}

/// The edge's first bytes to an accepted agent.
fn nonce(stream: &mut TcpStream) -> [u8; 32] {
    let (mut welcome, mut nonce) = (vec![0; WELCOME.len()], [0; 32]);
    stream.read_exact(&mut welcome).expect("an answer");
    assert_eq!(welcome, WELCOME);
    stream.read_exact(&mut nonce).expect("a nonce");
    nonce
}

/// The next frame, unless it is one that tells of edges.
fn next(stream: &mut TcpStream, reader: &mut Reader) -> Frame {
    loop {
        match reader.next_frame().expect("well-formed") {
            Some(Frame::Edges(_)) => continue,
            Some(frame) => return frame,
            None => {}
        }
        let mut bytes = [0; 65_536];
        let count = stream.read(&mut bytes).expect("open");
        assert_ne!(count, 0, "the edge closed");
        reader.buffer.extend_from_slice(&bytes[..count]);
    }
}

#[test]
fn unknown_peers_are_sent_away_in_words_and_agents_still_get_in() {
    let cluster = edge(false, "");
    let mut browser = connect(&cluster);
    browser.write_all(b"GET / HTTP/1.1\r\nHost: edge\r\n\r\n").expect("open");
    assert_eq!(rest(browser), b"");
    wait(&cluster, "connection refused", "not an agent's");
    drop(connect(&cluster));
    wait(&cluster, "connection refused", "before its first bytes");
    for (preamble, answer, says) in [
        (&b"MARM\x07\x09\x00\x00"[..], &b"MARM\x01\x01\x02\x00"[..], "upgrade the older"),
        (b"MARM\x01\x01\x00\x01", b"MARM\x03\x01\x02\x00", "cannot encrypt"),
        (b"MARM\x01\x01\x00\x02", b"MARM\x05\x01\x02\x00", "the edge has none"),
    ] {
        let mut stream = connect(&cluster);
        stream.write_all(preamble).expect("open");
        assert_eq!(rest(stream), answer);
        wait(&cluster, "connection refused", says);
    }
    let (mut stream, mut reader) = agent(&cluster);
    stream.write_all(&Frame::from(Ping { stamp: 7 }).to_bytes()).expect("open");
    let pong = next(&mut stream, &mut reader);
    assert!(matches!(&pong, Frame::Pong(pong) if pong.stamp == 7), "{pong:?}");
}

#[test]
fn an_edge_with_a_token_refuses_agents_without_one() {
    let cluster = edge(true, "");
    let mut stream = connect(&cluster);
    stream.write_all(PREAMBLE).expect("open");
    assert_eq!(rest(stream), b"MARM\x04\x01\x02\x00");
    wait(&cluster, "connection refused", "requires a token");
    // A wrong token: without TLS, the proof is a digest over two nonces.
    let mut stream = connect(&cluster);
    stream.write_all(b"MARM\x01\x01\x00\x02").expect("open");
    let nonce = nonce(&mut stream);
    let key = AgentKey::generate().expect("random");
    stream.write_all(&plain_answer(&key, Some("another token"), nonce)).expect("open");
    assert_eq!(rest(stream), [0]);
    wait(&cluster, "wire refused", "different tokens");
}

#[test]
fn frames_that_are_none_end_the_wire() {
    let cluster = edge(false, "");
    for (bytes, says) in [
        (&[0xff, 0xff, 0xff, 0x7f][..], "claims to be larger"),
        (&[3, 0xee, 1, 2], "cannot be decoded"),
        (&[0], "cannot be decoded"),
    ] {
        let (mut stream, _) = agent(&cluster);
        stream.write_all(bytes).expect("open");
        assert_eq!(rest(stream), b"", "{says}");
        wait(&cluster, "wire failed", says);
    }
    agent(&cluster);
}

#[test]
fn the_silent_are_sent_away_after_a_time_and_when_they_are_many() {
    let cluster = edge(false, "[limits]\nhandshake = \"2s\"\nhalf_open = 3\n");
    let mut silent: Vec<_> = (0..4).map(|_| connect(&cluster)).collect();
    let oldest = silent.remove(0);
    assert_eq!(rest(oldest), b"");
    wait(&cluster, "connection refused", "it was the oldest");
    silent[0].write_all(b"MAR").expect("open");
    for stream in silent {
        assert_eq!(rest(stream), b"");
    }
    wait(&cluster, "connection refused", "in time");
}

#[test]
fn a_peer_that_does_not_read_is_not_read_from() {
    let cluster = edge(false, "");
    let (mut stream, mut reader) = agent(&cluster);
    // The edge answers each ping with as many bytes. Once 8 MiB of answers wait, it stops reading, and the kernel's buffers fill.
    // This may take any time, so the test writes until it has been blocked for a while.
    stream.set_write_timeout(Some(Duration::from_secs(2))).expect("a socket");
    let mut pings = BytesMut::new();
    let per_batch = 8192;
    (0..per_batch).for_each(|_| pings.extend_from_slice(&Frame::from(Ping { stamp: u64::MAX }).to_bytes()));
    let (mut sent, limit) = (0, 128 << 20);
    loop {
        match stream.write(&pings[sent % pings.len()..]) {
            Ok(count) => sent += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(sent < limit, "the edge has taken {sent} bytes whose answers no one reads");
    }
    // Once the test reads the answers, all of them arrive.
    let size = pings.len() / per_batch;
    for _ in 0..sent / size {
        let pong = next(&mut stream, &mut reader);
        assert!(matches!(&pong, Frame::Pong(pong) if pong.stamp == u64::MAX), "{pong:?}");
    }
}
