//! Attacks within a chain: on adjacent stages, past them, and on the peers that wait for the chain.

use super::witness::Witness;
use crate::support::{
    CELL, cells, chain_with, deploy_chain, echo, guest, message, payloads, run, start, start_in, stop, twice,
    words,
};
use marram_sandbox::Quotas;
use marram_session::cell::{CellId, CellInput, CellStop, RunOutcome, TimerChange};
use marram_wire::id::Port;

fn from_server(payload: &'static [u8]) -> CellInput {
    CellInput::Message { port: Port::SERVER, payload: payload.into() }
}

/// Sends each message to the port in its first byte.
fn sender() -> Vec<u8> {
    guest(
        r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param $len i32)
             (call $send (i32.sub (i32.load8_u (local.get $ptr)) (i32.const 48)) (local.get $ptr) (local.get $len)))"#,
    )
}

/// Prefixes each message with the port that it came from and passes it on: `0` from the client, `1` from the server.
fn marker() -> Vec<u8> {
    guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (i32.store8 (i32.add (local.get $ptr) (local.get $len)) (i32.add (local.get $port) (i32.const 48)))
             (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr)
                         (i32.add (local.get $len) (i32.const 1))))"#,
    )
}

#[test]
fn stages_that_answer_each_other_for_ever_are_killed() {
    twice(|| {
        let to_server = guest(
            r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param $len i32)
             (call $send (i32.const 1) (local.get $ptr) (local.get $len)))"#,
        );
        let mut cells = start(&deploy_chain(&[("eager", to_server), ("echo", echo())]));
        let CellStop::Kill(reason) = stop(&mut cells, message(b"ping")) else { panic!("a kill") };
        assert!(reason.contains("65536 handlers") && reason.contains("stage "), "{reason}");
        assert!(cells.is_empty());

        let twice = guest(
            r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param $len i32)
             (call $send (i32.const 1) (local.get $ptr) (local.get $len))
             (call $send (i32.const 1) (local.get $ptr) (local.get $len)))"#,
        );
        let mut cells = start(&deploy_chain(&[("growing", twice), ("echo", echo())]));
        let CellStop::Kill(reason) = stop(&mut cells, message(&[1; 1 << 20])) else { panic!("a kill") };
        assert!(reason.contains("bytes wait between stages"), "{reason}");
    });
}

#[test]
fn a_flood_through_a_chain_is_killed_before_it_leaves() {
    twice(|| {
        // A hundred messages of each size.
        let flood = |size: u32| {
            guest(&format!(
                r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param $len i32) (local $n i32)
                 (local.set $n (i32.const 200))
                 (loop $l
                   (call $send (i32.const 1) (local.get $ptr) (i32.const {size}))
                   (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))"#
            ))
        };
        for (size, says) in [(1, "16384 outputs"), (8_192, "67108864 bytes of its chain")] {
            let mut cells = start(&deploy_chain(&[("flood", flood(1)), ("flood", flood(size))]));
            let CellStop::Kill(reason) = stop(&mut cells, message(b"x")) else { panic!("a kill") };
            assert!(reason.contains(says) && reason.contains("stage 1 (flood)"), "{reason}");
        }
        let timers = guest(
            r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param $len i32) (local $n i32)
             (local.set $n (i32.const 10000))
             (loop $l
               (call $timer (i64.const 1) (i64.extend_i32_u (local.get $n)))
               (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))"#,
        );
        let mut cells = start(&deploy_chain(&[("flood", flood(1)), ("clock", timers)]));
        let CellStop::Kill(reason) = stop(&mut cells, message(b"x")) else { panic!("a kill") };
        assert!(reason.contains("16384 timers") && reason.contains("stage 1 (clock)"), "{reason}");
    });
}

#[test]
fn a_stage_that_sends_past_the_next_stage_reaches_no_stage() {
    twice(|| {
        let nothing = || guest(r#"(func (export "marram_recv") (param i32 i32 i32))"#);
        let mut cells = start(&deploy_chain(&[("sender", sender()), ("wall", nothing())]));
        assert_eq!(words(&run(&mut cells, CELL, message(b"1 to the server"), 0)), [""; 0]);
        assert_eq!(words(&run(&mut cells, CELL, from_server(b"y"), 0)), [""; 0]);
        for port in [b"2", b"3", b"9", b"/"] {
            let mut cells = start(&deploy_chain(&[("sender", sender()), ("wall", nothing())]));
            let CellStop::Trap(reason) = stop(&mut cells, message(port)) else { panic!("a trap") };
            assert!(reason.contains("stage 0 (sender)") && reason.contains("never opened"), "{reason}");
        }
        let mut cells = start(&deploy_chain(&[("wall", nothing()), ("sender", sender())]));
        assert_eq!(words(&run(&mut cells, CELL, from_server(b"0 to the client"), 0)), [""; 0]);
        assert_eq!(words(&run(&mut cells, CELL, from_server(b"1 back"), 0)), ["s:1 back"]);
    });
}

#[test]
fn a_stage_that_reads_at_another_stages_address_sees_its_own_memory() {
    twice(|| {
        // On `k`, keeps a secret in memory and a global; on anything else, sends both.
        let keeper = || {
            guest(
                r#"(global $g (mut i64) (i64.const 0))
               (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
                 (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 107))
                   (then
                     (i64.store (i32.const 0x5000) (i64.const 0x7ec4e7))
                     (global.set $g (i64.const 0x7ec4e7)))
                   (else
                     (i64.store (i32.const 0) (i64.load (i32.const 0x5000)))
                     (i64.store (i32.const 8) (global.get $g))
                     (call $send (local.get $port) (i32.const 0) (i32.const 16)))))"#,
            )
        };
        // Two stages of one image, so that they would share everything that stages can share.
        let mut cells = start(&deploy_chain(&[("left", keeper()), ("right", keeper())]));
        run(&mut cells, CELL, message(b"k"), 0);
        assert_eq!(payloads(&run(&mut cells, CELL, from_server(b"?"), 0)), [[0; 16]]);
        assert_ne!(payloads(&run(&mut cells, CELL, message(b"?"), 0)), [[0; 16]]);
    });
}

