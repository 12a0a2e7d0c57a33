//! Checkpoints: full and delta, restored elsewhere, damaged in every way.

use crate::support::{
    self, CELL, ask_at, cells, deploy, deploy_with, echo, guest, message, mixer, run, start_in,
};
use bytes::Bytes;
use marram_sandbox::{
    Cells, CellsConfig, CheckpointReader, Decoded, Image, Quotas, RestoreError, Snapshot, SnapshotError,
    Tracking, limits::PAGE,
};
use marram_session::cell::{CellId, CellInput, CheckpointBase};
use std::sync::Arc;

const INPUTS: [&[u8]; 12] =
    [b"one", b"two", b"grow", b"z1", b"", b"grow again", b"zero", b"x", b"g", b"zz", b"f", b"last"];

fn cells_with(tracking: Tracking) -> Cells {
    Cells::new(CellsConfig { slots: 8, tracking, ..CellsConfig::default() }).expect("eight slots can be had")
}

/// One step of the recorded history: a message, and sometimes a timer.
fn step(cells: &mut Cells, cell: CellId, n: usize) -> Vec<Vec<u8>> {
    let now = 1000 + n as i64;
    let mut outputs = ask_at(cells, cell, INPUTS[n % INPUTS.len()], now);
    if n.is_multiple_of(3) {
        outputs.extend(support::payloads(&run(
            cells,
            cell,
            CellInput::Timer { stage: 0, token: n as u64 },
            now,
        )));
    }
    outputs
}

/// The result of a run of the mixer: outputs, hashes and a checkpoint after each step.
struct History {
    image: Arc<Image>,
    outputs: Vec<Vec<Vec<u8>>>,
    hashes: Vec<Option<[u8; 32]>>,
    checkpoints: Vec<Vec<u8>>,
}

fn record(tracking: Tracking, full_every: usize) -> History {
    let image = deploy(&mixer());
    let mut cells = cells_with(tracking);
    start_in(&mut cells, CELL, &image);
    let mut history = History { image, outputs: vec![], hashes: vec![], checkpoints: vec![] };
    for n in 0..3 * INPUTS.len() {
        history.outputs.push(step(&mut cells, CELL, n));
        let base =
            if n.is_multiple_of(full_every) { CheckpointBase::Image } else { CheckpointBase::Previous };
        history.checkpoints.push(cells.snapshot(CELL, base).unwrap().encode());
        history.hashes.push(cells.state_hash(CELL));
    }
    history
}

#[test]
fn a_restored_cell_continues_from_every_checkpoint_as_the_first_did() {
    for tracking in [Tracking::Auto, Tracking::Compare] {
        let full_every = 7;
        let history = record(tracking, full_every);
        for (n, hash) in history.hashes.iter().enumerate() {
            let chain = &history.checkpoints[n - n % full_every..=n];
            let decoded = Decoded::decode(chain).unwrap();
            // In another pool, in another slot, with dirty pages found in the other way.
            let other = if tracking == Tracking::Auto { Tracking::Compare } else { Tracking::Auto };
            let mut cells = cells_with(other);
            start_in(&mut cells, CellId(9), &history.image);
            cells.restore(CELL, &history.image, &decoded).unwrap();
            assert_eq!(cells.state_hash(CELL), *hash, "{tracking:?} {n}");
            for later in n + 1..history.outputs.len().min(n + 5) {
                assert_eq!(step(&mut cells, CELL, later), history.outputs[later], "{tracking:?} {n} {later}");
                assert_eq!(cells.state_hash(CELL), history.hashes[later], "{tracking:?} {n} {later}");
            }
        }
    }
}

/// Restores while the checkpoints arrive in pieces of this size, and takes what has arrived whenever it is at least `least`.
fn restore_in_pieces(cells: &mut Cells, image: &Arc<Image>, chain: &[Vec<u8>], piece: usize, least: usize) {
    let mut reading = CheckpointReader::opened();
    cells.begin(CELL, image).unwrap();
    for checkpoint in chain {
        for bytes in checkpoint.chunks(piece) {
            reading.push(Bytes::copy_from_slice(bytes)).unwrap();
            if reading.ready() >= least {
                reading.take().iter().for_each(|filling| cells.fill(CELL, filling).unwrap());
                assert_eq!(reading.ready(), 0);
            }
        }
        reading.end().unwrap();
    }
    cells.complete(CELL, image, &reading.finish().unwrap()).unwrap();
}

