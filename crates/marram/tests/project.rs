//! A cell's project from `marram new` to sessions that have what was just written.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use marram::harness::{Place, free_address};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn marram(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_marram")).args(arguments).output().unwrap()
}

/// Begins a project and gives its directory.
fn new(place: &Place, name: &str, language: &str) -> PathBuf {
    let directory = place.path().join(name);
    let output = marram(&["new", name, "--lang", language, "--directory", directory.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    directory
}

fn ask(address: SocketAddr, line: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    writeln!(stream, "{line}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

/// Changes what a source says.
fn edit(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from));
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn a_project_in_c_is_built_deployed_and_deployed_again_when_it_changes() {
    if !support::cells().module("c/shout").is_file() {
        eprintln!("skipped: cells in C are not built here");
        return;
    }
    let place = Place::new("project-c").unwrap();
    let directory = new(&place, "my-lines", "c");
    let listen = free_address().unwrap();
    let mut dev = Command::new(env!("CARGO_BIN_EXE_marram"))
        .args(["dev", "--listen", &listen.to_string()])
        .current_dir(&directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(dev.stdout.take().unwrap()).lines();
    let mut until = |words: &str| {
        let mut said = String::new();
        for line in lines.by_ref().map(Result::unwrap) {
            said += &(line + "\n");
            if said.contains(words) {
                return;
            }
        }
        panic!("it ended without {words:?}: {said}");
    };
    until("is ready");
    assert_eq!(ask(listen, "hello"), "1: hello\n");

    let source = directory.join("my_lines.c");
    edit(&source, "\": %.*s", "\" says %.*s");
    until("deployed: new sessions have it");
    assert_eq!(ask(listen, "hello"), "1 says hello\n");
    edit(&source, "count += 1;", "count += ;");
    until("not deployed");
    assert_eq!(ask(listen, "hello"), "1 says hello\n", "what was deployed stays");
    edit(&source, "count += ;", "count += 10;");
    until("deployed: new sessions have it");
    assert_eq!(ask(listen, "hello"), "10 says hello\n");

    kill_process(Pid::from_child(&dev), Signal::INT).unwrap();
    assert!(dev.wait().unwrap().code().is_some());
    assert!(TcpStream::connect(listen).is_err(), "nothing stays behind");
}

#[test]
fn a_project_in_rust_passes_its_own_tests() {
    let place = Place::new("project-rust").unwrap();
    let directory = new(&place, "my-lines", "rust");
    let output = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--offline"])
        .current_dir(&directory)
        .env("CARGO_TARGET_DIR", place.path().join("built"))
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("1 passed"));
}

#[test]
fn what_is_missing_is_named() {
    let place = Place::new("project-missing").unwrap();
    let here = place.path().to_str().unwrap();
    let said = |arguments: &[&str]| {
        let output = marram(arguments);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said(&["dev", here]).contains("marram new"));
    place.write("marram.toml", "name = \"x\"\nmodule = \"x.wasm\"\nserver = \"db\"\n").unwrap();
    assert!(said(&["dev", here]).contains("--server"));
    assert!(said(&["dev", here, "--server", "127.0.0.1:1", "--build", "exit 3"]).contains("`exit 3` failed"));
    assert!(said(&["dev", here, "--server", "127.0.0.1:1"]).contains("x.wasm"));
    assert!(said(&["new", "a", "--directory", here]).contains("there already"));
}
