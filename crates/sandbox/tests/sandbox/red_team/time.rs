//! Attacks on time: guests that never end, or that make other cells wait.

use super::witness::Witness;
use crate::support::{
    CELL, ask_at, deploy, deploy_with, echo, guest, message, module, start, start_in, stop,
};
use marram_sandbox::{Cells, Image, Progress, Quotas};
use marram_session::cell::{CellId, CellInput, CellStop, PortKind, Ran, Run, RunOutcome};
use marram_wire::id::Port;
use std::sync::Arc;

const HANDLER_TIME_NS: u64 = 20_000_000;

fn hurried(module: &[u8]) -> Arc<Image> {
    deploy_with(module, &Quotas { handler_time_ns: HANDLER_TIME_NS, ..Quotas::default() }, &[])
}

/// Runs an input to its end while another cell is served between slices; returns how often it was served.
fn beside(cells: &mut Cells, input: CellInput) -> (Ran, u32) {
    let mut witness = Witness::beside(cells);
    let mut served = 0;
    let mut progress = cells.run(Run { cell: CELL, input, now_ns: 0, logged: None });
    loop {
        match progress {
            Progress::Done(ran) => return (ran, served),
            Progress::Pending => {
                witness.is_untouched(cells, "a handler that is under way");
                witness.answers(cells);
                served += 1;
                progress = cells.poll(CELL);
            }
        }
    }
}

#[track_caller]
fn is_killed(ran: &Ran, what: &str) {
    let RunOutcome::Stopped(CellStop::Kill(reason)) = &ran.outcome else {
        panic!("{what}: {:?}", ran.outcome)
    };
    assert!(reason.contains("handler_time, 20 ms"), "{what}: {reason:?}");
    assert_eq!((ran.outputs.len(), ran.timers.len()), (0, 0), "{what}: what it had done is discarded");
}

#[test]
fn a_bottomless_recursion_is_a_trap_and_the_next_cell_runs() {
    let image = deploy(&guest(
        r#"(func $down (param i32) (result i32) (i32.add (call $down (i32.add (local.get 0) (i32.const 1))) (i32.const 1)))
           (func (export "marram_recv") (param i32 i32 i32) (drop (call $down (i32.const 0))))"#,
    ));
    let mut cells = start(&image);
    let CellStop::Trap(reason) = stop(&mut cells, message(b"x")) else { panic!("a trap") };
    assert!(reason.contains("stack"), "{reason:?}");
    start_in(&mut cells, CellId(2), &deploy(&echo()));
    assert_eq!(ask_at(&mut cells, CellId(2), b"hello", 0), [b"hello"]);
}

#[test]
fn an_endless_loop_is_killed_and_other_cells_are_served_meanwhile() {
    let spinner = guest(r#"(func (export "marram_recv") (param i32 i32 i32) (loop $l (br $l)))"#);
    let endless_alloc = module(
        r#"(module (memory (export "memory") 1) (func (export "marram_recv") (param i32 i32 i32))
             (func (export "marram_alloc") (param i32) (result i32) (loop $l (br $l)) unreachable))"#,
    );
    let quotas = Quotas { handler_time_ns: 20_000_000, ..Quotas::default() };
    for module in [spinner, endless_alloc] {
        let mut cells = start(&deploy_with(&module, &quotas, &[]));
        let neighbour = CellId(2);
        start_in(&mut cells, neighbour, &deploy(&echo()));
        let mut progress = cells.run(Run { cell: CELL, input: message(b"x"), now_ns: 0, logged: None });
        let mut served = 0;
        while matches!(progress, Progress::Pending) {
            assert_eq!(ask_at(&mut cells, neighbour, b"hello", 0), [b"hello"]);
            served += 1;
            progress = cells.poll(CELL);
        }
        let Progress::Done(ran) = progress else { unreachable!("it was not pending") };
        let RunOutcome::Stopped(CellStop::Kill(reason)) = ran.outcome else {
            panic!("killed, not {:?}", ran.outcome)
        };
        assert!(reason.contains("handler_time, 20 ms"), "{reason:?}");
        assert!(ran.cost_ns > 20_000_000);
        // The number depends on how soon the thread that counts slices runs.
        assert!(served > 0, "{served}");
        assert_eq!(cells.len(), 1);
    }
}

