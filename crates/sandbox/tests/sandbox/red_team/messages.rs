//! Attacks by messages: too many, too large, to ports of other cells, and into memory of the guest's constants.

use super::witness::Witness;
use crate::support::{CELL, ask, cells, deploy, guest, message, module, run, start, start_in, stop};
use bytes::Bytes;
use marram_sandbox::limits::{MESSAGE_BYTES_MAX, OUTPUT_BYTES_PER_HANDLER_MAX, OUTPUTS_PER_HANDLER_MAX};
use marram_session::cell::{CellId, CellInput, CellStop, PortKind, RunOutcome};
use marram_wire::id::Port;

#[test]
fn every_misuse_of_an_import_is_a_trap_with_its_reason() {
    let recv = |body: &str| {
        guest(&format!(r#"(func (export "marram_recv") (param i32 i32 i32) (local $i i32) {body})"#))
    };
    let looped = |call: &str| format!("(loop $l {call} (br $l))");
    let cases = [
        ("(call $send (i32.const 7) (i32.const 0) (i32.const 0))".into(), "port 7 was never opened"),
        (
            "(call $send (i32.const -1) (i32.const 0) (i32.const 0))".into(),
            "port 4294967295 was never opened",
        ),
        ("(call $close (i32.const 2))".into(), "port 2 was never opened"),
        ("(call $pause (i32.const 2))".into(), "pause: port 2 was never opened"),
        ("(call $resume (i32.const -1))".into(), "resume: port 4294967295 was never opened"),
        (looped("(call $pause (i32.const 0))"), "pause: more than 16384 outputs"),
        (looped("(call $resume (i32.const 0))"), "resume: more than 16384 outputs"),
        ("(call $send (i32.const 0) (i32.const -1) (i32.const 2))".into(), "outside memory"),
        ("(call $send (i32.const 0) (i32.const 0x27ffff) (i32.const 2))".into(), "outside memory"),
        ("(call $send (i32.const 0) (i32.const 0x280001) (i32.const 0))".into(), "outside memory"),
        ("(call $send (i32.const 0) (i32.const 0) (i32.const 0x100001))".into(), "the maximum is 1048576"),
        ("(call $random (i32.const 0) (i32.const 65537))".into(), "the maximum is 65536"),
        ("(call $random (i32.const -1) (i32.const 2))".into(), "outside memory"),
        ("(call $print (i32.const 0) (i32.const -1) (i32.const 2))".into(), "outside memory"),
        (looped("(call $send (i32.const 0) (i32.const 0) (i32.const 1))"), "more than 16384 outputs"),
        (looped("(call $send (i32.const 0) (i32.const 0) (i32.const 0x100000))"), "more than 67108864 bytes"),
        (looped("(call $timer (i64.const 0) (i64.const 0))"), "more than 16384 changes"),
        ("unreachable".into(), "unreachable"),
        ("(drop (i32.load (i32.const -4)))".into(), "out of bounds"),
        ("(drop (i32.div_u (i32.const 1) (local.get $i)))".into(), "divide by zero"),
    ];
    for (body, expected) in cases {
        let mut cells = start(&deploy(&recv(&body)));
        match stop(&mut cells, message(b"x")) {
            CellStop::Trap(reason) => {
                assert!(reason.contains(expected), "{reason:?} does not say {expected:?}")
            }
            CellStop::Kill(reason) => panic!("killed: {reason}"),
        }
        assert!(cells.is_empty(), "what stopped in the middle is gone");
    }
}

#[test]
fn an_allocator_that_lies_is_a_trap() {
    for (answer, trap) in [("-1", true), ("0x27ffff", true), ("0x27fffe", false)] {
        let text = format!(
            r#"(module (memory (export "memory") 40) (func (export "marram_recv") (param i32 i32 i32))
                 (func (export "marram_alloc") (param i32) (result i32) (i32.const {answer})))"#
        );
        let mut cells = start(&deploy(&module(&text)));
        let ran = run(&mut cells, CELL, message(b"xx"), 0);
        assert_eq!(ran.outcome != RunOutcome::Idle, trap, "{answer}: {:?}", ran.outcome);
    }
}

/// Sends a number of messages of one size, as the message says; both are 32-bit numbers.
fn flood() -> Vec<u8> {
    guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param i32) (local $n i32)
             (local.set $n (i32.load (local.get $ptr)))
             (loop $l
               (call $send (local.get $port) (i32.const 0) (i32.load offset=4 (local.get $ptr)))
               (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))"#,
    )
}

