//! Attacks on memory: beyond its end, beyond its quota, and on data that other cells left or keep there.

use super::witness::Witness;
use crate::support::{
    CELL, ask, ask_at, cells, deploy, deploy_with, guest, message, run, start, start_in, stop,
};
use marram_sandbox::{Cells, CellsConfig, Quotas};
use marram_session::cell::{CellId, CellStop, RunOutcome};

/// Bytes of the test guests' memory.
const END: i64 = 40 * 65_536;

/// Runs one instruction in a cell next to another; returns why the cell stopped, if it did.
fn attempt(cells: &mut Cells, witness: &mut Witness, instruction: &str) -> Option<String> {
    let body =
        format!(r#"(data $data "1234") (func (export "marram_recv") (param i32 i32 i32) {instruction})"#);
    start_in(cells, CELL, &deploy(&guest(&body)));
    let outcome = run(cells, CELL, message(b""), 0).outcome;
    cells.remove(CELL);
    witness.is_untouched(cells, instruction);
    witness.answers(cells);
    match outcome {
        RunOutcome::Idle => None,
        RunOutcome::Stopped(CellStop::Trap(reason)) => Some(reason),
        RunOutcome::Stopped(CellStop::Kill(reason)) => panic!("{instruction}: killed: {reason}"),
    }
}

#[test]
fn loads_and_stores_at_every_edge_of_memory_stay_inside_or_trap() {
    let cells = &mut cells();
    let witness = &mut Witness::beside(cells);
    for (load, store, bytes) in [
        ("i32.load8_u", "i32.store8", 1),
        ("i32.load16_u", "i32.store16", 2),
        ("i32.load", "i32.store", 4),
        ("i64.load", "i64.store", 8),
        ("v128.load", "v128.store", 16),
    ] {
        let (value, _) = store.split_once('.').unwrap();
        let value =
            if value == "v128" { "(v128.const i64x2 1 1)".into() } else { format!("({value}.const 1)") };
        for (at, offset) in [
            (0, 0),
            (END - bytes, 0),
            (END - bytes + 1, 0),
            (END - 1, 1),
            (END, 0),
            (0, END - bytes),
            (0, END - bytes + 1),
            (1 << 31, 0),
            ((1 << 32) - 1, 0),
            ((1 << 32) - bytes, 0),
            (0, (1 << 32) - 1),
            ((1 << 32) - 1, (1 << 32) - 1),
        ] {
            let inside = at + offset + bytes <= END;
            let at = u32::try_from(at).unwrap().cast_signed();
            for instruction in [
                format!("(drop ({load} offset={offset} (i32.const {at})))"),
                format!("({store} offset={offset} (i32.const {at}) {value})"),
            ] {
                match attempt(cells, witness, &instruction) {
                    None => assert!(inside, "{instruction} did something"),
                    Some(reason) => {
                        assert!(!inside && reason.contains("out of bounds"), "{instruction}: {reason}");
                    }
                }
            }
        }
    }
}

#[test]
fn ranges_that_leave_memory_are_a_trap_before_anything_is_written() {
    let cells = &mut cells();
    let witness = &mut Witness::beside(cells);
    for (to, len, inside) in [
        (0, END, true),
        (0, END + 1, false),
        (1, END, false),
        (END, 0, true),
        (END, 1, false),
        (END + 1, 0, false),
        (END - 4, 4, true),
        (END - 4, 5, false),
        ((1 << 32) - 1, 0, false),
        ((1 << 32) - 1, (1 << 32) - 1, false),
        (1 << 31, 1 << 31, false),
    ] {
        let [to, len] = [to, len].map(|number| u32::try_from(number).unwrap().cast_signed());
        for instruction in [
            format!("(memory.fill (i32.const {to}) (i32.const 9) (i32.const {len}))"),
            format!("(memory.copy (i32.const {to}) (i32.const 0) (i32.const {len}))"),
            format!("(memory.copy (i32.const 0) (i32.const {to}) (i32.const {len}))"),
        ] {
            assert_eq!(attempt(cells, witness, &instruction).is_none(), inside, "{instruction}");
        }
        let init = format!("(memory.init $data (i32.const {to}) (i32.const 0) (i32.const {len}))");
        assert_eq!(attempt(cells, witness, &init).is_none(), inside && (0..=4).contains(&len), "{init}");
    }
    assert!(
        attempt(cells, witness, "(memory.init $data (i32.const 0) (i32.const 4) (i32.const 0))").is_none()
    );
    assert!(
        attempt(cells, witness, "(memory.init $data (i32.const 0) (i32.const -1) (i32.const 2))").is_some()
    );
}

#[test]
fn growth_beyond_the_quota_is_refused_however_it_is_asked() {
    let image = deploy_with(
        &guest(
            r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
                 (i32.store (i32.const 0) (memory.grow (i32.load (local.get $ptr))))
                 (call $send (local.get $port) (i32.const 0) (i32.const 4)))"#,
        ),
        &Quotas { memory_max: 50 * 65_536, ..Quotas::default() },
        &[],
    );
    let mut cells = start(&image);
    for (pages, expected) in
        [(11, -1), (1, 40), (9, 41), (0, 50), (1, -1), (65_000, -1), (i32::MAX, -1), (-1, -1)]
    {
        assert_eq!(
            ask(&mut cells, &i32::to_le_bytes(pages)),
            [i32::to_le_bytes(expected)],
            "grow by {pages}"
        );
    }
    assert_eq!(cells.memory_bytes(CELL), Some(50 * 65_536));
}

