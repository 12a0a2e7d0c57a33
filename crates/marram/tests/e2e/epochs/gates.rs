//! A client and a server that know nothing of Marram: curl through the gate of one edge, nginx behind the gate of another one. The
//! edges that run the cell, and back it, are killed meanwhile.

use super::world::{World, layout};
use crate::support::{
    self,
    site::{self, Site},
    stream::until,
};
use marram_cluster::{LogEvent, free_address};
use marram_wire::seeded::Seeded;
use std::{
    net::SocketAddr,
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

/// The edges with gates, which run no cells. Returns the address for clients.
fn open_gates(world: &mut World, site: &Site) -> SocketAddr {
    let gate = free_address().unwrap();
    let cells: Vec<String> =
        world.cluster.edge_addresses()[..EDGES].iter().map(SocketAddr::to_string).collect();
    let gates = format!("gates = {{ edges = {cells:?} }}");
    for edge in [CLIENTS_GATE, SERVERS_GATE] {
        world.cluster.edges[edge].run_no_apps();
    }
    let servers = format!("servers = {{ web = \"{}\" }}\n{gates}", site.plain);
    world.cluster.start_edge(SERVERS_GATE, &servers).unwrap();
    // The server's gate must be connected before a client comes.
    (0..EDGES).for_each(|edge| server_reached(world, edge));
    let start = world.cluster.logs.end();
    let clients = format!("gate = [{{ listen = \"{gate}\", app = \"forward\" }}]\n{gates}");
    world.cluster.start_edge(CLIENTS_GATE, &clients).unwrap();
    let who = world.cluster.edges[CLIENTS_GATE].who();
    let open = |event: &LogEvent| *event.who == *who && event.text("message") == "listening for clients";
    world.cluster.logs.wait(start, PATIENCE, open).unwrap();
    gate
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
    let gate = open_gates(&mut world, &site);
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