/// Writes 10 MiB for a message of one byte, and writes on two pages of them for any other message.
fn ledger() -> Arc<Image> {
    let module = wat::parse_str(
        r#"(module (memory (export "memory") 1)
             (func (export "marram_alloc") (param i32) (result i32) (i32.const 0))
             (func (export "marram_recv") (param i32 i32 i32)
               (if (i32.eq (local.get 2) (i32.const 1))
                 (then
                   (drop (memory.grow (i32.const 255)))
                   (memory.fill (i32.const 70000) (i32.const 7) (i32.const 10485760)))
                 (else
                   (i32.store (i32.const 4000000) (i32.add (i32.load (i32.const 4000000)) (i32.const 1)))
                   (i32.store (i32.const 9000000) (i32.add (i32.load (i32.const 9000000)) (i32.const 3)))))))"#,
    );
    deploy(&module.unwrap())
}

#[test]
fn memory_in_huge_pages_is_as_before_and_what_is_written_later_is_found_by_pages() {
    let image = ledger();
    for tracking in [Tracking::Auto, Tracking::Compare] {
        let mut cells = Cells::new(CellsConfig { slots: 1, tracking, ..CellsConfig::default() }).unwrap();
        start_in(&mut cells, CELL, &image);
        let fresh = cells.state_hash(CELL);
        ask_at(&mut cells, CELL, b"f", 0);
        let mut chain = vec![cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode()];
        let mut hashes = vec![cells.state_hash(CELL)];
        for n in 1..3 {
            ask_at(&mut cells, CELL, b"ww", n);
            chain.push(cells.snapshot(CELL, CheckpointBase::Previous).unwrap().encode());
            hashes.push(cells.state_hash(CELL));
        }
        ask_at(&mut cells, CELL, b"ww", 3);
        let later = cells.state_hash(CELL);
        cells.remove(CELL);
        for (n, hash) in hashes.iter().enumerate() {
            let chain = &chain[..=n];
            for piece in [None, Some(50_000)] {
                match piece {
                    Some(piece) => restore_in_pieces(&mut cells, &image, chain, piece, 1 << 18),
                    None => cells.restore(CELL, &image, &Decoded::decode(chain).unwrap()).unwrap(),
                }
                assert_eq!(cells.state_hash(CELL), *hash, "{tracking:?} {n} {piece:?}");
                for now in n..3 {
                    ask_at(&mut cells, CELL, b"ww", now as i64 + 1);
                    let delta = cells.snapshot(CELL, CheckpointBase::Previous).unwrap().encode();
                    assert!(delta.len() < 4 * PAGE, "{tracking:?} {n} {piece:?}: {} bytes", delta.len());
                }
                assert_eq!(cells.state_hash(CELL), later, "{tracking:?} {n} {piece:?}");
                cells.remove(CELL);
                // The only slot.
                start_in(&mut cells, CELL, &image);
                assert_eq!(cells.state_hash(CELL), fresh, "{tracking:?} {n} {piece:?}");
                cells.remove(CELL);
            }
        }
    }
}

#[test]
fn a_cell_that_is_filled_as_its_checkpoints_come_is_the_one_restored_at_once() {
    let full_every = 9;
    let history = record(Tracking::Auto, full_every);
    for n in [0, 5, 8, 20] {
        let chain = &history.checkpoints[n - n % full_every..=n];
        for (piece, least) in [(1, 1), (100, 1), (4_097, 10_000), (1 << 20, 1), (70_000, usize::MAX)] {
            let mut cells = cells_with(Tracking::Auto);
            restore_in_pieces(&mut cells, &history.image, chain, piece, least);
            assert_eq!(cells.state_hash(CELL), history.hashes[n], "{n}: pieces of {piece}, at least {least}");
            assert_eq!(step(&mut cells, CELL, n + 1), history.outputs[n + 1]);
            assert_eq!(cells.state_hash(CELL), history.hashes[n + 1]);
        }
    }
}