#[test]
fn a_storm_of_growth_ends_at_the_quota_and_costs_no_other_cell() {
    let quotas = Quotas { memory_max: 64 * 65_536, ..Quotas::default() };
    let greedy = guest(
        r#"(func (export "marram_recv") (param i32 i32 i32) (local $n i32)
             (local.set $n (i32.const 100000))
             (loop $l
               (if (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0)) (then
                 (memory.fill (i32.mul (i32.sub (memory.size) (i32.const 1)) (i32.const 65536))
                              (i32.const 1) (i32.const 65536))))
               (drop (memory.grow (i32.const 65535)))
               (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))"#,
    );
    let mut cells = start(&deploy_with(&greedy, &quotas, &[]));
    let mut witness = Witness::beside(&mut cells);
    assert_eq!(run(&mut cells, CELL, message(b""), 0).outcome, RunOutcome::Idle);
    assert_eq!(cells.memory_bytes(CELL), Some(64 * 65_536));
    witness.is_untouched(&mut cells, "a storm of growth");
    witness.answers(&mut cells);
}

/// On `w`, grows and writes a secret behind the old end; on `r`, reads there at once; on `g`, grows before it reads.
fn revenant() -> Vec<u8> {
    guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param i32) (local $what i32)
             (local.set $what (i32.load8_u (local.get $ptr)))
             (if (i32.ne (local.get $what) (i32.const 114)) (then (drop (memory.grow (i32.const 8)))))
             (if (i32.eq (local.get $what) (i32.const 119))
               (then (memory.fill (i32.const 0x280000) (i32.const 0x5e) (i32.const 0x80000)))
               (else
                 (i64.store (i32.const 0) (i64.load (i32.const 0x290008)))
                 (call $send (local.get $port) (i32.const 0) (i32.const 8)))))"#,
    )
}

#[test]
fn a_stale_pointer_into_a_used_slot_is_a_trap_or_finds_zeros() {
    let image = deploy(&revenant());
    let mut cells = Cells::new(CellsConfig { slots: 1, ..CellsConfig::default() }).unwrap();
    for _ in 0..4 {
        start_in(&mut cells, CellId(2), &image);
        ask_at(&mut cells, CellId(2), b"w", 0);
        cells.remove(CellId(2));
        start_in(&mut cells, CELL, &image);
        let CellStop::Trap(reason) = stop(&mut cells, message(b"r")) else { panic!("a trap") };
        assert!(reason.contains("out of bounds"), "{reason}");
        start_in(&mut cells, CELL, &image);
        assert_eq!(ask(&mut cells, b"g"), [[0; 8]]);
        cells.remove(CELL);
    }
}

#[test]
fn memory_that_was_never_written_is_zero() {
    let sum = guest(
        r#"(func (export "marram_recv") (param $port i32) (param i32 i32) (local $at i32) (local $seen i64)
             (drop (memory.grow (i32.const 60)))
             (local.set $at (i32.const 0x640000))
             (loop $l
               (local.set $at (i32.sub (local.get $at) (i32.const 8)))
               (local.set $seen (i64.or (local.get $seen) (i64.load (local.get $at))))
               (br_if $l (local.get $at)))
             (i64.store (i32.const 0) (local.get $seen))
             (call $send (local.get $port) (i32.const 0) (i32.const 8)))"#,
    );
    let mut cells = cells();
    start_in(&mut cells, CELL, &deploy(&sum));
    assert_eq!(ask(&mut cells, b""), [[0; 8]]);
}
