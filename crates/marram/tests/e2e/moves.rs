//! Live moves with real processes: what they do to sessions, and the commands of operators.

mod gates;
mod ledger;
mod live;
mod mover;
mod world;

use crate::support::{self, caches::Caches, figures, services::Service};
use marram_cluster::free_address;
use marram_wire::seeded::Seeded;
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use world::{PATIENCE, Plan, World};

const EDGES: usize = 3;
/// How often a move is tried again that a busy machine has failed.
const ATTEMPTS: usize = 5;

/// Edges with caches that are protected like this.
fn caches(purpose: &'static str, protect: &str) -> World {
    caches_with(purpose, protect, ["", ""])
}

/// The same, with these further limits of edges and timeouts of agents.
fn caches_with(purpose: &'static str, protect: &str, [limits, timeouts]: [&str; 2]) -> World {
    let bulk = support::serve::echo();
    World::new(&Plan {
        purpose,
        edges: EDGES,
        protect,
        protect_bulk: "endpoints",
        services: &[Service::Memcached],
        sessions: 8,
        bulk,
        limits,
        timeouts,
    })
}

#[test]
fn the_command_moves_sessions_and_says_why_one_stays() {
    let world = caches("move-command", "endpoints");
    let caches = Caches::start(world.services[0].1, 2, 1);
    let marram = |arguments: &[&str]| world.marram(arguments, &[0, 1, 2]);
    let at = |edge: usize| world.running(edge).len();
    world.wait("the sessions begin", || (0..EDGES).map(at).sum::<usize>() == 2);
    for edge in (0..EDGES).chain(0..EDGES) {
        let name = world.name(edge);
        let away = 2 - at(edge);
        let (status, out, error) = marram(&["move", "--app", "memcached", "--to", &name]);
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
    let (status, _, error) = marram(&["move", "--all", "--app", "memcached", "--to", &to]);
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
    let world = caches_with("move-shard", "endpoints", ["", "failback_delay = \"50ms\"\n"]);
    let caches = Caches::start(world.services[0].1, SESSIONS as u64, 3);
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
    let mut world = caches("drain-moves", "standby");
    let caches = Caches::start(world.services[0].1, SESSIONS as u64, 2);
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

/// The sessions of an edge, each with the edge that stands by for it and has all that a takeover needs.
fn standbys(world: &World, edge: usize) -> BTreeMap<String, String> {
    let list = world.ask(edge, hyper::Method::GET, "/v1/sessions").unwrap_or_default();
    let rows = list["sessions"].as_array().into_iter().flatten();
    let standby = |row: &serde_json::Value| {
        let keepers = row["keepers"].as_array().into_iter().flatten();
        let ready = |keeper: &&serde_json::Value| keeper["kind"] == "warm" && keeper["ready"] == true;
        let name = keepers.filter(ready).find_map(|keeper| keeper["name"].as_str())?;
        Some((row["session"].as_str()?.to_owned(), name.to_owned()))
    };
    rows.filter_map(standby).collect()
}

/// At most what has changed since the standby's last checkpoint is sent, and not the state.
#[test]
fn a_session_moves_to_its_warm_standby_without_a_copy() {
    const STATE: usize = 4_000_000;
    let world = caches("move-warm", "standby");
    let mut client = TcpStream::connect(world.services[0].1).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    fill(&mut client, STATE);
    let placed = || (0..EDGES).find_map(|edge| Some((edge, standbys(&world, edge).into_iter().next()?)));
    // It gets a copy like any other edge if the standby lacks much of what was filled in, or on a machine so busy that the standby is not
    // handed the session within seconds.
    let moves_without_copy = || {
        world.wait("it has a standby", || placed().is_some());
        let (edge, (session, standby)) = placed().expect("it runs somewhere");
        let copied = || figures::counter(&world.cluster.edges[edge], "move_bytes_total");
        let before = copied();
        let (status, out, error) = world.marram(&["move", &session, "--to", &standby], &[edge]);
        let bytes = copied() - before;
        println!("{status:?} {out} {error} {bytes} bytes");
        status == Some(0) && bytes < STATE as u64 / 2
    };
    assert!((0..ATTEMPTS).any(|_| moves_without_copy()), "{}", world.cluster.logs.tail(40));
    // All of it is there.
    client.write_all(b"get fill99\r\n").unwrap();
    let mut answer = [0; 21];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"VALUE fill99 0 40000\r");
}

#[test]
fn an_edge_whose_drain_is_cancelled_takes_sessions_again_until_a_signal_stops_it() {
    let gate = free_address().unwrap();
    let mut world = World::new(&Plan {
        purpose: "drain-cancel",
        // No other edge takes a session: all stay.
        edges: 1,
        protect: "endpoints",
        protect_bulk: "none",
        services: &[Service::Memcached],
        sessions: 8,
        bulk: support::serve::echo(),
        limits: &format!("[[gate]]\nlisten = \"{gate}\"\napp = \"bulk\"\n"),
        timeouts: "",
    });
    let cancel = |world: &World| world.marram(&["drain", "--cancel"], &[0]);
    let agent = world.services[0].1;
    let first = Caches::start(agent, 2, 1);
    let mut at_gate = TcpStream::connect(gate).unwrap();
    echoes(&mut at_gate);
    world.wait("the sessions begin", || world.running(0).len() == 3);
    let (status, _, error) = cancel(&world);
    assert!(status == Some(3) && error.contains("does not drain"), "{error}");

    let mut waits = world.begin(&["drain", "--wait"], 0);
    let mut line = String::new();
    BufReader::new(waits.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("draining"), "{line}");
    world.wait("its gate is closed", || TcpStream::connect(gate).is_err());
    // The agent has no other edge for this one.
    let late = Caches::start(agent, 1, 3);
    let (status, out, error) = cancel(&world);
    assert!(status == Some(0) && out.contains("3 sessions here"), "{status:?} {out} {error}");
    world.wait("its gate is open", || TcpStream::connect(gate).is_ok());
    echoes(&mut at_gate);
    let mut new_at_gate = TcpStream::connect(gate).unwrap();
    echoes(&mut new_at_gate);
    let new = Caches::start(agent, 2, 5);
    world.wait("new sessions begin", || world.running(0).len() == 7);
    let waited = waits.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&waited.stderr);
    assert!(waited.status.code() == Some(3) && error.contains("its drain was cancelled"), "{error}");
    let (status, _, error) = cancel(&world);
    assert!(status == Some(3) && error.contains("does not drain"), "{error}");
    for caches in [first, late, new] {
        assert_eq!(caches.wrong(), Vec::<String>::new());
        assert!(caches.finish() > 0);
    }

    // A signal stops it, which nothing cancels. A session keeps it until the second one.
    let mut stays = TcpStream::connect(agent).unwrap();
    stays.set_read_timeout(Some(PATIENCE)).unwrap();
    fill(&mut stays, 40_000);
    world.cluster.edges[0].terminate();
    world.wait("its gate is closed", || TcpStream::connect(gate).is_err());
    let (status, _, error) = cancel(&world);
    assert!(status == Some(3) && error.contains("a signal has told the edge to stop"), "{error}");
    world.cluster.edges[0].terminate();
    let ended = world.cluster.edges[0].process().unwrap().wait().unwrap();
    assert_eq!(ended.code(), Some(0));
}

