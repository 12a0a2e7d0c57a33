//! WebSocket clients, with real processes: a message stays one message in both directions, an edge that dies loses none, and a
//! client gets the reason if its connection is refused or ended.

use crate::support::{
    self,
    websocket::{Raw, request},
};
use marram_cluster::{AgentSide, LogEvent, TestCluster, free_address};
use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, UdpSocket},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// More than the sockets between a server and a client that does not read, and the ends, can hold.
const FLOOD: usize = 64 << 20;

/// Starts an agent with a WebSocket listener for this app, and additional lines in its configuration.
fn listen(cluster: &mut TestCluster, app: &str, tables: &str) -> SocketAddr {
    let (address, edges) = (free_address().unwrap(), cluster.edge_addresses());
    let listener =
        format!("[[listen]]\naddress = \"{address}\"\napp = \"{app}\"\nprotocol = \"websocket\"\n{tables}\n");
    cluster.start_agent_with(AgentSide::Client, &edges, &listener).unwrap();
    address
}

/// One edge with `counter`, and an agent with a WebSocket listener.
fn counter(purpose: &'static str, tables: &str) -> (TestCluster, SocketAddr) {
    let layout = support::layout(purpose, |layout| layout.agent_tables += "first_bytes = \"2s\"\n");
    let mut cluster = TestCluster::new(layout, |place| {
        Ok(vec![support::cells().manifest(place, "counter", "counter", "protect = \"endpoints\"\n")?])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let address = listen(&mut cluster, "counter", tables);
    (cluster, address)
}

#[test]
fn a_client_that_is_refused_or_disconnected_gets_the_reason() {
    let rules = "origins = [\"https://play.example.org\"]\n\
        [[route]]\nname = \"not\"\nfirst_bytes = \"GET /not \"\nrefuse = \"closed on Mondays\"\n\
        [[route]]\nname = \"missing\"\nfirst_bytes = \"GET /missing \"\napp = \"missing\"\n";
    let (_cluster, address) = counter("ws-told", rules);
    for (request, status, words) in [
        ("GET / HTTP/1.1\r\nHost: gate\r\n\r\n".to_owned(), "426", "ws://"),
        (request("/", "").replace("dGhl", ""), "400", "Sec-WebSocket-Key"),
        ("\u{16}\u{3}\u{1}\u{2}".into(), "400", "not HTTP"),
        (request("/", "Origin: http://gate\r\n"), "403", "http://gate are not allowed"),
        (request("/not", ""), "403", "closed on Mondays"),
    ] {
        let mut client = Raw::new(address);
        let head = client.ask(&request);
        let said = String::from_utf8(client.rest()).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")) && said.contains(words), "{head}{said}");
    }
    // A client that sends nothing is disconnected.
    let mut silent = Raw::new(address);
    assert!(silent.ask("").starts_with("HTTP/1.1 408 "));

    let allowed = request("/", "Origin: https://play.example.org\r\n");
    let talk = |first: u8, payload: &[u8]| {
        let mut client = Raw::new(address);
        assert!(client.ask(&allowed).starts_with("HTTP/1.1 101 "));
        client.send(first, payload);
        client
    };
    let mut client = talk(0x89, b"there?");
    assert_eq!(client.frame(), (0x8a, b"there?".to_vec()));
    client.send(0x82, b"");
    assert_eq!(client.frame(), (0x82, b"count=1\n".to_vec()), "binary for binary");
    client.send(0x81, b"q");
    assert_eq!(client.frame(), (0x81, b"count=2\n".to_vec()), "text for text");
    assert_eq!(client.closed(), (1000, String::new()), "the cell is done");

    // A client's close is answered when the cell has answered it; this cell fails instead.
    let (first, payload) = talk(0x88, &[3, 232]).frame();
    assert!(first == 0x88 && payload[..2] == 1011_u16.to_be_bytes(), "{payload:?}");
    assert!(String::from_utf8_lossy(&payload).contains("port 1 was never opened"), "{payload:?}");

    let (code, words) = talk(0x81, b"!").closed();
    assert!(code == 1011 && words.contains("wasm trap"), "{code} {words}");
    assert_eq!(talk(0x81, &[0xff]).closed().0, 1007);
    let mut client = talk(0x81, b"");
    client.frame();
    client.0.write_all(&[&[0x82, 0xff][..], &(2_u64 << 20).to_be_bytes(), &[0; 4]].concat()).unwrap();
    assert_eq!(client.closed().0, 1009, "told before it has sent it");

    let mut client = Raw::new(address);
    assert!(client.ask(&request("/missing", "")).starts_with("HTTP/1.1 101 "));
    let (code, words) = client.closed();
    assert!(code == 1013 && words.contains("missing"), "{code} {words}");
}

#[test]
fn a_browser_that_does_not_read_holds_its_server_up() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut cluster = support::cluster("ws-slow", 1, 1);
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("peer", server.local_addr().unwrap())]).unwrap();
    let address = listen(&mut cluster, "forward", "");
    let mut client = Raw::new(address);
    client.ask(&request("/", ""));
    client.send(0x82, b"go");
    let (mut server, _) = server.accept().unwrap();
    server.read_exact(&mut [0; 2]).unwrap();
    // The largest message that is allowed.
    let most = vec![9; 1 << 20];
    client.send(0x82, &most);
    let mut got = vec![0; most.len()];
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.read_exact(&mut got).unwrap();
    assert!(got == most);
    server.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let (chunk, mut sent) = (vec![7; 1 << 16], 0);
    let error = loop {
        match server.write(&chunk) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
        assert!(sent < FLOOD, "a user keeps it all");
    };
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    // Once the client reads, all of it arrives, and then the end.
    server.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = 0;
    while got < sent {
        let (first, payload) = client.frame();
        assert!(first == 0x82 && payload.iter().all(|byte| *byte == 7), "{first}");
        got += payload.len();
    }
    assert_eq!((got, client.closed().0), (sent, 1000));
}

