//! The cell `classify` while edges are killed: every image gets the same answer as without a kill, and its correct class.

use crate::support::{
    self,
    digits::{self, ANSWER_BYTES},
};
use marram_cluster::TestCluster;
use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(120);
/// Images between two kills.
const BATCH: usize = 10;
const KILLS: usize = 3;

/// The classes of some of them, and the images.
fn images() -> (Vec<u8>, Vec<u8>) {
    let all = BATCH * (KILLS + 1);
    let some = (0..digits::IMAGES).step_by(digits::IMAGES / all).take(all);
    let (classes, images): (Vec<u8>, Vec<Vec<u8>>) = some.map(digits::image).unzip();
    (classes, images.concat())
}

/// Sends all images in pieces that ignore image boundaries, and returns the answers. If `is_killed`, the owner is killed after
/// each batch but the last, while the next batch is in flight.
fn answers(purpose: &'static str, images: &[u8], is_killed: bool) -> Vec<u8> {
    let layout = support::layout(purpose, |layout| layout.edges = 2);
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cells/services/classify/marram.toml");
    let mut cluster = TestCluster::new(layout, |_| Ok(vec![manifest])).unwrap();
    cluster.start_edges("").unwrap();
    let address = cluster.start_client_agent(&cluster.edge_addresses(), &["classify"]).unwrap()[0].address;
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut out = stream.try_clone().unwrap();
    let images = images.to_vec();
    let writer = thread::spawn(move || images.chunks(5_000).for_each(|piece| out.write_all(piece).unwrap()));
    let (mut answers, mut batch) = (Vec::new(), vec![0; ANSWER_BYTES * BATCH]);
    for kill in 0..=KILLS {
        stream.read_exact(&mut batch).unwrap();
        answers.extend_from_slice(&batch);
        if is_killed && kill < KILLS {
            let (owner, start) = (cluster.owner().unwrap(), cluster.logs.end());
            cluster.edges[owner].kill();
            cluster.wait_for_owner(start).unwrap();
            cluster.start_edge(owner, "").unwrap();
        }
    }
    writer.join().unwrap();
    answers
}

#[test]
fn images_are_answered_alike_whether_or_not_edges_are_killed() {
    let (classes, images) = images();
    let calm = answers("classify", &images, false);
    assert_eq!(answers("classify-killed", &images, true), calm);
    let right =
        calm.chunks(ANSWER_BYTES).zip(&classes).filter(|(answer, class)| answer[0] == **class).count();
    assert!(right + 1 >= classes.len(), "{right} of {} right", classes.len());
}
