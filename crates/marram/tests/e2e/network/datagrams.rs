//! Programs that use UDP, with real processes: each datagram is one message in both directions, and a killed edge loses no
//! datagram that has a number.

use crate::support;
use marram_admin::client::ApiClient;
use marram_cluster::{AgentSide, LogEvent, TestCluster, free_address};
use std::{
    collections::BTreeMap,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(120);
/// Timeout of a read, after which the thread checks whether to stop.
const TICK: Duration = Duration::from_millis(20);

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TICK)).unwrap();
    socket
}

/// The n-th datagram of a client: its number, and as many bytes as follow from it; two consecutive ones differ in length.
fn datagram(client: u8, number: u32) -> Vec<u8> {
    let len = number.wrapping_mul(7_919) % 3_000;
    let mut bytes = vec![client; usize::try_from(len).unwrap() + 5];
    bytes[1..5].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[1..5].try_into().unwrap())
}

/// A server that echoes each datagram, and records the datagrams of each client.
struct Echo {
    address: SocketAddr,
    came: Arc<Mutex<BTreeMap<SocketAddr, Vec<Vec<u8>>>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start() -> Self {
        let socket = socket();
        let address = socket.local_addr().unwrap();
        let (came, stop) = (Arc::<Mutex<BTreeMap<_, Vec<_>>>>::default(), Arc::new(AtomicBool::new(false)));
        let (into, until) = (came.clone(), stop.clone());
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; 70_000];
            while !until.load(Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                into.lock().unwrap().entry(from).or_default().push(buffer[..len].to_vec());
                socket.send_to(&buffer[..len], from).unwrap();
            }
        });
        Self { address, came, stop, thread: Some(thread) }
    }

    /// The datagrams of every client.
    fn conversations(&self) -> Vec<Vec<Vec<u8>>> {
        self.came.lock().unwrap().values().cloned().collect()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Sends `count` datagrams, few ahead of their answers so that no socket's buffer overflows; returns the answers.
fn talk(to: SocketAddr, client: u8, count: u32) -> Vec<Vec<u8>> {
    const AHEAD: u32 = 4;
    let (socket, deadline) = (socket(), Instant::now() + PATIENCE);
    let (mut sent, mut answers, mut buffer) = (0, Vec::new(), vec![0; 70_000]);
    while answers.len() < usize::try_from(count).unwrap() && Instant::now() < deadline {
        while sent < count && sent < u32::try_from(answers.len()).unwrap() + AHEAD {
            socket.send_to(&datagram(client, sent), to).unwrap();
            sent += 1;
        }
        if let Ok((len, _)) = socket.recv_from(&mut buffer) {
            answers.push(buffer[..len].to_vec());
        }
    }
    answers
}

/// Edges, and agents with a UDP listener for the app `forward`.
fn cluster(
    purpose: &'static str,
    edges: usize,
    server: SocketAddr,
    listener: &str,
) -> (TestCluster, SocketAddr) {
    let address = free_address().unwrap();
    let tables =
        format!("[[listen]]\naddress = \"{address}\"\nprotocol = \"udp\"\napp = \"forward\"\n{listener}\n");
    let mut cluster = support::cluster_with(purpose, |layout| layout.edges = edges);
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let servers = format!("servers = {{ peer = \"udp://{server}\" }}");
    cluster.start_agent_with(AgentSide::Server, &edges, &servers).unwrap();
    cluster.start_agent_with(AgentSide::Client, &edges, &tables).unwrap();
    (cluster, address)
}

/// Datagrams that the kernel dropped because a socket's buffer was full: no agent has received them.
fn overflowed() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/net/snmp").ok()?;
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let (_, value) = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "RcvbufErrors")?;
    value.parse().ok()
}

/// So many datagrams that sessions hold megabytes of them; recoveries transfer these, which must not take the agents' time.
#[test]
fn a_killed_edge_loses_and_repeats_no_datagram() {
    let (server, overflowed_before) = (Echo::start(), overflowed());
    let (mut cluster, listen) = cluster("datagrams", 3, server.address, "");
    let count = u32::try_from(support::amount("MARRAM_DATAGRAMS", 10_000)).unwrap();
    let clients: Vec<_> = (0..3).map(|client| thread::spawn(move || talk(listen, client, count))).collect();
    let mut kills = 0;
    while clients.iter().any(|client| !client.is_finished()) {
        let start = cluster.logs.end();
        // The session has a new owner, or, without any report for a while, still has the last one.
        let owned = |event: &LogEvent| TestCluster::is_report(AgentSide::Client, "owned", event);
        cluster.logs.wait(start, Duration::from_millis(500), owned);
        let last = cluster.logs.last(owned);
        if let Some(index) = last.and_then(|event| cluster.edge_at(AgentSide::Client, event.text("edge"))) {
            cluster.edges[index].kill();
            kills += 1;
            cluster.respawn(index).unwrap();
        }
    }
    let ended = cluster.logs.all(0, |event| event.name() == "ended");
    let ended: Vec<_> =
        ended.iter().map(|event| (event.who.to_string(), event.text("reason").to_string())).collect();
    let overflows = (overflowed_before, overflowed());
    for (client, talked) in (0..).zip(clients) {
        let expected: Vec<_> = (0..count).map(|number| datagram(client, number)).collect();
        let answers = talked.join().unwrap();
        let wrong = answers.iter().zip(0..).find(|(answer, number)| **answer != datagram(client, *number));
        let wrong = wrong.map(|(answer, at)| (number(answer), at));
        assert_eq!(
            (wrong, answers.len()),
            (None, expected.len()),
            "client {client}: number, place; answers; sessions ended: {ended:?}; dropped by the kernel's sockets \
             before and after: {overflows:?}"
        );
        assert!(server.conversations().contains(&expected), "the server heard client {client} whole");
    }
    assert_eq!(server.conversations().len(), 3);
    let gaps = |event: &LogEvent| {
        TestCluster::is_report(AgentSide::Client, "owned", event) && event.number("gap_us") > 0
    };
    let recoveries = cluster.logs.all(0, gaps).len();
    println!("{kills} kills, {recoveries} recoveries, 0 datagrams lost, 0 repeated");
    assert!(kills > 0 && recoveries > 0, "{kills} kills, {recoveries} recoveries");
}

