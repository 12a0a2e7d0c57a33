//! Shard processes die, supervisors die, operators stop edges: the effects on sessions and processes.

use crate::support;
use marram_cluster::{CellFiles, Layout, LogEvent, TestCluster};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that echoes what it receives.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let (mut from, mut to) = (stream.try_clone().expect("a descriptor"), stream);
                // Ends when the client, or at the end of the test its agent, closes the connection.
                let _ = std::io::copy(&mut from, &mut to);
            });
        }
    });
    address
}

/// Edges with `forward` under this manifest, both agents, an echoing server, and the address for clients.
fn world(edges: usize, manifest: &str) -> (TestCluster, SocketAddr) {
    support::begin();
    let layout = Layout {
        purpose: "shards",
        program: env!("CARGO_BIN_EXE_marram").into(),
        edges,
        shards: 2,
        encrypted: true,
        edge_tables: String::new(),
        // A killed process resets its connections; a process that is only slow must not lose its sessions.
        agent_tables: "[timeouts]\nsuspect_after = \"2s\"\n".into(),
        namespaces: false,
        admin: String::new(),
        images: crate::support::images(),
    };
    let cells = CellFiles::find(None).expect("built by `cargo xtask cells`");
    let manifest = format!("server = \"web\"\n{manifest}");
    let apps = |place: &_| Ok(vec![cells.manifest(place, "forward", "forward", &manifest)?]);
    let mut cluster = TestCluster::new(layout, apps).expect("a directory");
    cluster.start_edges("").expect("they start");
    let addresses = cluster.edge_addresses();
    cluster.start_server_agent(&addresses, &[("web", echo())]).expect("it starts");
    let listens = cluster.start_client_agent(&addresses, &["forward"]).expect("it starts");
    let address = listens[0].address;
    (cluster, address)
}

struct Client {
    stream: TcpStream,
    said: u32,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut client = Self { stream, said: 0 };
        client.talk();
        client
    }

    /// Sends new data and receives it again.
    fn talk(&mut self) {
        self.said += 1;
        let words = self.said.to_le_bytes().repeat(1_000);
        self.stream.write_all(&words).expect("open");
        let mut heard = vec![0; words.len()];
        self.stream.read_exact(&mut heard).expect("open");
        assert_eq!(heard, words, "after {} rounds", self.said);
    }
}

/// The numbers and processes of the edge's shards.
fn shards(cluster: &TestCluster, start: usize) -> BTreeMap<u64, Pid> {
    let started = cluster.logs.all(start, |event| event.text("message") == "shard started");
    let pid = |event: &LogEvent| {
        let pid = i32::try_from(event.number("pid")).expect("a process identifier");
        Pid::from_raw(pid).expect("not 0")
    };
    started.iter().map(|event| (event.number("shard"), pid(event))).collect()
}

/// The first owners of `count` sessions. A client may have its answer before the agent's log lines are read.
fn owned(cluster: &TestCluster, count: usize) -> Vec<LogEvent> {
    let mut owned = Vec::new();
    cluster.logs.wait(0, PATIENCE, |event| {
        let is_new = || owned.iter().all(|other: &LogEvent| other.text("session") != event.text("session"));
        if &*event.who == "client agent" && event.name() == "owned" && is_new() {
            owned.push(event.clone());
        }
        owned.len() == count
    });
    assert_eq!(owned.len(), count, "{}", cluster.logs.tail(30));
    owned
}

/// A handle that becomes readable when the process has ended.
fn watch(pid: Pid) -> OwnedFd {
    pidfd_open(pid, PidfdFlags::empty()).expect("it runs")
}

fn wait_for_end(process: &OwnedFd) {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&timeout)).expect("a poll"), 1, "it still runs");
}

