//! Tasks: their order among messages, timers and tasks, what is logged, and what a checkpoint restores.

use crate::owner::bench::{Bench, CLIENT, EXPENSIVE_NS, SERVER, policy, set};
use marram_session::cell::TaskChange;
use marram_session::owner::{OwnerPhase, OwnerPolicy};

fn spawn(token: u64) -> TaskChange {
    TaskChange::Spawn { stage: 0, token }
}

fn lock(id: u64, token: u64) -> TaskChange {
    TaskChange::Lock { stage: 0, id, token }
}

fn unlock(id: u64, token: u64) -> TaskChange {
    TaskChange::Unlock { stage: 0, id, token }
}

fn does(bench: &mut Bench, tasks: &[TaskChange]) {
    bench.ran_with(|ran| ran.tasks = tasks.to_vec());
}

#[test]
fn tasks_timers_and_messages_take_turns() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.say(CLIENT, "b");
    bench.say(SERVER, "1");
    bench.ran_with(|ran| {
        ran.tasks = vec![spawn(7), spawn(8)];
        ran.timers = vec![set(1, 0), set(2, 0)];
    });
    let mut lines = bench.look();
    for _ in 0..6 {
        // A cell that spawns a task in every handler.
        does(&mut bench, &[spawn(9)]);
        lines.extend(bench.look());
    }
    let expected = [
        "run a of client",
        "run timer 1",
        "run task 7",
        "run 1 of server",
        "run timer 2",
        "run task 8",
        "run b of client",
        "run task 9",
    ];
    assert_eq!(lines, expected);
    bench.say(CLIENT, "c");
    for expected in ["run c of client", "run task 9", "run task 9"] {
        does(&mut bench, &[spawn(9)]);
        assert_eq!(bench.look(), [expected]);
    }
}

#[test]
fn a_task_is_one_byte_of_log_and_runs_again_in_replay() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    does(&mut bench, &[spawn(7), lock(1, 8), lock(1, 9)]);
    bench.ran(&[]);
    bench.ran(&[(CLIENT, "eight")]);
    bench.say(CLIENT, "b");
    bench.ran(&[(SERVER, "end")]);
    assert_eq!(bench.kept[1].log[42..], [0, 4, 4, 0]);
    bench.fail_over();
    bench.ask();
    bench.started();
    bench.opened();
    bench.look();
    does(&mut bench, &[spawn(7), lock(1, 8), lock(1, 9)]);
    bench.ran(&[]);
    bench.ran(&[(CLIENT, "eight")]);
    assert_eq!(bench.look(), ["run task 7", "run task 8", "run b of client"]);
    bench.ran(&[(SERVER, "end")]);
    assert_eq!((bench.phase(), bench.run.is_none()), (OwnerPhase::Running, true), "9 waits for the lock");
    // Task 8 is woken, and releases the lock.
    bench.say(CLIENT, "c");
    does(&mut bench, &[spawn(8)]);
    bench.look();
    does(&mut bench, &[unlock(1, 8)]);
    assert_eq!(bench.look(), ["run task 9"]);
}

#[test]
fn tasks_and_locks_come_back_with_a_checkpoint() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| {
        ran.tasks = vec![lock(1, 8), spawn(7), lock(1, 9), spawn(6)];
        ran.cost_ns = EXPENSIVE_NS;
    });
    // The copy was made before the first of them ran.
    let header = bench.taken.clone().expect("a checkpoint is due");
    let tokens: Vec<u64> = header.tasks.0.iter().map(|task| task.token).collect();
    assert_eq!((tokens, header.locks.0.len()), (vec![8, 7, 6], 1));
    assert_eq!(bench.checkpointed("sealed"), None);
    bench.stored(CLIENT, 6, Some(header.number));
    bench.fail_over();
    bench.ask();
    bench.restored(header.log_offset);
    bench.look();
    for (done, next) in
        [(vec![unlock(1, 8)], "run task 7"), (vec![], "run task 6"), (vec![], "run task 9"), (vec![], "")]
    {
        does(&mut bench, &done);
        assert_eq!(bench.look().first().map_or("", String::as_str), next);
    }
}

#[test]
fn a_cell_with_tasks_is_not_spent() {
    let mut bench = Bench::begun(OwnerPolicy { server: None, ..policy() });
    bench.close(CLIENT);
    does(&mut bench, &[spawn(7)]);
    assert_eq!(bench.look(), ["run close client", "run task 7"]);
    bench.ran(&[(CLIENT, "late")]);
    let lines = bench.look();
    assert_eq!(lines, ["client: output late with log 0..44", "client: close"]);
}

#[test]
fn what_no_cell_may_do_with_locks_ends_the_session() {
    let circle = vec![lock(1, 7), lock(2, 8)];
    for (first, then, why) in [
        (vec![spawn(7)], vec![unlock(1, 7)], true),
        (circle.clone(), vec![lock(2, 7)], false),
        (circle, vec![lock(2, 7), lock(1, 8)], true),
        ((0..1_024).map(spawn).collect(), vec![spawn(0)], false),
        ((0..1_024).map(spawn).collect(), vec![spawn(0), spawn(1_024)], true),
    ] {
        let mut bench = Bench::begun(policy());
        bench.say(CLIENT, "a");
        does(&mut bench, &first);
        does(&mut bench, &then);
        assert_eq!(bench.look().contains(&"over Guest".into()), why, "{then:?}");
    }
}

#[test]
fn tasks_that_waited_to_the_end_for_a_lock_are_reported() {
    let mut bench = Bench::begun(OwnerPolicy { server: None, ..policy() });
    bench.say(CLIENT, "a");
    does(&mut bench, &[lock(1, 7), lock(1, 8)]);
    bench.ran(&[]);
    bench.close(CLIENT);
    bench.ran(&[]);
    bench.credit(CLIENT, 1, 0);
    let mut reason = String::new();
    bench.step(|owner, now, out| {
        owner.receive(now, CLIENT, marram_wire::frame::Finished { channel: 1 }.into(), out);
        let over = |effect: &marram_session::owner::OwnerEffect| match effect {
            marram_session::owner::OwnerEffect::Done(_, reason) => Some(reason.clone()),
            _ => None,
        };
        reason = out.iter().find_map(over).expect("the session is over");
    });
    assert!(reason.contains("lock 1 was never released by task 7"), "{reason}");
}
