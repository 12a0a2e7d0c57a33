//! The cell `background`: a video passes through it while its edge dies, and it keeps what it has learned of the scene.

use crate::support;
use marram_cluster::TestCluster;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(90);
const WIDTH: usize = 768;
const HEIGHT: usize = 576;
/// Frames until the scene is learned.
const LEARNED: usize = 120;
const FRAMES: usize = 170;
/// Frames with motion: some before the edge dies, and some after.
const MOVING: &str = "128-130,150-154,165";

/// A server that receives one stream. It reports the number of bytes after each read; the thread returns the bytes.
fn viewer() -> (SocketAddr, Receiver<usize>, thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, progress) = channel();
    let taken = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut taken, mut piece) = (Vec::new(), vec![0; 1 << 18]);
        loop {
            match stream.read(&mut piece).unwrap() {
                0 => break,
                count => taken.extend_from_slice(&piece[..count]),
            }
            // The test may have stopped waiting.
            let _ = sender.send(taken.len());
        }
        stream.write_all(format!("{} bytes seen\n", taken.len()).as_bytes()).unwrap();
        taken
    });
    (address, progress, taken)
}

fn clip() -> Vec<u8> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../cells/services/background/clip.py");
    let mut command = Command::new("python3");
    let frames = FRAMES.to_string();
    let output = command.args([script, "--frames", &frames, "--moving", MOVING]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The bytes that the server receives of a clip. If `dies`, the edge is killed some frames after the scene is learned.
fn watch(purpose: &'static str, clip: &[u8], dies: bool) -> Vec<u8> {
    let layout = support::layout(purpose, |layout| layout.edges = 2);
    let manifest = "server = \"peer\"\nprotect = \"endpoints\"\n[quotas]\nmemory = \"96MiB\"\n";
    let mut cluster = TestCluster::new(layout, |place| {
        Ok(vec![support::cells().manifest(place, "background", "background", manifest)?])
    })
    .unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    let (viewer, progress, taken) = viewer();
    cluster.start_server_agent(&edges, &[("peer", viewer)]).unwrap();
    let address = cluster.start_client_agent(&edges, &["background"]).unwrap()[0].address;
    let mut camera = TcpStream::connect(address).unwrap();
    camera.set_read_timeout(Some(PATIENCE)).unwrap();
    let header = clip.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let frame = b"FRAME\n".len() + WIDTH * HEIGHT;
    let (before, after) = clip.split_at(header + 140 * frame);
    camera.write_all(before).unwrap();
    // Three frames after those from which the scene is learned.
    let known = (LEARNED + 3) * WIDTH * HEIGHT;
    while progress.recv_timeout(PATIENCE).unwrap() < known {}
    if dies {
        let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
        cluster.edges[owner].kill();
        camera.write_all(after).unwrap();
        cluster.wait_for_owner(start).unwrap();
    } else {
        camera.write_all(after).unwrap();
    }
    camera.shutdown(Shutdown::Write).unwrap();
    let mut said = String::new();
    camera.read_to_string(&mut said).unwrap();
    let taken = taken.join().unwrap();
    assert_eq!(said, format!("{} bytes seen\n", taken.len()));
    taken
}

/// Numbers of the forwarded frames, and whether the scene was still being learned.
fn numbers(stream: &[u8]) -> Vec<(usize, bool)> {
    let mut rest = &stream[stream.iter().position(|byte| *byte == b'\n').unwrap() + 1..];
    let mut numbers = Vec::new();
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let line = std::str::from_utf8(&rest[..end]).unwrap();
        let number = line.split("XNUMBER=").nth(1).unwrap().split(' ').next().unwrap();
        numbers.push((number.parse().unwrap(), line.ends_with("XLEARNING")));
        rest = &rest[end + 1 + WIDTH * HEIGHT..];
    }
    numbers
}

#[test]
fn what_was_learned_of_a_scene_outlives_the_edge() {
    let clip = clip();
    let calm = watch("background-calm", &clip, false);
    let moving = [128, 129, 130, 150, 151, 152, 153, 154, 165].map(|number| (number, false));
    let expected: Vec<_> = (0..LEARNED).map(|number| (number, true)).chain(moving).collect();
    assert_eq!(numbers(&calm), expected);
    let killed = watch("background-kill", &clip, true);
    assert!(killed == calm, "the same frames, byte for byte");
}