/// The server behind a connection says back what it hears.
fn echoes(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"said").unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"said");
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
fn a_move_under_way_is_replaced_by_one_to_another_edge() {
    support::turns::alone();
    // A copy takes seconds: half of the bandwidth is each shard's.
    let world = caches_with("move-replace", "endpoints", ["move_bandwidth = \"1MiB\"\n", ""]);
    let mut stream = TcpStream::connect(world.services[0].1).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    fill(&mut stream, 2_400_000);
    // It goes on to ask meanwhile, and knows what its cache has.
    let (stop, mut client) =
        (Arc::new(AtomicBool::new(false)), self::support::caches::Client::new(stream, 3).unwrap());
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

    // An edge that has no time to take the session over leaves it where it is.
    let replaced = (0..ATTEMPTS).any(|_| {
        let (status, _, error) = move_to(&world, from, first, &["--no-wait"]);
        assert_eq!(status, Some(0), "{error}");
        world.wait("it is being copied", || world.only_move(from)["copied_bytes"].as_u64() > Some(0));
        let (status, out, _) = move_to(&world, from, second, &["--dry-run"]);
        assert!(status == Some(3) && out.contains("is being moved to"), "{out}");
        let (status, out, error) = move_to(&world, from, second, &["--dry-run", "--replace"]);
        assert!(status == Some(0) && out.contains("would move"), "{out} {error}");
        let (status, out, error) = move_to(&world, from, second, &["--replace"]);
        assert!(status == Some(0) || out.contains("did not take the session over in time"), "{out} {error}");
        status == Some(0)
    });
    assert!(replaced, "{}", world.cluster.logs.tail(40));
    assert_eq!(world.running(second), [session.as_str()]);
    assert!(figures::counter(&world.cluster.edges[from], "moves_replaced_total") >= 1);
    assert!(
        figures::counter(&world.cluster.edges[from], "moves_limited_us_total") > 1_000_000,
        "its copy waited"
    );
    stop.store(true, Ordering::Relaxed);
    let steps = conversation.join().unwrap().unwrap();
    assert!(steps > 0, "it never asked");
}
