//! The command line from a user's view: exit codes, and messages that name the mistake and its remedy.

use crate::support;
use marram_cluster::{LogEvent, TestCluster};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn marram(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_marram")).args(arguments).output().unwrap()
}

/// Runs a command, and checks its exit code and that its output or standard error contains each of the words.
fn check(arguments: &[&str], code: i32, words: &[&str]) -> Output {
    let output = marram(arguments);
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{arguments:?} does not say {word:?}: {said}");
    }
    output
}

#[test]
fn the_limits_page_is_what_the_program_prints() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits.md");
    let written = std::fs::read_to_string(page).unwrap();
    let printed = String::from_utf8(marram(&["limits"]).stdout).unwrap();
    assert!(written == printed, "run `marram limits > docs/limits.md`");
}

#[test]
fn wrong_flags_and_files_are_usage_errors() {
    check(&["agent", "client", "--edge", "nowhere"], 2, &["expected an address"]);
    check(&["agent", "client", "--edge", "a:1"], 2, &["--listen ADDRESS=APP"]);
    check(&["agent", "server", "--edge", "a:1"], 2, &["--server NAME=HOST:PORT"]);
    check(&["agent", "client"], 2, &["--edge"]);
    check(&["edge", "--config", "/nowhere.toml"], 2, &["/nowhere.toml", "cannot be read"]);
    check(&["deploy", "/nowhere"], 2, &["/nowhere", "cannot be read"]);
    check(&["ps", "--edge", "ftp://a"], 2, &["http://HOST:PORT"]);
    check(&["config", "check", "manifest", "/nowhere.toml"], 2, &["cannot be read"]);
}

#[test]
fn an_unreachable_edge_has_its_own_exit_code() {
    // No process listens on port 1.
    check(&["ps", "--edge", "http://127.0.0.1:1"], 4, &["127.0.0.1:1", "is the edge running"]);
}

/// One edge with `forward`, in the network namespace of the test.
fn edge() -> (TestCluster, String) {
    let mut cluster = support::cluster("cli", 1, 1);
    cluster.start_edges("").unwrap();
    let admin = cluster.edges[0].admin().to_string();
    (cluster, admin)
}

#[test]
fn an_app_comes_and_goes() {
    let (cluster, admin) = edge();
    check(&["apps", "--edge", &admin], 0, &["forward", "endpoints", "peer"]);
    check(&["ps", "--edge", &admin, "--json"], 0, &["\"sessions\":[]"]);
    let none = check(&["ps", "--edge", &admin], 0, &[]).stdout;
    assert_eq!(String::from_utf8(none).unwrap(), "no sessions\n");
    let manifest =
        support::cells().manifest(&cluster.directory, "again", "counter", "protect = \"none\"\n").unwrap();
    let manifest = manifest.display().to_string();
    check(&["config", "check", "manifest", &manifest], 0, &["in order"]);
    let broken =
        cluster.directory.write("broken/marram.toml", "name = \"broken\"\nmodule = \"text.wasm\"\n").unwrap();
    let broken = broken.display().to_string();
    check(&["config", "check", "manifest", &broken], 2, &["text.wasm", "cannot be read"]);
    cluster.directory.write("broken/text.wasm", "no module").unwrap();
    check(&["config", "check", "manifest", &broken], 2, &["broken/marram.toml", "module"]);
    check(&["deploy", &manifest, "--edge", &admin], 0, &["again", "survive nothing"]);
    check(&["apps", "--edge", &admin], 0, &["again", "forward"]);
    let unknown = "0".repeat(32);
    check(&["inspect", &unknown, "--edge", &admin], 3, &["no such session here"]);
    check(&["kill", &unknown, "--edge", &admin], 3, &["no such session here"]);
    check(&["inspect", "xyz", "--edge", &admin], 2, &["\"xyz\" is not a session", "hexadecimal"]);
    check(&["deploy", &manifest, "--edge", &admin], 0, &["again is unchanged", "build it first"]);
    check(&["undeploy", "again", "--edge", &admin], 0, &["again accepts no new sessions"]);
    check(&["undeploy", "again", "--edge", &admin], 3, &["no app `again` is deployed here", "marram apps"]);
    check(&["logs", "--app", "forwrd", "--edge", &admin], 0, &["no line is about `forwrd`", "`forward`?"]);
    let silent = "http://127.0.0.1:1";
    check(&["apps", "--edge", &admin, "--edge", silent], 4, &["EDGE", "forward"]);
}