#[test]
fn a_stage_that_sends_as_another_stage_is_received_as_itself() {
    twice(|| {
        // The first stage sends to its server what the server would send: the next stage gets it from its client.
        let mut cells = start(&deploy_chain(&[("sender", sender()), ("marker", marker())]));
        assert_eq!(words(&run(&mut cells, CELL, message(b"1 I am the server"), 0)), ["s:1 I am the server0"]);
        // What the last stage sends to its client comes from the server's side, and the first stage may drop it.
        let mut cells = start(&deploy_chain(&[("marker", marker()), ("sender", sender())]));
        assert_eq!(
            words(&run(&mut cells, CELL, from_server(b"0 I am the client"), 0)),
            ["c:0 I am the client1"]
        );
    });
}

#[test]
fn a_stage_that_closes_another_stages_port_closes_its_own_side_of_it() {
    twice(|| {
        // Closes towards the server, and then sends there.
        let rude = guest(
            r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param $len i32)
             (call $close (i32.const 1))
             (if (i32.eq (i32.load8_u (local.get $ptr)) (i32.const 120))
               (then (call $send (i32.const 1) (local.get $ptr) (local.get $len)))))"#,
        );
        let mut cells = start(&deploy_chain(&[("rude", rude.clone()), ("marker", marker())]));
        assert_eq!(words(&run(&mut cells, CELL, message(b""), 0)), [""; 0]);
        // The adjacent stage can still send to both its sides.
        assert_eq!(run(&mut cells, CELL, from_server(b""), 0).outcome, RunOutcome::Idle);
        let mut cells = start(&deploy_chain(&[("rude", rude), ("marker", marker())]));
        let CellStop::Trap(reason) = stop(&mut cells, message(b"x")) else { panic!("a trap") };
        assert!(reason.contains("stage 0 (rude)") && reason.contains("has closed port 1"), "{reason}");
    });
}

#[test]
fn a_stage_that_starves_other_stages_is_killed_by_name() {
    twice(|| {
        let starver = guest(r#"(func (export "marram_recv") (param i32 i32 i32) (loop $l (br $l)))"#);
        // So long that no other stage is killed because its machine stood still for a moment.
        let quotas = Quotas { handler_time_ns: 100_000_000, ..Quotas::default() };
        for at in 0..3 {
            let mut stages = vec![("marker", marker()); 3];
            stages[at] = ("starver", starver.clone());
            let mut cells = cells();
            let mut witness = Witness::beside(&mut cells);
            start_in(&mut cells, CELL, &chain_with(true, &quotas, &stages));
            let CellStop::Kill(reason) = stop(&mut cells, message(b"x")) else { panic!("a kill") };
            assert!(reason.starts_with(&format!("stage {at} (starver): ")), "{reason}");
            witness.is_untouched(&mut cells, "a starving stage");
            witness.answers(&mut cells);
        }
    });
}

#[test]
fn a_chain_that_runs_on_by_timers_ends_each_firing() {
    twice(|| {
        let clock = guest(
            r#"(func (export "marram_recv") (param i32 i32 i32) (call $timer (i64.const 0) (i64.const 0)))
           (func (export "marram_timer") (param i64)
             (call $timer (i64.const 0) (i64.const 0)) (call $send (i32.const 1) (i32.const 0) (i32.const 1)))"#,
        );
        let image = deploy_chain(&[("clock", clock), ("echo", echo())]);
        let mut cells = start(&image);
        let mut witness = Witness::beside(&mut cells);
        start_in(&mut cells, CellId(2), &image);
        for cell in [CELL, CellId(2), CELL, CellId(2)] {
            let ran = run(&mut cells, cell, CellInput::Timer { stage: 0, token: 0 }, 0);
            // The echo sends its own message back to it, and it sets the same timer again: still one.
            assert_eq!(ran.timers, [TimerChange::Set { stage: 0, token: 0, delay_ns: 0 }; 2]);
            witness.answers(&mut cells);
        }
    });
}