#[test]
fn what_does_not_fit_a_cell_that_is_filled_leaves_nothing_of_it() {
    let history = record(Tracking::Auto, 100);
    let full = &history.checkpoints[0];
    let read = |bytes: &[u8]| {
        let mut reading = CheckpointReader::opened();
        reading.push(Bytes::copy_from_slice(bytes)).map(|()| reading)
    };
    let gone = |cells: &mut Cells| {
        assert_eq!(cells.state_hash(CELL), None);
        start_in(cells, CELL, &history.image);
        cells.remove(CELL);
    };
    let mut cells = cells_with(Tracking::Auto);
    // A truncated checkpoint gives the contents that have arrived, and no cell.
    for len in [0, 31, 90, full.len() / 2, full.len() - 1] {
        let mut reading = read(&full[..len]).unwrap();
        cells.begin(CELL, &history.image).unwrap();
        reading.take().iter().for_each(|filling| cells.fill(CELL, filling).unwrap());
        assert!(matches!(reading.end(), Err(RestoreError::Corrupt(_))), "{len}");
        assert!(reading.finish().is_err());
        cells.remove(CELL);
        gone(&mut cells);
    }
    assert!(matches!(read(&[&full[..], b"x"].concat()), Err(RestoreError::Corrupt(_))));
    // For another image, above the quota, for a cell that has run, for a cell that does not exist.
    let whole = |bytes: &[u8]| {
        let mut reading = read(bytes).unwrap();
        let fillings = reading.take();
        reading.end().unwrap();
        (fillings, reading.finish().unwrap())
    };
    let (fillings, decoded) = whole(full);
    let other = deploy(&echo());
    cells.begin(CELL, &other).unwrap();
    assert!(matches!(cells.complete(CELL, &other, &decoded), Err(RestoreError::Image { .. })));
    gone(&mut cells);
    // The memory has grown meanwhile.
    let (grown, _) = whole(&record(Tracking::Auto, 5).checkpoints[5]);
    let quotas = Quotas { memory_max: 40 * 65_536, ..Quotas::default() };
    let small = deploy_with(&mixer(), &quotas, &[]);
    cells.begin(CELL, &small).unwrap();
    assert!(matches!(cells.fill(CELL, &grown[0]), Err(RestoreError::Misfit(_))));
    gone(&mut cells);
    start_in(&mut cells, CELL, &history.image);
    step(&mut cells, CELL, 0);
    assert!(matches!(cells.fill(CELL, &fillings[0]), Err(RestoreError::Misfit(_))));
    gone(&mut cells);
    assert!(matches!(cells.fill(CELL, &fillings[0]), Err(RestoreError::Misfit(_))));
    assert!(matches!(cells.complete(CELL, &history.image, &decoded), Err(RestoreError::Misfit(_))));
}

#[test]
fn deltas_build_on_restored_cells() {
    let history = record(Tracking::Auto, 100);
    let mut chain = history.checkpoints[..2].to_vec();
    for n in 2..10 {
        let mut cells = cells_with(Tracking::Auto);
        cells.restore(CELL, &history.image, &Decoded::decode(&chain).unwrap()).unwrap();
        step(&mut cells, CELL, n);
        let snapshot = cells.snapshot(CELL, CheckpointBase::Previous).unwrap();
        assert!(snapshot.page_count() < 80, "a delta and not everything: {snapshot:?}");
        chain.push(snapshot.encode());
        assert_eq!(cells.state_hash(CELL), history.hashes[n]);
    }
}