#[test]
fn an_endless_loop_in_any_handler_is_killed_and_what_it_sent_is_not() {
    let image = hurried(&guest(
        r#"(func $spin (call $send (i32.const 0) (i32.const 0) (i32.const 9))
             (call $timer (i64.const 1) (i64.const 1)) (loop $l (br $l)))
           (func (export "marram_recv") (param i32 i32 i32) (call $spin))
           (func (export "marram_timer") (param i64) (call $spin))
           (func (export "marram_close") (param i32) (call $spin))
           (func (export "marram_open") (param $port i32) (param i32)
             (if (i32.gt_u (local.get $port) (i32.const 1)) (then (call $spin))))"#,
    ));
    for input in [
        message(b"x"),
        CellInput::Timer { stage: 0, token: 1 },
        CellInput::Close { port: Port::CLIENT },
        CellInput::Open { port: Port(2), kind: PortKind::Client, peer: None },
    ] {
        let mut cells = start(&image);
        let what = format!("{input:?}");
        is_killed(&beside(&mut cells, input).0, &what);
    }
}

/// The engine checks the clock only at the heads of loops and functions, and here there are none.
#[test]
fn long_operations_in_a_row_without_a_loop_are_preempted_and_killed() {
    let row = |count: usize, operation: &str| {
        module(&format!(
            r#"(module
                 (import "marram_v1" "random" (func $random (param i32 i32)))
                 (type $random (func (param i32 i32)))
                 (table 1 funcref) (elem (i32.const 0) $random)
                 (memory (export "memory") 40)
                 (data $some "{}")
                 (func (export "marram_alloc") (param i32) (result i32) (i32.const 0))
                 (func (export "marram_recv") (param i32 i32 i32) {}))"#,
            "x".repeat(100_000),
            operation.repeat(count)
        ))
    };
    for (count, operation) in [
        (4_000, "(memory.fill (i32.const 0) (i32.const 7) (i32.const 0x280000))"),
        (4_000, "(memory.copy (i32.const 1) (i32.const 0) (i32.const 0x27ffff))"),
        (40_000, "(memory.init $some (i32.const 0) (i32.const 0) (i32.const 100000))"),
        (8_000, "(call $random (i32.const 0) (i32.const 65536))"),
        (8_000, "(call_indirect (type $random) (i32.const 0) (i32.const 65536) (i32.const 0))"),
    ] {
        let mut cells = start(&hurried(&row(count, operation)));
        let (ran, served) = beside(&mut cells, message(b""));
        is_killed(&ran, operation);
        assert!(served > 0, "{operation}: {served}");
    }
}

#[test]
fn a_storm_of_huge_fills_is_charged_for_what_it_computes() {
    let quotas = Quotas { memory_max: 512 << 20, handler_time_ns: HANDLER_TIME_NS, ..Quotas::default() };
    let storm = guest(
        r#"(func (export "marram_recv") (param i32 i32 i32)
             (drop (memory.grow (i32.const 8100)))
             (loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 0x1fa00000)) (br $l)))"#,
    );
    let mut cells = start(&deploy_with(&storm, &quotas, &[]));
    let (ran, served) = beside(&mut cells, message(b""));
    is_killed(&ran, "a storm of fills");
    // Each fill is one slice and takes tens of milliseconds. If a slice were charged a few milliseconds at most, this
    // would take at least five of them.
    assert!(served <= 3, "{served} slices");
}

#[test]
fn a_handler_of_many_slices_is_resumed_where_it_was() {
    let image = deploy(&guest(
        r#"(func (export "marram_recv") (param $port i32) (param i32 i32) (local $n i64) (local $sum i64)
             (loop $l
               (local.set $sum (i64.add (local.get $sum) (local.get $n)))
               (local.set $n (i64.add (local.get $n) (i64.const 1)))
               (br_if $l (i64.lt_u (local.get $n) (i64.const 20000000))))
             (i64.store (i32.const 0) (local.get $sum))
             (call $send (local.get $port) (i32.const 0) (i32.const 8)))"#,
    ));
    let mut cells = start(&image);
    let (ran, served) = beside(&mut cells, message(b""));
    assert!(served > 0, "it takes longer than a slice");
    assert_eq!(crate::support::payloads(&ran), [199_999_990_000_000_u64.to_le_bytes()]);
}
