//! Sessions that move to an edge without their image: the edge asks its peers, and if no peer has the image, it logs that.

use crate::support;
use marram_cluster::{LogEvent, TestCluster, TestEdge};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// No process listens on port 1.
const NOBODY: &str = "http://127.0.0.1:1";

/// Edges without apps, with these peers, in the domain of another run if `domain` is given.
fn empty(purpose: &'static str, edges: usize, peers: &[String], domain: Option<&TestCluster>) -> TestCluster {
    let admin = format!("peers = {peers:?}\n");
    let layout = support::layout(purpose, |layout| (layout.edges, layout.admin) = (edges, admin));
    let mut cluster = TestCluster::new(layout, |_| Ok(Vec::new())).unwrap();
    domain.into_iter().for_each(|other| support::same_domain(&cluster, other));
    cluster.start_edges("").unwrap();
    cluster
}

fn url(edge: &TestEdge) -> String {
    format!("http://{}", edge.admin())
}

/// Deploys a version of the app with this `quotas.scratch` and this `keep.linger`.
fn deploy(cluster: &TestCluster, [scratch, linger]: [&str; 2], edges: &[&TestEdge]) {
    let rest = format!("[quotas]\nscratch = \"{scratch}\"\n[keep]\nlinger = \"{linger}\"\n");
    deploy_as(cluster, "moving", &rest, edges);
}

/// Deploys an app of this name with these settings.
fn deploy_as(cluster: &TestCluster, name: &str, rest: &str, edges: &[&TestEdge]) {
    let manifest = support::cells().manifest(&cluster.directory, name, "counter", rest).unwrap();
    let edges = edges.iter().map(|edge| format!("--edge={}", url(edge)));
    let output =
        Command::new(env!("CARGO_BIN_EXE_marram")).arg("deploy").arg(manifest).args(edges).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn image(edge: &TestEdge) -> String {
    let list = edge.client().unwrap().json(hyper::Method::GET, "/v1/apps").unwrap();
    list["apps"][0]["image"].as_str().unwrap().to_owned()
}

/// A client that counts with its cell.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn count(&mut self) -> std::io::Result<String> {
        self.0.get_mut().write_all(b"f")?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.split(' ').next().unwrap_or_default().to_owned())
    }
}

#[test]
fn an_edge_fetches_the_image_of_a_session_that_comes_to_it() {
    let keeper = empty("fetch-keeper", 1, &[], None);
    let keeper_edge = &keeper.edges[0];
    let mut cluster = empty("fetch", 2, &[NOBODY.into(), url(keeper_edge)], Some(&keeper));
    deploy(&cluster, ["1MiB", "60s"], &[&cluster.edges[0], keeper_edge]);
    let old = image(keeper_edge);
    let addresses = cluster.edge_addresses();
    let address = cluster.start_client_agent(&addresses, &["moving"]).unwrap()[0].address;
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(address)).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.count().unwrap(), "count=1"));
    // The other edge gets the app only now, in a version other than that of these sessions, and no edge runs their version any
    // more.
    deploy(&cluster, ["2MiB", "60s"], &[&cluster.edges[0], &cluster.edges[1], keeper_edge]);
    let new = image(keeper_edge);
    assert_ne!(old, new);
    let start = cluster.logs.end();
    cluster.edges[0].kill();
    clients.iter_mut().for_each(|client| assert_eq!(client.count().unwrap(), "count=2"));
    let said = |words: &'static str| {
        let says = |event: &LogEvent| {
            let message = event.text("message");
            message.contains(words) && message.contains(&old)
        };
        cluster.logs.wait(start, PATIENCE, says).expect(words);
        cluster.logs.count(start, says)
    };
    assert_eq!((said("requesting it from the peers"), said("is fetched")), (1, 1), "once for all of them");
    assert_eq!(image(&cluster.edges[1]), new, "new sessions run the version that is deployed");
    assert_eq!(Client::connect(address).count().unwrap(), "count=1");
    // The edge now serves the image to others.
    let path = format!("/v1/images/{old}/app");
    let app = cluster.edges[1].client().unwrap().json(hyper::Method::GET, &path).unwrap();
    assert_eq!((app["name"].as_str(), app["image"].as_str()), (Some("moving"), Some(&*old)));
}

/// Sessions by app, and how each is protected.
fn protections(edge: &TestEdge) -> BTreeMap<String, String> {
    let list = edge.client().unwrap().json(hyper::Method::GET, "/v1/sessions").unwrap();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    list["sessions"].as_array().unwrap().iter().map(|row| (text(row, "app"), text(row, "protect"))).collect()
}

