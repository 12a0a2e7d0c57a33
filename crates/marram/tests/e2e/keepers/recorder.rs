//! Running recorders: sessions are stored, recalled, and continue while the recorder is killed, frozen or has damaged files; no
//! byte is lost or repeated.

use crate::support;
use bytes::Bytes;
use hyper::Method;
use marram_cluster::{LogEvent, RECORDER, TestCluster};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that echoes what it receives.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
        }
    });
    address
}

/// Two edges, a recorder, and one session.
struct World {
    cluster: TestCluster,
    client: TcpStream,
    said: u64,
}

impl World {
    fn new(purpose: &'static str, extra: &str) -> Self {
        let mut cluster = support::cluster_with(purpose, |layout| {
            layout.edges = 2;
            layout.edge_tables = support::PATIENT.into();
        });
        cluster.start_edges("").unwrap();
        cluster.start_recorder(extra, support::PATIENT).unwrap();
        let edges = cluster.edge_addresses();
        cluster.start_server_agent(&edges, &[("peer", echo())]).unwrap();
        let address = cluster.start_client_agent(&edges, &["forward"]).unwrap()[0].address;
        let client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut world = Self { cluster, client, said: 0 };
        world.talk(20);
        world.wait("recorded", 0);
        world
    }

    /// Sends `count` different messages, and receives each of them once.
    fn talk(&mut self, count: u64) {
        for _ in 0..count {
            self.said += 1;
            let mut said = vec![0; 1_000];
            said[..8].copy_from_slice(&self.said.to_le_bytes());
            self.client.write_all(&said).unwrap();
            let mut heard = vec![1; said.len()];
            self.client.read_exact(&mut heard).unwrap();
            assert_eq!(heard, said, "message {}", self.said);
        }
    }

    /// Waits for an event of the recorder.
    fn wait(&self, name: &str, start: usize) -> LogEvent {
        let found =
            self.cluster.logs.wait(start, PATIENCE, |event| *event.who == *RECORDER && event.name() == name);
        found.unwrap_or_else(|| panic!("no `{name}`:\n{}", self.cluster.logs.tail(30))).1
    }

    /// Kills the owner, and waits until the session runs elsewhere.
    fn kill_owner(&mut self) -> usize {
        let (owner, start) = (self.cluster.owner().unwrap(), self.cluster.logs.end());
        self.cluster.edges[owner].kill();
        self.talk(1);
        self.cluster.wait_for_owner(start).unwrap();
        start
    }

    /// The sessions that the recorder lists.
    fn sessions(&self) -> Vec<Value> {
        let client = self.cluster.recorder.as_ref().unwrap().client().unwrap();
        let listed = client.json(Method::GET, "/v1/sessions").unwrap();
        listed["sessions"].as_array().unwrap().clone()
    }

    /// Polls until a figure has this value at least, since the recorder receives data asynchronously.
    fn until_figure(&self, name: &str, least: u64) {
        let until = Instant::now() + PATIENCE;
        while self.figure(name) < least {
            assert!(Instant::now() < until, "{name} stays {}", self.figure(name));
            thread::yield_now();
        }
    }

    fn figure(&self, name: &str) -> u64 {
        let client = self.cluster.recorder.as_ref().unwrap().client().unwrap();
        let text = client.call(Method::GET, "/metrics", Bytes::new()).unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("marram_recorder_{name}{{")));
        line.unwrap_or_else(|| panic!("{name} in {text}")).rsplit_once(' ').unwrap().1.parse().unwrap()
    }
}

#[test]
fn an_edge_that_recovers_a_session_takes_it_from_the_recorder() {
    let mut world = World::new("recalled", "");
    world.talk(50);
    world.until_figure("inputs_total", 50);
    let start = world.kill_owner();
    // How much it is depends on how lately a checkpoint has covered the messages.
    assert!(world.wait("recalled", start).number("bytes") > 0);
    // The next owner sends its data to the recorder too.
    world.wait("recorded", start);
    world.talk(50);
    world.until_figure("recalls_total", 1);
    // The recorder removes a session that has ended.
    let end = world.cluster.logs.end();
    world.client.shutdown(std::net::Shutdown::Both).unwrap();
    world.wait("forgotten", end);
    assert_eq!(world.sessions(), Vec::<Value>::new());
}

