//! Live moves with real processes: sessions that forward and sessions with state are moved between edges while both sides send,
//! and one side of some moves is killed. Not a byte may be lost, repeated or changed, and no program may notice.
//!
//! `MARRAM_MOVES` is the number of moves (60 if not set; `cargo xtask soak moves` makes 10,000), `MARRAM_MOVE_SESSIONS` the number
//! of sessions at a time (12), `MARRAM_SEED` selects them.

use crate::support::{
    self,
    caches::{self, Caches},
    figures,
    traffic::Traffic,
};
use hyper::Method;
use marram_cluster::{Layout, TestCluster};
use marram_wire::seeded::Seeded;
use rustix::process::Signal;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);
const EDGES: usize = 3;
/// Moves that are asked for at a time.
const BATCH_MAX: u64 = 8;
/// Of so many batches, one is struck: the edge from which or to which sessions move is killed.
const STRUCK_ONE_OF: u64 = 6;

/// What became of the moves.
#[derive(Default, Debug)]
struct Done {
    moved: usize,
    /// Refused, or given up: the session stayed, or left in another way.
    not: BTreeMap<String, usize>,
    /// The edge that had the session was killed, and with it what it knew of the move.
    unknown: usize,
    kills: usize,
}

struct World {
    cluster: TestCluster,
    /// Each edge can take the sessions of the others.
    extra: String,
    listens: Vec<SocketAddr>,
}

impl World {
    fn new(purpose: &'static str, server: SocketAddr, protect: &str) -> Self {
        Self::with(purpose, server, protect, |_| {})
    }

    fn with(
        purpose: &'static str,
        server: SocketAddr,
        protect: &str,
        change: impl FnOnce(&mut Layout),
    ) -> Self {
        let layout = support::layout(purpose, |layout: &mut Layout| {
            (layout.edges, layout.shards) = (EDGES, 2);
            layout.agent_tables = String::new();
            change(layout);
        });
        let state = format!(
            "protect = {protect:?}\n[keep]\nrecovery_target = \"1ms\"\n[quotas]\nmemory = \"64MiB\"\n"
        );
        let stream = |protect| format!("server = \"peer\"\nprotect = {protect:?}\n");
        let apps = |place: &_| {
            let cells = support::cells();
            Ok(vec![
                cells.manifest(place, "forward", "forward", &stream("endpoints"))?,
                cells.manifest(place, "cache", "memcached", &state)?,
                cells.manifest(place, "bare", "forward", &stream("none"))?,
            ])
        };
        let mut cluster = TestCluster::new(layout, apps).unwrap();
        let edges = cluster.edge_addresses();
        let names: Vec<String> = edges.iter().map(SocketAddr::to_string).collect();
        let extra = format!("standby = {{ edges = {names:?} }}");
        cluster.start_edges(&extra).unwrap();
        cluster.start_server_agent(&edges, &[("peer", server)]).unwrap();
        let listens = cluster.start_client_agent(&edges, &["forward", "cache", "bare"]).unwrap();
        let listens = listens.iter().map(|listen| listen.address).collect();
        Self { cluster, extra, listens }
    }

    fn ask(&self, edge: usize, method: Method, path: &str) -> Result<Value, String> {
        let client = self.cluster.edges[edge].client().unwrap();
        client.json(method, path).map_err(|error| error.to_string())
    }

    /// The sessions that run on an edge.
    fn running(&self, edge: usize) -> Vec<String> {
        self.placed(edge).into_iter().map(|(session, _)| session).collect()
    }

    /// The same, with the shard of each.
    fn placed(&self, edge: usize) -> Vec<(String, u64)> {
        let list = self.ask(edge, Method::GET, "/v1/sessions").unwrap_or_default();
        let rows = list["sessions"].as_array().into_iter().flatten();
        let running = rows.filter(|row| row["phase"] == "running");
        running
            .map(|row| (row["session"].as_str().unwrap().to_owned(), row["shard"].as_u64().unwrap()))
            .collect()
    }

