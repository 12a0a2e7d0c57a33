//! The edge cache with real processes. Cells on edges that are killed read from an origin that changes its objects, gives wrong
//! or incomplete answers, and is away at times.

use crate::support::{
    self,
    origin::{Origin, Thing},
};
use marram_cluster::{AgentSide, LogEvent, TestCluster, TestEdge};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of edges that run `reader` with this origin.
fn cluster(purpose: &'static str, edges: usize, origin: &Origin, rest: &str) -> TestCluster {
    let layout = support::layout(purpose, |layout| layout.edges = edges);
    let origin = format!("[cache]\norigin = \"http://{}/objects\"\n", origin.address);
    let manifest = format!("protect = \"endpoints\"\n{origin}{rest}");
    let manifest = |place: &_| Ok(vec![support::cells().manifest(place, "reader", "reader", &manifest)?]);
    let mut cluster = TestCluster::new(layout, manifest).unwrap();
    cluster.start_edges("").unwrap();
    cluster
}

fn connect(cluster: &mut TestCluster) -> SocketAddr {
    let edges = cluster.edge_addresses();
    cluster.start_client_agent(&edges, &["reader"]).unwrap()[0].address
}

/// A client, and the reads that its cell must have made so far.
struct Client {
    stream: BufReader<TcpStream>,
    reads: u64,
    hash: u64,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream), reads: 0, hash: 0xcbf2_9ce4_8422_2325 }
    }

    fn ask(&mut self, key: &str) {
        self.stream.get_mut().write_all(format!("{key}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Reads the next answer, which must say that this object was read, after all earlier reads.
    fn must_hear(&mut self, key: &str, object: &[u8]) {
        let shown = String::from_utf8_lossy(&object[..object.len().min(32)]).into_owned();
        self.must_hear_that(key, &format!("{} {shown}", object.len()), object);
    }

    fn must_hear_that(&mut self, key: &str, what: &str, absorbed: &[u8]) {
        self.reads += 1;
        for byte in absorbed {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let expected = format!("{key}: {what}; {} reads, {:016x}", self.reads, self.hash);
        assert_eq!(self.hear(), expected);
    }

    fn must_read(&mut self, key: &str, object: &[u8]) {
        self.ask(key);
        self.must_hear(key, object);
    }

    fn must_miss(&mut self, key: &str, what: &str) {
        self.ask(key);
        self.must_hear_that(key, what, what.as_bytes());
    }
}

/// A counter of `/metrics`.
fn metric(edge: &TestEdge, name: &str) -> u64 {
    let text = edge.client().unwrap().call(hyper::Method::GET, "/metrics", bytes::Bytes::new()).unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    let name = format!("marram_{name}{{");
    let of = |line: &&str| line.starts_with(&name);
    let values = text.lines().filter(of).map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    values.sum()
}

/// Polls until it holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// Waits until the edge logs a warning about an object with these words.
fn complained(cluster: &TestCluster, key: &str, words: &str) {
    let found = cluster.logs.wait(0, PATIENCE, |event: &LogEvent| {
        event.text("key") == key && event.text("message").contains(words)
    });
    found.unwrap_or_else(|| panic!("nothing of {words:?} about {key}:\n{}", cluster.logs.tail(30)));
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_marram")).args(arguments).output().unwrap()
}

/// Records the session: a replay, which has no cache, must end in the same state.
fn record(cluster: &TestCluster, owner: usize, name: &str) {
    let sessions = cluster.edges[owner].client().unwrap().json(hyper::Method::GET, "/v1/sessions").unwrap();
    let session = sessions["sessions"][0]["session"].as_str().unwrap().to_owned();
    let edge = format!("http://{}", cluster.edges[owner].admin());
    let file = cluster.directory.path().join(name).to_str().unwrap().to_owned();
    let recorded = run(&["record", &session, "--edge", &edge, "--output", &file, "--json"]);
    assert!(recorded.status.success(), "{recorded:?}");
    let replayed = run(&["replay", &file, "--json"]);
    assert!(replayed.status.success(), "{replayed:?}");
    let replayed: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    assert_eq!(replayed["same"], true, "{replayed}");
}

/// Starts a killed edge, and waits until the agent has a wire to it.
fn start_again(cluster: &mut TestCluster, index: usize) {
    let start = cluster.logs.end();
    cluster.start_edge(index, "").unwrap();
    let address = cluster.address_for(AgentSide::Client, index);
    let up = |event: &LogEvent| {
        TestCluster::is_report(AgentSide::Client, "edge_up", event) && event.text("edge") == address
    };
    cluster.logs.wait(start, PATIENCE, up).unwrap();
}

#[test]
fn what_was_read_stays_read_when_the_origin_has_changed_and_the_edge_is_gone() {
    let origin = Origin::start();
    // Every read revalidates the object, and checkpoints are taken in between.
    let mut cluster = cluster("cache-kill", 2, &origin, "ttl = \"0s\"\n[keep]\nrecovery_target = \"50us\"\n");
    let address = connect(&mut cluster);
    let mut client = Client::connect(address);
    let large = vec![b'x'; 300_000];
    for round in 0..4 {
        let text = format!("version {round}");
        origin.put_text("page", &text);
        client.must_read("page", text.as_bytes());
        client.must_read("page", text.as_bytes());
        origin.put("large", Thing::Object(large.clone(), ""));
        client.must_read("large", &large);
        origin.remove("large");
        client.must_miss("large", "nothing");
        origin.put_text("page", "another version");
        let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
        record(&cluster, owner, &format!("round-{round}.marram"));
        cluster.edges[owner].kill();
        cluster.wait_for_owner(start).unwrap();
        start_again(&mut cluster, owner);
    }
    client.must_read("page", b"another version");
    assert!(origin.asked("page").1 > 0, "it was never asked whether it has changed");
}

#[test]
fn a_handler_that_waits_when_its_edge_is_killed_waits_at_another() {
    let origin = Origin::start();
    let mut cluster = cluster("cache-waits", 2, &origin, "timeout = \"30s\"\n");
    let address = connect(&mut cluster);
    let mut client = Client::connect(address);
    origin.put_text("first", "one");
    origin.put_text("held", "at last");
    client.must_read("first", b"one");
    origin.hold("held");
    client.ask("held");
    until("it is asked for", || origin.asked("held").0 == 1);
    let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
    cluster.edges[owner].kill();
    cluster.wait_for_owner(start).unwrap();
    until("it is asked for again", || origin.asked("held").0 == 2);
    // The new edge replays earlier reads from the log, without a request to the origin.
    assert_eq!(origin.asked("first").0, 1);
    origin.release();
    client.must_hear("held", b"at last");
}

#[test]
fn many_waiting_reads_cause_one_request_and_do_not_delay_other_reads() {
    let origin = Origin::start();
    let mut cluster = cluster("cache-many", 1, &origin, "timeout = \"30s\"\n");
    let address = connect(&mut cluster);
    origin.put_text("slow", "at last");
    origin.put_text("quick", "here");
    origin.hold("slow");
    let mut clients: Vec<Client> = (0..40).map(|_| Client::connect(address)).collect();
    clients.iter_mut().for_each(|client| client.ask("slow"));
    until("all wait", || metric(&cluster.edges[0], "cache_misses_total") == 40);
    // A client that disconnects while its cell waits does not affect the others.
    drop(clients.pop());
    let mut other = Client::connect(address);
    other.must_read("quick", b"here");
    origin.release();
    clients.iter_mut().for_each(|client| client.must_hear("slow", b"at last"));
    assert_eq!(origin.asked("slow"), (1, 0));
    clients.iter_mut().for_each(|client| client.must_read("slow", b"at last"));
    assert_eq!(origin.asked("slow"), (1, 0));
    assert_eq!(metric(&cluster.edges[0], "cache_fetches_total"), 2);
    assert!(metric(&cluster.edges[0], "cache_hits_total") >= 39);
}

#[test]
fn an_origins_errors_are_reported_to_the_cell_and_logged() {
    let origin = Origin::start();
    let rest = "timeout = \"3s\"\nmax_bytes = \"64KiB\"\nstale = \"1h\"\nnegative_ttl = \"1h\"\n";
    let mut cluster = cluster("cache-wrong", 1, &origin, rest);
    let address = connect(&mut cluster);
    let mut client = Client::connect(address);
    let raw = |text: &str| Thing::Raw(text.into());
    let long = |head: &str| Thing::Raw([head.as_bytes(), &vec![b'z'; 70_000]].concat());
    for (key, thing, what, words) in [
        ("endless", raw("HTTP/1.1 200 OK\r\n\r\nand so on"), "refused", "no length"),
        ("huge", long("HTTP/1.1 200 OK\r\ncontent-length: 70000\r\n\r\n"), "refused", "larger than"),
        (
            "chunks",
            long("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n11170\r\n"),
            "refused",
            "larger than",
        ),
        ("cut", raw("HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\nhalf"), "away", "ended early"),
        (
            "moved",
            raw("HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"),
            "refused",
            "redirections",
        ),
        ("secret", raw("HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n"), "refused", "status 403"),
        ("ill", raw("HTTP/1.1 503 Ill\r\ncontent-length: 0\r\n\r\n"), "away", "status 503"),
        (
            "packed",
            raw("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\nx"),
            "refused",
            "encoded",
        ),
        ("noise", raw("\x16\x03\x01 who are you?\r\n\r\n"), "away", ""),
        ("mute", Thing::Silence, "away", "no whole answer in 3s"),
    ] {
        origin.put(key, thing);
        client.must_miss(key, what);
        complained(&cluster, key, words);
    }
    // A missing object is cached, and so is an unusable one, so the origin is not asked again so soon.
    client.must_miss("none", "nothing");
    client.must_miss("none", "nothing");
    client.must_miss("huge", "refused");
    assert_eq!((origin.asked("none").0, origin.asked("huge").0), (1, 1));
    // A key that is not a path does not cause a request.
    client.must_miss("../secret", "refused");
    client.must_miss("/secret", "refused");
    assert_eq!(origin.asked("secret").0, 1);
    // Chunked transfer is accepted if its end arrives.
    origin.put(
        "pieces",
        raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\npi\r\n3\r\nece\r\n0\r\n\r\n"),
    );
    client.must_read("pieces", b"piece");
    // The least recently read objects are evicted.
    let object = |number: u8| vec![b'a' + number; 20_000];
    for number in 0..6 {
        let key = format!("object-{number}");
        origin.put(&key, Thing::Object(object(number), ""));
        client.must_read(&key, &object(number));
    }
    assert!(metric(&cluster.edges[0], "cache_bytes") <= 64 << 10);
    assert!(metric(&cluster.edges[0], "cache_evictions_total") >= 3);
    client.must_read("object-5", &object(5));
    client.must_read("object-0", &object(0));
    assert_eq!((origin.asked("object-5").0, origin.asked("object-0").0), (1, 2));
}

#[test]
fn while_the_origin_is_down_old_objects_are_given_and_new_ones_are_away() {
    let origin = Origin::start();
    let mut cluster = cluster("cache-down", 1, &origin, "ttl = \"0s\"\ntimeout = \"2s\"\nstale = \"1h\"\n");
    let address = connect(&mut cluster);
    let mut client = Client::connect(address);
    origin.put_text("known", "text");
    client.must_read("known", b"text");
    for key in ["known", "new"] {
        origin.put(key, Thing::Raw(Vec::new()));
    }
    client.must_read("known", b"text");
    client.must_miss("new", "away");
    complained(&cluster, "known", "http://");
    assert!(metric(&cluster.edges[0], "cache_stale_total") >= 1);
    assert!(metric(&cluster.edges[0], "cache_failures_total") >= 2);
}

#[test]
fn a_large_object_is_read_twice_once() {
    let origin = Origin::start();
    let large = |size: usize| -> Vec<u8> { (b'a'..=b'w').cycle().take(size).collect() };
    let objects = [("small", 10), ("large", 300_000), ("larger", 400_000)];
    for (key, size) in objects {
        origin.put(key, Thing::Object(large(size), ""));
    }
    let mut cluster = cluster("cache-large", 1, &origin, "");
    let mut client = Client::connect(connect(&mut cluster));
    let reads = |cluster: &TestCluster| {
        let edge = &cluster.edges[0];
        metric(edge, "cache_hits_total") + metric(edge, "cache_misses_total")
    };
    let mut read = |(key, size): (&str, usize)| {
        let before = reads(&cluster);
        client.must_read(key, &large(size));
        reads(&cluster) - before
    };
    let [small, first, second] = objects;
    let counts = [small, first, first, first, second, second, first, small, first].map(&mut read);
    assert_eq!(counts, [1, 2, 1, 1, 2, 1, 1, 1, 2], "one that is larger than the one before it");
}

#[test]
fn a_module_that_reads_is_refused_without_a_cache_with_a_hint() {
    let layout = support::layout("cache-refused", |_| {});
    let mut cluster = TestCluster::new(layout, |_| Ok(Vec::new())).unwrap();
    cluster.start_edges("").unwrap();
    let edge = format!("--edge=http://{}", cluster.edges[0].admin());
    let deploy = |rest: &str| {
        let manifest = support::cells().manifest(&cluster.directory, "reader", "reader", rest).unwrap();
        run(&["deploy", manifest.to_str().unwrap(), &edge])
    };
    let refused = deploy("");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    for words in ["cache_read", "[cache]", "origin = \"http://", "manifest"] {
        assert!(said.contains(words), "{said:?} does not say {words:?}");
    }
    let deployed = deploy("[cache]\norigin = \"http://127.0.0.1:9/\"\n");
    assert!(deployed.status.success(), "{deployed:?}");
}
