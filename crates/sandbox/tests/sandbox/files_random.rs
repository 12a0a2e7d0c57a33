//! Random histories of files: the same calls on a simple model, with checkpoints restored all the time.

use crate::support::{
    self, CELL, cells, deploy_with, message, run, start_in,
    wasi::{DATA, call, proxy},
};
use marram_sandbox::{Decoded, Quotas};
use marram_session::cell::{CellId, CheckpointBase};
use marram_wire::seeded::Seeded;
use std::collections::BTreeMap;

const AT: u64 = DATA as u64;

/// Files by name: the simplest model.
type Model = BTreeMap<String, Vec<u8>>;

fn one_step(cells: &mut marram_sandbox::Cells, model: &mut Model, numbers: &mut Seeded) {
    let name = format!("f{}", numbers.below(4));
    let path = [AT, name.len() as u64];
    match numbers.below(8) {
        0 => {
            let (errno, _) = call(cells, "path_unlink_file", &[3, path[0], path[1]], name.as_bytes());
            assert_eq!(errno == 0, model.remove(&name).is_some());
        }
        1 => {
            let to = format!("f{}", numbers.below(4));
            let data = format!("{name}{to}");
            let (errno, _) = call(cells, "path_rename", &[3, AT, 2, 3, AT + 2, 2], data.as_bytes());
            assert_eq!(errno == 0, model.contains_key(&name));
            if let Some(contents) = model.remove(&name) {
                model.insert(to, contents);
            }
        }
        action => {
            // Create or open, for reading and writing.
            let arguments = [3, 0, path[0], path[1], 1, 0x42, 0, 0, AT + 64];
            let (errno, data) = call(cells, "path_open", &arguments, name.as_bytes());
            assert_eq!(errno, 0);
            let fd = u64::from(u32::from_le_bytes(data[64..68].try_into().unwrap()));
            let contents = model.entry(name).or_default();
            if action == 2 {
                let len = numbers.below(30_000);
                assert_eq!(call(cells, "fd_filestat_set_size", &[fd, len], &[]).0, 0);
                contents.resize(usize::try_from(len).unwrap(), 0);
            } else {
                let (at, len) = (numbers.below(20_000), 1 + numbers.below(2_000));
                let byte = u8::try_from(numbers.below(4)).unwrap();
                let (start, end) = (usize::try_from(at).unwrap(), usize::try_from(at + len).unwrap());
                let mut data =
                    [(DATA + 16).to_le_bytes(), u32::try_from(len).unwrap().to_le_bytes()].concat();
                data.resize(16, 0);
                data.resize(16 + usize::try_from(len).unwrap(), byte);
                assert_eq!(call(cells, "fd_pwrite", &[fd, AT, 1, at, AT + 8], &data).0, 0);
                contents.resize(contents.len().max(end), 0);
                contents[start..end].fill(byte);
            }
            // Sometimes it stays open.
            if numbers.below(10) != 0 {
                assert_eq!(call(cells, "fd_close", &[fd], &[]).0, 0);
            }
        }
    }
}

fn check(cells: &mut marram_sandbox::Cells, model: &Model) {
    for (name, contents) in model {
        let arguments = [3, 0, AT, name.len() as u64, 0, 2, 0, 0, AT + 64];
        let (errno, data) = call(cells, "path_open", &arguments, name.as_bytes());
        assert_eq!(errno, 0);
        let fd = u64::from(u32::from_le_bytes(data[64..68].try_into().unwrap()));
        let mut read = Vec::new();
        loop {
            let data = [(DATA + 16).to_le_bytes(), 3_500_u32.to_le_bytes()].concat();
            let (errno, data) = call(cells, "fd_read", &[fd, AT, 1, AT + 8], &data);
            assert_eq!(errno, 0);
            let count = u32::from_le_bytes(data[8..12].try_into().unwrap()) as usize;
            if count == 0 {
                break;
            }
            read.extend_from_slice(&data[16..16 + count]);
        }
        assert!(read == *contents, "{name}");
        assert_eq!(call(cells, "fd_close", &[fd], &[]).0, 0);
    }
}

