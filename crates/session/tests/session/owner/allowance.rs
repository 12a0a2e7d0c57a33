//! Ends that may keep less than usual: when a checkpoint is due then.

use crate::owner::bench::{Bench, CLIENT, EXPENSIVE_NS, SERVER, charged, policy};
use marram_session::owner::{Owner, OwnerPhase};
use marram_wire::{
    frame::Allowance,
    id::Port,
    limits::{ALLOWANCE_MIN, CHECKPOINT_AFTER_BYTES, MESSAGE_SIZE_MAX, RETAINED_MAX},
};

fn allow(bench: &mut Bench, port: Port, bytes: u64) -> Vec<String> {
    bench.frame(port, Allowance { channel: port.0 + 1, bytes });
    bench.look()
}

/// The cell consumes a message of this charge from the client; returns what follows.
fn consume(bench: &mut Bench, bytes: u64) -> Vec<String> {
    bench.consume(CLIENT, charged(bytes), 0);
    bench.look().split_off(1)
}

#[test]
fn a_checkpoint_is_due_when_an_end_keeps_what_it_may() {
    let mut bench = Bench::begun(policy());
    assert_eq!(consume(&mut bench, 3 * ALLOWANCE_MIN), [""; 0], "there is room for 4 MiB");
    assert_eq!(allow(&mut bench, CLIENT, 8 * ALLOWANCE_MIN), [""; 0]);
    assert_eq!(consume(&mut bench, 5 * ALLOWANCE_MIN), ["copy full", "seal 1 at 44"]);
}

#[test]
fn one_that_is_due_already_is_taken_at_once() {
    let mut bench = Bench::begun(policy());
    consume(&mut bench, 3 * ALLOWANCE_MIN);
    let lines = allow(&mut bench, SERVER, ALLOWANCE_MIN);
    assert_eq!(lines, [""; 0], "the server's end keeps none of the client's messages");
    assert_eq!(allow(&mut bench, CLIENT, ALLOWANCE_MIN), ["copy full", "seal 1 at 43"]);
}

#[test]
fn no_end_can_ask_for_a_checkpoint_after_each_message_or_for_none() {
    let mut bench = Bench::begun(policy());
    assert_eq!(allow(&mut bench, CLIENT, 0), [""; 0]);
    assert_eq!(consume(&mut bench, ALLOWANCE_MIN - 1), [""; 0]);
    assert_eq!(allow(&mut bench, CLIENT, u64::MAX), [""; 0]);
    let lines = (0..8).flat_map(|_| consume(&mut bench, CHECKPOINT_AFTER_BYTES / 8));
    let lines: Vec<String> = lines.filter(|line| !line.contains("credit")).collect();
    // Of the last one, or the copy would have followed earlier.
    assert_eq!(lines, ["copy full", "seal 1 at 51"]);
}

/// The executor cannot make the checkpoint that is due; returns what follows.
fn fail(bench: &mut Bench) -> Vec<String> {
    let number = bench.taken.take().expect("one was asked for").number;
    let cell = bench.owner.cell().expect("it runs");
    bench.answer_checkpoint(cell, number, Err("no memory".into()));
    bench.look()
}

#[test]
fn no_session_ends_because_its_agent_has_little_memory() {
    let mut bench = Bench::begun(policy());
    allow(&mut bench, CLIENT, ALLOWANCE_MIN);
    bench.consume(CLIENT, "a", EXPENSIVE_NS);
    assert_eq!(
        fail(&mut bench).last().map(String::as_str),
        Some("no checkpoint"),
        "hardly anything is uncovered"
    );
    // As much as the end has told that it may keep, and far more: it waits until its agent has room.
    for bytes in [ALLOWANCE_MIN, 100 * ALLOWANCE_MIN] {
        bench.consume(CLIENT, charged(bytes), 0);
        assert_eq!(fail(&mut bench).last().map(String::as_str), Some("no checkpoint"), "{bytes}");
    }
    assert_eq!(bench.phase(), OwnerPhase::Running);
    assert!(bench.owner.cell().is_some());
}

#[test]
fn a_checkpoint_that_could_not_be_made_is_tried_again_though_nothing_happens() {
    let mut bench = Bench::begun(policy());
    allow(&mut bench, CLIENT, ALLOWANCE_MIN);
    consume(&mut bench, ALLOWANCE_MIN);
    assert_eq!(fail(&mut bench), ["no checkpoint"]);
    let due_ns = bench.owner.due_ns().expect("it is tried again");
    bench.step(Owner::tick);
    assert_eq!(bench.look(), [""; 0], "not yet");
    bench.now.mono_ns = due_ns;
    bench.step(Owner::tick);
    assert_eq!(bench.look(), ["copy full", "seal 2 at 43"]);
    assert_eq!(bench.owner.due_ns(), None, "once");
}

#[test]
fn nothing_follows_the_end_of_a_session_of_which_no_checkpoint_fits() {
    let mut bench = Bench::begun(policy());
    let largest = charged(MESSAGE_SIZE_MAX as u64);
    (0..RETAINED_MAX / MESSAGE_SIZE_MAX as u64).for_each(|_| bench.consume(CLIENT, largest.clone(), 0));
    bench.look();
    let lines = fail(&mut bench);
    assert_eq!(
        lines,
        ["no checkpoint", "client: ended Guest", "server: ended Guest", "remove 1", "over Guest"]
    );
}