#[test]
fn a_cell_that_follows_delta_by_delta_is_the_one_restored_from_all_of_them() {
    for tracking in [Tracking::Auto, Tracking::Compare] {
        let history = record(tracking, 100);
        let decode = |range: std::ops::Range<usize>| Decoded::decode(&history.checkpoints[range]).unwrap();
        let mut cells = cells_with(tracking);
        cells.restore(CELL, &history.image, &decode(0..1)).unwrap();
        for n in 1..history.hashes.len() {
            cells.advance(CELL, &decode(n..n + 1)).unwrap();
            assert_eq!(cells.state_hash(CELL), history.hashes[n], "{tracking:?} {n}");
            if n % 5 > 0 {
                continue;
            }
            // Another cell gets to the same state by fewer and longer steps, and continues.
            let mut other = cells_with(tracking);
            other.restore(CELL, &history.image, &decode(0..n / 2)).unwrap();
            other.advance(CELL, &decode(n / 2..n)).unwrap();
            other.advance(CELL, &decode(n..n + 1)).unwrap();
            assert_eq!(other.memory_bytes(CELL), cells.memory_bytes(CELL));
            assert_eq!(
                other.snapshot(CELL, CheckpointBase::Previous).unwrap().page_count(),
                0,
                "{tracking:?} {n}"
            );
            let mut chain = vec![other.snapshot(CELL, CheckpointBase::Image).unwrap().encode()];
            for (base, later) in
                [CheckpointBase::Previous, CheckpointBase::Image].into_iter().zip(n + 1..history.hashes.len())
            {
                assert_eq!(step(&mut other, CELL, later), history.outputs[later], "{tracking:?} {n} {later}");
                if base == CheckpointBase::Image {
                    chain.clear();
                }
                chain.push(other.snapshot(CELL, base).unwrap().encode());
                let mut third = cells_with(tracking);
                third.restore(CELL, &history.image, &Decoded::decode(&chain).unwrap()).unwrap();
                assert_eq!(third.state_hash(CELL), history.hashes[later], "{tracking:?} {n} {later}");
            }
        }
    }
}

#[test]
fn a_merged_delta_replaces_the_deltas_before_it() {
    for tracking in [Tracking::Auto, Tracking::Compare] {
        let history = record(tracking, 100);
        let decode = |list: &[&Vec<u8>]| Decoded::decode(list).unwrap();
        let all: Vec<&Vec<u8>> = history.checkpoints.iter().collect();
        for n in [1, 2, 7, 12] {
            // A cell that was restored knows what the deltas contain, like the one that took them.
            let mut cells = cells_with(tracking);
            cells.restore(CELL, &history.image, &decode(&all[..n])).unwrap();
            assert_eq!(step(&mut cells, CELL, n), history.outputs[n]);
            let merged = cells.snapshot(CELL, CheckpointBase::Full).unwrap().encode();
            let mut other = cells_with(tracking);
            other.restore(CELL, &history.image, &decode(&[all[0], &merged])).unwrap();
            assert_eq!(other.state_hash(CELL), history.hashes[n], "{tracking:?} {n}");
            // A cell that follows goes on with it from any of the deltas.
            for has in 1..=n {
                let mut follower = cells_with(tracking);
                follower.restore(CELL, &history.image, &decode(&all[..1])).unwrap();
                for delta in &all[1..has] {
                    follower.advance(CELL, &decode(&[*delta])).unwrap();
                }
                follower.advance(CELL, &decode(&[&merged])).unwrap();
                assert_eq!(follower.state_hash(CELL), history.hashes[n], "{tracking:?} {n} {has}");
            }
            // The next delta builds on it, and the next merged one contains it.
            for cells in [&mut cells, &mut other] {
                assert_eq!(step(cells, CELL, n + 1), history.outputs[n + 1]);
                let delta = cells.snapshot(CELL, CheckpointBase::Previous).unwrap().encode();
                let again = cells.snapshot(CELL, CheckpointBase::Full).unwrap().encode();
                for list in [&[all[0], &merged, &delta][..], &[all[0], &again]] {
                    let mut third = cells_with(tracking);
                    third.restore(CELL, &history.image, &decode(list)).unwrap();
                    assert_eq!(third.state_hash(CELL), history.hashes[n + 1], "{tracking:?} {n}");
                }
            }
        }
        // Not where there is nothing to merge into, nor on another full one.
        let mut cells = cells_with(tracking);
        start_in(&mut cells, CELL, &history.image);
        assert_eq!(cells.snapshot(CELL, CheckpointBase::Full).unwrap_err(), SnapshotError::NoBase);
        step(&mut cells, CELL, 0);
        let full = cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
        step(&mut cells, CELL, 1);
        let merged = cells.snapshot(CELL, CheckpointBase::Full).unwrap().encode();
        step(&mut cells, CELL, 2);
        cells.snapshot(CELL, CheckpointBase::Image).unwrap();
        let of_another = cells.snapshot(CELL, CheckpointBase::Full).unwrap().encode();
        let mut follower = cells_with(tracking);
        follower.restore(CELL, &history.image, &decode(&[&full, &merged])).unwrap();
        let before = follower.state_hash(CELL);
        let refused = follower.advance(CELL, &decode(&[&of_another])).unwrap_err();
        assert!(matches!(refused, RestoreError::Chain { .. }), "{refused}");
        assert_eq!(follower.state_hash(CELL), before);
    }
}

