//! `limiter`, `firewall`, `inspector` and `monitor` between real programs, as they ship: data over the limit is delayed and arrives whole, a
//! connection with forbidden data is closed, data that passes is counted, and a kill of the edge changes none of this.

use crate::support::{self, traffic::Traffic};
use marram_cluster::{LogEvent, TempDir, TestCluster};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(90);
const MIB: usize = 1 << 20;
/// The rates of `cells/services/limiter/limits` for the server: at once, and in each second.
const BURST: usize = 4 * MIB;
const PER_SECOND: usize = 16 * MIB;

/// Writes a cell's manifest as it ships, except for the path of the module.
fn shipped(place: &TempDir, cell: &str) -> anyhow::Result<PathBuf> {
    place.write(&format!("apps/{cell}/marram.toml"), support::shipped_manifest(cell))
}

/// Edges that run one of the cells as it ships.
fn cluster(purpose: &'static str, edges: usize, cell: &str) -> TestCluster {
    let layout = support::layout(purpose, |layout| layout.edges = edges);
    let mut cluster = TestCluster::new(layout, |place| Ok(vec![shipped(place, cell)?])).unwrap();
    cluster.start_edges("").unwrap();
    cluster
}

/// Starts both agents; returns the address for clients of the app.
fn agents(cluster: &mut TestCluster, app: &str, server: SocketAddr) -> SocketAddr {
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("origin", server)]).unwrap();
    cluster.start_client_agent(&edges, &[app]).unwrap()[0].address
}

/// The bytes of the stream from `at` on; all its words differ.
fn pattern(at: usize, len: usize) -> Vec<u8> {
    let words = (at / 8) as u64..((at + len) / 8 + 1) as u64;
    let bytes: Vec<u8> = words.flat_map(|word| (word ^ 0x6d61_7272_616d_0000).to_le_bytes()).collect();
    bytes[at % 8..at % 8 + len].to_vec()
}

/// A server that sends `len` bytes to each client, as fast as it can, and then ends.
fn spout(len: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // The thread ends when its client disconnects.
            thread::spawn(move || {
                let pieces = (0..len).step_by(MIB);
                let sent = pieces.map(|at| stream.write_all(&pattern(at, MIB.min(len - at))));
                sent.collect::<Result<Vec<()>, _>>().and_then(|_| stream.shutdown(Shutdown::Write))
            });
        }
    });
    address
}

/// Reads to the end, compares every byte, and calls `then` after each `every` bytes.
fn download(from: SocketAddr, len: usize, every: usize, mut then: impl FnMut(usize)) {
    let mut stream = TcpStream::connect(from).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut got, mut buffer) = (0, vec![0; 256 << 10]);
    loop {
        match stream.read(&mut buffer).unwrap_or_else(|error| panic!("after {got} of {len} bytes: {error}")) {
            0 => break,
            count => {
                assert!(buffer[..count] == pattern(got, count), "a byte after {got} is another");
                if (got + count) / every > got / every {
                    then((got + count) / every);
                }
                got += count;
            }
        }
    }
    assert_eq!(got, len, "it ended early");
}

/// Kills one of the edges, by turns, and starts it again.
fn kill_in_turn(cluster: &mut TestCluster, kill: usize) {
    let index = kill % cluster.edges.len();
    cluster.edges[index].kill();
    cluster.respawn(index).unwrap();
}

fn orphaned(cluster: &TestCluster) -> usize {
    cluster.logs.count(0, |event| event.name() == "orphaned")
}

/// Waits for a line that a cell printed.
fn printed(cluster: &TestCluster, words: &str) {
    let said = |event: &LogEvent| event.text("message").contains(words);
    let found = cluster.logs.wait(0, PATIENCE, said).is_some();
    assert!(found, "no cell said {words:?}: {}", cluster.logs.tail(30));
}

