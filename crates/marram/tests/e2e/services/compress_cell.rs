//! The cell `compress` as a module: if it is restored in a new instance of the runtime before every input, in the middle of
//! heads, chunks and deflate blocks, its output does not change; and how much CPU time it needs.

use crate::support::{
    self,
    machine::{CELL, run},
    site::text,
};
use marram_sandbox::{Cells, CellsConfig, Decoded, Image, ImageFile, Images, Quotas};
use marram_session::cell::{CellInput, CellOutput, CheckpointBase, PortKind, Seed};
use marram_wire::id::Port;
use std::sync::Arc;

fn image(config: &str) -> Arc<Image> {
    let module = std::fs::read(support::cells().module("compress")).unwrap();
    let place = marram_cluster::TempDir::new("compress-cell").unwrap();
    let images = Images::open(place.path()).unwrap();
    let file = ImageFile { path: "etc/compress".into(), contents: config.as_bytes().to_vec() };
    let quotas = Quotas { memory_max: 16 << 20, ..Quotas::default() };
    let info = images.deploy_with_keys(&module, &[file], &[], &quotas).unwrap();
    images.load(info.hash).unwrap()
}

fn machine() -> Cells {
    Cells::new(CellsConfig { slots: 2, ..CellsConfig::default() }).unwrap()
}

/// A cell that stays in one instance, and the same cell moved to a new instance before every input.
struct Pair {
    image: Arc<Image>,
    stays: Cells,
    carried: Cells,
    is_carried: bool,
    inputs: usize,
    spent_ns: u64,
    /// Output for the client, and for the server.
    heard: [Vec<u8>; 2],
}

impl Pair {
    fn new(image: &Arc<Image>, is_carried: bool) -> Self {
        let (mut stays, mut carried) = (machine(), machine());
        for cells in [&mut stays, &mut carried] {
            cells.start(CELL, image, Seed([7; 32])).unwrap();
        }
        let (image, heard) = (Arc::clone(image), Default::default());
        let mut pair = Self { image, stays, carried, is_carried, inputs: 0, spent_ns: 0, heard };
        pair.give(&CellInput::Open { port: Port::CLIENT, kind: PortKind::Client, peer: None });
        pair.give(&CellInput::Open { port: Port::SERVER, kind: PortKind::Server, peer: None });
        pair
    }

    fn give(&mut self, input: &CellInput) {
        let (outputs, cost_ns) = run(&mut self.stays, input.clone());
        self.spent_ns += cost_ns;
        if self.is_carried {
            let checkpoint = self.carried.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
            self.carried = machine();
            self.carried.restore(CELL, &self.image, &Decoded::decode(&[checkpoint]).unwrap()).unwrap();
            assert_eq!(run(&mut self.carried, input.clone()).0, outputs, "input {}", self.inputs);
            assert_eq!(self.carried.state_hash(CELL), self.stays.state_hash(CELL), "input {}", self.inputs);
        }
        self.inputs += 1;
        for output in outputs {
            if let CellOutput::Message { port, payload } = output {
                self.heard[usize::from(port != Port::CLIENT)].extend_from_slice(&payload);
            }
        }
    }

    fn say(&mut self, port: Port, bytes: &[u8], piece: usize) {
        for piece in bytes.chunks(piece) {
            self.give(&CellInput::Message { port, payload: piece.to_vec().into() });
        }
    }

    /// CPU time of the cell for these bytes, in microseconds, and its output for the client.
    fn timed(&mut self, port: Port, bytes: &[u8]) -> (f64, Vec<u8>) {
        self.heard[0].clear();
        let before = self.spent_ns;
        self.say(port, bytes, 64 << 10);
        ((self.spent_ns - before) as f64 / 1e3, std::mem::take(&mut self.heard[0]))
    }
}

fn page(len: usize, more: &str) -> Vec<u8> {
    let body = text(len);
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{more}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), &body].concat()
}

const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";

#[test]
fn a_cell_that_is_restored_before_every_input_says_what_one_that_stayed_says() {
    let mut http = Pair::new(&image(""), true);
    for (len, piece) in [(3000, 40), (150_000, 3000)] {
        http.say(Port::CLIENT, ASK, 9);
        http.say(Port::SERVER, &page(len, ""), piece);
    }
    // Its first output is gzip, which the second cell decodes.
    let packed = http.heard[0].windows(4).position(|four| four == b"\x1f\x8b\x08\0").unwrap();
    assert!(packed > 0 && http.heard[0].len() < 80_000);
    assert!(http.inputs > 130, "{} inputs, each on another machine", http.inputs);

    let (mut near, mut far) = (
        Pair::new(&image("mode stream\n"), true),
        Pair::new(&image("mode stream\ndirection decompress\n"), true),
    );
    let said = text(60_000);
    for (round, word) in said.chunks(1500).enumerate() {
        near.say(Port::CLIENT, word, 700);
        far.say(Port::CLIENT, &std::mem::take(&mut near.heard[1]), 300);
        assert_eq!(std::mem::take(&mut far.heard[1]), word, "{round}");
        far.say(Port::SERVER, word, 700);
        near.say(Port::SERVER, &std::mem::take(&mut far.heard[0]), 300);
        assert_eq!(std::mem::take(&mut near.heard[0]), word, "{round}");
    }
}

#[test]
fn what_its_work_costs_is_printed() {
    for level in [1, 3, 6] {
        let image = image(&format!("level {level}\n"));
        let mut cell = Pair::new(&image, false);
        for len in [2000, 1 << 20] {
            let page = page(len, "");
            let mut best = f64::MAX;
            for _ in 0..5 {
                let ask = cell.timed(Port::CLIENT, ASK).0;
                let (answer, heard) = cell.timed(Port::SERVER, &page);
                assert!(heard.len() < page.len());
                if ask + answer < best {
                    best = ask + answer;
                    println!("level {level}, {len} bytes to {}: {ask:.0} us and {answer:.0} us", heard.len());
                }
            }
            let checkpoint = cell.stays.snapshot(CELL, CheckpointBase::Image).unwrap().encode().len();
            println!("level {level}: a checkpoint of {} KiB", checkpoint >> 10);
            assert!(checkpoint < 4 << 20);
        }
    }
}