#[test]
fn a_cell_from_a_checkpoint_apart_goes_on_with_the_list_of_the_cell_that_took_it() {
    for tracking in [Tracking::Auto, Tracking::Compare] {
        let history = record(tracking, 100);
        let decode = |list: &[&Vec<u8>]| Decoded::decode(list).unwrap();
        let restored = |list: &[&Vec<u8>]| {
            let mut cells = cells_with(tracking);
            cells.restore(CELL, &history.image, &decode(list)).unwrap();
            cells
        };
        let all: Vec<&Vec<u8>> = history.checkpoints.iter().collect();
        for n in [1, 2, 7, 12] {
            let mut cells = restored(&all[..n]);
            assert_eq!(step(&mut cells, CELL, n), history.outputs[n]);
            let apart = cells.snapshot(CELL, CheckpointBase::Apart).unwrap().encode();
            // The cell's own list goes on as if nothing had been copied, with what was written before and after.
            assert_eq!(step(&mut cells, CELL, n + 1), history.outputs[n + 1]);
            let delta = cells.snapshot(CELL, CheckpointBase::Previous).unwrap().encode();
            let list: Vec<&Vec<u8>> = all[..n].iter().copied().chain([&delta]).collect();
            assert_eq!(restored(&list).state_hash(CELL), history.hashes[n + 1], "{tracking:?} {n}");
            // The other one knows what has changed since the full checkpoint of that list, which it never had.
            let mut other = restored(&[&apart]);
            assert_eq!(other.state_hash(CELL), history.hashes[n], "{tracking:?} {n}");
            assert_eq!(step(&mut other, CELL, n + 1), history.outputs[n + 1]);
            let merged = other.snapshot(CELL, CheckpointBase::Full).unwrap().encode();
            assert_eq!(
                restored(&[all[0], &merged]).state_hash(CELL),
                history.hashes[n + 1],
                "{tracking:?} {n}"
            );
            let another = Decoded::decode(&[&apart, &merged]).map(drop);
            assert_eq!(another, Err(RestoreError::Chain { index: 1 }));
            // And so on: from one apart of a cell that was made from one.
            let again = other.snapshot(CELL, CheckpointBase::Apart).unwrap().encode();
            let mut third = restored(&[&again]);
            assert_eq!(step(&mut third, CELL, n + 2), history.outputs[n + 2]);
            let merged = third.snapshot(CELL, CheckpointBase::Full).unwrap().encode();
            assert_eq!(
                restored(&[all[0], &merged]).state_hash(CELL),
                history.hashes[n + 2],
                "{tracking:?} {n}"
            );
        }
        let mut cells = cells_with(tracking);
        start_in(&mut cells, CELL, &history.image);
        assert_eq!(cells.snapshot(CELL, CheckpointBase::Apart).unwrap_err(), SnapshotError::NoBase);
    }
}

