//! A primary that sleeps between the confirmation of its outputs and their release. Its backup goes on meanwhile; what the primary has is
//! accepted by nothing when it wakes.
//!
//! The cell says the time, and sends each line to its client and to the server. A handler that runs at both edges says two times: so if
//! either end accepted an output of the primary that the other one has from the backup, their lines would differ.

use super::world::{World, layout};
use crate::support::stream::until;
use marram_cluster::free_address;
use std::{
    io::{BufRead, BufReader, ErrorKind, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// No edge is suspected in the time for which the test holds what its backup says.
const SLOW: &str = "[timeouts]\nsuspect_after = \"5s\"\n";
const CLIENTS: usize = 3;
/// Lines that each client hears before and after each step.
const SOME: usize = 20;

/// The server. It says nothing; what each connection has heard, once that has ended.
struct Server {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, heard) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let all = Arc::clone(&heard);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let all = Arc::clone(&all);
                thread::spawn(move || {
                    let lines = BufReader::new(stream).lines().map_while(Result::ok).collect();
                    all.lock().unwrap().push(lines);
                });
            }
        });
        Self { address, heard }
    }
}

/// A client: says that the cell is to count and to say the time, and hears that.
struct Client {
    stream: BufReader<TcpStream>,
    heard: Vec<String>,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream), heard: Vec::new() }
    }

    fn says(&mut self) {
        self.stream.get_mut().write_all(b"cs").unwrap();
    }

    fn hears(&mut self) {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer comes in time");
        self.heard.push(line.trim_end().to_owned());
    }

    fn talks(&mut self) {
        self.says();
        self.hears();
    }

    /// Whether nothing has come that it has not heard.
    fn waits(&self) -> bool {
        let stream = self.stream.get_ref();
        stream.set_nonblocking(true).unwrap();
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Ends the session, and returns what was heard: each count once, and a time that never decreases.
    fn finish(self) -> Vec<String> {
        let Self { stream, heard } = self;
        stream.get_ref().shutdown(Shutdown::Write).unwrap();
        assert!(stream.lines().next().is_none(), "it hears nothing more");
        let mut last = 0;
        for (line, count) in heard.iter().zip(1..) {
            let now: u64 = match line.split_once(" now=") {
                Some((first, now)) if first == format!("count={count}") => now.parse().unwrap(),
                _ => panic!("line {count} is {line:?}"),
            };
            assert!(last <= now, "{line:?} follows {last}");
            last = now;
        }
        heard
    }
}

/// Its backup has confirmed what clients have said, and the edge does not know. It is stopped, gets what the backup says, and is woken when
/// clients have gone on for a while at the backup. Returns both edges.
fn sleeps(world: &World, relays: &[marram_testbed::Relay], clients: &mut [Client]) -> (usize, usize) {
    let before = world.backed(CLIENTS);
    let owner = before.values().next().unwrap().owner;
    let backup = 1 - owner;
    let edge = &world.cluster.edges[owner];
    // The backup dials the edge.
    relays[owner].hold();
    clients.iter_mut().for_each(Client::says);
    let asked = || {
        let [asked, known] =
            ["epochs_total", "epochs_confirmed_total"].map(|name| world.counter(owner, name));
        (asked > known && relays[owner].held() > 0).then_some(())
    };
    until(asked, || world.cluster.logs.tail(60));
    assert!(clients.iter().any(Client::waits), "no output of the edge has left");
    edge.stop();
    relays[owner].go_on();
    until(|| (relays[owner].held() == 0).then_some(()), || "the relay passes nothing on".into());
    let promoted = || {
        let seen = world.seen_by(&[backup]);
        (seen.len() == CLIENTS && seen.values().all(|seen| seen.owner == backup)).then_some(())
    };
    until(promoted, || world.cluster.logs.tail(60));
    clients.iter_mut().for_each(Client::hears);
    (0..SOME).for_each(|_| clients.iter_mut().for_each(Client::talks));
    edge.wake();
    (owner, backup)
}

#[test]
fn what_a_primary_has_confirmed_and_releases_after_its_sleep_is_accepted_by_nothing() {
    const ROUNDS: usize = 2;
    let server = Server::start();
    let rest = "server = \"web\"\nprotect = \"epoch\"\n[epoch]\nevery = \"1ms\"\n";
    let (mut world, relays) = World::through_relays(layout("epoch-asleep", 2, SLOW), 2, ("counter", rest));
    let (edges, at) = (world.cluster.edge_addresses(), free_address().unwrap());
    world.cluster.start_server_agent(&edges, &[("web", server.address)]).unwrap();
    let listen = format!("[[listen]]\naddress = \"{at}\"\napp = \"counter\"\n");
    world.cluster.start_agent_with(marram_cluster::AgentSide::Client, &edges, &listen).unwrap();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(at)).collect();
    for _ in 0..ROUNDS {
        (0..SOME).for_each(|_| clients.iter_mut().for_each(Client::talks));
        let (sleeper, backup) = sleeps(&world, &relays, &mut clients);
        // It learns that it is the backup now, while clients go on.
        let knows = || {
            let seen = world.seen_by(&world.all());
            let is_so = |seen: &super::world::Seen| (seen.owner, seen.backup) == (backup, Some(sleeper));
            (seen.len() == CLIENTS && seen.values().all(is_so)).then_some(())
        };
        until(
            || {
                clients.iter_mut().for_each(Client::talks);
                knows()
            },
            || world.cluster.logs.tail(60),
        );
    }
    assert_eq!(world.lost(0), 0, "no session ended");
    let mut heard: Vec<Vec<String>> = clients.into_iter().map(Client::finish).collect();
    until(|| (server.heard.lock().unwrap().len() == CLIENTS).then_some(()), || "a connection stays".into());
    let mut told = server.heard.lock().unwrap().clone();
    heard.sort_unstable();
    told.sort_unstable();
    assert_eq!(heard, told, "both ends have one history");
}
