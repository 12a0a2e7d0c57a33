//! The coordinator's store in a process of its own: it loses its file, and edges that remember it decide nothing until an operator
//! accepts that. And decisions at real etcd.

use crate::support::{self, counting::Client, etcd::Etcd, marram};
use bytes::Bytes;
use hyper::Method;
use marram_cluster::{LogCollector, TempDir, TestCluster};
use marram_node::coordinator::protocol;
use marram_shard::coordinator::{StoreEntry, StoreReply, StoreRequest, contents::STORE};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const COUNTER: &str = "[keep]\nlinger = \"30s\"\n";

fn known(cluster: &TestCluster, edge: usize) -> Value {
    cluster.edges[edge].client().unwrap().json(Method::GET, "/v1/coordinator").unwrap()
}

/// Polls until it holds for what every edge knows.
fn until(cluster: &TestCluster, holds: impl Fn(&Value) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    for edge in 0..cluster.edges.len() {
        loop {
            let known = known(cluster, edge);
            if holds(&known) {
                break;
            }
            assert!(Instant::now() < deadline, "{known}\n{}", cluster.logs.tail(30));
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_store_without_an_edge_that_loses_its_file_decides_nothing_until_this_is_accepted() {
    let layout = support::layout("store", |layout| layout.edges = 2);
    let counter = |place: &TempDir| Ok(vec![support::cells().manifest(place, "count", "counter", COUNTER)?]);
    let mut cluster = TestCluster::new(layout, counter).unwrap();
    let mut store = support::store(&cluster.logs);
    let checked = marram().args(["config", "check", "coordinator"]).arg(store.config()).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    cluster.start_edges(&store.field()).unwrap();
    until(&cluster, |known| known["identity"].is_string() && known["edges"].as_array().unwrap().len() == 2);
    let identity = known(&cluster, 0)["identity"].clone();
    assert_eq!(known(&cluster, 1)["identity"], identity, "one of the two edges began it");
    // What an edge remembers is on its disk.
    let remembered =
        cluster.directory.path().join(cluster.edges[0].directory()).join("state/coordinator-seen");
    let deadline = Instant::now() + PATIENCE;
    while std::fs::read_to_string(&remembered).is_err() {
        assert!(Instant::now() < deadline, "{}", remembered.display());
        std::thread::yield_now();
    }
    let accept = |cluster: &TestCluster| {
        let client = cluster.edges[1].client().unwrap();
        client.json(Method::POST, "/v1/coordinator/accept")
    };
    let why = accept(&cluster).unwrap_err().to_string();
    assert!(why.contains("has lost nothing"), "{why}");
    let mut client = Client::start(&mut cluster);
    // A restart with its file is no loss.
    store.terminate().unwrap();
    store.restart().unwrap();
    until(&cluster, |known| {
        known["state"] == "there" && known["identity"] == identity && known["lost"] == serde_json::json!([])
    });
    store.terminate().unwrap();
    std::fs::remove_dir_all(store.config().with_file_name("store")).unwrap();
    store.restart().unwrap();
    until(&cluster, |known| known["lost"][0]["identity"] == identity);
    client.count();
    assert_eq!(accept(&cluster).map(drop).map_err(|why| why.to_string()), Ok(()));
    until(&cluster, |known| known["lost"] == serde_json::json!([]) && known["identity"] != identity);
    client.count();
    // One store a directory.
    let twice = marram().args(["coordinator", "serve", "--config"]).arg(store.config()).output().unwrap();
    assert!(!twice.status.success() && String::from_utf8_lossy(&twice.stderr).contains("store"), "{twice:?}");
}

#[test]
fn a_store_that_others_could_reach_needs_a_token_and_a_directory() {
    let place = TempDir::new("store-config").unwrap();
    for (text, words) in [
        ("serve = \"0.0.0.0:0\"\ndirectory = \"d\"\n", "token_file"),
        ("serve = \"127.0.0.1:0\"\n", "directory"),
        ("directory = \"d\"\n", "serve"),
        ("serve = \"127.0.0.1:0\"\ndirectory = \"d\"\nurls = []\n", "urls"),
    ] {
        let config = place.write("store.toml", text).unwrap();
        let output = marram().args(["coordinator", "serve", "--config"]).arg(config).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(words), "{said}");
    }
}

/// Asks etcd as an edge would.
fn asked(etcd: &Etcd, request: &StoreRequest) -> StoreReply {
    let (path, body) = protocol::call(request);
    let url = format!("http://{}{path}", etcd.address(0));
    let output =
        Command::new("curl").args(["-sf", "-X", "POST", "-d", &body.to_string(), &url]).output().unwrap();
    assert!(output.status.success(), "{request:?}: {output:?}");
    let body: Value = serde_json::from_slice(&output.stdout).unwrap();
    protocol::reply(request, &body).unwrap_or_else(|| panic!("{request:?}: {body}"))
}

#[test]
fn etcd_writes_a_decision_with_its_count_or_not_at_all() {
    let logs = LogCollector::default();
    let etcd = Etcd::start(&logs, 1);
    let write = |key: &str, value: &'static str| {
        let value = Some(Bytes::from_static(value.as_bytes()));
        asked(&etcd, &StoreRequest::Write { key: key.into(), expect: None, value, lease: None })
    };
    let at = |key: &str| match asked(&etcd, &StoreRequest::Get { key: key.into() }) {
        StoreReply::Entries { mut entries, .. } => entries.pop(),
        other => panic!("{other:?}"),
    };
    let decide = |expect: u64, value: Option<&'static str>, record: &'static str, least: u64| {
        let value = value.map(|value| Bytes::from_static(value.as_bytes()));
        let store = Bytes::from_static(record.as_bytes());
        asked(&etcd, &StoreRequest::Decide { key: "/k".into(), expect, value, store, least })
    };
    let undecided = |reply: StoreReply| reply == StoreReply::Undecided { store: at(STORE), entry: at("/k") };
    assert!(undecided(decide(0, Some("v"), "one", 0)), "there is no record");
    write(STORE, "one");
    assert!(undecided(decide(0, Some("v"), "two", 1)));
    assert!(undecided(decide(0, Some("v"), "one", 2)), "it has one write");
    assert!(undecided(decide(9, Some("v"), "one", 1)));
    let reply = decide(0, Some("v"), "one", 1);
    assert!(matches!(reply, StoreReply::Decided { decisions: 2, .. }), "{reply:?}");
    let Some(StoreEntry { value, revision, version, .. }) = at("/k") else { panic!("it is there") };
    assert_eq!((&value[..], version), (&b"v"[..], 1));
    let reply = decide(revision, None, "one", 2);
    assert!(matches!(reply, StoreReply::Decided { decisions: 3, .. }), "{reply:?}");
    assert_eq!((at("/k"), at(STORE).map(|record| record.version)), (None, Some(3)));
}