#[test]
fn a_delta_that_is_not_the_next_one_leaves_the_cell_as_it_was() {
    let history = record(Tracking::Auto, 100);
    let decode = |range: std::ops::Range<usize>| Decoded::decode(&history.checkpoints[range]).unwrap();
    let mut cells = cells();
    let gone = cells.advance(CELL, &decode(1..2)).unwrap_err();
    assert!(gone.to_string().contains("does not exist"), "{gone}");
    start_in(&mut cells, CellId(2), &history.image);
    let other = deploy(&echo());
    start_in(&mut cells, CellId(3), &other);
    cells.snapshot(CellId(3), CheckpointBase::Image).unwrap();
    ask_at(&mut cells, CellId(3), b"x", 0);
    let foreign =
        Decoded::decode(&[cells.snapshot(CellId(3), CheckpointBase::Previous).unwrap().encode()]).unwrap();

    cells.restore(CELL, &history.image, &decode(0..1)).unwrap();
    cells.advance(CELL, &decode(1..2)).unwrap();
    // The full one, one that the cell already has, one too far ahead, and another image's.
    for wrong in [decode(0..1), decode(0..2), decode(1..2), decode(3..4)] {
        assert_eq!(cells.advance(CELL, &wrong), Err(RestoreError::Chain { index: 0 }));
        assert_eq!(cells.state_hash(CELL), history.hashes[1]);
    }
    assert!(matches!(cells.advance(CELL, &foreign), Err(RestoreError::Image { .. })));
    assert_eq!(cells.state_hash(CELL), history.hashes[1]);
    cells.advance(CELL, &decode(2..3)).unwrap();
    assert_eq!(cells.state_hash(CELL), history.hashes[2]);
    // Once it has run it is a normal cell; so is a cell that was started.
    assert_eq!(step(&mut cells, CELL, 3), history.outputs[3]);
    for cell in [CELL, CellId(2)] {
        let before = cells.state_hash(cell);
        let ran = cells.advance(cell, &decode(3..4)).unwrap_err();
        assert!(matches!(ran, RestoreError::Misfit(_)) && ran.to_string().contains("has run"), "{ran}");
        assert_eq!(cells.state_hash(cell), before);
    }
    assert_eq!(step(&mut cells, CELL, 4), history.outputs[4]);
}

/// The memory's size is the first section.
const SIZE_AT: usize = 32 + 32 + 16 + 16 + 1 + 21;

/// A checkpoint whose size in Wasm pages is changed, with a valid checksum.
fn resized(checkpoint: &[u8], (from, to): (u64, u64)) -> Vec<u8> {
    let mut forged = checkpoint.to_vec();
    let size = SIZE_AT..SIZE_AT + 8;
    assert_eq!(forged[size.clone()], (from * 65_536).to_le_bytes());
    forged[size].copy_from_slice(&(to * 65_536).to_le_bytes());
    let digest = *blake3::hash(&forged[32..]).as_bytes();
    forged[16..32].copy_from_slice(&digest[..16]);
    forged
}

#[test]
fn what_fails_half_way_leaves_nothing_and_says_so() {
    let bounded = support::module(
        r#"(module (memory (export "memory") 3 4)
             (func (export "marram_alloc") (param i32) (result i32) (i32.const 0))
             (func (export "marram_recv") (param i32 i32 i32)))"#,
    );
    let image = deploy_with(&bounded, &Quotas { memory_max: 5 * 65_536, ..Quotas::default() }, &[]);
    let mut cells = cells();
    start_in(&mut cells, CELL, &image);
    let mut take = |base| cells.snapshot(CELL, base).unwrap().encode();
    let (full, delta) =
        (Decoded::decode(&[take(CheckpointBase::Image)]).unwrap(), take(CheckpointBase::Previous));
    cells.restore(CellId(2), &image, &full).unwrap();
    let mut resized = |pages| {
        let forged = Decoded::decode(&[resized(&delta, (3, pages))]).unwrap();
        (cells.advance(CellId(2), &forged), cells.memory_bytes(CellId(2)))
    };
    // Fewer pages than it has, more than the quota; then more than the memory's own maximum, which only growth detects.
    for pages in [2, 6] {
        let (refused, left) = resized(pages);
        assert!(matches!(refused, Err(RestoreError::Misfit(_))), "{refused:?}");
        assert_eq!(left, Some(3 * 65_536));
    }
    let (lost, left) = resized(5);
    assert!(matches!(&lost, Err(RestoreError::Lost(_))) && left.is_none(), "{lost:?} {left:?}");
    assert!(lost.unwrap_err().to_string().contains("was removed"));
    // Its slot is free for the next cell.
    cells.restore(CellId(2), &image, &full).unwrap();
    cells.advance(CellId(2), &Decoded::decode(&[delta]).unwrap()).unwrap();
    assert_eq!(cells.state_hash(CellId(2)), cells.state_hash(CELL));
}