#[test]
fn a_dead_shard_is_replaced_and_only_its_sessions_notice() {
    let (cluster, address) = world(1, "protect = \"endpoints\"\n");
    let mut clients: Vec<_> = (0..8).map(|_| Client::connect(address)).collect();
    let owned = owned(&cluster, clients.len());
    let before = cluster.logs.end();
    let victim = owned[0].number("shard");
    kill_process(shards(&cluster, 0)[&victim], Signal::KILL).expect("it runs");
    clients.iter_mut().for_each(Client::talk);
    let new = cluster.logs.wait(before, PATIENCE, |event| event.text("message") == "shard started");
    assert_eq!(new.expect("it is replaced").1.number("shard"), victim);
    let touched = cluster.logs.all(before, |event| {
        &*event.who == "client agent" && ["orphaned", "owned", "ended"].contains(&event.name())
    });
    // On a machine without a free core, the agent may take the other shard for dead as well: its sessions then notice that.
    let suspected: BTreeSet<u64> = cluster
        .logs
        .all(before, |event| &*event.who == "client agent" && event.name() == "edge_down")
        .iter()
        .filter(|event| event.fields["suspected"] == true)
        .map(|event| event.number("shard"))
        .collect();
    for event in touched {
        let session = event.text("session");
        let home = owned.iter().find(|owned| owned.text("session") == session).expect("one of ours");
        let home = home.number("shard");
        assert!(
            home == victim || suspected.contains(&home),
            "a session of the other shard: {:?}",
            event.fields
        );
    }
    // The new shard serves: a session eventually begins there.
    let begun = |event: &LogEvent| {
        &*event.who == "client agent" && event.name() == "owned" && event.number("shard") == victim
    };
    let after = cluster.logs.end();
    let up = |event: &LogEvent| &*event.who == "client agent" && event.name() == "edge_up";
    cluster.logs.wait(before, PATIENCE, up).expect("the agent dials it again");
    while cluster.logs.count(after, begun) == 0 {
        assert!(clients.len() < 200, "no session begins on the new shard");
        clients.push(Client::connect(address));
    }
    // The sessions whose home is the dead shard fail back to the new one. The first byte of a session's id says which shard is
    // its home.
    let here = |event: &&LogEvent| {
        let first = u64::from_str_radix(&event.text("session")[..2], 16).expect("hexadecimal");
        event.number("shard") == victim && first % 2 == victim
    };
    let mut away: BTreeSet<String> =
        owned.iter().filter(here).map(|event| event.text("session").to_owned()).collect();
    let back = cluster.logs.wait(before, PATIENCE, |event| {
        if begun(event) {
            away.remove(event.text("session"));
        }
        away.is_empty()
    });
    assert!(back.is_some(), "{away:?} are still at the other shard");
    clients.iter_mut().for_each(Client::talk);
}

/// A connection to a shard, up to the supervisor's answer: by then it is being handed over to the shard.
fn knock(cluster: &TestCluster, shard: u64) -> TcpStream {
    let mut stream = TcpStream::connect(cluster.edges[0].address()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    // The preamble for an encrypted wire with a token.
    let shard = u8::try_from(shard).expect("few");
    stream.write_all(&[b"MARM\x01\x01".as_slice(), &[shard, 3]].concat()).expect("open");
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).expect("the supervisor answers, whatever its shards do");
    assert_eq!(&answer[..5], b"MARM\0", "welcome");
    stream
}

