//! Attacks through reused slots: a canary that looks for a byte of an earlier cell, in every configuration of the pool
//! that can be chosen. Earlier cells are large enough to free their memory in pieces.

use crate::support::{CELL, ask_at, deploy, deploy_chain, guest, message, start_in, twice};
use marram_sandbox::{Cells, CellsConfig, Image, Reset, Tracking};
use marram_session::cell::{CellId, CheckpointBase, Run};
use std::sync::Arc;

/// Writes a secret into every page and its globals, and grows; on `?`, says whether it sees a secret.
fn canary() -> Arc<Image> {
    deploy(&guest(
        r#"
        (global $g (mut i64) (i64.const 0))
        (data (i32.const 0x3000) "image")
        (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
          (local $i i32) (local $seen i64)
          (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 63))
            (then
              (i32.store8 (local.get $ptr) (i32.const 0))
              (local.set $seen (global.get $g))
              (local.set $i (i32.mul (memory.size) (i32.const 65536)))
              (loop $l
                (local.set $i (i32.sub (local.get $i) (i32.const 8)))
                (local.set $seen (i64.or (local.get $seen) (i64.load (local.get $i))))
                (br_if $l (local.get $i)))
              ;; What the image has is no secret.
              (local.set $seen (i64.and (local.get $seen) (i64.xor (i64.load (i32.const 0x3000)) (i64.const -1))))
              (drop (memory.grow (i32.const 60)))
              (local.set $i (i32.mul (memory.size) (i32.const 65536)))
              (loop $m
                (local.set $i (i32.sub (local.get $i) (i32.const 8)))
                (local.set $seen (i64.or (local.get $seen) (i64.load (local.get $i))))
                (br_if $m (i32.gt_u (local.get $i) (i32.const 0x280000))))
              (i64.store (i32.const 0) (local.get $seen))
              (call $send (local.get $port) (i32.const 0) (i32.const 8)))
            (else
              (drop (memory.grow (i32.const 60)))
              (local.set $i (i32.mul (memory.size) (i32.const 65536)))
              (loop $l
                (local.set $i (i32.sub (local.get $i) (i32.const 4096)))
                (i64.store offset=128 (local.get $i) (i64.const 0x7ec4e77ec4e77ec4))
                (br_if $l (local.get $i)))
              (global.set $g (i64.const 0x7ec4e77ec4e77ec4))
              (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 108)) (then (loop $forever (br $forever)))))))
        "#,
    ))
}

/// How the earlier cell spends its life and ends.
#[derive(Clone, Copy, Debug)]
enum Life {
    NoCheckpoint,
    Full,
    FullAndDeltas,
    Restored,
    RemovedWhileRunning,
}

fn live(cells: &mut Cells, image: &Arc<Image>, cell: CellId, life: Life) {
    start_in(cells, cell, image);
    ask_at(cells, cell, b"s", 0);
    match life {
        Life::NoCheckpoint => {}
        Life::Full => {
            cells.snapshot(cell, CheckpointBase::Image).unwrap();
        }
        Life::FullAndDeltas => {
            for base in [
                CheckpointBase::Image,
                CheckpointBase::Previous,
                CheckpointBase::Previous,
                CheckpointBase::Image,
            ] {
                cells.snapshot(cell, base).unwrap();
                ask_at(cells, cell, b"s", 0);
            }
            cells.snapshot(cell, CheckpointBase::Previous).unwrap();
        }
        Life::Restored => {
            let bytes = cells.snapshot(cell, CheckpointBase::Image).unwrap().encode();
            cells.remove(cell);
            cells.restore(cell, image, &marram_sandbox::Decoded::decode(&[bytes]).unwrap()).unwrap();
        }
        Life::RemovedWhileRunning => {
            cells.snapshot(cell, CheckpointBase::Image).unwrap();
            let _ = cells.run(Run { cell, input: message(b"l"), now_ns: 0, logged: None });
        }
    }
    cells.remove(cell);
}

#[test]
fn a_cell_that_looks_for_the_last_one_in_its_slot_sees_the_image() {
    let images = [canary(), canary_of_other_size()];
    let lives =
        [Life::NoCheckpoint, Life::Full, Life::FullAndDeltas, Life::Restored, Life::RemovedWhileRunning];
    for reset in [Reset::Rewrite, Reset::Discard] {
        for tracking in [Tracking::Auto, Tracking::Compare] {
            for keep_resident in [0, 64 << 10, 1 << 20, 64 << 20] {
                // One slot, which every cell uses in turn; or several, with cells started ahead in used ones.
                for slots in [1, 8] {
                    let config =
                        CellsConfig { slots, tracking, reset, keep_resident, ..CellsConfig::default() };
                    let mut cells = Cells::new(config).unwrap();
                    if slots > 1 {
                        images.iter().for_each(|image| cells.expect(image));
                    }
                    for round in 0..12 {
                        let life = lives[round % lives.len()];
                        let old = &images[round / 2 % 2];
                        live(&mut cells, old, CELL, life);
                        // Its memory is freed in pieces, or at once when the next cell needs the slot.
                        for _ in 0..(round % 3) * 100 {
                            cells.free_piece();
                        }
                        let new = &images[round % 2];
                        start_in(&mut cells, CellId(2), new);
                        let seen = ask_at(&mut cells, CellId(2), b"?", 0);
                        assert_eq!(seen, [0_i64.to_le_bytes()], "{config:?} {life:?} round {round}");
                        cells.remove(CellId(2));
                        while cells.prewarm_one() {}
                    }
                }
            }
        }
    }
}

