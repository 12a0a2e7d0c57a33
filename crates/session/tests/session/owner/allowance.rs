//! Ends that may keep less than usual: when a checkpoint is due then.

use crate::owner::bench::{Bench, CLIENT, SERVER, charged, policy};
use marram_wire::{
    frame::Allowance,
    id::Port,
    limits::{ALLOWANCE_MIN, CHECKPOINT_AFTER_BYTES},
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
