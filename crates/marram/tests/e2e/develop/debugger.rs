//! A recorded session stepped through with gdb, in the source of its cell.

use crate::support;
use marram_cluster::TestCluster;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const SOURCE: &str = "../../cells/testing/counter/src/lib.rs";

/// The messages of each session's client. The third one sets a timer.
const SAID: [&str; 4] = ["f", "rc", "ft", "f"];

/// The cell's module with its debug information.
fn whole() -> String {
    support::cells().module("debugger/counter").to_str().unwrap().to_owned()
}

/// The module without its custom sections, as after a strip tool.
fn strip(module: &[u8]) -> Vec<u8> {
    let mut out = module[..8].to_vec();
    let mut rest = &module[8..];
    while let [id, body @ ..] = rest {
        let mut size = 0;
        let digits = body.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        body[..digits].iter().rev().for_each(|byte| size = size << 7 | usize::from(byte & 0x7f));
        let (section, behind) = rest.split_at(1 + digits + size);
        if *id != 0 {
            out.extend_from_slice(section);
        }
        rest = behind;
    }
    out
}

/// Records a session of an app with this module, and returns the file.
fn record(cluster: &mut TestCluster, address: SocketAddr, name: &str) -> String {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = BufReader::new(stream);
    for said in SAID {
        client.get_mut().write_all(said.as_bytes()).unwrap();
        let mut line = String::new();
        while !line.starts_with("count=") {
            line.clear();
            assert_ne!(client.read_line(&mut line).unwrap(), 0);
        }
    }
    let file = cluster.directory.path().join(format!("{name}.marram")).to_str().unwrap().to_owned();
    let edge = cluster.edges[0].client().unwrap();
    let list = edge.json(hyper::Method::GET, "/v1/sessions").unwrap();
    let session = list["sessions"].as_array().unwrap().iter().find(|session| session["app"] == name).unwrap();
    let url = format!("http://{}", cluster.edges[0].admin());
    let session = session["session"].as_str().unwrap();
    let output = marram(&["record", session, "--edge", &url, "--output", &file]);
    assert!(output.status.success(), "{output:?}");
    file
}

fn marram(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_marram")).args(arguments).output().unwrap()
}

/// A breakpoint at the line after which the cell's timer is set.
fn at() -> String {
    let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(SOURCE)).unwrap();
    let line = source.lines().position(|line| line.trim() == "self.ticking = again;").unwrap() + 1;
    format!("break lib.rs:{line}")
}

/// A gdb command that prints a field of `self` in the cell's memory.
const MESSAGES: &str =
    "print (*((__vmctx.memory as u64 + self.__ptr as u64) as *mut counter::Counter)).messages";

/// gdb in batch mode with these commands.
fn gdb(commands: &[&str]) -> Command {
    let mut gdb = Command::new("gdb");
    gdb.args([
        "-q",
        "-nx",
        "-batch",
        "-ex",
        "set debuginfod enabled off",
        "-ex",
        "set breakpoint pending on",
    ]);
    commands.iter().for_each(|command| _ = gdb.args(["-ex", command]));
    gdb
}

/// In some environments no process may be debugged.
fn may_debug() -> bool {
    let output = gdb(&["run"]).args(["--args", "true"]).output().expect("`cargo xtask setup` installs gdb");
    String::from_utf8_lossy(&output.stdout).contains("exited normally")
}

#[test]
fn gdb_stops_at_a_line_of_the_cell_and_shows_its_variables() {
    if !may_debug() {
        support::skip::skip("gdb may not debug any process here");
        return;
    }
    let layout = support::layout("debugger", |layout| layout.edges = 1);
    let mut cluster = TestCluster::new(layout, |place| {
        let bare = strip(&std::fs::read(whole()).unwrap());
        std::fs::write(place.path().join("bare.wasm"), bare)?;
        let bare = place.write("apps/bare/marram.toml", "name = \"bare\"\nmodule = \"../../bare.wasm\"\n")?;
        Ok(vec![support::cells().manifest(place, "counter", "debugger/counter", "")?, bare])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let addresses = cluster.edge_addresses();
    let services = cluster.start_client_agent(&addresses, &["counter", "bare"]).unwrap();
    let services: Vec<_> = services.iter().map(|service| service.address).collect();
    let with = record(&mut cluster, services[0], "counter");
    let without = record(&mut cluster, services[1], "bare");

    // The app was deployed with its debug information, and gdb starts the replay.
    let output = gdb(&["run", &at(), "continue", "backtrace 4", MESSAGES, "kill"])
        .args(["--args", env!("CARGO_BIN_EXE_marram"), "replay", &with, "--debugger"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("stopping for the debugger after 0 entries"), "{said}");
    assert!(said.contains("hit Breakpoint") && said.contains("again=false"), "{said}");
    assert!(said.contains("Counter::command") && said.contains("= 3\n"), "{said}");

    // The app was deployed without debug information, and gdb attaches to the replay.
    bare(&without);
    let mut replay = Command::new(env!("CARGO_BIN_EXE_marram"))
        .args(["replay", &without, "--debugger", "2", "--symbols", &whole()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(replay.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("process ") {
        line.clear();
        assert_ne!(told.read_line(&mut line).unwrap(), 0, "it waits");
    }
    assert!(line.contains("after 2 entries"), "{line}");
    let pid = replay.id().to_string();
    let output = gdb(&[&at(), "continue", MESSAGES, "detach"]).args(["-p", &pid]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("again=false") && said.contains("= 3\n"), "{said}");
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert!(replay.wait().unwrap().success() && rest.contains("the same run"), "{rest}");
}

/// The errors for a stripped module, and for a wrong one.
fn bare(file: &str) {
    let refused = |arguments: &[&str]| {
        let output = marram(&[&["replay", file, "--debugger"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&[]).contains("--symbols"));
    let other = support::cells().module("forward");
    let said = refused(&["--symbols", other.to_str().unwrap()]);
    assert!(said.contains("forward.wasm") && said.contains("no debug information"), "{said}");
    let said = refused(&["99", "--symbols", &whole()]);
    assert!(said.contains("the recording ends after"), "{said}");
}