/// Writes a secret into every page, then passes the message on; if it is `last`, it computes forever on `l` and fails on `t`
/// instead.
fn filler(last: bool) -> Vec<u8> {
    let on = if last {
        r#"(if (i32.eq (local.get $what) (i32.const 108)) (then (loop $forever (br $forever))))
           (if (i32.eq (local.get $what) (i32.const 116)) (then unreachable))"#
    } else {
        "(i32.store8 (local.get $ptr) (local.get $what)) (call $send (i32.const 1) (local.get $ptr) (local.get $len))"
    };
    guest(&format!(
        r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param $len i32) (local $i i32) (local $what i32)
             (local.set $what (i32.load8_u (local.get $ptr)))
             (drop (memory.grow (i32.const 60)))
             (local.set $i (i32.mul (memory.size) (i32.const 65536)))
             (loop $l
               (local.set $i (i32.sub (local.get $i) (i32.const 4096)))
               (i64.store offset=128 (local.get $i) (i64.const 0x7ec4e77ec4e77ec4))
               (br_if $l (local.get $i)))
             {on})"#
    ))
}

#[test]
fn a_cell_that_looks_for_the_stages_of_a_chain_sees_the_image() {
    let chain = deploy_chain(&[("a", filler(false)), ("b", filler(false)), ("c", filler(true))]);
    let canary = canary();
    for (reset, tracking, keep_resident) in [
        (Reset::Rewrite, Tracking::Auto, 64 << 10),
        (Reset::Rewrite, Tracking::Auto, 64 << 20),
        (Reset::Rewrite, Tracking::Compare, 1 << 20),
        (Reset::Discard, Tracking::Auto, 0),
    ] {
        let config = CellsConfig { slots: 3, tracking, reset, keep_resident, ..CellsConfig::default() };
        twice(|| {
            let mut cells = Cells::new(config).unwrap();
            for (round, end) in [&b"s"[..], b"l", b"t", b"l", b"s"].into_iter().enumerate() {
                start_in(&mut cells, CELL, &chain);
                ask_at(&mut cells, CELL, b"s", 0);
                if round != 1 {
                    cells.snapshot(CELL, CheckpointBase::Image).unwrap();
                    ask_at(&mut cells, CELL, b"s", 0);
                    cells.snapshot(CELL, CheckpointBase::Previous).unwrap();
                }
                if round == 4 {
                    let bytes = cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
                    cells.remove(CELL);
                    cells.restore(CELL, &chain, &marram_sandbox::Decoded::decode(&[bytes]).unwrap()).unwrap();
                }
                let _ = cells.run(Run { cell: CELL, input: message(end), now_ns: 0, logged: None });
                cells.remove(CELL);
                (0..round * 7).for_each(|_| cells.free_piece());
                // Takes the slots of all its stages.
                let others = [2, 3, 4].map(CellId);
                for other in others {
                    start_in(&mut cells, other, &canary);
                    let seen = ask_at(&mut cells, other, b"?", 0);
                    assert_eq!(seen, [0_i64.to_le_bytes()], "{config:?} round {round}");
                }
                others.into_iter().for_each(|other| cells.remove(other));
            }
        });
    }
}

/// The same guest with more pages of its own, so that slots change images.
fn canary_of_other_size() -> Arc<Image> {
    deploy(&guest(
        r#"
        (func $keep (export "_initialize") (i64.store (i32.const 0x200000) (i64.const 0)))
        (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
          (local $i i32) (local $seen i64)
          (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 63)) (then
            (i32.store8 (local.get $ptr) (i32.const 0))
            (drop (memory.grow (i32.const 40)))
            (local.set $i (i32.mul (memory.size) (i32.const 65536)))
            (loop $l
              (local.set $i (i32.sub (local.get $i) (i32.const 8)))
              (local.set $seen (i64.or (local.get $seen) (i64.load (local.get $i))))
              (br_if $l (local.get $i)))
            (i64.store (i32.const 0) (local.get $seen))
            (call $send (local.get $port) (i32.const 0) (i32.const 8)))
          (else
            (memory.fill (i32.const 0) (i32.const 0x55) (i32.const 0x280000))
            (if (i32.eq (i32.load8_u (i32.const 0x100000)) (i32.const 108)) (then (loop $forever (br $forever)))))))
        "#,
    ))
}
