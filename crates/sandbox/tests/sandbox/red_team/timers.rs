//! Attacks by timers: due at once and forever, at impossible times, and more than the host can keep.

use super::witness::Witness;
use crate::support::{CELL, deploy, guest, message, run, start, stop};
use marram_sandbox::limits::TIMER_CHANGES_PER_HANDLER_MAX;
use marram_session::cell::{CellInput, CellStop, RunOutcome, TimerChange};

/// Changes a timer as often as the message says: `delay` and `token` are expressions, `$n` counts down.
fn storm(call: &str) -> Vec<u8> {
    guest(&format!(
        r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param i32) (local $n i64)
             (local.set $n (i64.load32_u (local.get $ptr)))
             (loop $l {call} (br_if $l (i32.wrap_i64 (local.tee $n (i64.sub (local.get $n) (i64.const 1)))))))
           (func (export "marram_timer") (param $token i64)
             (call $timer (i64.const 1) (local.get $token)))"#
    ))
}

#[test]
fn storms_of_set_and_cancelled_timers_pass_up_to_the_limit_and_one_more_is_a_trap() {
    let most = u32::try_from(TIMER_CHANGES_PER_HANDLER_MAX).unwrap();
    for call in [
        "(call $timer (i64.const 1) (i64.const 1))",
        "(call $timer (i64.const 1) (local.get $n))",
        "(call $timer_cancel (local.get $n))",
        "(call $timer_cancel (i64.const -1))",
    ] {
        let image = deploy(&storm(call));
        let mut cells = start(&image);
        let mut witness = Witness::beside(&mut cells);
        let ran = run(&mut cells, CELL, message(&most.to_le_bytes()), 0);
        assert_eq!(
            (ran.outcome, ran.timers.len()),
            (RunOutcome::Idle, TIMER_CHANGES_PER_HANDLER_MAX),
            "{call}"
        );
        let CellStop::Trap(reason) = stop(&mut cells, message(&(most + 1).to_le_bytes())) else {
            panic!("a trap")
        };
        assert!(reason.contains("more than 16384 changes"), "{call}: {reason}");
        witness.is_untouched(&mut cells, call);
        witness.answers(&mut cells);
    }
}

#[test]
fn a_timer_that_sets_itself_again_at_once_is_one_handler_a_firing() {
    let mut cells = start(&deploy(&storm("nop")));
    let mut witness = Witness::beside(&mut cells);
    for now in 0..1_000 {
        let ran = run(&mut cells, CELL, CellInput::Timer { stage: 0, token: 9 }, now);
        assert_eq!(ran.timers, [TimerChange::Set { stage: 0, token: 9, delay_ns: 1 }]);
        // A waiting cell runs between two firings.
        witness.answers(&mut cells);
    }
}

#[test]
fn times_and_tokens_at_the_ends_of_their_range_are_taken_as_they_are() {
    for (delay, token) in
        [(i64::MIN, 0), (-1, u64::MAX), (0, 1 << 63), (i64::MAX, (1 << 63) - 1), (i64::MAX - 1, 1)]
    {
        let call = format!("(call $timer (i64.const {delay}) (i64.const {}))", token.cast_signed());
        let mut cells = start(&deploy(&storm(&call)));
        for now in [0, i64::MAX, i64::MIN] {
            let ran = run(&mut cells, CELL, message(&1_u32.to_le_bytes()), now);
            assert_eq!(ran.timers, [TimerChange::Set { stage: 0, token, delay_ns: delay.max(0) }]);
            // A firing of any token, even one that was never set, is a normal handler.
            let ran = run(&mut cells, CELL, CellInput::Timer { stage: 0, token: !token }, now);
            assert_eq!(ran.outcome, RunOutcome::Idle);
        }
    }
}
