//! Many sessions at once, and much data through one: limits hold, and every session is recovered.
//!
//! `MARRAM_SESSIONS` is the number of sessions that lose their edge at once (1,000 if not set), `MARRAM_MEGABYTES` the amount of
//! data through the one session (1,000 if not set). `cargo xtask soak many` sets both higher.

use crate::support::{self, memory::resident_mib, serve, turns};
use marram_cluster::{AgentSide, LogEvent, TestCluster};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(90);

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Bytes that differ from session to session and from round to round.
fn words(session: usize, round: u8) -> Vec<u8> {
    [&session.to_le_bytes()[..], &[round; 24]].concat()
}

fn say(stream: &mut TcpStream, words: &[u8]) {
    stream.write_all(words).unwrap();
}

fn hear(stream: &mut TcpStream, words: &[u8]) {
    let mut heard = vec![0; words.len()];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(heard, words);
}

#[test]
fn many_sessions_lose_one_edge_at_once_and_the_next_stays_responsive() {
    turns::alone();
    let count = support::amount("MARRAM_SESSIONS", 1_000);
    let mut cluster = support::cluster_with("many", |layout| {
        (layout.edges, layout.shards) = (2, 1);
        // The default is 4,096; one more than those that lose their edge.
        layout.edge_tables = format!("[limits]\ncells = {}\n", count + 1);
    });
    // The second edge starts when all sessions are at the first.
    cluster.start_edge(0, "").unwrap();
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("peer", serve::echo())]).unwrap();
    let address = cluster.start_client_agent(&edges, &["forward"]).unwrap()[0].address;
    let mut clients: Vec<TcpStream> = (0..count).map(|_| connect(address)).collect();
    for (session, client) in clients.iter_mut().enumerate() {
        say(client, &words(session, 1));
        hear(client, &words(session, 1));
    }
    cluster.respawn(1).unwrap();
    let start = cluster.logs.end();
    cluster.edges[0].kill();
    for (session, client) in clients.iter_mut().enumerate() {
        say(client, &words(session, 2));
    }
    // A session that was never at the dead edge does not wait behind those that were.
    let asked = Instant::now();
    let mut new = connect(address);
    say(&mut new, &words(count, 1));
    hear(&mut new, &words(count, 1));
    let new_ms = asked.elapsed().as_millis();
    for (session, client) in clients.iter_mut().enumerate() {
        hear(client, &words(session, 2));
    }
    let all_ms = asked.elapsed().as_millis();
    println!("{count} sessions recovered within {all_ms} ms; a new one had its answer after {new_ms} ms");
    // An answer may arrive before the agent's log lines are read.
    let mut recovered = 0;
    let owned = cluster.logs.wait(start, PATIENCE, |event: &LogEvent| {
        recovered += usize::from(TestCluster::is_report(AgentSide::Client, "owned", event));
        recovered > count
    });
    assert!(owned.is_some(), "each session, and the new one, has an owner: {recovered}");
}

/// The processes of a group.
fn members(group: u32) -> Vec<u32> {
    let ids = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
        behind.split_ascii_whitespace().nth(2) == Some(&group.to_string())
    })
    .collect()
}

#[test]
fn much_through_one_session_leaves_nothing_behind() {
    /// More than every window, buffer and checkpoint that one session may have, and the program itself.
    const RESIDENT_MIB_MAX: u64 = 192;
    turns::alone();
    let megabytes = support::amount("MARRAM_MEGABYTES", 1_000);
    let mut cluster = support::cluster("much", 1, 1);
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("peer", serve::echo())]).unwrap();
    let address = cluster.start_client_agent(&edges, &["forward"]).unwrap()[0].address;
    let (mut sending, piece) = (connect(address), vec![0x5a; 1_000_000]);
    let (mut receiving, expected) = (sending.try_clone().unwrap(), piece.clone());
    let sender = thread::spawn(move || {
        for _ in 0..megabytes {
            sending.write_all(&piece).unwrap();
        }
    });
    let (mut buffer, mut most) = (vec![0; 1_000_000], Vec::new());
    for got in 0..megabytes {
        receiving.read_exact(&mut buffer).unwrap();
        assert!(buffer == expected, "megabyte {got}");
        if got % 500 == 499 {
            let resident = cluster.groups().into_iter().flat_map(members).map(resident_mib);
            most.push(resident.max().unwrap_or(0));
        }
    }
    sender.join().unwrap();
    println!("largest process, MiB, every 500 MB: {most:?}");
    let largest = most.iter().max().copied().unwrap_or(0);
    assert!(largest <= RESIDENT_MIB_MAX, "a process holds {largest} MiB");
    let list = cluster.edges[0].client().unwrap().json(hyper::Method::GET, "/v1/sessions").unwrap();
    let uncovered = list["sessions"][0]["uncovered_bytes"].as_u64().unwrap();
    assert!(uncovered <= marram_wire::limits::LOG_SIZE_MAX, "{uncovered} bytes of log are not covered");
}
