//! Standbys, with real processes: the owner, the standby, or both are killed and stopped during a stream. Every byte is checked;
//! the test waits for what operators can see.

use crate::support::{
    self, figures,
    stream::{Stream, echo, until},
};
use hyper::Method;
use marram_cluster::{AgentSide, Layout, LogEvent, TestCluster, free_address};
use serde_json::Value;
use std::{net::SocketAddr, process::Command, time::Duration};

const PATIENCE: Duration = Duration::from_secs(60);
fn manifest(protect: &str) -> String {
    // Frequent checkpoints, so that every step of a checkpoint happens.
    format!("server = \"web\"\n{protect}\n[keep]\nrecovery_target = \"1ms\"\n")
}

/// Edges of two shards each, with the same timeouts as the agents.
fn layout(purpose: &'static str, edges: usize, timeouts: &str) -> Layout {
    support::layout(purpose, |layout| {
        (layout.edges, layout.shards) = (edges, 2);
        layout.edge_tables = timeouts.into();
        layout.agent_tables = timeouts.into();
    })
}

const HOT: &str = "protect = \"standby\"\nstandby = \"hot\"";
const WARM: &str = "protect = \"standby\"\nstandby = \"warm\"";

/// Edges that are standbys of each other; the configuration names them by their addresses, which do not change with a restart.
struct World {
    cluster: TestCluster,
    /// Additional fields of each edge's configuration.
    extra: String,
    address: SocketAddr,
}

impl World {
    fn new(purpose: &'static str, edges: usize, protect: &str) -> Self {
        Self::with(layout(purpose, edges, support::UNSUSPECTING), protect)
    }

    fn with(layout: Layout, protect: &str) -> Self {
        let mut cluster = TestCluster::new(layout, |place| {
            Ok(vec![support::cells().manifest(place, "forward", "forward", &manifest(protect))?])
        })
        .unwrap();
        let addresses = cluster.edge_addresses();
        let names: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        let extra = format!("standby = {{ edges = {names:?} }}");
        cluster.start_edges(&extra).unwrap();
        cluster.start_server_agent(&addresses, &[("web", echo())]).unwrap();
        let address = cluster.start_client_agent(&addresses, &["forward"]).unwrap()[0].address;
        Self { cluster, extra, address }
    }

    /// As [`Self::new`], with one more edge, the last, which serves the coordinator's store and is unknown to all agents.
    fn with_coordinator(purpose: &'static str, edges: usize, protect: &str) -> Self {
        let layout = layout(purpose, edges + 1, support::UNSUSPECTING);
        let mut cluster = TestCluster::new(layout, |place| {
            Ok(vec![support::cells().manifest(place, "forward", "forward", &manifest(protect))?])
        })
        .unwrap();
        let addresses = cluster.edge_addresses()[..edges].to_vec();
        let names: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        let store = free_address().unwrap();
        let token = cluster.directory.path().join("token").display().to_string();
        let table =
            |rest: &str| format!("coordinator = {{ {rest}, token_file = {token:?}, lease = \"10s\" }}");
        let asks = table(&format!("urls = [\"http://{store}\"]"));
        let extra = format!("standby = {{ edges = {names:?} }}\n{asks}");
        (0..edges).for_each(|edge| cluster.start_edge(edge, &extra).unwrap());
        cluster.start_server_agent(&addresses, &[("web", echo())]).unwrap();
        let address = cluster.start_client_agent(&addresses, &["forward"]).unwrap()[0].address;
        cluster.start_edge(edges, &table(&format!("serve = \"{store}\""))).unwrap();
        Self { cluster, extra, address }
    }

    /// The owner and the standby of a session as the coordinator lists them, by an edge's answer.
    fn listed(&self, index: usize, session: &str) -> Option<(String, String)> {
        let client = self.cluster.edges[index].client().unwrap();
        let found = client.json(Method::GET, &format!("/v1/standbys/{session}")).ok()?;
        let of = |field: &str| found[field].as_str().unwrap().to_owned();
        Some((of("owner"), of("standby")))
    }

