//! Attacks on the stages in the same store: the host must do everything that a stage requests for that stage only.

use super::witness::Witness;
use crate::support::{
    CELL, Dir, chain_with, deploy_chain, guest, message, module, payloads, run, start, start_in, stop, twice,
};
use marram_sandbox::{Cells, CellsConfig, Chain, Decoded, Images, Progress, Quotas};
use marram_session::cell::{CellId, CellInput, CellStop, CheckpointBase, Run, RunOutcome};
use marram_wire::id::Port;

fn from_server(payload: &[u8]) -> CellInput {
    CellInput::Message { port: Port::SERVER, payload: payload.to_vec().into() }
}

/// The address where both kinds of stage keep data, in their own memory.
const KEPT: usize = 0x5000;

/// Keeps `fill` in 256 bytes at [`KEPT`] of its 40 pages; answers `?` with them, and passes on everything else.
fn large(fill: char) -> Vec<u8> {
    let bytes = fill.to_string().repeat(256);
    guest(&format!(
        r#"(data (i32.const {KEPT}) "{bytes}")
           (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 63))
               (then (call $send (local.get $port) (i32.const {KEPT}) (i32.const 256)))
               (else (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr) (local.get $len)))))"#
    ))
}

/// Has one page, and does to it what the server's message names, at the address that follows. Then sends its bytes at
/// [`KEPT`] to the server. It passes on a message from the client.
fn small() -> Vec<u8> {
    module(&format!(
        r#"(module
          (import "marram_v1" "send" (func $send (param i32 i32 i32)))
          (import "marram_v1" "random" (func $random (param i32 i32)))
          (import "marram_v1" "print" (func $print (param i32 i32 i32)))
          (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "random_get" (func $random_get (param i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
          (import "wasi_snapshot_preview1" "fd_fdstat_get" (func $fdstat (param i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "path_create_directory" (func $mkdir (param i32 i32 i32) (result i32)))
          (memory (export "memory") 1)
          (data (i32.const {KEPT}) "mine")
          (func (export "marram_alloc") (param i32) (result i32) (i32.const 0x100))
          (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
            (local $what i32) (local $at i32)
            (local.set $what (i32.load8_u (local.get $ptr)))
            (local.set $at (i32.load offset=1 align=1 (local.get $ptr)))
            (if (i32.eqz (local.get $port)) (then
              (call $send (i32.const 1) (local.get $ptr) (local.get $len)) (return)))
            (if (i32.eq (local.get $what) (i32.const 0)) (then
              (call $send (i32.const 1) (local.get $at) (i32.const 64))))
            (if (i32.eq (local.get $what) (i32.const 1)) (then
              (call $random (local.get $at) (i32.const 64))))
            (if (i32.eq (local.get $what) (i32.const 2)) (then
              (call $print (i32.const 1) (local.get $at) (i32.const 64))))
            (if (i32.eq (local.get $what) (i32.const 3)) (then
              (i32.store (i32.const 0x200) (local.get $at))
              (i32.store (i32.const 0x204) (i32.const 64))
              (drop (call $fd_write (i32.const 1) (i32.const 0x200) (i32.const 1) (i32.const 0x210)))))
            (if (i32.eq (local.get $what) (i32.const 4)) (then
              (drop (call $random_get (local.get $at) (i32.const 64)))))
            (if (i32.eq (local.get $what) (i32.const 5)) (then
              (drop (call $clock (i32.const 0) (i64.const 0) (local.get $at)))))
            (if (i32.eq (local.get $what) (i32.const 6)) (then
              (drop (call $fdstat (i32.const 1) (local.get $at)))))
            (if (i32.eq (local.get $what) (i32.const 7)) (then
              (drop (call $mkdir (i32.const 3) (local.get $at) (i32.const 1)))))
            (call $send (i32.const 1) (i32.const {KEPT}) (i32.const 64))))"#
    ))
}

/// Number of actions of [`small`].
const DEEDS: u8 = 8;

fn deed(what: u8, at: usize) -> CellInput {
    from_server(&[&[what][..], &u32::try_from(at).unwrap().to_le_bytes()].concat())
}

#[test]
fn a_call_with_another_stages_address_reaches_its_own_memory() {
    twice(|| {
        let stages = [("large", large('L')), ("small", small()), ("other", large('O'))];
        let image = deploy_chain(&stages);
        for what in 0..DEEDS {
            let mut cells = start(&image);
            let mut witness = Witness::beside(&mut cells);
            // The server's messages reach the stage in the middle through the last one, and its answers go back that way.
            let ran = run(&mut cells, CELL, deed(what, KEPT), 7);
            assert_eq!(ran.outcome, RunOutcome::Idle, "{what}");
            let said = payloads(&ran);
            let written = matches!(what, 1 | 4 | 5 | 6);
            assert_eq!(said.last().unwrap().starts_with(b"mine"), !written, "{what}: {said:?}");
            let prints = cells.take_prints(CELL);
            assert_eq!(prints.len(), usize::from(matches!(what, 2 | 3)), "{what}");
            for print in prints {
                assert!(print.stage == 1 && print.text.starts_with("mine"), "{what}: {print:?}");
            }
            // Both adjacent stages have unchanged bytes.
            assert_eq!(payloads(&run(&mut cells, CELL, message(b"?"), 7)), [[b'L'; 256]], "{what}");
            assert_eq!(payloads(&run(&mut cells, CELL, from_server(b"?"), 7)), [[b'O'; 256]], "{what}");
            witness.answers(&mut cells);
        }
    });
}

#[test]
fn a_call_beyond_its_memory_is_a_trap_though_other_stages_have_more() {
    twice(|| {
        let image = deploy_chain(&[("large", large('L')), ("small", small()), ("other", large('O'))]);
        for what in 0..DEEDS {
            // The first byte behind its memory, an access across its end, and an address that the other stages have.
            for at in [65_536, 65_533, 0x20_0000] {
                if what == 7 && at == 65_533 {
                    continue;
                }
                let mut cells = start(&image);
                let CellStop::Trap(reason) = stop(&mut cells, deed(what, at)) else {
                    panic!("{what} {at}: a trap")
                };
                assert!(reason.starts_with("stage 1 (small): "), "{what} {at}: {reason}");
                assert!(reason.contains("outside memory, which has 65536 bytes"), "{what} {at}: {reason}");
                assert!(cells.is_empty());
            }
        }
    });
}

/// Grows by as many pages as the message says, sends the old size or -1, and passes that and the order on.
fn grower() -> Vec<u8> {
    guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (i32.store8 (i32.add (local.get $ptr) (local.get $len))
               (memory.grow (i32.load8_u (local.get $ptr))))
             (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr)
                         (i32.add (local.get $len) (i32.const 1))))"#,
    )
}

#[test]
fn memory_grows_within_the_quota_of_the_stage_that_grows() {
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap();
    let pages = [50, 45, 60];
    let stage = |pages: u64| {
        let quotas = Quotas { memory_max: pages << 16, ..Quotas::default() };
        (format!("of-{pages}"), images.deploy(&grower(), &[], &quotas).unwrap().hash)
    };
    let chain = Chain::new(true, pages.map(stage).to_vec()).unwrap();
    let image = images.load(images.deploy_chain(&chain).unwrap()).unwrap();
    twice(|| {
        let mut cells = start(&image);
        let mut grow = |pages: u8| payloads(&run(&mut cells, CELL, message(&[pages]), 0)).remove(0);
        assert_eq!(grow(5), [5, 40, 40, 40]);
        assert_eq!(grow(5), [5, 45, 255, 45]);
        assert_eq!(grow(1), [1, 255, 255, 50]);
        assert_eq!(grow(10), [10, 255, 255, 255]);
        assert_eq!(grow(9), [9, 255, 255, 51]);
        assert_eq!(grow(0), [0, 50, 45, 60]);
        assert_eq!(cells.memory_bytes(CELL), Some((50 + 45 + 60) << 16));
        // A restored chain has the sizes and the quotas of each stage.
        let full = cells.snapshot(CELL, CheckpointBase::Image).unwrap().encode();
        let decoded = Decoded::decode(&[full]).unwrap();
        cells.restore(CellId(2), &image, &decoded).unwrap();
        assert_eq!(cells.state_hash(CellId(2)), cells.state_hash(CELL));
        assert_eq!(payloads(&run(&mut cells, CellId(2), message(&[1]), 0)), [[1, 255, 255, 255]]);
    });
}

#[test]
fn a_trap_in_the_middle_lets_nothing_out_and_frees_every_slot() {
    // Sends each message of the client on twice, and once back.
    let twofold = guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (if (local.get $port) (then (return)))
             (call $send (i32.const 0) (local.get $ptr) (local.get $len))
             (call $send (i32.const 1) (local.get $ptr) (local.get $len))
             (call $send (i32.const 1) (local.get $ptr) (local.get $len)))"#,
    );
    // Fails at the third message that begins with `x`.
    let bad = guest(
        r#"(global $seen (mut i32) (i32.const 0))
           (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (if (local.get $port) (then (return)))
             (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 120)) (then
               (global.set $seen (i32.add (global.get $seen) (i32.const 1)))
               (if (i32.eq (global.get $seen) (i32.const 3)) (then unreachable))))
             (call $send (i32.const 1) (local.get $ptr) (local.get $len)))"#,
    );
    let image =
        deploy_chain(&[("two", twofold.clone()), ("two", twofold.clone()), ("bad", bad), ("two", twofold)]);
    twice(|| {
        let mut cells = Cells::new(CellsConfig { slots: 5, ..CellsConfig::default() }).unwrap();
        let mut witness = Witness::beside(&mut cells);
        for _ in 0..3 {
            start_in(&mut cells, CELL, &image);
            assert_eq!(run(&mut cells, CELL, message(b"fine"), 0).outputs.len(), 1 + 2 * 2 * 2);
            let ran = run(&mut cells, CELL, message(b"x"), 0);
            let RunOutcome::Stopped(CellStop::Trap(reason)) = ran.outcome else { panic!("a trap") };
            assert!(reason.starts_with("stage 2 (bad): ") && reason.contains("unreachable"), "{reason}");
            assert_eq!((ran.outputs.len(), ran.timers.len(), cells.len()), (0, 0, 1));
            witness.answers(&mut cells);
        }
    });
}