/// A client that sends numbered messages of many lengths, including empty ones, few ahead of their echoes. In the middle it waits
/// for a line of input.
const TALK: &str = r#"
import asyncio, sys, websockets

def message(n):
    if n % 10 == 7:
        return "" if n % 20 == 7 else b""
    body = ("%d " % n) * (n * 7919 % 1500)
    return str(n) + body if n % 3 else (str(n) + body).encode()

async def main(uri, count):
    async with websockets.connect(uri, max_size=None, ping_interval=0.05, ping_timeout=None) as client:
        sent = 0
        for n in range(count):
            while sent < min(count, n + 3):
                await client.send(message(sent))
                sent += 1
            got = await client.recv()
            want = message(n)
            raw = lambda m: m.encode() if isinstance(m, str) else m
            assert raw(got) == raw(want), (n, got[:40], want[:40])
            print(n, flush=True)
            if n == 50:
                sys.stdin.readline()
        await client.close(1000, "done")
        print("closed", client.close_code, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"#;

/// A program, and its output.
struct Program(Child, BufReader<ChildStdout>);

impl Program {
    fn hear_until(&mut self, wanted: &str) {
        let mut line = String::new();
        while line.trim_end() != wanted {
            line.clear();
            assert_ne!(self.1.read_line(&mut line).unwrap(), 0, "it ended before it said {wanted}");
        }
    }
}

#[test]
fn messages_survive_the_edge_that_runs_the_cell_behind_a_gate_elsewhere() {
    let Some(python) = support::python_with("websockets") else { return };
    let echo = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = echo.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = vec![0; 70_000];
        while let Ok((len, from)) = echo.recv_from(&mut buffer) {
            if echo.send_to(&buffer[..len], from).is_err() {
                return;
            }
        }
    });
    let mut cluster = support::cluster("ws-gate", 3, 1);
    for edge in [1, 2] {
        cluster.start_edge(edge, "").unwrap();
    }
    let (gate, edges) = (free_address().unwrap(), cluster.edge_addresses());
    let gates = format!(
        "gate = [{{ listen = \"{gate}\", app = \"forward\", protocol = \"websocket\" }}]\n\
         gates = {{ edges = [\"{}\", \"{}\"] }}\n",
        edges[1], edges[2]
    );
    cluster.edges[0].run_no_apps();
    let servers = format!("[servers]\npeer = \"udp://{server}\"");
    cluster.start_agent_with(AgentSide::Server, &edges[1..], &servers).unwrap();
    let start = cluster.logs.end();
    cluster.start_edge(0, &gates).unwrap();
    // Gates are opened last.
    let who = cluster.edges[0].who();
    let open = |event: &LogEvent| *event.who == *who && event.text("message") == "listening for clients";
    cluster.logs.wait(start, PATIENCE, open).unwrap();
    let mut command = Command::new(python);
    command.args(["-c", TALK, &format!("ws://{gate}/"), "200"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    let mut program = Program(child, said);
    program.hear_until("50");
    // The gate's edge does not log owners at this level; the server's agent does.
    let is_owned = |event: &LogEvent| TestCluster::is_report(AgentSide::Server, "owned", event);
    cluster.logs.wait(0, PATIENCE, is_owned).unwrap();
    let owned = cluster.logs.last(is_owned).unwrap();
    let (owner, start) =
        (edges.iter().position(|edge| edge.to_string() == owned.text("edge")).unwrap(), cluster.logs.end());
    cluster.edges[owner].kill();
    program.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    program.hear_until("60");
    cluster.logs.wait(start, PATIENCE, is_owned).unwrap();
    program.hear_until("closed 1000");
    assert!(program.0.wait().unwrap().success());
}
