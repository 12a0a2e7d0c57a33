//! Tasks and locks with real processes. The server stops answering in the middle, so that tasks hold locks and others wait for
//! them, and then the edge is killed. Every errand is done once, and no two tasks hold the same lock at a time.

use crate::support;
use marram_cluster::TestCluster;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Enough that checkpoints are taken between two kills.
const ERRANDS: u64 = 240;
/// The cell's number of locks.
const LOCKS: u64 = 3;
/// The server stops before these answers, each time until the test continues it.
const STOPS: [usize; 4] = [1, 60, 120, 200];

/// Answers one connection, and stops at each of [`STOPS`]; returns all received lines.
fn server(listener: &TcpListener, stopped: &Sender<()>, go_on: &Receiver<()>) -> Vec<String> {
    let (stream, _) = listener.accept().unwrap();
    let mut writer = stream.try_clone().unwrap();
    let (mut heard, mut asked) = (Vec::new(), 0);
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        if let Some(number) = line.strip_prefix("work ") {
            asked += 1;
            if STOPS.contains(&asked) {
                stopped.send(()).unwrap();
                go_on.recv().unwrap();
            }
            writer.write_all(format!("worked {number}\n").as_bytes()).unwrap();
        }
        heard.push(line);
    }
    heard
}

/// Checks the received lines for mutual exclusion and order.
fn judge(heard: &[String]) {
    let mut holders: BTreeMap<u64, u64> = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let mut ended = 0;
    for line in heard {
        let (what, number) = line.split_once(' ').unwrap();
        let number: u64 = number.parse().unwrap();
        let lock = number % LOCKS;
        match what {
            "begin" => {
                assert_eq!(holders.insert(lock, number), None, "{line}: the lock is held");
                let before = last.insert(lock, number);
                assert!(before.is_none_or(|before| before + LOCKS == number), "{line} after {before:?}");
            }
            "work" => assert_eq!(holders.get(&lock), Some(&number), "{line}"),
            "end" => {
                assert_eq!(holders.remove(&lock), Some(number), "{line}");
                ended += 1;
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!((ended, holders.len()), (ERRANDS, 0));
}

fn json(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_marram")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Records the session while tasks wait; a replay must end in the same state, and show which task waits for which.
fn record(cluster: &TestCluster, owner: usize, name: &str) {
    let sessions = cluster.edges[owner].client().unwrap().json(hyper::Method::GET, "/v1/sessions").unwrap();
    let row = &sessions["sessions"][0];
    assert!(row["locks"].as_u64() > Some(0) && row["tasks_locked_out"].as_u64() > Some(0), "{row}");
    let session = row["session"].as_str().unwrap().to_owned();
    let edge = format!("http://{}", cluster.edges[owner].admin());
    let file = cluster.directory.path().join(name).to_str().unwrap().to_owned();
    json(&["record", &session, "--edge", &edge, "--output", &file, "--json"]);
    let whole = json(&["replay", &file, "--json"]);
    assert_eq!(whole["same"], true, "{whole}");
    let output = Command::new(env!("CARGO_BIN_EXE_marram"))
        .args(["replay", &file, "--dump", "state"])
        .output()
        .unwrap();
    let dump = String::from_utf8(output.stdout).unwrap();
    assert!(dump.contains("is held by task") && dump.contains("waiting: task"), "{dump}");
}

#[test]
fn tasks_and_locks_outlive_the_edges_on_which_they_ran() {
    let layout = support::layout("tasks", |layout| layout.edges = 2);
    let manifest = "server = \"peer\"\nprotect = \"endpoints\"\n[keep]\nrecovery_target = \"50us\"\n";
    let mut cluster = TestCluster::new(layout, |place| {
        Ok(vec![support::cells().manifest(place, "errands", "errands", manifest)?])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer: SocketAddr = listener.local_addr().unwrap();
    cluster.start_server_agent(&edges, &[("peer", peer)]).unwrap();
    let address = cluster.start_client_agent(&edges, &["errands"]).unwrap()[0].address;
    let (stopped, at_stop) = channel();
    let (go_on, waits) = channel();
    let server = thread::spawn(move || server(&listener, &stopped, &waits));

    let client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    (&client).write_all(&vec![b'.'; usize::try_from(ERRANDS).unwrap()]).unwrap();
    for stop in STOPS {
        at_stop.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("at {stop}: {}", cluster.logs.tail(40)));
        let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
        record(&cluster, owner, &format!("at-{stop}.marram"));
        cluster.edges[owner].kill();
        cluster.wait_for_owner(start).unwrap();
        cluster.respawn(owner).unwrap();
        go_on.send(()).unwrap();
    }
    let mut lines = BufReader::new(&client).lines();
    let mut done: Vec<u64> = (0..ERRANDS)
        .map(|_| lines.next().unwrap().unwrap().strip_prefix("done ").unwrap().parse().unwrap())
        .collect();
    done.sort_unstable();
    assert_eq!(done, (0..ERRANDS).collect::<Vec<_>>(), "each once");
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(lines.next().is_none(), "and no more");
    judge(&server.join().unwrap());
}
