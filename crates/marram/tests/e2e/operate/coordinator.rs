//! Edges and their coordinator: one edge that serves the store; and real etcd, which is killed, stopped and left without a
//! majority.

use crate::support::{self, counting::Client, etcd::Etcd, figures};
use marram_cluster::{AgentSide, TempDir, TestCluster, free_address};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const COUNTER: &str = "[keep]\nlinger = \"30s\"\n";

/// Edges with an app that counts.
fn cluster(purpose: &'static str, edges: usize) -> TestCluster {
    let layout = support::layout(purpose, |layout| layout.edges = edges);
    let counter = |place: &TempDir| Ok(vec![support::cells().manifest(place, "count", "counter", COUNTER)?]);
    TestCluster::new(layout, counter).unwrap()
}

/// Waits until an edge logs words, from `start` on.
fn wait(cluster: &TestCluster, edge: usize, start: usize, words: &[&str]) -> usize {
    let who = cluster.edges[edge].who();
    let found = cluster.logs.wait(start, PATIENCE, |event| {
        *event.who == *who && words.iter().all(|words| event.text("message").contains(words))
    });
    let tail = || format!("{who} does not say {words:?}; the last lines:\n{}", cluster.logs.tail(30));
    found.unwrap_or_else(|| panic!("{}", tail())).0
}

/// The edge's view of its coordinator, from its admin API.
fn known(cluster: &TestCluster, edge: usize) -> Value {
    cluster.edges[edge].client().unwrap().json(hyper::Method::GET, "/v1/coordinator").unwrap()
}

fn names(cluster: &TestCluster, edge: usize) -> Vec<String> {
    let known = known(cluster, edge);
    known["edges"].as_array().unwrap().iter().map(|edge| edge["name"].as_str().unwrap().to_owned()).collect()
}

fn metrics(cluster: &TestCluster, edge: usize) -> String {
    figures::metrics(&cluster.edges[edge])
}

/// Polls until it holds.
fn until(holds: impl Fn() -> bool, why: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{}", why());
        std::thread::yield_now();
    }
}

#[test]
fn edges_find_one_another_and_images_through_the_one_that_serves_the_store() {
    let mut cluster = cluster("coordinator", 3);
    let store = free_address().unwrap();
    let token = cluster.directory.path().join("token").display().to_string();
    let table = |rest: &str| format!("coordinator = {{ {rest}, token_file = {token:?}, lease = \"5s\" }}");
    cluster.start_edge(0, &table(&format!("serve = \"{store}\""))).unwrap();
    for edge in [1, 2] {
        cluster.start_edge(edge, &table(&format!("urls = [\"http://{store}\"]"))).unwrap();
    }
    let mut client = Client::start(&mut cluster);
    for edge in 0..3 {
        (0..3).for_each(|other| {
            _ = wait(&cluster, edge, 0, &["registered at the coordinator", ["A-1", "B-1", "C-1"][other]])
        });
        assert_eq!(names(&cluster, edge), ["A-1", "B-1", "C-1"]);
    }
    let shown = known(&cluster, 0);
    assert_eq!((&shown["state"], &shown["serves"]["leases"]), (&"there".into(), &3.into()), "{shown}");
    assert_eq!(known(&cluster, 1)["serves"], Value::Null);
    // The command shows the same.
    let output = Command::new(env!("CARGO_BIN_EXE_marram"))
        .args(["coordinator", "--edge"])
        .arg(format!("http://{}", cluster.edges[1].admin()))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("is reachable") && ["A-1", "B-1", "C-1"].iter().all(|name| text.contains(name)),
        "{text}"
    );
    assert!(metrics(&cluster, 1).contains("marram_coordinator_edges{edge=\"B-1\"} 3"));
    // A killed edge disappears when its lease expires; an edge that shuts down in order disappears at once.
    let start = cluster.logs.end();
    cluster.edges[2].kill();
    (0..2).for_each(|edge| _ = wait(&cluster, edge, start, &["no longer registered: C-1"]));
    assert_eq!(names(&cluster, 0), ["A-1", "B-1"]);
    client.count();
    cluster.edges[1].terminate();
    wait(&cluster, 0, start, &["no longer registered: B-1"]);
    // The store restarts empty, since its edge's directory is empty: the running edges register again.
    cluster.start_edge(1, &table(&format!("urls = [\"http://{store}\"]"))).unwrap();
    wait(&cluster, 1, start, &["the coordinator is reachable"]);
    let start = cluster.logs.end();
    cluster.edges[0].kill();
    wait(&cluster, 1, start, &["coordinator is unreachable", "no witness"]);
    assert!(metrics(&cluster, 1).contains("marram_coordinator_away{edge=\"B-2\"} 1"));
    client.count();
    cluster.start_edge(0, &table(&format!("serve = \"{store}\""))).unwrap();
    wait(&cluster, 1, start, &["the coordinator is reachable"]);
    wait(&cluster, 1, start, &["registered at the coordinator", "A-2"]);
    wait(&cluster, 0, start, &["registered at the coordinator", "B-2"]);
    client.count();
}

