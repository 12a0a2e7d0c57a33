//! Attacks by tasks and locks: endless ones, those of other stages, and more than the host can keep.

use super::witness::Witness;
use crate::support::{CELL, chain_with, deploy, guest, message, run, start, stop, try_deploy};
use marram_sandbox::{Quotas, limits::TASK_CHANGES_PER_HANDLER_MAX};
use marram_session::cell::{CellInput, CellStop, RunOutcome, TaskChange};

fn task(token: u64) -> CellInput {
    CellInput::Task { stage: 0, token }
}

/// Does one thing as often as the message says, and another in a task: `$n` counts down, `$token` is the task's token.
fn storm(call: &str, in_task: &str) -> Vec<u8> {
    guest(&format!(
        r#"(func (export "marram_recv") (param i32) (param $ptr i32) (param i32) (local $n i64)
             (local.set $n (i64.load32_u (local.get $ptr)))
             (loop $l {call} (br_if $l (i32.wrap_i64 (local.tee $n (i64.sub (local.get $n) (i64.const 1)))))))
           (func (export "marram_task") (param $token i64) {in_task})"#
    ))
}

#[test]
fn storms_of_tasks_and_locks_pass_up_to_the_limit_and_one_more_is_a_trap() {
    let most = u32::try_from(TASK_CHANGES_PER_HANDLER_MAX).unwrap();
    for call in [
        "(call $spawn (i64.const 1))",
        "(call $spawn (local.get $n))",
        "(call $lock (local.get $n) (i64.const -1))",
        "(call $lock (i64.const 1) (local.get $n))",
    ] {
        let mut cells = start(&deploy(&storm(call, "nop")));
        let mut witness = Witness::beside(&mut cells);
        let ran = run(&mut cells, CELL, message(&most.to_le_bytes()), 0);
        assert_eq!(
            (ran.outcome, ran.tasks.len()),
            (RunOutcome::Idle, TASK_CHANGES_PER_HANDLER_MAX),
            "{call}"
        );
        let CellStop::Trap(reason) = stop(&mut cells, message(&(most + 1).to_le_bytes())) else {
            panic!("a trap")
        };
        assert!(reason.contains("more than 16384 changes of tasks and locks"), "{call}: {reason}");
        witness.is_untouched(&mut cells, call);
        witness.answers(&mut cells);
    }
}

#[test]
fn a_task_that_spawns_itself_for_ever_is_one_handler_a_turn() {
    let mut cells = start(&deploy(&storm("nop", "(call $spawn (local.get $token))")));
    let mut witness = Witness::beside(&mut cells);
    for _ in 0..1_000 {
        let ran = run(&mut cells, CELL, task(9), 0);
        assert_eq!(ran.tasks, [TaskChange::Spawn { stage: 0, token: 9 }]);
        assert!(!ran.clock_read);
        // A waiting cell runs between two turns.
        witness.answers(&mut cells);
    }
}

#[test]
fn a_lock_is_given_back_by_a_task_alone_and_what_a_handler_did_before_is_undone() {
    let image = deploy(&storm(
        "(call $lock (i64.const 3) (i64.const 7)) (call $unlock (i64.const 3))",
        "(call $unlock (i64.const 3)) (call $spawn (local.get $token)) (call $lock (i64.const -1) (i64.const 5))",
    ));
    let mut cells = start(&image);
    let ran = run(&mut cells, CELL, task(u64::MAX), 0);
    assert_eq!(
        ran.tasks,
        [
            TaskChange::Unlock { stage: 0, id: 3, token: u64::MAX },
            TaskChange::Spawn { stage: 0, token: u64::MAX },
            TaskChange::Lock { stage: 0, id: u64::MAX, token: 5 },
        ]
    );
    let ran = run(&mut cells, CELL, message(&1_u32.to_le_bytes()), 0);
    let RunOutcome::Stopped(CellStop::Trap(reason)) = ran.outcome else { panic!("a trap") };
    assert!(reason.contains("unlock: lock 3") && reason.contains("does not belong to a task"), "{reason}");
    assert_eq!(ran.tasks, []);
}

#[test]
fn a_task_of_one_stage_is_none_of_the_others() {
    let quiet = r#"(func (export "marram_recv") (param i32 i32 i32) (call $unlock (i64.const 3)))"#;
    let busy = r#"(func (export "marram_recv") (param i32 i32 i32))
        (func (export "marram_task") (param $token i64)
          (call $spawn (i64.const 4)) (call $unlock (i64.const 3))
          (call $send (i32.const 0) (i32.const 0) (i32.const 0)))"#;
    let chain = chain_with(true, &Quotas::default(), &[("quiet", guest(quiet)), ("busy", guest(busy))]);
    let mut cells = start(&chain);
    // Stage 1's task sends to stage 0, whose handler is not a task's.
    let CellStop::Trap(reason) = stop(&mut cells, CellInput::Task { stage: 1, token: 7 }) else {
        panic!("a trap")
    };
    assert!(reason.contains("quiet") && reason.contains("does not belong to a task"), "{reason}");
    let mut cells = start(&chain);
    let CellStop::Kill(reason) = stop(&mut cells, CellInput::Task { stage: 2, token: 7 }) else {
        panic!("a kill")
    };
    assert!(reason.contains("does not have"), "{reason}");
}

#[test]
fn tasks_at_deployment_are_refused() {
    for call in ["$spawn (i64.const 1)", "$lock (i64.const 1) (i64.const 1)", "$unlock (i64.const 1)"] {
        let module = guest(&format!(
            r#"(func (export "_initialize") (call {call}))
               (func (export "marram_recv") (param i32 i32 i32))"#
        ));
        let Err(refused) = try_deploy(&module, &Quotas::default()) else { panic!("{call} is refused") };
        let name = &call[1..call.find(' ').unwrap()];
        assert!(refused.to_string().contains(&format!("called `{name}`")), "{refused}");
    }
}
