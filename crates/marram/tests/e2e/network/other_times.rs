//! Peers that are slower than every timeout, or use another version: sessions continue without them, and the log says what is
//! wrong.

use crate::support::{self, counting::Client, etcd::Etcd};
use marram_cluster::{LogEvent, TestCluster, TestProcess, free_address};
use marram_transport::{NotUnderstood, PREAMBLE_SIZE, Preamble, PreambleAnswer, PreambleVerdict};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than an edge waits for its coordinator ([`marram_node::coordinator::PATIENCE`]).
const SLOW: Duration = Duration::from_millis(2_500);

/// A relay to a server, which can delay each piece of the server's answers.
struct Slow {
    address: SocketAddr,
    is_slow: Arc<AtomicBool>,
}

impl Slow {
    fn before(server: SocketAddr) -> Self {
        assert!(SLOW > marram_node::coordinator::PATIENCE);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let slow = Self { address: listener.local_addr().unwrap(), is_slow: Arc::default() };
        let is_slow = Arc::clone(&slow.is_slow);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(server) else { continue };
                let (to, from) = (far.try_clone().unwrap(), near.try_clone().unwrap());
                thread::spawn(move || pass(from, to, &AtomicBool::new(false)));
                let is_slow = Arc::clone(&is_slow);
                thread::spawn(move || pass(far, near, &is_slow));
            }
        });
        slow
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_slow: &AtomicBool) {
    let mut piece = [0; 1 << 14];
    while let Ok(size @ 1..) = from.read(&mut piece) {
        if is_slow.load(Ordering::SeqCst) {
            thread::sleep(SLOW);
        }
        if to.write_all(&piece[..size]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn counting(purpose: &'static str) -> TestCluster {
    let layout = support::layout(purpose, |layout| {
        layout.edges = 2;
        layout.edge_tables = support::PATIENT.into();
    });
    TestCluster::new(layout, |place| {
        Ok(vec![support::cells().manifest(place, "count", "counter", "protect = \"endpoints\"\n")?])
    })
    .unwrap()
}

/// Waits until a process logs all of these words in one line.
fn said(cluster: &TestCluster, start: usize, words: &[&str]) -> LogEvent {
    let says = |event: &LogEvent| words.iter().all(|word| event.fields.to_string().contains(word));
    let found = cluster.logs.wait(start, PATIENCE, says);
    found.unwrap_or_else(|| panic!("no process says {words:?}:\n{}", cluster.logs.tail(30))).1
}

#[test]
fn an_etcd_that_answers_too_late_is_away_and_sessions_go_on() {
    let mut cluster = counting("slow-etcd");
    let etcd = Etcd::start(&cluster.logs, 1);
    let slow = Slow::before(etcd.address(0));
    cluster
        .start_edges(&format!("coordinator = {{ urls = [\"http://{}\"], lease = \"5s\" }}", slow.address))
        .unwrap();
    said(&cluster, 0, &["registered at the coordinator", "A-1"]);
    said(&cluster, 0, &["registered at the coordinator", "B-1"]);
    let mut client = Client::start(&mut cluster);
    let start = cluster.logs.end();
    slow.is_slow.store(true, Ordering::SeqCst);
    let away = said(&cluster, start, &["the coordinator is unreachable", "sessions continue"]);
    assert!(away.fields.to_string().contains("no answer in"), "{}", away.fields);
    client.count();
    let owner = cluster.owner().unwrap();
    let shown = cluster.edges[1 - owner].client().unwrap();
    let shown = || shown.json(hyper::Method::GET, "/v1/coordinator").unwrap();
    // The other edge detects this itself, and takes over the session without the coordinator.
    let other = cluster.edges[1 - owner].who();
    let finds_out = |event: &LogEvent| {
        *event.who == *other && event.text("message").contains("the coordinator is unreachable")
    };
    cluster.logs.wait(start, PATIENCE, finds_out).expect("it is asked by both");
    assert_eq!(shown()["state"], "away");
    cluster.edges[owner].kill();
    client.count();
    let start = cluster.logs.end();
    slow.is_slow.store(false, Ordering::SeqCst);
    said(&cluster, start, &["the coordinator is reachable"]);
    client.count();
}

#[test]
fn a_recorder_of_another_wire_version_is_refused_in_words_and_sessions_go_on() {
    let mut cluster = counting("other-version");
    cluster.start_edges("").unwrap();
    let start = cluster.logs.end();
    let mut client = Client::start(&mut cluster);
    let mut stream = TcpStream::connect(cluster.edges[0].address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut preamble = Preamble { shard: 0, tls: true, token: true }.encode();
    (preamble[4], preamble[5]) = (200, 201);
    assert_eq!(Preamble::decode(preamble), Err(NotUnderstood::Version { oldest: 200, newest: 201 }));
    stream.write_all(&preamble).unwrap();
    let mut answer = [0; PREAMBLE_SIZE];
    stream.read_exact(&mut answer).unwrap();
    let answer = PreambleAnswer::decode(answer).unwrap();
    assert_eq!(answer.verdict, PreambleVerdict::Version);
    assert!((answer.oldest..=answer.newest).contains(&preamble_version()), "{answer:?}");
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "it is closed");
    said(&cluster, start, &["connection refused", "version"]);
    client.count();
}

/// The version that this build uses.
fn preamble_version() -> u8 {
    Preamble { shard: 0, tls: false, token: false }.encode()[5]
}

/// A recorder meets an edge of another version beside one of its own.
#[test]
fn a_recorder_says_which_edge_speaks_another_version_and_serves_the_others() {
    let mut cluster = counting("other-edge");
    cluster.start_edges("").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in other.incoming().map_while(Result::ok) {
            let answer = PreambleAnswer { verdict: PreambleVerdict::Version, oldest: 200, newest: 201 };
            let mut preamble = [0; PREAMBLE_SIZE];
            if stream.read_exact(&mut preamble).is_ok() {
                let _ = stream.write_all(&answer.encode());
            }
        }
    });
    let text = format!(
        "edges = [\"{address}\", \"{}\", \"{}\"]\nsecret_file = \"secret\"\n[security]\ntoken_file = \"token\"\n\
         [admin]\nlisten = \"{}\"\n[log]\nformat = \"json\"\nlevel = \"debug\"\n",
        cluster.edges[0].address(),
        cluster.edges[1].address(),
        free_address().unwrap(),
    );
    let config = cluster.directory.write("recorder.toml", text).unwrap();
    let start = cluster.logs.end();
    let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
    command.arg("recorder").arg("--config").arg(config);
    let errors = cluster.directory.path().join("recorder.stderr");
    let recorder = TestProcess::start("recorder", &mut command, &cluster.logs, &errors).unwrap();
    let told = said(&cluster, start, &["edge_down", "200 to 201"]);
    assert!(told.text("reason").contains("upgrade the older"), "{}", told.fields);
    let up = |event: &LogEvent| *event.who == *"recorder" && event.name() == "edge_up";
    let (first, _) = cluster.logs.wait(start, PATIENCE, up).expect("it serves the other edges");
    cluster.logs.wait(first, PATIENCE, up).expect("both of them");
    let mut client = Client::start(&mut cluster);
    client.count();
    let kept = |event: &LogEvent| *event.who == *"recorder" && event.name() == "recorded";
    cluster.logs.wait(start, PATIENCE, kept).expect("it keeps the session");
    drop(recorder);
}
