//! One edge, one shard, one agent: tenants with hostile guests and clients, beside a quiet one. Every answer to the quiet client
//! arrives and is correct, every refusal of the others has a reason, and after their clients have disconnected nothing of them
//! remains.

use crate::support::{self, turns};
use marram_cluster::{AgentSide, LogEvent, TempDir, TestCluster};
use marram_sandbox::bench::guests::{
    Body, again, answer, endless, grow, module, nothing, print, send, set_timers, spawn_again, spawn_tasks,
};
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Timeout of each wait, on any machine: the hostile tenants use much of the CPU time.
const PATIENCE: Duration = Duration::from_secs(240);
/// How often clients check whether they should stop.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The least number of answers to the quiet client, and their size.
const ANSWERS: u64 = 500;
const SIZE: usize = 64;
/// Session quota of the tenant `crowd`, and the number of its clients.
const GRANTED: usize = 4;
const CROWD: usize = 12;
/// Connections that a client of `swarm` holds at a time, and the least number that it must have opened.
const HELD: usize = 50;
const SWARM: u64 = 3_000;

/// An app of a tenant with the same name.
struct App {
    name: &'static str,
    /// The handlers of a message (port, address, length) and of a timer or task (token).
    handlers: [Body; 2],
    manifest: &'static str,
    /// The reason in the agent's log for a session that the edge ended; empty if the edge has no reason to end one.
    ended: &'static str,
}

/// An app without a manifest and timers, with sessions that the edge ends for this reason.
const fn stopped(name: &'static str, recv: Body, ended: &'static str) -> App {
    App { name, handlers: [recv, nothing], manifest: "", ended }
}

const APPS: [App; 12] = [
    App { name: "quiet", handlers: [answer, nothing], manifest: "", ended: "" },
    App {
        name: "loop",
        handlers: [endless, nothing],
        manifest: "[quotas]\nhandler_time = \"100ms\"\n",
        ended: "a handler ran longer than handler_time, 100 ms",
    },
    App { name: "flood", handlers: [|code| send(code, 256, 4_096), nothing], manifest: "", ended: "" },
    App {
        name: "talker",
        handlers: [|code| send(code, 1_000, 1), nothing],
        manifest: "[quotas]\nmessages_per_s = 900\n",
        ended: "the cell sent more than quotas.messages_per_s = 900",
    },
    App {
        name: "growth",
        handlers: [grow, nothing],
        manifest: "[quotas]\nmemory = \"32MiB\"\n",
        ended: "unreachable",
    },
    App { name: "timers", handlers: [|code| set_timers(code, 8), again], manifest: "", ended: "" },
    stopped("hoarder", |code| set_timers(code, 2_000), "the cell has more timers than the limit"),
    App { name: "spawner", handlers: [|code| spawn_tasks(code, 8), spawn_again], manifest: "", ended: "" },
    stopped("masses", |code| spawn_tasks(code, 2_000), "the cell has more tasks than the limit"),
    App {
        name: "printer",
        handlers: [|code| set_timers(code, 1), |code| print(code, 1_000)],
        manifest: "",
        ended: "",
    },
    App { name: "swarm", handlers: [answer, nothing], manifest: "", ended: "" },
    stopped("crowd", answer, "the tenant `crowd` has reached its maximum number of sessions on this shard"),
];

fn write_app(place: &TempDir, app: &App) -> anyhow::Result<PathBuf> {
    let App { name, handlers: [recv, timer], manifest, .. } = app;
    place.write(&format!("apps/{name}/guest.wasm"), module(*recv, *timer))?;
    place.write(
        &format!("apps/{name}/marram.toml"),
        format!("name = \"{name}\"\nmodule = \"guest.wasm\"\n{manifest}"),
    )
}

/// The edge with all apps, and each app's address at the agent.
fn start() -> (TestCluster, BTreeMap<&'static str, SocketAddr>) {
    let layout = support::layout("hostile", |layout| {
        layout.edge_tables = format!("[[tenant]]\nname = \"crowd\"\nsessions = {GRANTED}\n");
        layout.agent_tables += "edge_wait = \"3s\"\n";
    });
    let mut cluster =
        TestCluster::new(layout, |place| APPS.iter().map(|app| write_app(place, app)).collect()).unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let names: Vec<&str> = APPS.iter().map(|app| app.name).collect();
    let listens = cluster.start_client_agent(&edges, &names).unwrap();
    let addresses =
        APPS.iter().map(|app| app.name).zip(listens.iter().map(|listen| listen.address)).collect();
    (cluster, addresses)
}

/// A connection that is reset when it is closed, so that its session ends at once.
fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    stream.set_read_timeout(Some(LOOK_EVERY))?;
    stream.set_write_timeout(Some(LOOK_EVERY))?;
    Ok(stream)
}

/// Clients that run until they are stopped.
#[derive(Default)]
struct Hostile {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Connections that were opened to `swarm`.
    swarm: Arc<AtomicU64>,
}