#[test]
fn a_delta_has_the_pages_that_were_written_and_no_others() {
    let image = deploy(&guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (local $i i32)
             (local.set $i (i32.load8_u (local.get $ptr)))
             (block $b (loop $l
               (br_if $b (i32.eqz (local.get $i)))
               (local.set $i (i32.sub (local.get $i) (i32.const 1)))
               (i32.store8 (i32.mul (local.get $i) (i32.const 8192)) (i32.const 1))
               (br $l))))"#,
    ));
    for tracking in [Tracking::Auto, Tracking::Compare] {
        let mut cells = cells_with(tracking);
        start_in(&mut cells, CELL, &image);
        assert_eq!(cells.snapshot(CELL, CheckpointBase::Previous).unwrap_err(), SnapshotError::NoBase);
        let count =
            |cells: &mut Cells, base| cells.snapshot(CELL, base).map(|s: Snapshot| s.page_count()).unwrap();
        ask_at(&mut cells, CELL, &[3], 0);
        count(&mut cells, CheckpointBase::Image);
        assert_eq!(count(&mut cells, CheckpointBase::Previous), 0);
        // Writes the same bytes again: the kernel sees writes, a comparison sees no changes.
        ask_at(&mut cells, CELL, &[100], 0);
        let expected = match cells.tracking() {
            text if text.starts_with("userfaultfd") => 101,
            _ => 98,
        };
        assert_eq!(count(&mut cells, CheckpointBase::Previous), expected, "{tracking:?}");
        assert_eq!(count(&mut cells, CheckpointBase::Previous), 0);
        assert_eq!(count(&mut cells, CheckpointBase::Image), 101);
    }
}

