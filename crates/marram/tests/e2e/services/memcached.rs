//! The cell `memcached` through edges, with third-party clients: libmemcached's tests of a server and its load generator, which
//! verifies every item, over TCP and UDP, and pymemcache. Where each client's cache is protected, edges are killed meanwhile.

use crate::support;
use marram_cluster::{AgentSide, LogEvent, TestCluster, free_address};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(120);
/// The same in seconds, for the clients' command lines.
const PATIENCE_SECONDS: &str = "120";
/// One cache for all clients of the edge.
const SHARED: &str = "cell = \"shared\"\nprotect = \"none\"\n[quotas]\nmemory = \"64MiB\"\n";
/// One cache for each client, which outlives its edge, with frequent checkpoints.
const PROTECTED: &str =
    "protect = \"endpoints\"\n[keep]\nrecovery_target = \"1ms\"\n[quotas]\nmemory = \"64MiB\"\n";

/// Edges with the cache, and one address for TCP and UDP.
fn cache(purpose: &'static str, edges: usize, manifest: &str) -> (TestCluster, SocketAddr) {
    let layout = support::layout(purpose, |layout| layout.edges = edges);
    let apps = |place: &_| Ok(vec![support::cells().manifest(place, "cache", "memcached", manifest)?]);
    let mut cluster = TestCluster::new(layout, apps).unwrap();
    cluster.start_edges("").unwrap();
    let (address, edges) = (free_address().unwrap(), cluster.edge_addresses());
    let listen = |protocol| {
        format!("[[listen]]\naddress = \"{address}\"\napp = \"cache\"\nprotocol = \"{protocol}\"\n")
    };
    cluster.start_agent_with(AgentSide::Client, &edges, &["tcp", "udp"].map(listen).concat()).unwrap();
    (cluster, address)
}

/// libmemcached's tests of the text protocol.
fn capable(address: SocketAddr) -> Command {
    let mut command = Command::new("memccapable");
    command.args(["-a", "-t", PATIENCE_SECONDS, "-h", "127.0.0.1", "-p", &address.port().to_string()]);
    command
}

/// libmemcached's load generator with this number of requests, nine in ten of them `get`; it verifies every value.
fn load(address: SocketAddr, requests: usize, more: &[&str]) -> Command {
    let mut command = Command::new("memcaslap");
    command.args(["-s", &address.to_string(), "-T", "1", "-c", "4", "-v", "1.0"]);
    command.args(["-x", &requests.to_string()]).args(more);
    command
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The output of a program that succeeded.
fn printed(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

fn is_capable(output: &Output) {
    let text = printed(output);
    assert!(text.contains("All tests passed") && !text.contains("FAIL"), "{text}");
}

fn is_verified(output: &Output, requests: usize) {
    let text = printed(output);
    let count = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_else(|| panic!("no {name}: {text}")).parse::<usize>().unwrap()
    };
    assert_eq!(count("cmd_get") + count("cmd_set"), requests, "{text}");
    assert_eq!([count("get_misses"), count("verify_misses"), count("verify_failed")], [0; 3], "{text}");
}

/// Kills the latest owner repeatedly while the program runs. Returns the program's output, and the number of recoveries.
///
/// Each edge is killed at once, and may not have answered anything new: the number of kills is limited, so that the program ends.
fn killed_while(cluster: &mut TestCluster, mut program: Child) -> (Output, usize) {
    const KILLS_MAX: usize = 40;
    let start = cluster.logs.end();
    let (mut seen, mut kills) = (start, 0);
    let owned = |event: &LogEvent| TestCluster::is_report(AgentSide::Client, "owned", event);
    while kills < KILLS_MAX && program.try_wait().unwrap().is_none() {
        // There is no new owner when the program is about to end.
        let Some((next, event)) = cluster.logs.wait(seen, Duration::from_millis(100), owned) else {
            continue;
        };
        (seen, kills) = (next, kills + 1);
        let owner = cluster.edge_at(AgentSide::Client, event.text("edge")).unwrap();
        cluster.edges[owner].kill();
        cluster.start_edge(owner, "").unwrap();
    }
    let output = program.wait_with_output().unwrap();
    let recovered = |event: &LogEvent| owned(event) && event.number("gap_us") > 0;
    (output, cluster.logs.count(start, recovered))
}

fn datagrams(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(address).unwrap();
    socket
}

/// Sends one request in a datagram with memcached's header, and joins the datagrams of its answer.
fn ask_in_datagrams(socket: &UdpSocket, number: u8, request: &str) -> Vec<u8> {
    let header = [0, number, 0, 0, 0, 1, 0, 0];
    socket.send(&[&header[..], request.as_bytes()].concat()).unwrap();
    let (mut parts, mut buffer) = (Vec::<Option<Vec<u8>>>::new(), vec![0; 2_000]);
    while parts.is_empty() || parts.contains(&None) {
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..2], [0, number], "the number of the request");
        let [at, count] = [2, 4].map(|at| usize::from(u16::from_be_bytes([buffer[at], buffer[at + 1]])));
        parts.resize(count, None);
        parts[at] = Some(buffer[8..len].to_vec());
    }
    parts.into_iter().flatten().flatten().collect()
}