#[test]
fn a_recorder_that_is_killed_or_frozen_costs_nothing_but_time() {
    let mut world = World::new("frozen", "");
    world.cluster.recorder.as_mut().unwrap().process().signal(Signal::STOP);
    world.talk(20);
    world.kill_owner();
    world.talk(20);
    let owner = world.cluster.owner().unwrap();
    let other = 1 - owner;
    world.cluster.respawn(other).unwrap();
    world.cluster.recorder = None;
    world.kill_owner();
    world.talk(20);
    // A new, empty recorder receives the sessions at once.
    let start = world.cluster.logs.end();
    world.cluster.start_recorder("", support::PATIENT).unwrap();
    world.wait("recorded", start);
    world.talk(20);
}

#[test]
fn what_lies_on_disk_is_read_back_and_damage_refused_by_name_and_place() {
    let mut world = World::new("kept", "directory = \"kept\"");
    world.talk(50);
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    // All edges are killed first, so that no edge sends the next recorder any data; the owner last, so that no edge begins a
    // recovery.
    let (owner, start) = (world.cluster.owner().unwrap(), world.cluster.logs.end());
    for index in [1 - owner, owner] {
        world.cluster.edges[index].kill();
    }
    let mut down = BTreeSet::new();
    let both = |event: &LogEvent| {
        if *event.who == *RECORDER && event.name() == "edge_down" {
            down.insert(event.text("edge").to_owned());
        }
        down.len() == 2
    };
    world.cluster.logs.wait(start, PATIENCE, both).unwrap();
    let before = world.sessions();
    let start = world.cluster.logs.end();
    world.cluster.recorder.as_mut().unwrap().process().signal(Signal::TERM);
    assert!(world.cluster.recorder.as_mut().unwrap().process().wait().unwrap().success());
    world.cluster.start_recorder("directory = \"kept\"", support::PATIENT).unwrap();
    assert_eq!(world.wait("restored", start).number("sessions"), 1);
    let (before, after) = (&before[0], &world.sessions()[0]);
    assert_eq!(after["phase"], "orphaned", "{after}");
    for field in ["session", "generation", "log_bytes", "message_bytes", "checkpoint_bytes"] {
        assert_eq!(before[field], after[field], "{field}");
    }

    world.cluster.recorder = None;
    let file = world.cluster.directory.path().join("kept").join(format!("{session}.kept"));
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[60] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let start = world.cluster.logs.end();
    world.cluster.start_recorder("directory = \"kept\"", support::PATIENT).unwrap();
    assert_eq!(world.wait("restored", start).number("refused"), 1);
    let refused =
        world.cluster.logs.wait(start, PATIENCE, |event| event.text("file").ends_with(".kept")).unwrap().1;
    assert!(refused.text("message").contains("offset 32"), "{}", refused.fields);
    assert_eq!(world.sessions(), Vec::<Value>::new());
}

#[test]
fn a_recorder_of_another_domain_is_refused_and_nothing_else_happens() {
    let mut cluster = support::cluster("foreign", 1, 1);
    cluster.start_edges("").unwrap();
    let start = cluster.logs.end();
    cluster.directory.write("other-secret", "0123456789abcdef0123456789abcdef").unwrap();
    let text = format!(
        "edges = [\"{}\"]\nsecret_file = \"other-secret\"\n[security]\ntoken_file = \"token\"\n[admin]\nlisten = \"{}\"\n\
         [log]\nformat = \"json\"\nlevel = \"debug\"\n",
        cluster.edges[0].address(),
        marram_cluster::free_address().unwrap(),
    );
    let config = cluster.directory.write("foreign.toml", text).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_marram"));
    command.arg("recorder").arg("--config").arg(config);
    let errors = cluster.directory.path().join("foreign.stderr");
    let foreign =
        marram_cluster::TestProcess::start("foreign", &mut command, &cluster.logs, &errors).unwrap();
    let told = |event: &LogEvent| *event.who == *"foreign" && event.name() == "edge_down";
    let told = cluster.logs.wait(start, PATIENCE, told).expect("it is told").1;
    assert!(told.text("reason").contains("secret"), "{}", told.fields);
    drop(foreign);
}