#[test]
fn the_limiter_that_ships_lets_64_mib_through_at_its_rate() {
    const LEN: usize = 64 * MIB;
    let mut cluster = cluster("limiter", 1, "limiter");
    let address = agents(&mut cluster, "limiter", spout(LEN));
    let begun = Instant::now();
    download(address, LEN, LEN, |_| {});
    let least = Duration::from_millis(((LEN - BURST) * 1000 / PER_SECOND) as u64);
    assert!(begun.elapsed() >= least, "{:?} for {LEN} bytes", begun.elapsed());
}

#[test]
fn what_the_limiter_delays_arrives_whole_when_its_edge_is_killed() {
    const LEN: usize = 64 * MIB;
    let mut cluster = cluster("limiter-kills", 2, "limiter");
    let address = agents(&mut cluster, "limiter", spout(LEN));
    download(address, LEN, 13 * MIB, |kill| kill_in_turn(&mut cluster, kill - 1));
    assert!(orphaned(&cluster) > 0, "no kill met the session: {}", cluster.logs.tail(20));
}

#[test]
fn what_the_firewall_allows_passes_byte_by_byte_while_edges_are_killed() {
    let mut cluster = cluster("firewall-kills", 2, "firewall");
    let mut traffic = Traffic::new();
    let address = agents(&mut cluster, "firewall", traffic.server);
    traffic.start(address, 3, 300_000, 11);
    for kill in 0..4 {
        thread::sleep(Duration::from_millis(200));
        kill_in_turn(&mut cluster, kill);
        assert_eq!(traffic.wrong(), Vec::<String>::new(), "kill {kill}; {}", cluster.logs.tail(40));
    }
    let (sessions, bytes) = traffic.finish();
    assert!(sessions > 0 && bytes > 0 && orphaned(&cluster) > 0, "{sessions} sessions, {bytes} B");
}

/// A server that records what it receives and answers each piece with `ok`.
struct Origin {
    address: SocketAddr,
    came: Arc<Mutex<Vec<u8>>>,
}

impl Origin {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, came) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let into = came.clone();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let into = into.clone();
                thread::spawn(move || -> std::io::Result<()> {
                    let mut buffer = [0; 4096];
                    loop {
                        match stream.read(&mut buffer)? {
                            0 => return stream.shutdown(Shutdown::Write),
                            len => into.lock().unwrap().extend_from_slice(&buffer[..len]),
                        }
                        stream.write_all(b"ok")?;
                    }
                });
            }
        });
        Self { address, came }
    }

    fn came(&self) -> Vec<u8> {
        self.came.lock().unwrap().clone()
    }
}

/// A client; the firewall may close its connection.
struct Client(TcpStream);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn ask(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
        let mut answer = [0; 2];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ok");
    }

    /// Reads to the end, or to the reset of a connection with unread data.
    fn ends_without_an_answer(mut self) -> bool {
        let mut rest = Vec::new();
        _ = self.0.read_to_end(&mut rest);
        rest.is_empty()
    }
}

/// Forbidden data is detected even if one part of it is sent before a kill and the rest after it.
fn is_forbidden_over_a_kill(cluster: &mut TestCluster, address: SocketAddr, origin: &Origin) {
    let mut client = Client::connect(address);
    client.ask("GET /x/.");
    for index in 0..cluster.edges.len() {
        kill_in_turn(cluster, index);
    }
    client.0.write_all(b"./etc").unwrap();
    assert!(client.ends_without_an_answer());
    printed(cluster, "closed because of the client: deny client contains \"/../\"");
    let came = origin.came();
    assert!(came.starts_with(b"GET /x/.") && !came.ends_with(b"etc"), "{}", came.escape_ascii());
}

#[test]
fn the_firewall_closes_what_its_rules_forbid_also_when_a_kill_comes_between() {
    let mut cluster = cluster("firewall", 2, "firewall");
    let origin = Origin::start();
    let address = agents(&mut cluster, "firewall", origin.address);
    let mut client = Client::connect(address);
    client.0.write_all(b"TRACE / HTTP/1.1\r\n\r\n").unwrap();
    assert!(client.ends_without_an_answer());
    printed(&cluster, "closed because of the client: deny client prefix \"TRACE \"");
    assert_eq!(origin.came(), b"", "nothing of it reached the server");
    is_forbidden_over_a_kill(&mut cluster, address, &origin);
}

