//! Real processes, killed and stopped at random moments while both sides send data. Not a byte may be lost, repeated or changed,
//! and neither program may notice. One test has cells that forward, and one has cells that store their clients' data.
//!
//! `MARRAM_FAULTS` is the number of faults, `MARRAM_FAULTS_WITH_STATE` the number with state (40 each if not set; `cargo xtask
//! soak faults` makes 200 of each), `MARRAM_SEED` selects them.

use crate::support::{self, caches::Caches, traffic::Traffic};
use marram_cluster::{AgentSide, LogEvent, TestCluster};
use marram_wire::seeded::Seeded;
use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time between one fault's repair and the next fault.
const QUIET_MS_MAX: u64 = 300;

/// Number of sessions that the client's agent had reported orphaned, and not owned again, at that time.
fn orphans(cluster: &TestCluster, at: Instant) -> usize {
    let mut sessions = BTreeMap::new();
    let about = |event: &LogEvent| {
        ["owned", "orphaned", "ended"]
            .iter()
            .any(|name| TestCluster::is_report(AgentSide::Client, name, event))
    };
    for event in cluster.logs.all(0, |event| event.at <= at && about(event)) {
        sessions.insert(event.text("session").to_owned(), event.name() == "orphaned");
    }
    sessions.values().filter(|orphaned| **orphaned).count()
}

/// Number of sessions that an edge owns, as the client's agent sees it.
fn owned(cluster: &TestCluster, index: usize) -> usize {
    let mut owners = BTreeMap::new();
    let about = |event: &LogEvent| {
        TestCluster::is_report(AgentSide::Client, "owned", event)
            || TestCluster::is_report(AgentSide::Client, "ended", event)
    };
    for event in cluster.logs.all(0, about) {
        let owner = if event.name() == "owned" { event.text("edge").to_owned() } else { String::new() };
        owners.insert(event.text("session").to_owned(), owner);
    }
    let address = cluster.address_for(AgentSide::Client, index);
    owners.values().filter(|owner| **owner == address).count()
}

/// The edge with the most sessions.
fn busiest(cluster: &TestCluster) -> usize {
    (0..cluster.edges.len()).max_by_key(|index| owned(cluster, *index)).unwrap()
}

/// Counts of the faults.
#[derive(Default, Debug)]
struct Done {
    kills: usize,
    stops: usize,
    within_a_recovery: usize,
}

/// Kills one edge; with `twice`, also another one as soon as an agent reports that a recovery begins.
fn kill(cluster: &mut TestCluster, twice: bool, done: &mut Done) {
    let (index, start) = (busiest(cluster), cluster.logs.end());
    let had = owned(cluster, index);
    cluster.edges[index].kill();
    done.kills += 1;
    let mut dead = vec![index];
    if twice && had > 0 {
        let orphaned = |event: &LogEvent| event.name() == "orphaned";
        if cluster.logs.wait(start, Duration::from_secs(5), orphaned).is_some() {
            let other = (0..cluster.edges.len()).find(|other| *other != index).unwrap();
            let struck = Instant::now();
            cluster.edges[other].kill();
            done.kills += 1;
            done.within_a_recovery += usize::from(orphans(cluster, struck) > 0);
            dead.push(other);
        }
    }
    for index in dead {
        cluster.respawn(index).unwrap();
    }
}

/// Stops one edge until its agents suspect it and its sessions have moved, and wakes it.
fn stop(cluster: &mut TestCluster, done: &mut Done) {
    let (index, start) = (busiest(cluster), cluster.logs.end());
    let had = owned(cluster, index);
    cluster.edges[index].stop();
    done.stops += 1;
    let address = cluster.address_for(AgentSide::Client, index);
    let suspected = |event: &LogEvent| {
        TestCluster::is_report(AgentSide::Client, "edge_down", event) && event.text("edge") == address
    };
    cluster.logs.wait(start, PATIENCE, suspected).expect("a stopped edge is suspected");
    if had > 0 {
        cluster.wait_for_owner(start).unwrap();
    }
    cluster.edges[index].wake();
    cluster.wait_until_usable(index).unwrap();
}