impl Hostile {
    /// Runs `visit` repeatedly; it is expected that the edge ends its sessions.
    fn spawn(&mut self, mut visit: impl FnMut(&AtomicBool) -> std::io::Result<()> + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        self.threads.push(thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if visit(&stop).is_err() {
                    thread::sleep(LOOK_EVERY);
                }
            }
        }));
    }

    fn start(addresses: &BTreeMap<&'static str, SocketAddr>) -> Self {
        let mut hostile = Self::default();
        for name in ["loop", "flood", "talker", "growth", "timers", "hoarder", "spawner", "masses", "printer"]
        {
            let address = addresses[name];
            for _ in 0..2 {
                hostile.spawn(move |stop| ask_and_listen(address, stop));
            }
        }
        let address = addresses["crowd"];
        for _ in 0..CROWD {
            hostile.spawn(move |stop| ask_and_listen(address, stop));
        }
        let (address, opened) = (addresses["swarm"], Arc::clone(&hostile.swarm));
        hostile.spawn(move |stop| come_and_go(address, stop, &opened));
        hostile
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Sends one byte, and one more for each piece of an answer, until the session is ended.
fn ask_and_listen(address: SocketAddr, stop: &AtomicBool) -> std::io::Result<()> {
    let mut stream = connect(address)?;
    let mut buffer = vec![0; 256 << 10];
    let in_time = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(()),
        _ => Err(error),
    };
    stream.write_all(&[1])?;
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => stream.write_all(&[1]).or_else(in_time)?,
            Err(error) => in_time(error)?,
        }
    }
    Ok(())
}

/// Opens connections as fast as it can, and sends a request on each without waiting for the answer.
fn come_and_go(address: SocketAddr, stop: &AtomicBool, opened: &AtomicU64) -> std::io::Result<()> {
    let mut held = VecDeque::with_capacity(HELD);
    while !stop.load(Ordering::Relaxed) {
        let mut stream = connect(address)?;
        stream.write_all(&[1; SIZE])?;
        opened.fetch_add(1, Ordering::Relaxed);
        if held.len() == HELD {
            held.pop_front();
        }
        held.push_back(stream);
    }
    Ok(())
}

/// The quiet client: one request after another, each with the expected answer.
struct Quiet {
    stream: TcpStream,
    answers: u64,
}

impl Quiet {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, answers: 0 }
    }

    fn ask(&mut self, count: u64) {
        for _ in 0..count {
            let mut question = [0x5a; SIZE];
            question[..8].copy_from_slice(&self.answers.to_le_bytes());
            self.stream.write_all(&question).unwrap();
            let mut answer = [0; SIZE];
            self.stream.read_exact(&mut answer).expect("the quiet client's answer comes");
            assert_eq!(answer, question, "answer {}", self.answers);
            self.answers += 1;
        }
    }
}

/// A counter of `/metrics`, over all shards.
fn metric(cluster: &TestCluster, name: &str) -> u64 {
    let text =
        cluster.edges[0].client().unwrap().call(hyper::Method::GET, "/metrics", Default::default()).unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    let of = |line: &&str| line.starts_with(name) && line[name.len()..].starts_with('{');
    let values = text.lines().filter(of).map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    values.sum()
}

fn sessions(cluster: &TestCluster) -> usize {
    let list = cluster.edges[0].client().unwrap().json(hyper::Method::GET, "/v1/sessions").unwrap();
    list["sessions"].as_array().unwrap().len()
}

/// Number of sessions that the edge ended for this reason, by the agent's log.
fn ended(cluster: &TestCluster, reason: &str) -> usize {
    cluster.logs.count(0, |event: &LogEvent| {
        TestCluster::is_report(AgentSide::Client, "ended", event) && event.text("reason").contains(reason)
    })
}

#[test]
fn a_quiet_tenant_beside_hostile_ones_gets_every_answer() {
    turns::alone();
    let (mut cluster, addresses) = start();
    let mut quiet = Quiet::connect(addresses["quiet"]);
    quiet.ask(1);
    let hostile = Hostile::start(&addresses);
    let deadline = Instant::now() + PATIENCE;
    let raged = |cluster: &TestCluster| {
        let told = APPS.iter().filter(|app| !app.ended.is_empty()).all(|app| ended(cluster, app.ended) >= 2);
        told && hostile.swarm.load(Ordering::Relaxed) >= SWARM
    };
    while quiet.answers < ANSWERS || !raged(&cluster) {
        assert!(Instant::now() < deadline, "{} answers; {}", quiet.answers, cluster.logs.tail(30));
        quiet.ask(20);
    }
    // The operator's view.
    let (failed, rejected) =
        (metric(&cluster, "marram_sessions_failed_total"), metric(&cluster, "marram_hellos_rejected_total"));
    assert!(failed >= 8 && rejected >= (CROWD - GRANTED) as u64, "{failed} failed, {rejected} rejected");
    assert_eq!(metric(&cluster, "marram_shard_deaths_total"), 0);
    let list = cluster.edges[0].client().unwrap().json(hyper::Method::GET, "/v1/sessions").unwrap();
    let of = |app: &str| list["sessions"].as_array().unwrap().iter().filter(|row| row["app"] == app).count();
    assert_eq!((of("quiet"), of("crowd")), (1, GRANTED));
    // Of thousands of printed lines, the log has a burst and then one a second.
    let printed = cluster.logs.count(0, |event| !event.fields["stage"].is_null());
    assert!((1..1_000).contains(&printed), "{printed} lines of guests");
    // After the hostile clients have ended, their sessions end; the quiet one stays.
    hostile.end();
    while sessions(&cluster) > 1 {
        assert!(Instant::now() < deadline + PATIENCE, "{} sessions are left", sessions(&cluster));
        quiet.ask(1);
    }
    quiet.ask(20);
    assert!(cluster.agents().all(|agent| !agent.ended()), "the agent lives");
}
