//! A disk that is really full: the directory of an edge is a small file system, in a mount namespace that is removed with it.
//! Without the right to make one, the test says so and checks nothing.

use crate::support;
use marram_cluster::{TempDir, TestCluster};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_marram");

/// Writes a program that starts edges with a state directory of 16 MiB, and everything else unchanged.
fn on_a_small_disk(place: &TempDir) -> PathBuf {
    let script = format!(
        "#!/bin/sh\n\
         [ \"$1\" = edge ] || exec {PROGRAM} \"$@\"\n\
         state=$(dirname \"$3\")/state && mkdir -p \"$state\" || exit 1\n\
         exec unshare -m sh -c 'mount -t tmpfs -o size=16m tmpfs \"$0\" && exec \"$@\"' \"$state\" {PROGRAM} \"$@\"\n"
    );
    let path = place.path().join("marram");
    support::write_program(&path, &script);
    path
}

/// Whether this process may mount in a new namespace.
fn may_mount(place: &TempDir) -> bool {
    let mut command = Command::new("unshare");
    command.args(["-m", "mount", "-t", "tmpfs", "tmpfs"]).arg(place.path());
    command.output().is_ok_and(|output| output.status.success())
}

/// A server that echoes what it receives.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut from = stream.try_clone().unwrap();
                let mut to = stream;
                // Ends when the client, or at the end of the test its agent, closes the connection.
                let _ = std::io::copy(&mut from, &mut to);
            });
        }
    });
    address
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn heard(stream: &mut TcpStream, words: &[u8]) -> bool {
    stream.write_all(words).unwrap();
    let mut back = vec![0; words.len()];
    stream.read_exact(&mut back).unwrap();
    back == words
}

fn deploy(cluster: &TestCluster) -> Output {
    let manifest = support::cells().manifest(&cluster.directory, "late", "counter", "").unwrap();
    let admin = cluster.edges[0].admin().to_string();
    Command::new(PROGRAM).arg("deploy").arg(manifest).args(["--edge", &admin]).output().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Writes until the disk is full.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for piece in [&[7; 1 << 16][..], &[7]] {
        let error = loop {
            if let Err(error) = file.write_all(piece) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }
}

#[test]
fn a_full_disk_refuses_deployments_and_nothing_else_and_room_is_all_it_takes() {
    let tools = TempDir::new("full-disk-tools").unwrap();
    if !may_mount(&tools) {
        support::skip::skip("mounting in a namespace of its own takes root and `unshare` (util-linux)");
        return;
    }
    let mut cluster = support::cluster_with("full-disk", |layout| layout.program = on_a_small_disk(&tools));
    cluster.start_edges("").unwrap();
    let addresses = cluster.edge_addresses();
    cluster.start_server_agent(&addresses, &[("peer", echo())]).unwrap();
    let listens = cluster.start_client_agent(&addresses, &["forward", "late"]).unwrap();
    let mut client = connect(listens[0].address);
    assert!(heard(&mut client, b"before"));
    // The directory in the edge's mount namespace.
    let process = cluster.edges[0].process().unwrap().id();
    let inside = PathBuf::from(format!("/proc/{process}/root"));
    let state = inside.join(cluster.directory.path().strip_prefix("/").unwrap()).join("A-1/state");
    let before = (names(&state.join("images")), names(&state.join("apps")));
    assert_eq!(before.0.len(), 3, "an app, its image and the key of the folder: {before:?}");

    fill(&state.join("filler"));
    let refused = deploy(&cluster);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{said}");
    for words in ["cannot hold", "No space left on device", "free space", "sessions continue"] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!((names(&state.join("images")), names(&state.join("apps"))), before, "nothing half-written");
    assert!(heard(&mut client, b"meanwhile"));
    assert!(heard(&mut connect(listens[0].address), b"new sessions begin as well"));

    fs::remove_file(state.join("filler")).unwrap();
    let deployed = deploy(&cluster);
    assert!(deployed.status.success(), "{deployed:?}");
    let mut late = connect(listens[1].address);
    late.write_all(b"f").unwrap();
    let mut reply = [0; 8];
    late.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"count=1 ");
    assert!(heard(&mut client, b"after"));
}
