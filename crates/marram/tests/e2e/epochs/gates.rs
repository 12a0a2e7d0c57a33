//! Clients and servers that know nothing of Marram: curl through the gate of one edge, nginx behind the gate of another one. The
//! edges that run the cell, and back it, are killed meanwhile; and the edges with the gates.

use super::world::{World, hear, layout};
use crate::support::{
    self,
    site::{self, Site},
    stream::{Stream, echo, until},
};
use marram_cluster::{LogEvent, free_address};
use marram_wire::seeded::Seeded;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Edges that run cells; after them, the edge with the clients' gate, and the one with the server's.
const EDGES: usize = 2;
const CLIENTS_GATE: usize = 2;
const SERVERS_GATE: usize = 3;
/// Another one with a gate for clients.
const OTHER_GATE: usize = 4;
/// The file is requested so often in one connection.
const REQUESTS: usize = 20;

/// Clients that ask for the file all the time, each one connection after the other.
struct Curls {
    stop: Arc<AtomicBool>,
    /// Connections that ended well.
    done: Arc<AtomicUsize>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Curls {
    fn start(count: usize, gate: SocketAddr, file: &Arc<Vec<u8>>) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let threads = (0..count).map(|_| {
            let (stop, done, file) = (Arc::clone(&stop), Arc::clone(&done), Arc::clone(file));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let mut curl = Command::new("curl");
                    curl.args(["-sS", "--fail", "--no-progress-meter"]);
                    curl.arg(format!("http://{gate}/file?[1-{REQUESTS}]")).stdin(Stdio::null());
                    let output = curl.output().unwrap();
                    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                    assert_eq!(output.stdout.len(), file.len() * REQUESTS, "lost or repeated");
                    assert!(
                        output.stdout.chunks(file.len()).all(|chunk| chunk == file.as_slice()),
                        "wrong bytes"
                    );
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let threads = threads.collect();
        Self { stop, done, threads }
    }

    /// Waits until one more connection has ended well; fails if one has not.
    fn await_one(&self, world: &World) {
        let before = self.done.load(Ordering::Relaxed);
        until(
            || {
                assert!(
                    self.threads.iter().all(|thread| !thread.is_finished()),
                    "{}",
                    world.cluster.logs.tail(60)
                );
                (self.done.load(Ordering::Relaxed) > before).then_some(())
            },
            || format!("no connection ends\n{}", world.cluster.logs.tail(60)),
        );
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// The field of an edge without cells that says which edges its gates reach.
fn gates(world: &World) -> String {
    let cells: Vec<String> =
        world.cluster.edge_addresses()[..EDGES].iter().map(SocketAddr::to_string).collect();
    format!("gates = {{ edges = {cells:?} }}")
}

/// Starts an edge that runs no cells and has a gate to this server.
fn open_servers_gate(world: &mut World, server: SocketAddr) {
    let fields = format!("servers = {{ web = \"{server}\" }}\n{}", gates(world));
    world.cluster.edges[SERVERS_GATE].run_no_apps();
    world.cluster.start_edge(SERVERS_GATE, &fields).unwrap();
    // The server's gate must be connected before a client comes.
    (0..EDGES).for_each(|edge| server_reached(world, edge));
}

/// Starts an edge that runs no cells and has a gate for clients at this address.
fn open_clients_gate(world: &mut World, edge: usize, at: SocketAddr) {
    let start = world.cluster.logs.end();
    let fields = format!("gate = [{{ listen = \"{at}\", app = \"forward\" }}]\n{}", gates(world));
    world.cluster.edges[edge].run_no_apps();
    world.cluster.start_edge(edge, &fields).unwrap();
    let who = world.cluster.edges[edge].who();
    let open = |event: &LogEvent| *event.who == *who && event.text("message") == "listening for clients";
    world.cluster.logs.wait(start, PATIENCE, open).unwrap();
}

/// Waits until the server's gate is connected to this edge.
fn server_reached(world: &World, edge: usize) {
    until(|| (world.counter(edge, "server_wires") > 0).then_some(()), || world.cluster.logs.tail(30));
}

#[test]
fn curl_gets_every_byte_from_nginx_through_gates_of_other_edges() {
    let Some(nginx) = site::nginx() else { return };
    if !support::is_here("curl") {
        return;
    }
    let kills = support::amount("MARRAM_EPOCH_KILLS", 20);
    let mut file = vec![0; 300_000];
    Seeded::new(7).fill(&mut file);
    let site = Site::start(nginx, "epoch-site", &[("file", file.clone())], Vec::new());
    let layout = layout("epoch-gates", EDGES + 2, support::UNSUSPECTING);
    let mut world = World::without_agents(layout, EDGES, "every = \"1ms\"");
    let gate = free_address().unwrap();
    open_servers_gate(&mut world, site.plain);
    open_clients_gate(&mut world, CLIENTS_GATE, gate);
    let curls = Curls::start(2, gate, &Arc::new(file));
    let cells: Vec<usize> = (0..EDGES).collect();
    for round in 0..kills {
        curls.await_one(&world);
        // A session that has just begun has released nothing yet, so that it may lose its edge before it has a backup.
        let backed = || {
            let seen = world.seen_by(&cells);
            let all = !seen.is_empty() && seen.values().all(|it| it.backup.is_some());
            seen.into_values().next().filter(|_| all)
        };
        let seen = until(backed, || world.cluster.logs.tail(60));
        let victim = if round % 2 == 0 { seen.owner } else { seen.backup.unwrap() };
        world.cluster.edges[victim].kill();
        curls.await_one(&world);
        world.restart_without_agents(victim);
        server_reached(&world, victim);
    }
    curls.finish();
}

/// A connection through a gate, over which a byte has come back.
fn connect(gate: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(gate).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"?").unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"?");
    stream
}

/// Waits until a connection is over.
fn is_over(mut stream: TcpStream) {
    match stream.read(&mut [0]) {
        Ok(count) => assert_eq!(count, 0, "nothing was sent"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
}

#[test]
fn the_death_of_a_gate_ends_its_connections_and_nothing_else() {
    const OTHERS: usize = 2;
    let layout = layout("epoch-gate-dies", OTHER_GATE + 1, support::UNSUSPECTING);
    let mut world = World::without_agents(layout, EDGES, "every = \"1ms\"\n[keep]\nlinger = \"1s\"");
    let [gate, other] = [(); 2].map(|()| free_address().unwrap());
    open_servers_gate(&mut world, echo());
    open_clients_gate(&mut world, CLIENTS_GATE, gate);
    open_clients_gate(&mut world, OTHER_GATE, other);
    let cells: Vec<usize> = (0..EDGES).collect();
    let streams: Vec<Stream> = (0..OTHERS).map(|_| Stream::start(other)).collect();
    hear(&streams);
    let others = world.backed_at(&cells, OTHERS);
    let gone: Vec<TcpStream> = (0..3).map(|_| connect(gate)).collect();
    world.backed_at(&cells, OTHERS + gone.len());

    world.cluster.edges[CLIENTS_GATE].kill();
    gone.into_iter().for_each(is_over);
    // Their sessions end when their linger time is over; the others go on where they are.
    let left = world.backed_at(&cells, OTHERS);
    assert_eq!(left, others);
    hear(&streams);
    open_clients_gate(&mut world, CLIENTS_GATE, gate);
    let again = connect(gate);

    // The server's ends of all sessions are in this one.
    world.cluster.edges[SERVERS_GATE].kill();
    let over = || world.seen_by(&cells).is_empty().then_some(());
    until(over, || world.cluster.logs.tail(60));
    is_over(again);
    let server = echo();
    open_servers_gate(&mut world, server);
    drop([connect(gate), connect(other)]);
    for edge in cells {
        assert_eq!(world.counter(edge, "shard_deaths_total"), 0, "the edges with the cells go on");
    }
}