#[test]
fn the_inspector_refuses_what_does_not_fit_also_when_a_kill_comes_between() {
    let mut cluster = cluster("inspector", 2, "inspector");
    let origin = Origin::start();
    let address = agents(&mut cluster, "inspector", origin.address);
    let mut client = Client::connect(address);
    client.ask("four");
    client.ask("GET /etc/pas");
    kill_in_turn(&mut cluster, 0);
    kill_in_turn(&mut cluster, 1);
    // The next edge knows where in the string the last one was.
    client.0.write_all(b"swd HTTP/1.1\r\n").unwrap();
    assert!(client.ends_without_an_answer());
    printed(&cluster, "refused: client: \"/etc/passwd\" is forbidden");
    let came = origin.came();
    assert!(came.starts_with(b"four") && !came.ends_with(b"swd HTTP/1.1\r\n"), "{}", came.escape_ascii());
    assert!(orphaned(&cluster) > 0, "no kill met the session: {}", cluster.logs.tail(20));
}

#[test]
fn the_monitor_counts_what_passed_before_and_after_a_kill() {
    let mut cluster = cluster("monitor", 2, "monitor");
    let origin = Origin::start();
    let address = agents(&mut cluster, "monitor", origin.address);
    let mut client = Client::connect(address);
    client.ask("four");
    for index in 0..2 {
        kill_in_turn(&mut cluster, index);
        client.ask("seven..");
    }
    client.0.shutdown(Shutdown::Write).unwrap();
    assert!(client.ends_without_an_answer());
    printed(
        &cluster,
        "from the client 3 messages, 18 bytes, longest 7, by size 4:3; from the server 3 messages, 6 bytes",
    );
    assert_eq!(origin.came(), b"fourseven..seven..");
}

/// Edges that add these stages to every app, with `forward` between them.
fn forced(purpose: &'static str, first: &str, last: &str) -> TestCluster {
    let layout = support::layout(purpose, |layout| {
        layout.edges = 2;
        layout.edge_tables = format!("[chain]\nfirst = [{first:?}]\nlast = [{last:?}]\n");
    });
    let apps = |place: &TempDir| {
        let app = support::cells().manifest(place, "site", "forward", "server = \"origin\"\n")?;
        Ok(vec![shipped(place, first)?, shipped(place, last)?, app])
    };
    let mut cluster = TestCluster::new(layout, apps).unwrap();
    cluster.start_edges("").unwrap();
    let edge = format!("http://{}", cluster.edges[0].admin());
    let listed = Command::new(env!("CARGO_BIN_EXE_marram")).args(["apps", "--edge", &edge]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains(&format!("{first} > site > {last}\n")), "{listed}");
    cluster
}

/// A download through both stages, with kills, and a request that the firewall forbids.
fn is_limited_and_guarded(mut cluster: TestCluster) {
    const LEN: usize = 24 * MIB;
    let address = agents(&mut cluster, "site", spout(LEN));
    download(address, LEN, 10 * MIB, |kill| kill_in_turn(&mut cluster, kill - 1));
    assert!(orphaned(&cluster) > 0, "no kill met the session: {}", cluster.logs.tail(20));
    let origin = Origin::start();
    let address = agents(&mut cluster, "site", origin.address);
    is_forbidden_over_a_kill(&mut cluster, address, &origin);
}

#[test]
fn a_forced_firewall_first_and_limiter_last_do_their_work_on_every_app() {
    is_limited_and_guarded(forced("forced-firewall-first", "firewall", "limiter"));
}

#[test]
fn a_forced_limiter_first_and_firewall_last_do_their_work_on_every_app() {
    is_limited_and_guarded(forced("forced-limiter-first", "limiter", "firewall"));
}