#[test]
fn an_edge_without_peers_fetches_an_image_from_the_edge_that_the_coordinator_names() {
    let mut cluster = TestCluster::new(
        support::layout("coordinator-images", |layout| layout.edges = 3),
        |_| Ok(Vec::new()),
    )
    .unwrap();
    // Sessions are at A or B only. The agent is there before any edge: it would be waited for until it has found them all.
    let (listen, edges) = (free_address().unwrap(), cluster.edge_addresses());
    let tables = format!("learn = false\n[[listen]]\naddress = \"{listen}\"\napp = \"count\"\n");
    cluster.start_agent_with(AgentSide::Client, &edges[..2], &tables).unwrap();
    let store = free_address().unwrap();
    cluster.start_edge(2, &format!("coordinator = {{ serve = \"{store}\", lease = \"5s\" }}")).unwrap();
    for edge in 0..2 {
        let extra = format!("coordinator = {{ urls = [\"http://{store}\"], lease = \"5s\" }}");
        cluster.start_edge(edge, &extra).unwrap();
    }
    let deploy = |cluster: &TestCluster, edges: &[usize], scratch: &str| {
        let rest = format!("[quotas]\nscratch = \"{scratch}\"\n{COUNTER}");
        let manifest = support::cells().manifest(&cluster.directory, "count", "counter", &rest).unwrap();
        let urls = edges.iter().map(|edge| format!("--edge=http://{}", cluster.edges[*edge].admin()));
        let output =
            Command::new(env!("CARGO_BIN_EXE_marram")).arg("deploy").arg(manifest).args(urls).output();
        assert!(output.unwrap().status.success());
    };
    deploy(&cluster, &[0, 2], "1MiB");
    let mut client = Client::connect(listen);
    let images = |cluster: &TestCluster| {
        let known = known(cluster, 1);
        let edges = known["edges"].as_array().unwrap().iter();
        edges.map(|edge| edge["images"].as_array().unwrap().len()).collect::<Vec<_>>()
    };
    // B has another version than A, and A's session is to continue at B, when A has no time to move it.
    deploy(&cluster, &[1], "2MiB");
    until(|| images(&cluster) == [1, 1, 1], || format!("{:?}", images(&cluster)));
    let start = cluster.logs.end();
    cluster.edges[0].kill();
    wait(&cluster, 1, start, &["requesting it from the peers"]);
    wait(&cluster, 1, start, &["is fetched"]);
    client.count();
    // Each edge has another token for its operators: B received the image because of the secret that the domain's edges share.
    let [b, c] = [1, 2].map(|edge| {
        let path = cluster.directory.path().join(cluster.edges[edge].directory()).join("state/admin-token");
        std::fs::read_to_string(path).unwrap()
    });
    assert_ne!(b, c);
}

#[test]
fn edges_find_one_another_through_etcd_which_is_killed_and_stopped_while_sessions_go_on() {
    let mut cluster = cluster("coordinator-etcd", 2);
    let mut etcd = Etcd::start(&cluster.logs, 1);
    cluster.start_edges(&format!("coordinator = {{ urls = {}, lease = \"5s\" }}", etcd.urls())).unwrap();
    for edge in 0..2 {
        wait(&cluster, edge, 0, &["registered at the coordinator", "A-1"]);
        wait(&cluster, edge, 0, &["registered at the coordinator", "B-1"]);
    }
    let mut client = Client::start(&mut cluster);
    let start = cluster.logs.end();
    etcd.kill(0);
    for edge in 0..2 {
        wait(&cluster, edge, start, &["the coordinator is unreachable", "sessions continue"]);
    }
    let shown = known(&cluster, 0);
    assert_eq!(shown["state"], "away", "{shown}");
    assert_eq!(shown["edges"].as_array().unwrap().len(), 2, "what was known stays known");
    assert!(shown["cannot"].as_array().unwrap().iter().any(|line| line == "no witness"), "{shown}");
    client.count();
    let start = cluster.logs.end();
    etcd.restart(0);
    (0..2).for_each(|edge| _ = wait(&cluster, edge, start, &["the coordinator is reachable", "2 edges"]));
    // A stopped etcd accepts connections and does not answer.
    let start = cluster.logs.end();
    etcd.signal(0, Signal::STOP);
    (0..2).for_each(|edge| {
        _ = wait(&cluster, edge, start, &["the coordinator is unreachable", "no answer in"])
    });
    client.count();
    let start = cluster.logs.end();
    etcd.signal(0, Signal::CONT);
    (0..2).for_each(|edge| _ = wait(&cluster, edge, start, &["the coordinator is reachable"]));
    // A killed edge disappears when its lease expires, and its session continues at the other edge.
    let start = cluster.logs.end();
    let (owner, other) = (cluster.owner().unwrap(), 1 - cluster.owner().unwrap());
    cluster.edges[owner].kill();
    client.count();
    wait(&cluster, other, start, &["no longer registered", ["A-1", "B-1"][owner]]);
}