#[test]
fn inspect_shows_an_edge_with_its_shards_and_apps_and_a_session_with_its_stages() {
    let layout = support::layout("cli-inspect", |layout| layout.shards = 2);
    let cells = support::cells();
    let apps = |place: &_| Ok(vec![cells.manifest(place, "counting", "counter", "")?]);
    let mut cluster = TestCluster::new(layout, apps).unwrap();
    cluster.start_edges("").unwrap();
    let admin = cluster.edges[0].admin().to_string();
    let address = cluster.start_client_agent(&cluster.edge_addresses(), &["counting"]).unwrap()[0].address;
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"f").unwrap();
    let mut answer = [0; 7];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"count=1");

    let words = ["1 session, 1 app, 2 shards", "WARM SLOTS", "READY"];
    let inspect = || check(&["inspect", "--edge", &admin], 0, &words);
    let mut shown = String::from_utf8(inspect().stdout).unwrap();
    let deadline = Instant::now() + PATIENCE;
    // The shard without a client may load the image a little later.
    while !shown.trim_end().ends_with("2          counting") && Instant::now() < deadline {
        shown = String::from_utf8(inspect().stdout).unwrap();
    }
    let app: Vec<&str> = shown.lines().last().unwrap().split_whitespace().collect();
    // Columns: name, image, sessions, refused, ready, found, missed, shards that have it loaded, stages.
    assert_eq!((app[0], app[2], app[3], app[7], app[8]), ("counting", "1", "0", "2", "counting"), "{shown}");
    let json = check(&["inspect", "--edge", &admin, "--json"], 0, &[]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let edge = &json[0];
    let sum = |field: &str| {
        let shards = edge["shards"].as_array().unwrap().iter();
        shards.map(|shard| shard["figures"][field].as_u64().unwrap()).sum::<u64>()
    };
    for field in ["sessions", "cells", "cells_ready", "slots_warm", "images_loaded"] {
        assert_eq!(sum(field), edge["figures"][field].as_u64().unwrap(), "{field}: {edge}");
    }
    let of_app = &edge["apps"][0]["figures"];
    assert_eq!(of_app["app_cells_ready"], edge["figures"]["cells_ready"], "it is the only one: {edge}");
    let found = |field: &str| of_app[field].as_u64().unwrap();
    assert_eq!(found("app_cells_ready_found_total") + found("app_cells_ready_missed_total"), 1, "{edge}");

    let listed = check(&["ps", "--edge", &admin], 0, &["STAGES"]).stdout;
    let listed = String::from_utf8(listed).unwrap();
    let session = listed.lines().last().unwrap().split(' ').next().unwrap();
    let words = [
        "stages           counting\n",
        "image  ",
        "consumed here    ",
        "survives         any",
        "ends with        the",
    ];
    check(&["inspect", session, "--edge", &admin], 0, &words);
}

#[test]
fn an_edge_that_stops_says_what_it_waits_for_and_what_is_left() {
    let layout =
        support::layout("cli-drain", |layout| layout.edge_tables = "[limits]\ndrain = \"1s\"\n".into());
    let apps = |place: &_| Ok(vec![support::cells().manifest(place, "counting", "counter", "")?]);
    let mut cluster = TestCluster::new(layout, apps).unwrap();
    cluster.start_edges("").unwrap();
    let address = cluster.start_client_agent(&cluster.edge_addresses(), &["counting"]).unwrap()[0].address;
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"f").unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    let admin = cluster.edges[0].admin().to_string();
    check(&["drain", "--edge", &admin], 0, &["The edge stops when none is left", "`limits.drain`"]);
    for words in ["1 session to move; waiting for at most 1s", "stopping with 1 session left"] {
        let says = |event: &LogEvent| event.text("message").contains(words);
        cluster.logs.wait(0, PATIENCE, says).expect(words);
    }
    drop(client);
}

#[test]
fn one_session_too_many_is_refused_with_the_reason() {
    let cells = support::cells();
    let apps =
        |place: &_| Ok(vec![cells.manifest(place, "counting", "counter", "[quotas]\nsessions = 1\n")?]);
    let layout = support::layout("cli-quota", |layout| {
        layout.agent_tables += "edge_wait = \"3s\"\n";
    });
    let mut cluster = TestCluster::new(layout, apps).unwrap();
    cluster.start_edges("").unwrap();
    let address = cluster.start_client_agent(&cluster.edge_addresses(), &["counting"]).unwrap()[0].address;
    let clients: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(b"f").unwrap();
            client
        })
        .collect();
    // The second client waits, since there may be room soon; the agent's log gives the reason.
    let why =
        |event: &LogEvent| event.name() == "ended" && event.text("reason").contains("quotas.sessions = 1");
    cluster.logs.wait(0, PATIENCE, why).expect("the agent is told");
    let admin = cluster.edges[0].admin().to_string();
    let shown = String::from_utf8(check(&["inspect", "--edge", &admin], 0, &[]).stdout).unwrap();
    let app: Vec<&str> = shown.lines().last().unwrap().split_whitespace().collect();
    assert!(app[2] == "1" && app[3].parse::<u64>().unwrap() >= 1, "{shown}");
    drop(clients);
}

