//! Sessions recorded from real processes, and replayed by a program that has nothing but the file.

use crate::support;
use marram_cluster::{LogEvent, TestCluster};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Ignored by the cell, so that it is in the cell's memory and nowhere else.
const SAID: &str = "#0123456789#";

/// A client of the cell `counter`: each of its messages is answered by a line.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    fn say(&mut self, commands: &str) {
        self.0.get_mut().write_all(commands.as_bytes()).unwrap();
    }

    fn ask(&mut self, commands: &str) -> String {
        self.say(commands);
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

fn cluster(
    purpose: &'static str,
    edges: usize,
    edge_tables: &str,
    manifest: &str,
) -> (TestCluster, SocketAddr) {
    let layout = support::layout(purpose, |layout| {
        (layout.edges, layout.edge_tables) = (edges, edge_tables.to_owned());
    });
    let mut cluster = TestCluster::new(layout, |place| {
        Ok(vec![support::cells().manifest(place, "counter", "counter", manifest)?])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let addresses = cluster.edge_addresses();
    let address = cluster.start_client_agent(&addresses, &["counter"]).unwrap()[0].address;
    (cluster, address)
}

fn marram(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_marram")).args(arguments).output().unwrap()
}

/// The output of a command that must succeed.
fn told(arguments: &[&str]) -> String {
    let output = marram(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The exit status of a command that must fail, and its error.
fn complaint(arguments: &[&str]) -> (i32, String) {
    let output = marram(arguments);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&told(arguments)).unwrap()
}

/// The only session, and the admin address of the edge that has it.
fn session(cluster: &TestCluster) -> (String, String) {
    for edge in cluster.edges.iter().filter(|edge| edge.is_running()) {
        let list = edge.client().unwrap().json(hyper::Method::GET, "/v1/sessions").unwrap();
        if let Some(session) = list["sessions"][0]["session"].as_str() {
            return (session.to_owned(), format!("http://{}", edge.admin()));
        }
    }
    panic!("no edge has the session");
}

fn path(cluster: &TestCluster, name: &str) -> String {
    cluster.directory.path().join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_session_that_outlived_an_edge_is_recorded_while_it_goes_on_and_runs_to_the_same_state() {
    let (mut cluster, address) = cluster("record", 2, "", "[keep]\nrecovery_target = \"50us\"\n");
    let mut client = Client::connect(address);
    for _ in 0..20 {
        client.ask("frc");
    }
    let owner = cluster.owner().unwrap();
    cluster.edges[owner].kill();
    assert!(client.ask(SAID).starts_with("count=21"));
    for _ in 0..5 {
        client.ask("rm");
        client.ask("fx");
    }
    let (session, edge) = session(&cluster);
    let dead = format!("http://{}", cluster.edges[owner].admin());
    // Until the log has entries after a checkpoint; the edge decides when it takes one.
    let mut tries = (0..100).map(|n| {
        let last = (0..8).map(|_| client.ask("f")).last().unwrap();
        let file = path(&cluster, &format!("it-{n}.marram"));
        // The dead edge must not prevent the other one from answering.
        let recorded =
            json(&["record", &session, "--edge", &dead, "--edge", &edge, "--output", &file, "--json"]);
        (recorded[0].clone(), file, last)
    });
    let some = |(recorded, ..): &(Value, String, String)| {
        recorded["checkpoints"].as_u64() > Some(0) && recorded["log_bytes"].as_u64() >= Some(3)
    };
    let (recorded, file, last) = tries.find(some).expect("a checkpoint is not taken at every message");
    drop(tries);
    assert_eq!((&recorded["session"], &recorded["apps"]), (&session.clone().into(), &1.into()));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let count = last.split(' ').next().unwrap();
    assert_ne!(client.ask("f").split(' ').next().unwrap(), count, "it went on");

    // As on another machine, with only the file.
    let whole = json(&["replay", &file, "--json"]);
    assert_eq!((&whole["same"], &whole["halted"]["at"]), (&true.into(), &"end".into()), "{whole}");
    assert_eq!(whole["state"], whole["recorded_state"]);
    again_and_again(&file, &whole, count);
    damaged(&cluster, &file);

    // A recording neither overwrites a file nor accepts an unknown session.
    let (code, said) = complaint(&["record", &session, "--edge", &edge, "--output", &file]);
    assert!(code == 2 && said.contains("--output"), "{code} {said}");
    let unknown = "0".repeat(32);
    let (code, said) =
        complaint(&["record", &unknown, "--edge", &edge, "--output", &path(&cluster, "unknown.marram")]);
    assert!(code == 3 && said.contains("marram ps"), "{code} {said}");
}

/// Replays the same file up to positions in the middle.
fn again_and_again(file: &str, whole: &Value, count: &str) {
    let entries = whole["entries"].as_u64().unwrap();
    let listed = told(&["replay", file, "--list"]);
    assert_eq!(
        listed.lines().filter(|line| line.contains("sends") || line.contains("starts")).count() as u64,
        entries
    );
    let stepped = told(&["replay", file, "--step"]);
    assert!(stepped.contains("-> client") && stepped.contains("the same run"), "{stepped}");
    // The state at a position is the same each time, and differs from that at the end.
    let state = |until: u64| {
        let until = until.to_string();
        json(&["replay", file, "--until", &until, "--json"])["state"].clone()
    };
    assert_eq!(state(entries), whole["state"]);
    let last = entries - 1;
    assert_eq!(state(last), state(last));
    assert_ne!(state(last), whole["state"]);
    let (a, b) = (last.to_string(), entries.to_string());
    let diff = told(&["replay", file, "--diff", &a, &b]);
    assert!(diff.contains("stage 0: 0x"), "{diff}");
    let same = told(&["replay", file, "--diff", &a, &a]);
    assert!(same.contains("nothing is different"), "{same}");
    // A watch on memory finds the first change of the memory that the last message changes.
    let changed = diff.lines().find_map(|line| line.strip_prefix("stage 0: 0x")).unwrap();
    let watched = format!("0x{}", changed.split(' ').next().unwrap());
    let halted = json(&["replay", file, "--break-memory", &watched, "--json"]);
    assert_eq!(halted["halted"]["at"], "memory", "{halted}");
    let halted = json(&["replay", file, "--break-output", count, "--json"]);
    assert_eq!((&halted["halted"]["at"], &halted["state"]), (&"output".into(), &whole["state"]), "{halted}");
    let (code, said) = complaint(&["replay", file, "--break-output", "hex:00ff00"]);
    assert!(code == 5 && said.contains("ended before"), "{code} {said}");
    let dump = told(&["replay", file, "--dump", "state", "--dump", "0x0+32"]);
    assert!(dump.contains("random bytes drawn") && dump.contains("00000010  "), "{dump}");
    let (code, said) = complaint(&["replay", file, "--dump", "0x99999999+4"]);
    assert!(code == 2 && said.contains("no memory there"), "{code} {said}");
}

fn damaged(cluster: &TestCluster, file: &str) {
    let good = std::fs::read(file).unwrap();
    let bad = path(cluster, "bad.marram");
    for (change, says) in [
        (Box::new(|bytes: &mut Vec<u8>| bytes.truncate(1_000)) as Box<dyn Fn(&mut Vec<u8>)>, "at byte 8:"),
        (Box::new(|bytes: &mut Vec<u8>| bytes[0] = 0), "at byte 0:"),
        (Box::new(|bytes: &mut Vec<u8>| bytes[50] ^= 1), "at byte 16:"),
    ] {
        let mut bytes = good.clone();
        change(&mut bytes);
        std::fs::write(&bad, bytes).unwrap();
        let (code, said) = complaint(&["replay", &bad]);
        assert!(code == 1 && said.contains(says), "{code} {said}");
    }
    let (code, said) = complaint(&["replay", "/dev/zero"]);
    assert!(code == 2 && said.contains("not a file"), "{code} {said}");
}

#[test]
fn a_file_without_its_app_says_how_to_get_it_and_a_redacted_one_has_nothing_that_was_said() {
    // No checkpoint, however busy the machine is: the recording begins with what was said.
    let (cluster, address) = cluster("record-bare", 1, "", "[keep]\nrecovery_target = \"1h\"\n");
    let mut client = Client::connect(address);
    client.ask(SAID);
    client.ask("rf");
    let (session, edge) = session(&cluster);
    let bare = path(&cluster, "bare.marram");
    told(&["record", &session, "--edge", &edge, "--output", &bare, "--without-app"]);
    let (code, said) = complaint(&["replay", &bare]);
    assert!(code == 1 && said.contains("--from") && said.contains("--images"), "{code} {said}");
    let images = path(&cluster, "images");
    let fetched = told(&["replay", &bare, "--from", &edge, "--images", &images]);
    assert!(fetched.contains("the same run"), "{fetched}");
    assert!(told(&["replay", &bare, "--images", &images]).contains("the same run"), "it was kept");

    let redacted = path(&cluster, "redacted.marram");
    told(&["record", &session, "--edge", &edge, "--output", &redacted, "--redact"]);
    let bytes = std::fs::read(&redacted).unwrap();
    assert!(!bytes.windows(SAID.len()).any(|window| window == SAID.as_bytes()));
    let listed = told(&["replay", &redacted, "--list"]);
    assert!(
        listed.contains("redacted") && listed.contains(&format!("sends {} B of digest", SAID.len())),
        "{listed}"
    );
    let (code, said) = complaint(&["replay", &redacted]);
    assert!(code == 1 && said.contains("is redacted"), "{code} {said}");
    assert!(client.ask("f").starts_with("count=3"));
}

#[test]
fn a_handler_that_is_stopped_leaves_a_record_that_stops_again_and_the_oldest_go() {
    let tables = "[record]\ndirectory = \"stopped\"\nfiles = 2\n";
    let (cluster, address) = cluster("record-stop", 1, tables, "[quotas]\nhandler_time = \"100ms\"\n");
    let admin = format!("http://{}", cluster.edges[0].admin());
    let mut left = Vec::new();
    for (poison, says) in [("!", "unreachable"), ("@", "handler_time"), ("/", "out of bounds")] {
        let start = cluster.logs.end();
        let mut client = Client::connect(address);
        client.ask("rfc");
        client.say(poison);
        let left_one = |event: &LogEvent| event.text("message").contains("`marram replay ");
        let event = cluster
            .logs
            .wait(start, PATIENCE, left_one)
            .expect("a record is left")
            .1
            .text("message")
            .to_owned();
        // The command in the message works unchanged.
        let command = event.split('`').nth(1).unwrap().strip_prefix("marram ").unwrap();
        let command: Vec<&str> = command.split(' ').collect();
        assert_eq!(command[2..], ["--from", admin.as_str()], "{event}");
        let replayed = told(&command);
        assert!(replayed.contains(says) && replayed.contains("the same run"), "{replayed}");
        let file = command[1].to_owned();
        let (code, said) = complaint(&["replay", &file]);
        assert!(code == 1 && said.contains("--from http://") && said.contains("--images"), "{code} {said}");
        let images = cluster.directory.path().join(cluster.edges[0].directory()).join("state/images");
        let replayed = told(&["replay", &file, "--images", &images.display().to_string()]);
        assert!(replayed.contains("the same run"), "{replayed}");
        let again = |event: &LogEvent| event.text("message").contains(&file);
        assert_eq!(cluster.logs.count(start, again), 1, "though the handler was tried twice");
        let (code, said) = complaint(&["replay", &file, "--from", &admin, "--until", "1000"]);
        assert!(code == 2 && said.contains("the recording ends after"), "{code} {said}");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        // The state before the failure can be inspected.
        let before = told(&["replay", &file, "--from", &admin, "--until", "2", "--dump", "state"]);
        assert!(before.contains("stage 0: hash"), "{before}");
        left.push(PathBuf::from(file));
    }
    let there: Vec<bool> = left.iter().map(|file| Path::exists(file)).collect();
    assert_eq!(there, [false, true, true], "{left:?}");
}

/// A manifest with two stages, the first of which forwards everything and delays some of it.
fn two(place: &marram_cluster::TempDir) -> anyhow::Result<PathBuf> {
    let stage = |(name, cell)| {
        let module = support::cells().module(cell).display().to_string();
        format!("[[stage]]\nname = \"{name}\"\nmodule = {module:?}\n")
    };
    let stages = [("upper", "delay"), ("lower", "counter")].map(stage).concat();
    place.write("apps/two/marram.toml", format!("name = \"two\"\n{stages}"))
}

#[test]
fn a_chain_is_recorded_with_the_apps_of_its_stages_and_what_is_unprotected_not_at_all() {
    let layout = support::layout("record-chain", |_| {});
    let mut cluster = TestCluster::new(layout, |place| {
        let bare = support::cells().manifest(place, "bare", "counter", "protect = \"none\"\n")?;
        Ok(vec![two(place)?, bare])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let addresses = cluster.edge_addresses();
    let listens = cluster.start_client_agent(&addresses, &["two", "bare"]).unwrap();
    let mut client = Client::connect(listens[0].address);
    client.ask("f");
    client.ask("rf");
    let (id, edge) = session(&cluster);
    let file = path(&cluster, "chain.marram");
    let recorded = json(&["record", &id, "--edge", &edge, "--output", &file, "--json"]);
    assert_eq!(recorded[0]["apps"], 3, "{recorded}");
    let replayed = told(&["replay", &file, "--dump", "state"]);
    assert!(replayed.contains("the same run"), "{replayed}");
    assert!(
        replayed.contains("stage 0 upper: hash") && replayed.contains("stage 1 lower: hash"),
        "{replayed}"
    );
    assert!(told(&["replay", &file, "--dump", "0x0+16@1"]).contains("00000000  "));
    drop(client);

    let mut bare = Client::connect(listens[1].address);
    bare.ask("f");
    let list = cluster.edges[0].client().unwrap().json(hyper::Method::GET, "/v1/sessions").unwrap();
    let sessions = list["sessions"].as_array().unwrap();
    let id = sessions.iter().find(|row| row["app"] == "bare").unwrap()["session"].as_str().unwrap();
    let (code, said) =
        complaint(&["record", id, "--edge", &edge, "--output", &path(&cluster, "bare.marram")]);
    assert!(code == 3 && said.contains("protect = \"none\""), "{code} {said}");
}