#[test]
fn the_first_delta_has_what_was_written_behind_the_first_checkpoint_and_not_what_was_read() {
    // Pages 0 to 15 are the image's where they are not zero; the pages after them are untouched. `| write 1 | page 1 |` writes a
    // byte or reads one.
    let image = deploy(&guest(
        r#"(data (i32.const 8192) "image") (data (i32.const 20480) "image") (data (i32.const 24576) "image")
           (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (local $at i32)
             (local.set $at (i32.mul (i32.load8_u (i32.add (local.get $ptr) (i32.const 1))) (i32.const 4096)))
             (if (i32.load8_u (local.get $ptr))
               (then (i32.store8 (local.get $at) (i32.const 7)))
               (else (drop (i32.load8_u (local.get $at))))))"#,
    ));
    let (read, write, other) = (0, 1, CellId(2));
    for (behind, at_once) in [(vec![], false), (vec![(read, 2)], true), (vec![(write, 2)], true)] {
        let mut cells = cells_with(Tracking::Auto);
        start_in(&mut cells, CELL, &image);
        let pages = |cells: &mut Cells, base| {
            let snapshot: Snapshot = cells.snapshot(CELL, base).unwrap();
            let bytes = snapshot.encode();
            (snapshot.page_count(), bytes)
        };
        for (how, page) in behind.iter().copied().chain([(write, 3), (read, 5), (read, 40)]) {
            ask_at(&mut cells, CELL, &[how, page], 0);
        }
        let (_, full) = pages(&mut cells, CheckpointBase::Image);
        let mut kept = vec![full];
        if !at_once {
            let (count, empty) = pages(&mut cells, CheckpointBase::Previous);
            assert_eq!(count, 0, "{behind:?}");
            kept.push(empty);
        }
        for (how, page) in [(write, 6), (read, 2), (read, 41), (write, 60)] {
            ask_at(&mut cells, CELL, &[how, page], 0);
        }
        // Each message writes to one more page.
        let (count, delta) = pages(&mut cells, CheckpointBase::Previous);
        assert_eq!(count, 3, "{behind:?}");
        kept.push(delta);
        let hash = cells.state_hash(CELL);
        cells.restore(other, &image, &Decoded::decode(&kept).unwrap()).unwrap();
        assert_eq!(cells.state_hash(other), hash);
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let history = record(Tracking::Auto, 100);
    let [full, first, second] = [0, 1, 2].map(|n| &history.checkpoints[n]);
    let decode = |list: &[&Vec<u8>]| Decoded::decode(list).map(|_| ()).unwrap_err();
    assert_eq!(decode(&[]), RestoreError::Empty);
    assert_eq!(decode(&[full, second]), RestoreError::Chain { index: 1 });
    assert_eq!(decode(&[full, full]), RestoreError::Chain { index: 1 });
    assert_eq!(decode(&[full, first, first]), RestoreError::Chain { index: 2 });

    let other = deploy(&echo());
    let mut cells = cells();
    let delta = Decoded::decode(&[first, second]).unwrap();
    assert_eq!(cells.restore(CELL, &history.image, &delta), Err(RestoreError::Chain { index: 0 }));
    assert!(cells.is_empty());
    let decoded = Decoded::decode(&[full, first]).unwrap();
    assert!(matches!(cells.restore(CELL, &other, &decoded), Err(RestoreError::Image { .. })));
    assert!(cells.is_empty());
    start_in(&mut cells, CELL, &other);
    assert!(matches!(cells.restore(CELL, &history.image, &decoded), Err(RestoreError::Start(_))));
}

#[test]
fn no_damage_panics_and_none_passes() {
    let history = record(Tracking::Auto, 100);
    for bytes in &history.checkpoints[..2] {
        for end in (0..bytes.len()).step_by(1 + bytes.len() / 3000) {
            assert!(Decoded::decode(&[&bytes[..end]]).is_err(), "{end}");
        }
        for at in (0..bytes.len()).step_by(1 + bytes.len() / 1000) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(Decoded::decode(&[&flipped]).is_err(), "{at}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Decoded::decode(&[&longer]).is_err());
    }
    let mut future = history.checkpoints[0].clone();
    future[4] = 9;
    assert_eq!(Decoded::decode(&[&future]).map(|_| ()).unwrap_err(), RestoreError::Version(9));
}

/// Damage with a valid checksum: what a hostile end with the keys could send.
#[test]
fn forged_bodies_are_refused_or_become_some_cell_but_never_a_panic() {
    let history = record(Tracking::Auto, 100);
    let full = &history.checkpoints[5 - 5];
    let header = 32;
    let mut restored = 0;
    let mut cells = cells();
    for at in (header..full.len()).step_by(1 + full.len() / 2000).chain(header..header + 200) {
        for bit in [0, 3, 7] {
            let mut forged = full.clone();
            forged[at] ^= 1 << bit;
            let digest = *blake3::hash(&forged[header..]).as_bytes();
            forged[16..32].copy_from_slice(&digest[..16]);
            if let Ok(decoded) = Decoded::decode(&[&forged])
                && cells.restore(CELL, &history.image, &decoded).is_ok()
            {
                restored += 1;
                // If it was restored, it is a cell: it runs, or traps.
                let _ = run(&mut cells, CELL, message(b"hello"), 0);
                cells.remove(CELL);
            }
        }
    }
    assert!(restored > 0, "flipped page contents are another state, not an error");
}

#[test]
fn a_restore_keeps_to_the_quota() {
    let small = Quotas { memory_max: 41 * 65_536, ..Quotas::default() };
    let image = deploy_with(&mixer(), &small, &[]);
    let mut cells = cells();
    start_in(&mut cells, CELL, &image);
    ask_at(&mut cells, CELL, b"g", 0);
    assert_eq!(cells.memory_bytes(CELL), Some(41 * 65_536));
    let bytes = cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
    let decoded = Decoded::decode(&[resized(&bytes, (41, 42))]).unwrap();
    assert!(matches!(cells.restore(CellId(2), &image, &decoded), Err(RestoreError::Misfit(_))));
}

#[test]
fn zero_and_repeated_pages_cost_almost_nothing_and_noise_costs_its_size() {
    let image = deploy(&guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (local $i i32)
             (memory.fill (i32.const 0) (i32.load8_u (local.get $ptr)) (i32.const 0x80000))
             (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 255)) (then
               (loop $l
                 (call $random (local.get $i) (i32.const 4096))
                 (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 4096))) (i32.const 0x80000)))))))"#,
    ));
    let mut cells = cells();
    start_in(&mut cells, CELL, &image);
    let mut size = |byte: u8| {
        ask_at(&mut cells, CELL, &[byte], 0);
        cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode().len()
    };
    assert!(size(7) < 20_000);
    assert!(size(0) < 6_000);
    assert!((0x80000..0x80000 + 8 * PAGE).contains(&size(255)));
}

#[test]
fn what_is_done_elsewhere_can_go_there() {
    fn can_move<T: Send + 'static>() {}
    can_move::<Snapshot>();
    can_move::<Decoded>();
    can_move::<Arc<Image>>();
}