    /// The sessions that an edge lists; an empty list if it does not answer.
    fn sessions(&self, index: usize) -> Vec<Value> {
        let list = self.cluster.edges[index].client().unwrap().json(Method::GET, "/v1/sessions");
        list.ok().and_then(|list| list["sessions"].as_array().cloned()).unwrap_or_default()
    }

    /// A counter of an edge, over its shards.
    fn counter(&self, index: usize, name: &str) -> u64 {
        figures::counter(&self.cluster.edges[index], name)
    }

    /// The owner of the only session, and its standby, once the standby is ready.
    fn protected(&self) -> (usize, usize) {
        self.protected_as("")
    }

    /// As [`Self::protected`], with a standby of the kind `how`, or of any if that is empty.
    fn protected_as(&self, how: &str) -> (usize, usize) {
        let mut seen = Vec::new();
        until(
            || {
                seen = (0..self.cluster.edges.len()).map(|index| self.sessions(index)).collect();
                let owner = seen.iter().position(|list| list.iter().any(|it| is_protected(it, how)))?;
                let stands = |list: &Vec<Value>| list.iter().any(|it| it["phase"] == "standing by");
                Some((owner, seen.iter().position(stands).filter(|other| *other != owner)?))
            },
            || format!("no edge stands by; {}", self.cluster.logs.tail(30)),
        )
    }

    /// As [`Self::protected`], once the edges agree with the client's agent, which has the newest information: an edge that was
    /// replaced lists the session as its own until it learns that.
    fn settled(&self) -> (usize, usize) {
        let agreed = || {
            let (owner, standby) = self.protected();
            (self.cluster.owner().unwrap() == owner).then_some((owner, standby))
        };
        until(agreed, || format!("the edges do not agree: {}", self.marram(&["ps"])))
    }

    /// Kills the owner while the stream is paused and the standby has all of it. Returns how often the standby took over with its
    /// own state.
    fn takes_over(&mut self, stream: &Stream) -> u64 {
        self.protected();
        stream.rest();
        let (owner, standby) = self.protected();
        let log = |index: usize| self.sessions(index).first().map(|row| row["log_bytes"].clone());
        let level = || (log(owner).is_some() && log(owner) == log(standby)).then_some(());
        until(level, || format!("it lags: {:?} of {:?}", self.sessions(standby), self.sessions(owner)));
        let before = self.counter(standby, "takeovers_total");
        let start = self.cluster.logs.end();
        self.cluster.edges[owner].kill();
        self.cluster.wait_until_owned_by(start, standby).unwrap();
        stream.go_on();
        stream.hear(100_000);
        self.counter(standby, "takeovers_total") - before
    }

    fn restart(&mut self, index: usize) {
        let extra = self.extra.clone();
        self.cluster.respawn_with(index, &extra).unwrap();
    }

