//! A shared cell that connects to a server: what clients say arrives there once and in order, over one connection, though the cell's edge is killed
//! again and again.

use super::{
    hall::epochs,
    world::{World, layout},
};
use crate::support;
use marram_cluster::{AgentSide, free_address};
use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// The server: keeps lines, and answers each with its number.
struct Store {
    address: SocketAddr,
    /// By connection, what came over it.
    lines: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Store {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, lines) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let all = Arc::clone(&lines);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, all) = (stream.unwrap(), Arc::clone(&all));
                let nth = {
                    let mut all = all.lock().unwrap();
                    all.push(Vec::new());
                    all.len() - 1
                };
                thread::spawn(move || {
                    let reader = BufReader::new(stream.try_clone().unwrap());
                    for line in reader.lines().map_while(Result::ok) {
                        let number = line.split(' ').next().unwrap_or_default().to_owned();
                        all.lock().unwrap()[nth].push(line);
                        if stream.write_all(format!("{number}\n").as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, lines }
    }
}

/// A client: says a line, and waits for the number under which it is kept.
struct Speaker {
    stream: BufReader<TcpStream>,
    name: usize,
    said: Vec<(u64, String)>,
}

impl Speaker {
    fn start(address: SocketAddr, name: usize) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream), name, said: Vec::new() }
    }

    fn says(&mut self) {
        let line = format!("{} says {}", self.name, self.said.len());
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        self.said.push((0, line));
    }

    fn hears(&mut self) {
        let mut number = String::new();
        self.stream.read_line(&mut number).expect("an answer comes in time");
        let last = self.said.last_mut().expect("it has said something");
        last.0 = number.trim().parse().expect("a number");
    }
}

/// Kills the cell's edge while its clients wait for answers, and starts it again.
fn kept(purpose: &'static str, protection: &str) {
    let store = Store::start();
    let rest = format!("cell = \"shared\"\nservers = [\"store\"]\n{protection}");
    let layout = layout(purpose, 3, support::UNSUSPECTING);
    let mut world = World::with_app(layout, 3, ("minutes", &rest));
    let at = free_address().unwrap();
    let edges = world.cluster.edge_addresses();
    let listen = format!("[[listen]]\naddress = \"{at}\"\napp = \"minutes\"\n");
    world.cluster.start_agent_with(AgentSide::Client, &edges, &listen).unwrap();
    let servers = format!("[servers]\nstore = \"{}\"\n", store.address);
    world.cluster.start_agent_with(AgentSide::Server, &edges, &servers).unwrap();
    let mut speakers: Vec<_> = (0..3).map(|name| Speaker::start(at, name)).collect();
    for round in 0..support::amount("MARRAM_EPOCH_KILLS", 4) {
        for _ in 0..20 {
            speakers.iter_mut().for_each(Speaker::says);
            speakers.iter_mut().for_each(Speaker::hears);
        }
        let seen = world.backed(1).into_values().next().unwrap();
        speakers.iter_mut().for_each(Speaker::says);
        world.cluster.edges[seen.owner].kill();
        speakers.iter_mut().for_each(Speaker::hears);
        let next = world.backed(1).into_values().next().unwrap();
        assert_eq!(Some(next.owner), seen.backup, "round {round}");
        world.restart(seen.owner);
    }
    let owner = world.backed(1).into_values().next().unwrap().owner;
    let rows = world.rows(owner);
    let listed = rows[0]["servers"].as_array().unwrap();
    assert_eq!(
        (listed.len(), &listed[0]["server"], &listed[0]["state"]),
        (1, &"store".into(), &"connected".into())
    );
    let shown = world.marram(owner, &["inspect", rows[0]["session"].as_str().unwrap()]);
    assert!(shown.contains("BYTES WAITING") && shown.contains("store"), "{shown}");
    let mut said: Vec<_> = speakers.into_iter().flat_map(|speaker| speaker.said).collect();
    said.sort();
    let expected: Vec<_> = said.iter().map(|(number, line)| format!("{number} {line}")).collect();
    let lines = store.lines.lock().unwrap();
    assert_eq!(lines.len(), 1, "there was one connection");
    assert_eq!(lines[0], expected, "each line once, in the order of the answers");
    assert!(said.iter().zip(1..).all(|((number, _), nth)| *number == nth), "no line is missing: {said:?}");
}

#[test]
fn what_clients_say_is_kept_once_and_in_order_when_the_edge_is_killed() {
    kept("servers-kills", &epochs("every = \"1ms\""));
}

#[test]
fn the_same_with_pages() {
    kept("servers-kills-pages", &epochs("every = \"1ms\"\nform = \"pages\""));
}