#[test]
fn a_shard_that_dies_during_hand_overs_affects_no_other_shard() {
    let (mut cluster, address) = world(1, "protect = \"endpoints\"\n");
    let mut clients: Vec<_> = (0..8).map(|_| Client::connect(address)).collect();
    let owned = owned(&cluster, clients.len());
    let victim = owned[0].number("shard");
    let before = cluster.logs.end();
    let process = shards(&cluster, 0)[&victim];
    // The shard does not take connections that are handed to it from now on.
    kill_process(process, Signal::STOP).expect("it runs");
    let mut connections: Vec<_> = (0..200).map(|_| knock(&cluster, victim)).collect();
    drop(knock(&cluster, 1 - victim));
    kill_process(process, Signal::KILL).expect("it runs");
    for connection in &mut connections {
        let heard = connection.read(&mut [0; 1]);
        let gone = match &heard {
            Ok(count) => *count == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        assert!(gone, "no one is left waiting: {heard:?}");
    }
    clients.iter_mut().for_each(Client::talk);
    let new = cluster.logs.wait(before, PATIENCE, |event| event.text("message") == "shard started");
    assert_eq!(new.expect("it is replaced").1.number("shard"), victim);
    drop(knock(&cluster, victim));
    clients.push(Client::connect(address));
    clients.iter_mut().for_each(Client::talk);
    let ended = cluster.logs.all(before, |event| &*event.who == "client agent" && event.name() == "ended");
    assert!(ended.is_empty(), "{ended:?}");
    let moved = cluster.logs.all(before, |event| &*event.who == "client agent" && event.name() == "orphaned");
    for event in moved {
        let session = event.text("session");
        let home = owned.iter().find(|owned| owned.text("session") == session).expect("one of ours");
        assert_eq!(home.number("shard"), victim, "a session of the other shard: {:?}", event.fields);
    }
    assert!(cluster.edges[0].process().is_some_and(|process| process.id() > 0), "the supervisor lives");
}

#[test]
fn shards_do_not_outlive_their_supervisor() {
    let (mut cluster, _) = world(1, "protect = \"endpoints\"\n");
    let watched: Vec<_> = shards(&cluster, 0).into_values().map(watch).collect();
    assert_eq!(watched.len(), 2);
    let supervisor = cluster.edges[0].process().expect("it runs").id();
    let supervisor = Pid::from_raw(i32::try_from(supervisor).expect("a process identifier")).expect("not 0");
    kill_process(supervisor, Signal::KILL).expect("it runs");
    watched.iter().for_each(wait_for_end);
}

#[test]
fn an_edge_that_is_asked_to_stop_moves_its_sessions_and_exits_in_order() {
    let (mut cluster, address) = world(2, "protect = \"endpoints\"\n");
    let mut clients: Vec<_> = (0..8).map(|_| Client::connect(address)).collect();
    let watched: Vec<_> = shards(&cluster, 0).into_values().map(watch).collect();
    for index in [0, 1] {
        // The shards are in the process group that gets the signal, and must not end before their sessions have moved.
        cluster.edges[index].terminate();
        let status = cluster.edges[index].process().expect("it ran").wait().expect("a status");
        assert_eq!(status.code(), Some(0));
        clients.iter_mut().for_each(Client::talk);
        cluster.respawn(index).expect("it starts again, and both agents dial it");
    }
    drop(watched);
    let ended = cluster.logs.all(0, |event| event.name() == "ended");
    assert!(ended.is_empty(), "sessions ended: {ended:?}");
}

#[test]
fn an_operator_can_stop_an_edge_too() {
    let (mut cluster, address) = world(2, "protect = \"endpoints\"\n");
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(address)).collect();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_marram"));
    let admin = cluster.edges[0].admin();
    let status = command.arg("drain").arg("--edge").arg(format!("http://{admin}")).status().expect("it runs");
    assert!(status.success(), "{status}");
    let status = cluster.edges[0].process().expect("it ran").wait().expect("a status");
    assert_eq!(status.code(), Some(0));
    clients.iter_mut().for_each(Client::talk);
}

#[test]
fn peers_without_agents_come_through_gates() {
    support::begin();
    let layout = Layout {
        purpose: "gates",
        program: env!("CARGO_BIN_EXE_marram").into(),
        edges: 1,
        shards: 2,
        encrypted: true,
        edge_tables: String::new(),
        agent_tables: String::new(),
        namespaces: false,
        admin: String::new(),
        images: crate::support::images(),
    };
    let gate = marram_cluster::free_address().expect("a port");
    let tables =
        format!("[[gate]]\nlisten = \"{gate}\"\napp = \"forward\"\n[servers]\nweb = \"{}\"\n", echo());
    let layout = Layout { edge_tables: tables, ..layout };
    let cells = CellFiles::find(None).expect("built by `cargo xtask cells`");
    let manifest = "server = \"web\"\nprotect = \"none\"\n";
    let apps = |place: &_| Ok(vec![cells.manifest(place, "forward", "forward", manifest)?]);
    let mut cluster = TestCluster::new(layout, apps).expect("a directory");
    cluster.start_edge(0, "").expect("it starts");
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(gate)).collect();
    (0..10).for_each(|_| clients.iter_mut().for_each(Client::talk));
}