#[test]
fn a_flood_passes_up_to_the_limit_and_one_more_is_a_trap() {
    let image = deploy(&flood());
    let most = OUTPUT_BYTES_PER_HANDLER_MAX / MESSAGE_BYTES_MAX;
    for (count, size) in
        [(OUTPUTS_PER_HANDLER_MAX, 0), (OUTPUTS_PER_HANDLER_MAX, 64), (most, MESSAGE_BYTES_MAX)]
    {
        let order = |count: usize| {
            let [count, size] = [count, size].map(|number| u32::try_from(number).unwrap().to_le_bytes());
            [count, size].concat()
        };
        let mut cells = start(&image);
        let mut witness = Witness::beside(&mut cells);
        assert_eq!(ask(&mut cells, &order(count)).len(), count);
        // The limit is per handler: the next handler starts at zero.
        assert_eq!(ask(&mut cells, &order(count)).len(), count);
        let ran = run(&mut cells, CELL, message(&order(count + 1)), 0);
        assert!(matches!(ran.outcome, RunOutcome::Stopped(CellStop::Trap(_))), "{:?}", ran.outcome);
        assert!(ran.outputs.is_empty(), "nothing of it leaves");
        witness.is_untouched(&mut cells, "a flood");
        witness.answers(&mut cells);
    }
}

#[test]
fn messages_to_ports_that_are_not_open_are_a_trap() {
    let to = guest(
        r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param i32)
             (call $send (i32.load (local.get $ptr)) (i32.const 0) (i32.const 1)))"#,
    );
    let image = deploy(&to);
    for port in [2, 3, 7, 65_535, 65_536, u32::MAX / 2, u32::MAX - 1, u32::MAX] {
        let mut cells = start(&image);
        // Another cell has this port: that opens it for no other cell.
        start_in(&mut cells, CellId(2), &image);
        run(
            &mut cells,
            CellId(2),
            CellInput::Open { port: Port(port), kind: PortKind::Client, peer: None },
            0,
        );
        let CellStop::Trap(reason) = stop(&mut cells, message(&port.to_le_bytes())) else { panic!("a trap") };
        assert!(reason.contains(&format!("port {port} was never opened")), "{reason}");
    }
}

#[test]
fn a_message_larger_than_any_is_a_trap_and_the_largest_and_the_empty_pass() {
    let mut cells = start(&deploy(&crate::support::echo()));
    for len in [0, MESSAGE_BYTES_MAX] {
        assert_eq!(ask(&mut cells, &vec![7; len]), [vec![7; len]]);
    }
    let payload = Bytes::from(vec![7; MESSAGE_BYTES_MAX + 1]);
    let CellStop::Trap(reason) = stop(&mut cells, CellInput::Message { port: Port::CLIENT, payload }) else {
        panic!("a trap")
    };
    assert!(reason.contains("the maximum is 1048576"), "{reason}");
}

#[test]
fn a_message_that_is_put_over_the_guests_own_data_hurts_that_cell_alone() {
    // The message buffer contains the guest's constants; overwriting them changes only the answer.
    let careless = module(
        r#"(module
             (import "marram_v1" "send" (func $send (param i32 i32 i32)))
             (memory (export "memory") 1)
             (data (i32.const 64) "constant")
             (func (export "marram_alloc") (param i32) (result i32) (i32.const 60))
             (func (export "marram_recv") (param $port i32) (param i32 i32)
               (call $send (local.get $port) (i32.const 64) (i32.const 8))))"#,
    );
    let image = deploy(&careless);
    let mut cells = cells();
    start_in(&mut cells, CELL, &image);
    assert_eq!(ask(&mut cells, b"overwritten!"), [b"written!"]);
    cells.remove(CELL);
    start_in(&mut cells, CELL, &image);
    assert_eq!(ask(&mut cells, b""), [b"constant"]);
}