#[test]
fn a_shared_cache_serves_libmemcacheds_programs_and_datagrams() {
    if !support::is_here("memccapable") || !support::is_here("memcaslap") {
        return;
    }
    let (_cluster, address) = cache("memcached-shared", 1, SHARED);
    is_capable(&capable(address).output().unwrap());
    let requests = support::amount("MARRAM_REQUESTS", 5_000);
    is_verified(&load(address, requests, &[]).output().unwrap(), requests);
    is_verified(&load(address, requests, &["-U"]).output().unwrap(), requests);

    // A value that one client stores over TCP is read over UDP, and the other way round.
    let value = "z".repeat(3_000);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "set long 7 0 3000\r\n{value}\r\n").unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"STORED\r\n");
    let socket = datagrams(address);
    let expected = format!("VALUE long 7 3000\r\n{value}\r\nEND\r\n");
    assert_eq!(String::from_utf8(ask_in_datagrams(&socket, 1, "get long\r\n")).unwrap(), expected);
    assert_eq!(ask_in_datagrams(&socket, 2, "set short 0 0 2\r\nhi\r\n"), b"STORED\r\n");
    write!(stream, "get short\r\n").unwrap();
    let mut answer = vec![0; "VALUE short 0 2\r\nhi\r\nEND\r\n".len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, b"VALUE short 0 2\r\nhi\r\nEND\r\n");
}

#[test]
fn libmemcacheds_programs_notice_nothing_while_their_edges_are_killed() {
    if !support::is_here("memccapable") || !support::is_here("memcaslap") {
        return;
    }
    let (mut cluster, address) = cache("memcached-killed", 2, PROTECTED);
    let (output, recovered) = killed_while(&mut cluster, start(&mut capable(address)));
    is_capable(&output);
    let requests = support::amount("MARRAM_REQUESTS", 20_000);
    let (output, more) = killed_while(&mut cluster, start(&mut load(address, requests, &[])));
    is_verified(&output, requests);
    println!("{recovered} and {more} sessions recovered");
    assert!(recovered > 0 && more > 0, "{recovered} and {more} sessions recovered");
}

/// One request at a time: a datagram that its agent has received is not lost, so none is sent twice.
#[test]
fn a_client_in_datagrams_finds_all_that_it_stored_after_each_of_its_edges_is_killed() {
    const KILLS: u8 = 8;
    let (mut cluster, address) = cache("memcached-datagrams", 2, PROTECTED);
    let socket = datagrams(address);
    let value = |round: u8| char::from(b'a' + round).to_string().repeat(usize::from(round) * 700);
    assert_eq!(ask_in_datagrams(&socket, 0, "set count 0 0 1\r\n0\r\n"), b"STORED\r\n");
    for round in 1..=KILLS {
        let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
        cluster.edges[owner].kill();
        let set = format!("set key{round} 0 0 {}\r\n{}\r\n", value(round).len(), value(round));
        let requests = [(set, "STORED\r\n".to_owned()), ("incr count 1\r\n".into(), format!("{round}\r\n"))];
        let stored = (1..=round).map(|at| {
            let found = format!("VALUE key{at} 0 {}\r\n{}\r\nEND\r\n", value(at).len(), value(at));
            (format!("get key{at}\r\n"), found)
        });
        for (number, (request, expected)) in (1..).zip(requests.into_iter().chain(stored)) {
            let answer = ask_in_datagrams(&socket, number, &request);
            assert_eq!(String::from_utf8(answer).unwrap(), expected, "{request} after kill {round}");
        }
        cluster.wait_for_owner(start).unwrap();
        cluster.start_edge(owner, "").unwrap();
    }
}

/// Fills a cache, and verifies all of it for each line of input.
const PYTHON: &str = r#"
import sys
from pymemcache.client.base import Client

client = Client((sys.argv[1], int(sys.argv[2])), timeout=120, connect_timeout=120, no_delay=True, default_noreply=False)
values = {"key%d" % n: bytes([n % 251]) * (n * 37 % 5000) for n in range(300)}
assert client.set_many(values) == []
assert client.set("count", b"0")
client.set("gone", b"soon")
token = client.gets("key7")[1]
expected = 0
print("filled", flush=True)
for _ in sys.stdin:
    assert client.get_many(list(values)) == values
    expected += 1
    assert client.incr("count", 1) == expected
    assert client.cas("key7", values["key7"], token) is True
    assert client.cas("key7", b"", token) is False
    token = client.gets("key7")[1]
    assert client.delete("gone") is (expected == 1)
    assert client.append("key8", b"x") and client.prepend("key8", b"y")
    values["key8"] = b"y" + values["key8"] + b"x"
    assert client.get("nothing") is None
    assert int(client.stats()[b"curr_items"]) == len(values) + 1
    print("same", flush=True)
"#;

#[test]
fn pymemcache_finds_all_that_it_stored_after_each_of_its_edges_is_killed() {
    const KILLS: usize = 4;
    let Some(python) = support::python_with("pymemcache") else { return };
    let (mut cluster, address) = cache("memcached-python", 2, PROTECTED);
    let mut command = Command::new(python);
    command.args(["-c", PYTHON, "127.0.0.1", &address.port().to_string()]);
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = program.stdin.take().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "filled");
    for _ in 0..KILLS {
        let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
        cluster.edges[owner].kill();
        writeln!(stdin, "look").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "same");
        cluster.wait_for_owner(start).unwrap();
        cluster.start_edge(owner, "").unwrap();
    }
    drop(stdin);
    assert!(program.wait().unwrap().success());
}
