//! A long-lived cell gets its messages from a driver: what guests do there has the same results. `chains.rs` tests chains
//! both ways.

use crate::support::{CELL, ask, ask_at, deploy, message, mixer, module, run, start, stop};
use marram_sandbox::{Cells, Decoded, Progress};
use marram_session::cell::{CellId, CellStop, CheckpointBase, Run};

/// More messages than a cell gets without a driver.
const MANY: usize = 100;

/// A guest that echoes, except for a message of 666 bytes: then its function `harm` runs, in the handler or where it must
/// allocate memory (`at`).
fn spoiled(at: &str, harm: &str) -> Vec<u8> {
    let (in_alloc, in_recv) = if at == "alloc" { ("call $harm", "nop") } else { ("nop", "call $harm") };
    module(&format!(
        r#"(module
          (import "marram_v1" "send" (func $send (param i32 i32 i32)))
          (memory (export "memory") 2)
          (func $harm {harm})
          (func (export "marram_alloc") (param $len i32) (result i32)
            (if (i32.eq (local.get $len) (i32.const 666)) (then {in_alloc}))
            (i32.load (i32.const 0)))
          (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
            (if (i32.eq (local.get $len) (i32.const 666)) (then {in_recv}))
            (call $send (local.get $port) (local.get $ptr) (local.get $len)))
          (data (i32.const 0) "\00\10\00\00"))"#
    ))
}

const HARMFUL: [u8; 666] = [0; 666];

fn after(messages: usize, guest: &[u8]) -> Cells {
    let mut cells = start(&deploy(guest));
    for _ in 0..messages {
        assert_eq!(ask(&mut cells, b"harmless"), [b"harmless"]);
    }
    cells
}

#[test]
fn every_error_of_a_guest_ends_it_for_the_same_reason() {
    for (at, harm, why) in [
        ("alloc", "unreachable", "unreachable"),
        ("recv", "unreachable", "unreachable"),
        ("alloc", "(i32.store (i32.const 0) (i32.const -16))", "marram_alloc: the range 4294967280 + 666"),
        ("alloc", "(i32.store (i32.const 0) (i32.const 131072))", "marram_alloc: the range 131072 + 666"),
        ("recv", "(i32.store (i32.const -4) (i32.const 0))", "out of bounds"),
        ("recv", "(call $send (i32.const 7) (i32.const 0) (i32.const 1))", "port 7 was never opened"),
        ("recv", "(call $harm)", "stack"),
    ] {
        let guest = spoiled(at, harm);
        let reasons = [0, MANY].map(|messages| stop(&mut after(messages, &guest), message(&HARMFUL)));
        assert_eq!(reasons[0], reasons[1], "{at}: {harm}");
        let CellStop::Trap(reason) = &reasons[1] else { panic!("{at}: {harm}: {reasons:?}") };
        assert!(reason.contains(why), "{at}: {harm}: {reason:?}");
    }
}

#[test]
fn a_guest_that_never_comes_back_is_preempted_and_can_be_removed() {
    for at in ["alloc", "recv"] {
        for messages in [0, MANY] {
            let mut cells = after(messages, &spoiled(at, "(loop $l (br $l))"));
            let mut progress =
                cells.run(Run { cell: CELL, input: message(&HARMFUL), now_ns: 0, logged: None });
            for _ in 0..3 {
                assert!(matches!(progress, Progress::Pending), "{at}");
                progress = cells.poll(CELL);
            }
            cells.remove(CELL);
            assert!(cells.is_empty());
        }
    }
}

#[test]
fn a_restored_cell_is_what_the_one_that_lived_for_long_is() {
    let (image, other) = (deploy(&mixer()), CellId(2));
    let mut cells = start(&image);
    let text = |n: usize| format!("message {n}");
    for n in 0..MANY {
        ask(&mut cells, text(n).as_bytes());
    }
    let checkpoint = cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
    cells.restore(other, &image, &Decoded::decode(&[checkpoint]).unwrap()).unwrap();
    for n in MANY..2 * MANY {
        assert_eq!(
            ask_at(&mut cells, CELL, text(n).as_bytes(), 3),
            ask_at(&mut cells, other, text(n).as_bytes(), 3)
        );
        assert_eq!(cells.state_hash(CELL), cells.state_hash(other), "{n}");
    }
    run(&mut cells, other, message(b"on"), 3);
}