#[test]
fn silence_ends_a_session_in_order_and_too_many_clients_are_refused() {
    let server = Echo::start();
    let (cluster, listen) = cluster("datagrams-idle", 1, server.address, "idle = \"3s\"\nflows = 2");
    let ask = |socket: &UdpSocket, what: &[u8]| {
        let mut buffer = [0; 100];
        socket.send_to(what, listen).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Ok((len, _)) = socket.recv_from(&mut buffer) {
                return Some(buffer[..len].to_vec());
            }
        }
        None
    };
    let (first, second, third) = (socket(), socket(), socket());
    assert_eq!(ask(&first, b"").as_deref(), Some(&b""[..]), "an empty datagram is one");
    assert_eq!(ask(&second, b"two").as_deref(), Some(&b"two"[..]));
    // While both flows exist, a third client is refused; it asks again until one of them has been idle for long enough.
    let mut answered = None;
    let deadline = Instant::now() + PATIENCE;
    let mut asked = 0;
    while answered.is_none() && Instant::now() < deadline {
        third.send_to(b"three", listen).unwrap();
        asked += 1;
        let mut buffer = [0; 100];
        answered = third.recv_from(&mut buffer).ok().map(|(len, _)| buffer[..len].to_vec());
    }
    assert_eq!(answered.as_deref(), Some(&b"three"[..]));
    assert!(asked > 1, "there was no place for it at first");
    let ended = |event: &LogEvent| {
        TestCluster::is_report(AgentSide::Client, "ended", event) && event.text("code") == "Finished"
    };
    let start = 0;
    cluster.logs.wait(start, PATIENCE, ended).expect("the session of a silent client ends in order");
    // The other two flows may still exist, so it may have to wait until one of them ends.
    let mut answered = None;
    while answered.is_none() && Instant::now() < deadline {
        first.send_to(b"again", listen).unwrap();
        let mut buffer = [0; 100];
        answered = first.recv_from(&mut buffer).ok().map(|(len, _)| buffer[..len].to_vec());
    }
    assert_eq!(answered.as_deref(), Some(&b"again"[..]), "by a session of its own");
}

/// A figure of an agent, at its own address for operators.
fn figure(agent: &ApiClient, name: &str) -> Option<u64> {
    let text = agent.call(hyper::Method::GET, "/metrics", Vec::new().into()).unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    let start = format!("marram_{name}{{agent=\"udp-1\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&start)).map(|value| value.parse().unwrap())
}

/// No edge is there, so the session cannot begin and has room for 256 KiB.
#[test]
fn an_agent_counts_the_datagrams_that_it_drops() {
    let mut cluster = support::cluster("udp-dropped", 1, 1);
    let (admin, address) = (free_address().unwrap(), free_address().unwrap());
    let tables = format!(
        "name = \"udp-1\"\n[admin]\nlisten = \"{admin}\"\n\
         [[listen]]\naddress = \"{address}\"\napp = \"forward\"\nprotocol = \"udp\"\n"
    );
    cluster.start_agent_with(AgentSide::Client, &cluster.edge_addresses(), &tables).unwrap();
    let agent = ApiClient::new(&admin.to_string(), None).unwrap();
    assert_eq!(figure(&agent, "agent_datagrams_dropped"), Some(0));
    let (client, until) = (socket(), Instant::now() + PATIENCE);
    while figure(&agent, "agent_datagrams_dropped") == Some(0) {
        assert!(Instant::now() < until, "no datagram is dropped");
        (0..64).for_each(|number| _ = client.send_to(&datagram(0, number), address).unwrap());
    }
    let (kept, limit) = (figure(&agent, "agent_memory_bytes"), figure(&agent, "agent_memory_limit_bytes"));
    assert!(kept > Some(200 << 10) && kept < limit, "{kept:?} of {limit:?}");
}