#[test]
fn an_etcd_in_minority_decides_nothing_and_sessions_go_on() {
    let mut cluster = cluster("coordinator-minority", 2);
    let etcd = Etcd::start(&cluster.logs, 3);
    cluster.start_edges(&format!("coordinator = {{ urls = {}, lease = \"5s\" }}", etcd.urls())).unwrap();
    (0..2).for_each(|edge| _ = wait(&cluster, edge, 0, &["registered at the coordinator", "B-1"]));
    let mut client = Client::start(&mut cluster);
    // With one member stopped the other two decide, whichever of them an edge used before.
    let start = cluster.logs.end();
    etcd.signal(0, Signal::STOP);
    cluster.edges[1].kill();
    wait(&cluster, 0, start, &["no longer registered", "B-1"]);
    cluster.start_edge(1, &format!("coordinator = {{ urls = {}, lease = \"5s\" }}", etcd.urls())).unwrap();
    wait(&cluster, 0, start, &["registered at the coordinator", "B-2"]);
    wait(&cluster, 1, start, &["the coordinator is reachable"]);
    let start = cluster.logs.end();
    etcd.signal(1, Signal::STOP);
    (0..2).for_each(|edge| _ = wait(&cluster, edge, start, &["the coordinator is unreachable"]));
    client.count();
    let start = cluster.logs.end();
    etcd.signal(0, Signal::CONT);
    (0..2).for_each(|edge| _ = wait(&cluster, edge, start, &["the coordinator is reachable"]));
    client.count();
    etcd.signal(1, Signal::CONT);
}

/// Starts one edge with this table, and checks the reason that it gives for a coordinator that is away.
fn said(purpose: &'static str, table: &str, words: &[&str]) {
    let mut cluster = cluster(purpose, 1);
    cluster.start_edge(0, table).unwrap();
    wait(&cluster, 0, 0, &["sessions continue, retrying"]);
    // The first attempt may have timed out before the answer.
    let why = || known(&cluster, 0)["why"].as_str().unwrap().to_owned();
    until(|| words.iter().all(|words| why().contains(words)), || format!("{words:?}: {}", why()));
}

#[test]
fn a_wrong_address_token_user_or_version_is_said_in_words_that_help() {
    let mut keeper = cluster("coordinator-keeper", 1);
    let (store, unused) = (free_address().unwrap(), free_address().unwrap());
    let token = keeper.directory.path().join("token").display().to_string();
    keeper
        .start_edge(0, &format!("coordinator = {{ serve = \"{store}\", token_file = {token:?} }}"))
        .unwrap();
    let urls = |address: SocketAddr| format!("urls = [\"http://{address}\"]");
    said("coordinator-unused", &format!("coordinator = {{ {} }}", urls(unused)), &["refused"]);
    let admin = keeper.edges[0].admin();
    said(
        "coordinator-admin",
        &format!("coordinator = {{ {} }}", urls(admin)),
        &["neither etcd", "coordinator.urls"],
    );
    said("coordinator-token", &format!("coordinator = {{ {} }}", urls(store)), &["coordinator.token_file"]);
    // etcd requires a user, and gets a wrong password.
    let etcd = Etcd::start(&keeper.logs, 1);
    let post = |path: &str, body: &str| {
        let url = format!("http://{}{path}", etcd.address(0));
        let output = Command::new("curl").args(["-sf", "-X", "POST", "-d", body, &url]).output().unwrap();
        assert!(output.status.success(), "{path}: {output:?}");
    };
    post("/v3/auth/role/add", r#"{"name":"root"}"#);
    post("/v3/auth/user/add", r#"{"name":"root","password":"right"}"#);
    post("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#);
    post("/v3/auth/enable", "{}");
    let urls = etcd.urls();
    said("coordinator-user", &format!("coordinator = {{ urls = {urls} }}"), &["coordinator.user"]);
    let (right, wrong) = (
        keeper.directory.write("right", "right\n").unwrap(),
        keeper.directory.write("wrong", "wrong\n").unwrap(),
    );
    let user = |path: &std::path::Path| {
        format!(
            "coordinator = {{ urls = {urls}, user = \"root\", password_file = {:?} }}",
            path.display().to_string()
        )
    };
    said("coordinator-password", &user(&wrong), &["refuses user `root`"]);
    let mut cluster = cluster("coordinator-right", 1);
    cluster.start_edge(0, &user(&right)).unwrap();
    wait(&cluster, 0, 0, &["the coordinator is reachable"]);
    // The server answers in another protocol.
    let odd = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = odd.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in odd.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            let _ = reader
                .get_mut()
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}");
        }
    });
    said("coordinator-odd", &format!("coordinator = {{ urls = [\"http://{address}\"] }}"), &["neither etcd"]);
}