/// Applies random faults, at least `faults` of them, and checks `wrong` after each.
fn strike(cluster: &mut TestCluster, faults: usize, seed: u64, wrong: impl Fn() -> Vec<String>) -> Done {
    let (mut random, mut done) = (Seeded::new(seed), Done::default());
    while done.kills + done.stops < faults || done.within_a_recovery * 5 < faults {
        assert!(done.kills + done.stops < 4 * faults + 20, "recoveries are too quick to be hit: {done:?}");
        thread::sleep(Duration::from_millis(random.below(QUIET_MS_MAX)));
        match random.below(4) {
            0 => kill(cluster, false, &mut done),
            1 | 2 => kill(cluster, true, &mut done),
            _ => stop(cluster, &mut done),
        }
        assert_eq!(wrong(), Vec::<String>::new(), "seed {seed}, {done:?}; {}", cluster.logs.tail(40));
    }
    done
}

#[test]
fn kills_and_stops_lose_no_state() {
    let faults = support::amount("MARRAM_FAULTS_WITH_STATE", 40);
    let seed = support::amount("MARRAM_SEED", 1) as u64;
    let layout = support::layout("faults-state", |layout| {
        (layout.edges, layout.namespaces) = (3, true);
        layout.agent_tables = String::new();
    });
    let manifest =
        "protect = \"endpoints\"\n[keep]\nrecovery_target = \"1ms\"\n[quotas]\nmemory = \"64MiB\"\n";
    let apps = |place: &_| Ok(vec![support::cells().manifest(place, "cache", "memcached", manifest)?]);
    let mut cluster = TestCluster::new(layout, apps).unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    // No session has a server; this agent runs because a restarted edge counts as usable when both agents have reported it.
    cluster.start_server_agent(&edges, &[("peer", ([127, 0, 0, 1], 1).into())]).unwrap();
    let listen = cluster.start_client_agent(&edges, &["cache"]).unwrap()[0].address;
    // These sessions last as long as the test, so their state goes through every fault.
    let caches = Caches::start(listen, 4, seed);
    let done = strike(&mut cluster, faults, seed, || caches.wrong());
    let answers = caches.finish();
    println!("seed {seed}: {done:?}, {answers} answers");
    let owned = cluster.logs.all(0, |event| TestCluster::is_report(AgentSide::Client, "owned", event));
    let sessions: BTreeSet<_> = owned.iter().map(|event| event.text("session")).collect();
    assert_eq!(sessions.len(), 4, "no client had to connect again");
}

#[test]
fn kills_and_stops_lose_nothing() {
    let faults = support::amount("MARRAM_FAULTS", 40);
    let seed = support::amount("MARRAM_SEED", 1) as u64;
    let mut cluster = support::cluster_with("faults", |layout| {
        (layout.edges, layout.namespaces) = (3, true);
        // The agents' default timeouts.
        layout.agent_tables = String::new();
    });
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let mut traffic = Traffic::new();
    cluster.start_server_agent(&edges, &[("peer", traffic.server)]).unwrap();
    let listen = cluster.start_client_agent(&edges, &["forward"]).unwrap()[0].address;
    traffic.start(listen, 4, 6_000_000, seed);
    let done = strike(&mut cluster, faults, seed, || traffic.wrong());
    let (sessions, bytes) = traffic.finish();
    let zombies = cluster.logs.count(0, |event| event.name() == "zombie_refused");
    println!(
        "seed {seed}: {done:?}, {sessions} sessions, {bytes} bytes, {zombies} frames of replaced edges refused"
    );
    assert!(sessions > 0, "traffic flowed");
    assert!(done.stops == 0 || zombies > 0, "woken edges spoke, and were refused");
}