fn kill_shards(cluster: &TestCluster, edge: &TestEdge) {
    let started =
        cluster.logs.all(0, |event| *event.who == *edge.who() && event.text("message") == "shard started");
    for event in &started {
        let pid = Pid::from_raw(i32::try_from(event.number("pid")).unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }
    assert!(!started.is_empty());
}

#[test]
fn sessions_of_two_apps_of_one_image_keep_each_its_own_settings() {
    let keeper = empty("fetch-two-keeper", 1, &[], None);
    let keeper_edge = &keeper.edges[0];
    let mut cluster = empty("fetch-two", 2, &[url(keeper_edge)], Some(&keeper));
    // In both orders of deployment and of names.
    let apps = [("two", "endpoints"), ("one", "standby"), ("three", "endpoints")];
    for (app, protect) in apps {
        deploy_as(&cluster, app, &format!("protect = \"{protect}\"\n"), &[&cluster.edges[0], keeper_edge]);
    }
    let addresses = cluster.edge_addresses();
    let listens = cluster.start_client_agent(&addresses, &apps.map(|(app, _)| app)).unwrap();
    let mut clients: Vec<_> = listens.iter().map(|listen| Client::connect(listen.address)).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.count().unwrap(), "count=1"));
    let before = protections(&cluster.edges[0]);
    assert_eq!((before.len(), before["one"].as_str()), (3, "standby (warm)"), "{before:?}");
    let image = image(keeper_edge);
    cluster.edges[0].kill();
    clients.iter_mut().for_each(|client| assert_eq!(client.count().unwrap(), "count=2"));
    assert_eq!(protections(&cluster.edges[1]), before, "at the edge that had none of the apps");
    let client = cluster.edges[1].client().unwrap();
    let of = |query: &str| client.json(hyper::Method::GET, &format!("/v1/images/{image}/app{query}"));
    for (app, protect) in &before {
        let settings = of(&format!("?name={app}")).unwrap();
        assert_eq!(
            (settings["name"].as_str(), settings["protect"].as_str()),
            (Some(&**app), Some(&**protect))
        );
    }
    assert_eq!(of("").unwrap()["name"], "one", "an edge of the version before names no app");
    assert!(of("?name=four").unwrap_err().is_not_found());
    // A shard that restarts learns all of them from its supervisor, and asks no peer.
    let start = cluster.logs.end();
    kill_shards(&cluster, &cluster.edges[1]);
    clients.iter_mut().for_each(|client| assert_eq!(client.count().unwrap(), "count=3"));
    assert_eq!(protections(&cluster.edges[1]), before, "after a restart");
    let asks = |event: &LogEvent| event.text("message").contains("requesting it from the peers");
    assert_eq!(cluster.logs.count(start, asks), 0);
}

#[test]
fn without_an_edge_that_has_the_image_the_session_ends_with_the_reason() {
    let keeper = empty("fetch-none-keeper", 1, &[], None);
    let mut cluster = empty("fetch-none", 2, &[url(&keeper.edges[0])], Some(&keeper));
    deploy(&cluster, ["1MiB", "2s"], &[&cluster.edges[0]]);
    let addresses = cluster.edge_addresses();
    let address = cluster.start_client_agent(&addresses, &["moving"]).unwrap()[0].address;
    let mut client = Client::connect(address);
    assert_eq!(client.count().unwrap(), "count=1");
    cluster.edges[0].kill();
    // Long before that, the agent and the edge report what the session waits for.
    let waits =
        |event: &LogEvent| event.name() == "waiting" && event.text("reason").contains("has it either");
    let (_, waits) = cluster.logs.wait(0, PATIENCE, waits).expect("the agent says so");
    let session = waits.text("session").to_owned();
    assert_eq!((waits.text("code"), waits.text("app")), ("UnknownImage", "moving"), "{}", waits.fields);
    assert!(waits.number("left_ms") <= 2_000, "{}", waits.fields);
    let level = |event: &LogEvent, words: &str| {
        event.text("level") == "WARN" && event.fields.to_string().contains(words)
    };
    let told = |words: &'static str| {
        let about = |event: &LogEvent| level(event, words) && event.fields.to_string().contains(&session);
        cluster.logs.wait(0, PATIENCE, about).expect(words);
        cluster.logs.count(0, about)
    };
    assert_eq!(told("retries until its app's `keep.linger` is over"), 1, "by the edge, once");
    told("session waits for an edge");
    let shown = Command::new(env!("CARGO_BIN_EXE_marram"))
        .args(["inspect", "--edge", &url(&cluster.edges[1])])
        .output()
        .unwrap();
    let ended = |event: &LogEvent| event.name() == "ended";
    let over = cluster.logs.count(0, ended) > 0;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(over || shown.contains("waiting to be admitted: 1 session"), "{shown}");
    assert!(client.count().map_or(true, |line| line.is_empty()), "no one can go on with it");
    let (_, ended) = cluster.logs.wait(0, PATIENCE, ended).expect("the agent reports it");
    assert_eq!(ended.text("code"), "UnknownImage", "{}", ended.fields);
    for words in ["`moving`", "none of its 1 peers has it either", "deploy that version"] {
        assert!(ended.text("reason").contains(words), "{}", ended.fields);
    }
    // The agent retried many times in these two seconds.
    let asked = cluster.logs.count(0, |event| event.text("message").contains("requesting it from the peers"));
    assert!((1..=4).contains(&asked), "{asked}");
}