#[test]
fn an_edge_that_hangs_does_not_hide_the_others() {
    let mut cluster = support::cluster("cli-hangs", 2, 1);
    cluster.start_edges("").unwrap();
    let urls: Vec<String> =
        cluster.edges.iter().map(|edge| format!("--edge=http://{}", edge.admin())).collect();
    let address = cluster.start_client_agent(&cluster.edge_addresses(), &["new"]).unwrap()[0].address;
    // The edge that is named first.
    cluster.edges[0].stop();
    let silent = format!("{}: no answer in 3 s; it hangs or is stopped", cluster.edges[0].admin());
    let both = [urls[0].as_str(), urls[1].as_str()];
    let output = check(&["apps", both[0], both[1]], 4, &[&silent]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("forward"), "the other one's answer");
    let manifest = support::cells().manifest(&cluster.directory, "new", "counter", "").unwrap();
    let manifest = manifest.display().to_string();
    check(&["deploy", &manifest, both[0], both[1]], 4, &[&silent, "new is deployed"]);
    let unknown = "0".repeat(32);
    check(&["kill", &unknown, both[0], both[1]], 4, &[&silent]);
    // The command need not wait for the other edge once it has the answer.
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"f").unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    let listed = check(&["ps", &urls[1]], 0, &["new"]).stdout;
    let listed = String::from_utf8(listed).unwrap();
    let session = listed.lines().last().unwrap().split(' ').next().unwrap();
    check(&["inspect", session, both[0], both[1]], 0, &["new"]);
    // The second name is of the same session.
    check(&["kill", session, &session[..12], both[0], both[1]], 0, &["is ended"]);
}

#[test]
fn two_edges_with_one_directory_do_not_start() {
    let (cluster, _) = edge();
    let directory = cluster.directory.path().join(cluster.edges[0].directory());
    let state = directory.join("state").display().to_string();
    let config = std::fs::read_to_string(directory.join("edge.toml")).unwrap();
    // Its addresses differ, so that only the directory conflicts.
    let other = config
        .replace(&cluster.edges[0].address().to_string(), "127.0.0.1:0")
        .replace(&cluster.edges[0].admin().to_string(), "127.0.0.1:0");
    let other =
        cluster.directory.write(&format!("{}/other.toml", cluster.edges[0].directory()), other).unwrap();
    let words = [&state, " is in use by process ", "its own `state`"];
    check(&["edge", "--config", &other.display().to_string()], 1, &words);
}

#[test]
fn a_bad_app_is_refused_with_the_reason() {
    let (cluster, admin) = edge();
    cluster.directory.write("bad/module.wasm", b"\x7fELF and so on").unwrap();
    let bad = |rest: &str| {
        let text = format!("name = \"bad\"\nmodule = \"module.wasm\"\n{rest}");
        cluster.directory.write("bad/marram.toml", text).unwrap().parent().unwrap().display().to_string()
    };
    check(&["deploy", &bad(""), "--edge", &admin], 3, &["not a WebAssembly module"]);
    check(&["deploy", &bad("protect = \"deadline\""), "--edge", &admin], 2, &["marram.toml:3", "planned"]);
    check(&["deploy", &bad("[keep]\ncheckpoint = \"server\""), "--edge", &admin], 2, &["`keep.checkpoint`"]);
    check(&["deploy", &bad("[quotas]\nmemory = 7"), "--edge", &admin], 2, &["`quotas.memory`", "16MiB"]);
}

#[test]
fn an_edge_refuses_promises_that_its_own_ends_would_break() {
    let tables = "[servers]\npeer = \"127.0.0.1:9\"\n";
    let layout = support::layout("cli-gates", |layout| layout.edge_tables = tables.into());
    let mut cluster = TestCluster::new(layout, |_| Ok(Vec::new())).unwrap();
    cluster.start_edges("").unwrap();
    let admin = cluster.edges[0].admin().to_string();
    let deploy = |rest: &str| {
        let manifest = support::cells().manifest(&cluster.directory, "gated", "forward", rest).unwrap();
        manifest.display().to_string()
    };
    let promise = deploy("server = \"peer\"\nprotect = \"endpoints\"\n");
    check(
        &["deploy", &promise, "--edge", &admin],
        3,
        &["server ends are in this edge", "marram agent server"],
    );
    // The same with a backup: the edge's own ends would not survive it.
    let backed = deploy("server = \"peer\"\nprotect = \"epoch\"\n");
    let words = ["`protect = \"epoch\"`", "server ends are in this edge"];
    check(&["deploy", &backed, "--edge", &admin], 3, &words);
    let alone = deploy("protect = \"epoch\"\n");
    check(&["deploy", &alone, "--edge", &admin], 3, &["requires a coordinator", "[coordinator]"]);
    let modest = deploy("server = \"peer\"\nprotect = \"none\"\n");
    check(&["deploy", &modest, "--edge", &admin], 0, &["survive nothing"]);
}