    fn marram(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marram"));
        command.args(arguments);
        for edge in &self.cluster.edges {
            command.arg("--edge").arg(format!("http://{}", edge.admin()));
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

fn is_protected(session: &Value, how: &str) -> bool {
    let keepers = session["keepers"].as_array().unwrap();
    let ready = |it: &Value| (how.is_empty() || it["kind"] == how) && it["ready"] == true;
    session["phase"] == "running" && keepers.iter().any(ready)
}

fn taken_over(purpose: &'static str, protect: &str) {
    let mut world = World::new(purpose, 3, protect);
    let stream = Stream::start(world.address);
    for _ in 0..3 {
        stream.hear(100_000);
        // The stream is running: the standby may have less of it than the ends require, and then restores the session from the
        // ends.
        let (owner, standby) = world.protected();
        let start = world.cluster.logs.end();
        world.cluster.edges[owner].kill();
        world.cluster.wait_until_owned_by(start, standby).unwrap();
        stream.hear(100_000);
        world.restart(owner);
    }
    assert_eq!(world.takes_over(&stream), 1, "it went on with what it had");
    stream.finish();
}

#[test]
fn a_hot_standby_goes_on_when_the_owner_is_killed() {
    taken_over("standby-hot", HOT);
}

#[test]
fn a_warm_standby_goes_on_when_the_owner_is_killed() {
    taken_over("standby-warm", WARM);
}

#[test]
fn one_that_stands_by_and_dies_is_missed_and_replaced() {
    let mut world = World::new("standby-dies", 2, HOT);
    let stream = Stream::start(world.address);
    for _ in 0..2 {
        let (owner, standby) = world.protected();
        world.cluster.edges[standby].kill();
        let alone = |it: &Value| it["phase"] == "running" && it["keepers"] == serde_json::json!([]);
        until(|| world.sessions(owner).iter().any(alone).then_some(()), || "it is still listed".into());
        let survives = world.marram_first("inspect", owner);
        assert!(survives.contains("no edge stands by"), "{survives}");
        stream.hear(100_000);
        world.restart(standby);
        assert_eq!(world.protected(), (owner, standby));
        stream.hear(100_000);
    }
    assert_eq!(world.cluster.logs.count(0, |event| event.name() == "orphaned"), 0, "the session ran on");
    // The standby has all that it needs.
    assert_eq!(world.takes_over(&stream), 1);
    stream.finish();
}

#[test]
fn operators_see_the_standby() {
    let world = World::new("standby-shown", 2, HOT);
    let stream = Stream::start(world.address);
    let (owner, standby) = world.protected();
    let listed = world.marram(&["ps"]);
    let name = ["A-1", "B-1"][standby];
    let keeper = world.sessions(owner)[0]["keepers"][0].clone();
    assert!(keeper["name"] == name && keeper["kind"] == "hot" && keeper["behind_bytes"].is_u64(), "{keeper}");
    assert!(listed.contains("KEEPERS") && listed.contains(&format!("{name} (hot, ")), "{listed}");
    assert!(listed.contains("standing by") && listed.contains("standby (hot)"), "{listed}");
    let shown = world.marram_first("inspect", owner);
    assert!(shown.contains(&format!("{name} (hot, ")) && shown.contains("continues it"), "{shown}");
    // The owner answers, in whichever order the edges are asked.
    let session = world.sessions(owner)[0]["session"].as_str().unwrap().to_owned();
    let both = world.marram(&["inspect", &session]);
    assert!(both.contains("running"), "{both}");
    assert_eq!(world.counter(standby, "sessions_standing_by"), 1);
    assert_eq!(world.counter(owner, "sessions_standing_by"), 0);
    let killed = world.marram(&["kill", &session]);
    assert!(killed.contains("is ended"), "{killed}");
    until(
        || (world.sessions(owner).is_empty() && world.sessions(standby).is_empty()).then_some(()),
        || "the killed session is still listed".into(),
    );
    drop(stream);
}

#[test]
fn how_sessions_are_protected_changes_while_they_run() {
    let mut world = World::new("standby-policy", 2, HOT);
    let stream = Stream::start(world.address);
    let owner = world.protected_as("hot").0;
    for (protect, how) in [(WARM, "warm"), ("protect = \"endpoints\"", ""), (HOT, "hot"), (WARM, "warm")] {
        let path =
            support::cells().manifest(&world.cluster.directory, "forward", "forward", &manifest(protect));
        let answer = world.marram(&["deploy", path.unwrap().to_str().unwrap()]);
        assert!(answer.contains("deployed"), "{answer}");
        if how.is_empty() {
            let alone = |it: &Value| it["phase"] == "running" && it["keepers"] == serde_json::json!([]);
            let gone = || {
                let let_go = world.sessions(1 - owner).is_empty();
                (let_go && world.sessions(owner).iter().any(alone)).then_some(())
            };
            until(gone, || world.marram(&["ps"]));
        } else {
            assert_eq!(world.protected_as(how).0, owner);
        }
        stream.hear(100_000);
    }
    world.protected_as("warm");
    // A standby that is not needed is told so, and later asked again. On a busy machine one may be too slow for a while, which is
    // logged.
    let lost = world.counter(owner, "keepers_lost_total");
    let slow = |event: &LogEvent| event.text("message").contains("it is slow to store checkpoints");
    assert!(lost == 0 || world.cluster.logs.wait(0, PATIENCE, slow).is_some(), "{lost} were lost");
    assert_eq!(world.takes_over(&stream), 1);
    stream.finish();
}

#[test]
fn an_owner_that_sleeps_is_replaced_and_stands_by_when_it_wakes() {
    // The number of single takeovers to observe, and the most rounds for this on a busy machine.
    const SEEN: usize = 3;
    const ROUNDS_MAX: usize = 30;
    let world = World::with(layout("standby-sleeps", 2, support::PATIENT), HOT);
    let stream = Stream::start(world.address);
    let mut seen = 0;
    for round in 0..ROUNDS_MAX {
        let start = world.cluster.logs.end();
        let (owner, standby) = world.settled();
        world.cluster.edges[owner].stop();
        world.cluster.wait_until_owned_by(start, standby).unwrap();
        stream.hear(100_000);
        world.cluster.edges[owner].wake();
        let now = world.settled();
        stream.hear(100_000);
        // On a busy machine an edge that only waits for CPU time is replaced too, and then either edge may own the session.
        let owned = |event: &LogEvent| TestCluster::is_report(AgentSide::Client, "owned", event);
        if world.cluster.logs.count(start, owned) == 1 {
            assert_eq!(now, (standby, owner), "round {round}: {}", world.marram(&["ps"]));
            seen += 1;
        }
        if seen == SEEN {
            return stream.finish();
        }
    }
    panic!("only {seen} of {ROUNDS_MAX} rounds had one takeover; {}", world.cluster.logs.tail(30));
}

#[test]
fn any_edge_reports_from_the_coordinator_the_standby_of_a_dead_owners_session() {
    let mut world = World::with_coordinator("standby-listed", 2, WARM);
    let store = 2;
    let stream = Stream::start(world.address);
    let (owner, standby) = world.protected();
    let session = world.sessions(owner)[0]["session"].as_str().unwrap().to_owned();
    let name = |index: usize, life: usize| format!("{}-{life}", ["A", "B"][index]);
    let until_listed = |world: &World, expected: Option<(String, String)>| {
        let listed = || world.listed(store, &session);
        until(|| (listed() == expected).then_some(()), || format!("{:?}, not {expected:?}", listed()));
    };
    let before = (name(owner, 1), name(standby, 1));
    until_listed(&world, Some(before.clone()));
    let start = world.cluster.logs.end();
    world.cluster.edges[owner].kill();
    assert_eq!(world.listed(store, &session), Some(before));
    let url = format!("http://{}", world.cluster.edges[store].admin());
    let output =
        Command::new(env!("CARGO_BIN_EXE_marram")).args(["inspect", &session, "--edge", &url]).output();
    let shown = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(shown.contains(&format!("`{}` stands by (warm)", name(standby, 1))), "{shown}");
    world.cluster.wait_until_owned_by(start, standby).unwrap();
    stream.hear(100_000);
    // The new owner has no edge as its standby, and the old owner's lease expires.
    until_listed(&world, None);
    world.restart(owner);
    until_listed(&world, Some((name(standby, 1), name(owner, 2))));
    assert_eq!(world.counter(standby, "standbys_listed"), 1);
    stream.finish();
    until_listed(&world, None);
    assert_eq!(world.counter(standby, "standbys_listed"), 0);
    assert_eq!(world.counter(standby, "standbys_omitted_total"), 0);
}

impl World {
    /// The output of a command about the only session, sent to one edge.
    fn marram_first(&self, command: &str, index: usize) -> String {
        let session = self.sessions(index)[0]["session"].as_str().unwrap().to_owned();
        let edge = format!("http://{}", self.cluster.edges[index].admin());
        let output =
            Command::new(env!("CARGO_BIN_EXE_marram")).args([command, &session, "--edge", &edge]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }
}
