//! One cell that many clients share, with real processes: a client that does not read delays only itself.

use crate::support;
use marram_cluster::{AgentSide, LogEvent, TestCluster};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const ITEM: usize = 256 << 10;

/// A client of the memcached cell.
struct Client(TcpStream);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Stores an item of [`ITEM`] bytes.
    fn store(&mut self, key: &str) {
        self.0.write_all(&set(key)).unwrap();
        let mut answer = [0; 8];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"STORED\r\n");
    }

    /// Reads this many bytes of the other side's answer.
    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut heard = vec![0; len];
        self.0.read_exact(&mut heard).unwrap();
        heard
    }

    fn version(&mut self) {
        self.0.write_all(b"version\r\n").unwrap();
        assert_eq!(self.read(7), b"VERSION");
        let mut rest = [0; 1];
        while rest != [b'\n'] {
            self.0.read_exact(&mut rest).unwrap();
        }
    }
}

fn set(key: &str) -> Vec<u8> {
    [format!("set {key} 0 0 {ITEM}\r\n").as_bytes(), &[b'x'; ITEM], b"\r\n"].concat()
}

/// The length of the answer to `get` for one item.
fn answer(key: &str) -> usize {
    format!("VALUE {key} 0 {ITEM}\r\n").len() + ITEM + b"\r\nEND\r\n".len()
}

fn cache(purpose: &'static str) -> (TestCluster, SocketAddr) {
    let cells = support::cells();
    let rest = "cell = \"shared\"\nprotect = \"none\"\n";
    let apps = |place: &_| Ok(vec![cells.manifest(place, "cache", "memcached", rest)?]);
    let mut cluster = TestCluster::new(support::layout(purpose, |_| ()), apps).unwrap();
    cluster.start_edges("").unwrap();
    let listens = cluster.start_client_agent(&cluster.edge_addresses(), &["cache"]).unwrap();
    (cluster, listens[0].address)
}

#[test]
fn a_client_that_lets_megabytes_wait_is_cut_off_with_the_reason_and_the_others_go_on() {
    let (cluster, address) = cache("shared-cut");
    let mut other = Client::connect(address);
    other.store("a");
    let mut slow = Client::connect(address);
    // One request with an answer of 32 MiB, which the client does not read.
    slow.0.write_all(format!("get{}\r\n", " a".repeat(128)).as_bytes()).unwrap();
    let told = |event: &LogEvent| {
        TestCluster::is_report(AgentSide::Client, "ended", event)
            && event.text("reason").contains("reads too slowly")
    };
    cluster.logs.wait(0, PATIENCE, told).expect("its agent says why");
    let mut buffer = vec![0; 1 << 20];
    let mut heard = 0;
    let end = loop {
        match slow.0.read(&mut buffer) {
            Ok(0) => break None,
            Ok(count) => heard += count,
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(end, Some(ErrorKind::ConnectionReset), "a reset: what it has is not all, after {heard} bytes");
    assert!(heard < 128 * ITEM, "{heard}");
    other.version();
}

#[test]
fn a_client_that_asks_faster_than_it_reads_is_pressed_back_and_loses_nothing() {
    const ROUNDS: usize = 200;
    let (cluster, address) = cache("shared-press");
    let mut client = Client::connect(address);
    client.store("a");
    // Each round sends an item and requests one: in total more than all buffers hold. The answers are not read until writing is
    // stuck.
    let mut writer = client.0.try_clone().unwrap();
    let (stuck, is_stuck) = std::sync::mpsc::channel();
    let writing = std::thread::spawn(move || {
        let request = [set("b"), b"get a\r\n".to_vec()].concat();
        writer.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        for _ in 0..ROUNDS {
            let mut rest = &request[..];
            while !rest.is_empty() {
                match writer.write(rest) {
                    Ok(count) => rest = &rest[count..],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => drop(stuck.send(())),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    is_stuck.recv_timeout(PATIENCE).expect("it is pressed back");
    Client::connect(address).version();
    for round in 0..ROUNDS {
        let heard = client.read(b"STORED\r\n".len() + answer("a"));
        assert!(heard.starts_with(b"STORED\r\nVALUE a ") && heard.ends_with(b"END\r\n"), "{round}");
    }
    writing.join().unwrap();
    let ended = |event: &LogEvent| {
        TestCluster::is_report(AgentSide::Client, "ended", event) && event.text("code") != "Finished"
    };
    assert_eq!(cluster.logs.count(0, ended), 0, "no one was cut off");
}