#[test]
fn random_histories_survive_restores_at_every_turn() {
    let image = deploy_with(&proxy(), &Quotas::default(), &[]);
    for seed in 1..=12 {
        let mut numbers = Seeded::new(seed);
        let mut model = Model::new();
        let mut chain: Vec<Vec<u8>> = Vec::new();
        let (mut cells, mut follower) = (support::cells(), support::cells());
        let mut from_apart = false;
        start_in(&mut cells, CELL, &image);
        for turn in 0..40 {
            for _ in 0..numbers.below(6) {
                one_step(&mut cells, &mut model, &mut numbers);
            }
            let base = match numbers.below(8) {
                _ if chain.is_empty() => CheckpointBase::Image,
                0 => CheckpointBase::Image,
                1 | 2 => CheckpointBase::Full,
                3 | 4 => {
                    // The list goes on as if it had not been taken, perhaps with a cell that was made from it.
                    let apart = cells.snapshot(CELL, CheckpointBase::Apart).unwrap().encode();
                    let mut other = support::cells();
                    other.restore(CELL, &image, &Decoded::decode(&[apart]).unwrap()).unwrap();
                    assert_eq!(other.state_hash(CELL), cells.state_hash(CELL), "seed {seed} turn {turn}");
                    if numbers.below(2) == 0 {
                        (cells, from_apart) = (other, true);
                    }
                    continue;
                }
                _ if from_apart => CheckpointBase::Full,
                _ => CheckpointBase::Previous,
            };
            from_apart = false;
            chain.truncate(match base {
                CheckpointBase::Image => 0,
                CheckpointBase::Full => 1,
                _ => chain.len(),
            });
            chain.push(cells.snapshot(CELL, base).unwrap().encode());
            // A second copy advances from checkpoint to checkpoint.
            let next = Decoded::decode(&chain[chain.len() - 1..]).unwrap();
            if base == CheckpointBase::Image {
                follower.remove(CELL);
                follower.restore(CELL, &image, &next).unwrap();
            } else {
                follower.advance(CELL, &next).unwrap();
            }
            assert_eq!(follower.state_hash(CELL), cells.state_hash(CELL), "seed {seed} turn {turn}");
            // Half of the time the history continues in the copy.
            if numbers.below(2) == 0 {
                let hash = cells.state_hash(CELL);
                let mut other = support::cells();
                start_in(&mut other, CellId(2), &image);
                other.restore(CELL, &image, &Decoded::decode(&chain).unwrap()).unwrap();
                assert_eq!(other.state_hash(CELL), hash, "seed {seed} turn {turn}");
                cells = other;
            }
        }
        check(&mut cells, &model);
    }
}

#[test]
fn forged_files_are_refused_or_are_files() {
    let image = deploy_with(&proxy(), &Quotas::default(), &[]);
    let mut cells = cells();
    start_in(&mut cells, CELL, &image);
    let mut numbers = Seeded::new(77);
    let mut model = Model::new();
    for _ in 0..30 {
        one_step(&mut cells, &mut model, &mut numbers);
    }
    assert_eq!(call(&mut cells, "path_create_directory", &[3, AT, 1], b"d").0, 0);
    assert_eq!(call(&mut cells, "path_create_directory", &[3, AT, 3], b"d/e").0, 0);
    let bytes = cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
    cells.remove(CELL);
    let (mut refused, mut alive) = (0, 0);
    // The sections of files are the last ones; contents matter least and are most of the bytes, so they are sampled.
    for at in (bytes.len() * 9 / 10..bytes.len()).chain((32..bytes.len()).step_by(97)) {
        for byte in [0, 1, 0x80, 0xff, bytes[at] ^ 1] {
            let mut forged = bytes.clone();
            forged[at] = byte;
            let digest = *blake3::hash(&forged[32..]).as_bytes();
            forged[16..32].copy_from_slice(&digest[..16]);
            let restored =
                Decoded::decode(&[forged]).and_then(|decoded| cells.restore(CELL, &image, &decoded));
            if restored.is_err() {
                refused += 1;
                continue;
            }
            alive += 1;
            for (name, arguments) in [
                ("path_open", [3, 0, AT, 2, 1, 0x42, 0, 0, AT + 64]),
                ("fd_readdir", [3, AT, 2048, 0, AT + 2048, 0, 0, 0, 0]),
            ] {
                let request = support::wasi::request(name, &arguments, b"f9");
                let _ = run(&mut cells, CELL, message(&request), 0);
            }
            cells.remove(CELL);
        }
    }
    assert!(refused > 100 && alive > 100, "{refused} {alive}");
}