#[test]
fn a_stage_preempted_in_the_middle_can_be_removed_and_killed() {
    let relay = || {
        guest(
            r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
                 (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr) (local.get $len)))"#,
        )
    };
    let spinner = guest(r#"(func (export "marram_recv") (param i32 i32 i32) (loop $l (br $l)))"#);
    let spinning = |handler_time_ns| {
        let quotas = Quotas { handler_time_ns, ..Quotas::default() };
        chain_with(true, &quotas, &[("a", relay()), ("spinner", spinner.clone()), ("b", relay())])
    };
    // On a busy machine a slice may cost half of the limit.
    let (image, hurried) = (spinning(u64::MAX), spinning(8_000_000));
    twice(|| {
        let mut cells = Cells::new(CellsConfig { slots: 4, ..CellsConfig::default() }).unwrap();
        let mut witness = Witness::beside(&mut cells);
        for _ in 0..3 {
            start_in(&mut cells, CELL, &image);
            cells.snapshot(CELL, CheckpointBase::Image).unwrap();
            let mut progress = cells.run(Run { cell: CELL, input: message(b"x"), now_ns: 0, logged: None });
            for _ in 0..3 {
                assert!(matches!(progress, Progress::Pending));
                assert_eq!(cells.memory_bytes(CELL), None);
                assert!(cells.snapshot(CELL, CheckpointBase::Previous).is_err());
                assert!(cells.take_prints(CELL).is_empty());
                witness.answers(&mut cells);
                progress = cells.poll(CELL);
            }
            cells.remove(CELL);
        }
        start_in(&mut cells, CELL, &hurried);
        let CellStop::Kill(reason) = stop(&mut cells, message(b"x")) else { panic!("a kill") };
        assert_eq!(reason, "stage 1 (spinner): a handler ran longer than handler_time, 8 ms");
    });
}