    /// Runs a command of operators for some edges: its status, and what it prints.
    fn marram(&self, arguments: &[&str], edges: &[usize]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
        command.args(arguments);
        for edge in edges {
            command.arg("--edge").arg(format!("http://{}", self.cluster.edges[*edge].admin()));
        }
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// What an edge says of the only move that it knows.
    fn only_move(&self, edge: usize) -> Value {
        let list = self.ask(edge, Method::GET, "/v1/moves").unwrap_or_default();
        list["moves"].as_array().and_then(|moves| moves.first().cloned()).unwrap_or_default()
    }

    fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}; {}", self.cluster.logs.tail(40));
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The name that an edge has.
    fn name(&self, edge: usize) -> String {
        self.ask(edge, Method::GET, "/v1/edge").unwrap()["edge"].as_str().unwrap().to_owned()
    }

    /// Moves some sessions from one edge to another one, or to the other shard of the same edge, perhaps kills one of the two if it
    /// `strikes`, and waits for the results.
    fn batch(&mut self, strikes: bool, random: &mut Seeded, done: &mut Done) {
        let from = usize::try_from(random.below(EDGES as u64)).unwrap();
        let to = (from + usize::try_from(random.below(EDGES as u64)).unwrap()) % EDGES;
        // An edge that was started again has another name.
        let (name, mut begun) = (self.name(to), Vec::new());
        for (session, shard) in
            self.placed(from).into_iter().take(usize::try_from(1 + random.below(BATCH_MAX)).unwrap())
        {
            let to = if to == from { format!("{name}/{}", 1 - shard) } else { name.clone() };
            match self.ask(from, Method::POST, &format!("/v1/sessions/{session}/move/{to}")) {
                Ok(_) => begun.push(session),
                Err(why) => {
                    *done.not.entry(why.split(" (").next().unwrap_or_default().to_owned()).or_default() += 1
                }
            }
        }
        if strikes && random.below(STRUCK_ONE_OF) == 0 && !begun.is_empty() {
            thread::sleep(Duration::from_micros(random.below(20_000)));
            let (struck, extra) = (if random.below(2) == 0 { from } else { to }, self.extra.clone());
            self.cluster.edges[struck].kill();
            done.kills += 1;
            self.cluster.respawn_with(struck, &extra).unwrap();
            if struck == from {
                return done.unknown += begun.len();
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while !begun.is_empty() {
            assert!(Instant::now() < deadline, "{begun:?} do not end; {}", self.cluster.logs.tail(40));
            // An edge that has no time to answer is asked again.
            let list = self.ask(from, Method::GET, "/v1/moves").unwrap_or_default();
            for row in list["moves"].as_array().into_iter().flatten() {
                let session = row["session"].as_str().unwrap();
                let state = row["state"].as_str().unwrap();
                let Some(at) = begun
                    .iter()
                    .position(|it| it == session)
                    .filter(|_| ["moved", "failed"].contains(&state))
                else {
                    continue;
                };
                begun.swap_remove(at);
                match row["why"].as_str() {
                    None => done.moved += 1,
                    Some(why) => *done.not.entry(why.to_owned()).or_default() += 1,
                }
            }
        }
    }
}

#[test]
fn moves_lose_nothing_and_no_program_notices() {
    support::turns::alone();
    let moves = support::amount("MARRAM_MOVES", 60);
    let sessions = support::amount("MARRAM_MOVE_SESSIONS", 12) as u64;
    let seed = support::amount("MARRAM_SEED", 1) as u64;
    let mut traffic = Traffic::new();
    let mut world = World::new("moves", traffic.server, "endpoints");
    traffic.start(world.listens[0], sessions / 2, 20_000_000, seed);
    let caches = Caches::start(world.listens[1], sessions - sessions / 2, seed);
    let (mut random, mut done) = (Seeded::new(seed), Done::default());
    let begun = Instant::now();
    // One of fifty moves meets the death of an edge, or more.
    while done.moved < moves || done.kills <= moves / 50 {
        world.batch(true, &mut random, &mut done);
        let wrong = [traffic.wrong(), caches.wrong()].concat();
        assert_eq!(wrong, Vec::<String>::new(), "seed {seed}, {done:?}; {}", world.cluster.logs.tail(40));
        assert!(
            begun.elapsed() < PATIENCE * 2 + Duration::from_secs(moves as u64),
            "too few moves: {done:?}"
        );
    }
    let (streams, bytes) = traffic.finish();
    let answers = caches.finish();
    println!("seed {seed}: {done:?}; {streams} streams of {bytes} bytes, {answers} answers of caches");
    assert!(streams > 0 && answers > 0);
}

#[test]
fn sessions_without_protection_move_while_both_sides_send() {
    support::turns::alone();
    const MOVES: usize = 20;
    let mut traffic = Traffic::new();
    let mut world = World::new("moves-bare", traffic.server, "endpoints");
    traffic.start(world.listens[2], 4, 20_000_000, 5);
    let (mut random, mut done, begun) = (Seeded::new(5), Done::default(), Instant::now());
    while done.moved < MOVES {
        world.batch(false, &mut random, &mut done);
        assert_eq!(traffic.wrong(), Vec::<String>::new(), "{done:?}; {}", world.cluster.logs.tail(40));
        assert!(begun.elapsed() < PATIENCE * 2, "too few moves: {done:?}; {}", world.cluster.logs.tail(40));
    }
    let (streams, bytes) = traffic.finish();
    println!("{done:?}; {streams} streams of {bytes} bytes");
    assert!(streams > 0);
}

#[test]
fn the_command_moves_sessions_and_says_why_one_stays() {
    let server = support::serve::echo();
    let world = World::new("move-command", server, "endpoints");
    let caches = Caches::start(world.listens[1], 2, 1);
    let marram = |arguments: &[&str]| world.marram(arguments, &[0, 1, 2]);
    let at = |edge: usize| world.running(edge).len();
    world.wait("the sessions begin", || (0..EDGES).map(at).sum::<usize>() == 2);
    for edge in (0..EDGES).chain(0..EDGES) {
        let name = world.name(edge);
        let away = 2 - at(edge);
        let (status, out, error) = marram(&["move", "--app", "cache", "--to", &name]);
        if away == 0 {
            assert!(
                status == Some(3) && error.contains("matches the filters and could move to"),
                "{out} {error}"
            );
            continue;
        }
        assert_eq!((status, out.matches("moved").count()), (Some(0), away), "{out} {error}");
        assert_eq!(at(edge), 2, "{out}");
    }
    // The filters are those of `marram ps`.
    let to = world.name(0);
    let (status, _, error) = marram(&["move", "--protect", "none", "--to", &to]);
    assert!(status == Some(3) && error.contains("matches the filters"), "{error}");
    let (status, out, error) = marram(&["move", "--keeper", "none", "--younger", "1h", "--to", &to]);
    assert_eq!((status, out.matches("moved").count(), at(0)), (Some(0), 2, 2), "{out} {error}");
    let (status, out, error) = world.marram(&["move", "--all", "--to", &world.name(EDGES - 1)], &[0]);
    assert_eq!((status, out.matches("moved").count(), at(EDGES - 1)), (Some(0), 2, 2), "{out} {error}");
    let (status, _, error) = marram(&["move", "--all", "--app", "cache", "--to", &to]);
    assert!(status == Some(2) && error.contains("--all means every session"), "{error}");
    let session = world.running(EDGES - 1).remove(0);
    let (status, _, error) = marram(&["move", &session, "--to", "nowhere"]);
    assert!(status == Some(3) && error.contains("`nowhere` is not connected"), "{error}");
    let (status, out, _) = marram(&["move", &session[..6], "--to", &world.name(0), "--dry-run"]);
    assert!(status == Some(0) && out.contains("would move") && out.contains("would be copied"), "{out}");
    let (status, out, error) = marram(&["move", "--all", "--to", "nowhere", "--dry-run"]);
    assert_eq!((status, out.matches("`nowhere` is not connected").count()), (Some(3), 2), "{out} {error}");
    assert!(error.contains("2 of 2 sessions would stay"), "{error}");
    assert_eq!(at(EDGES - 1), 2, "none was moved");
    assert!(caches.finish() > 0);
}

#[test]
fn sessions_move_to_the_other_shard_of_their_edge_and_stay_there() {
    const SESSIONS: usize = 4;
    // A shard that is only slow keeps its sessions: one that lost its owner would go home.
    let timeouts = format!("{}failback_delay = \"50ms\"\n", support::UNSUSPECTING);
    let layout = |layout: &mut Layout| layout.agent_tables = timeouts;
    let world = World::with("move-shard", support::serve::echo(), "endpoints", layout);
    let caches = Caches::start(world.listens[1], SESSIONS as u64, 3);
    let placed = || -> BTreeMap<String, (usize, u64)> {
        let of = |edge| world.placed(edge).into_iter().map(move |(session, shard)| (session, (edge, shard)));
        (0..EDGES).flat_map(of).collect()
    };
    let is_home = |(session, (_, shard)): (&String, &(usize, u64))| {
        u64::from_str_radix(&session[..2], 16).is_ok_and(|first| first % 2 == *shard)
    };
    world.wait("the sessions begin at home", || placed().len() == SESSIONS && placed().iter().all(is_home));
    let before = placed();
    for (session, (edge, shard)) in &before {
        let name = world.name(*edge);
        let (status, _, error) = world.marram(&["move", session, "--to", &name], &[*edge]);
        assert!(status == Some(3) && error.contains("to move it to another shard"), "{error}");
        let to = format!("{name}/{}", 1 - shard);
        let (status, out, error) = world.marram(&["move", session, "--to", &to], &[*edge]);
        assert_eq!(status, Some(0), "{out} {error}; {}", world.cluster.logs.tail(40));
    }
    let moved = |(edge, shard): &(usize, u64)| (*edge, 1 - shard);
    let after: BTreeMap<String, (usize, u64)> =
        before.iter().map(|(session, place)| (session.clone(), moved(place))).collect();
    assert_eq!(placed(), after);
    // Far longer than it takes until sessions fail back.
    let (since, answers) = (Instant::now(), caches.answers());
    world.wait("clients go on", || since.elapsed() > Duration::from_secs(1) && caches.answers() > answers);
    assert_eq!(placed(), after, "{}", world.cluster.logs.tail(40));
    assert_eq!(caches.wrong(), Vec::<String>::new());
    assert!(caches.finish() > 0);
}

#[test]
fn an_edge_that_stops_hands_its_sessions_over_unless_they_would_lose_their_standby() {
    const SESSIONS: usize = 6;
    let mut world = World::new("drain-moves", support::serve::echo(), "standby");
    let caches = Caches::start(world.listens[1], SESSIONS as u64, 2);
    let at = |world: &World, edge: usize| world.running(edge).len();
    world.wait("the sessions begin", || (0..EDGES).map(|edge| at(&world, edge)).sum::<usize>() == SESSIONS);
    let first = (0..EDGES).max_by_key(|edge| at(&world, *edge)).unwrap();
    let sessions = at(&world, first);
    world.wait("other edges can take them", || {
        let (status, out, error) = world.marram(&["drain", "--dry-run"], &[first]);
        assert_eq!(status, Some(0), "{error}");
        out.matches("moves to ").count() == sessions && !out.contains("--force")
    });
    let (status, out, error) = world.marram(&["drain", "--wait"], &[first]);
    assert!(
        status == Some(0) && out.contains("draining") && error.contains("stopped"),
        "{status:?} {out} {error}"
    );
    let ended = world.cluster.edges[first].process().unwrap().wait().unwrap();
    assert_eq!(ended.code(), Some(0));
    // The two others stand by for one another: neither may go.
    let [second, third] = [(first + 1) % EDGES, (first + 2) % EDGES];
    let takeovers = |edge: usize| figures::counter(&world.cluster.edges[edge], "takeovers_total");
    let taken = takeovers(second) + takeovers(third);
    // All of them, unless a standby lags on a busy machine.
    assert!(taken > 0, "none was handed over: {}", world.cluster.logs.tail(40));
    world.wait("they have all sessions", || at(&world, second) + at(&world, third) == SESSIONS);
    let last = if at(&world, second) > 0 { second } else { third };
    let (status, out, error) = world.marram(&["drain"], &[last]);
    assert!(status == Some(3) && error.contains("no standby") && error.contains("--force"), "{out} {error}");
    let (_, out, _) = world.marram(&["drain", "--dry-run"], &[last]);
    assert!(out.contains("`--force` is needed"), "{out}");
    let (status, out, error) = world.marram(&["drain", "--force", "--wait"], &[last]);
    assert_eq!(status, Some(0), "{out} {error}");
    assert!(caches.finish() > 0);
}

/// Stores items that do not compress, of this size in all.
fn fill(stream: &mut TcpStream, bytes: usize) {
    const ITEM: usize = 40_000;
    let mut random = Seeded::new(9);
    for item in 0..bytes / ITEM {
        let value: Vec<u8> =
            std::iter::repeat_with(|| random.word().to_le_bytes()).flatten().take(ITEM).collect();
        stream.write_all(format!("set fill{item} 0 0 {ITEM}\r\n").as_bytes()).unwrap();
        stream.write_all(&[&value[..], b"\r\n"].concat()).unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"STORED\r\n");
    }
}

#[test]
fn a_move_under_way_is_replaced_unless_the_session_is_handed_over() {
    // A copy takes seconds: half of the bandwidth is each shard's.
    let tables = |layout: &mut Layout| {
        layout.edge_tables = "[limits]\nmove_bandwidth = \"1MiB\"\n".into();
        layout.agent_tables = support::UNSUSPECTING.into();
    };
    let mut world = World::with("move-replace", support::serve::echo(), "endpoints", tables);
    let mut stream = TcpStream::connect(world.listens[1]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    fill(&mut stream, 2_400_000);
    // It goes on to ask meanwhile, and knows what its cache has.
    let (stop, mut client) = (Arc::new(AtomicBool::new(false)), caches::Client::new(stream, 3).unwrap());
    let conversation = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut steps = 0;
            while !stop.load(Ordering::Relaxed) {
                client.step()?;
                steps += 1;
            }
            client.look_at_all().map(|()| steps)
        }
    });
    let from = (0..EDGES).find(|edge| !world.running(*edge).is_empty()).unwrap();
    let (first, second) = ((from + 1) % EDGES, (from + 2) % EDGES);
    let session = world.running(from).remove(0);
    let move_to = |world: &World, from: usize, to: usize, how: &[&str]| {
        let to = world.name(to);
        world.marram(&[&["move", &session, "--to", &to], how].concat(), &[from])
    };

    let (status, _, error) = move_to(&world, from, first, &["--no-wait"]);
    assert_eq!(status, Some(0), "{error}");
    world.wait("it is being copied", || world.only_move(from)["copied_bytes"].as_u64() > Some(0));
    let (status, out, _) = move_to(&world, from, second, &["--dry-run"]);
    assert!(status == Some(3) && out.contains("is being moved to"), "{out}");
    let (status, out, error) = move_to(&world, from, second, &["--dry-run", "--replace"]);
    assert!(status == Some(0) && out.contains("would move"), "{out} {error}");
    let (status, out, error) = move_to(&world, from, second, &["--replace"]);
    assert!(status == Some(0) && out.contains("moved"), "{out} {error}");
    assert_eq!(world.running(second), [session.as_str()], "{out}");
    assert_eq!(figures::counter(&world.cluster.edges[from], "moves_replaced_total"), 1);
    assert!(
        figures::counter(&world.cluster.edges[from], "moves_limited_us_total") > 1_000_000,
        "its copy waited"
    );

    // The client's agent is stopped: its end cannot promise the other edge, to which the session is handed over.
    let (status, _, error) = move_to(&world, second, first, &["--no-wait"]);
    assert_eq!(status, Some(0), "{error}");
    world.wait("it is being copied", || world.only_move(second)["copied_bytes"].as_u64() > Some(0));
    let agent = |world: &mut World, signal| world.cluster.agents().next().unwrap().signal(signal);
    agent(&mut world, Signal::STOP);
    world.wait("it is handed over", || world.only_move(second)["state"] == "handed over");
    let (status, _, error) = move_to(&world, second, from, &["--replace"]);
    agent(&mut world, Signal::CONT);
    assert!(status == Some(3) && error.contains("is handed over to"), "{error}");
    world.wait("it is moved", || world.only_move(second)["state"] == "moved");
    assert_eq!(world.running(first), [session.as_str()]);
    stop.store(true, Ordering::Relaxed);
    let steps = conversation.join().unwrap().unwrap();
    assert!(steps > 0, "it never asked");
}
