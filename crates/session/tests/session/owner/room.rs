//! Checkpoints that do not fit beside those that an end keeps.

use crate::owner::bench::{Bench, CLIENT, EXPENSIVE_NS, charged, policy};
use marram_session::owner::OwnerPolicy;
use marram_wire::limits::{DELTAS_MAX, MESSAGE_SIZE_MAX, RETAINED_MAX};

/// The size of each checkpoint here, as [`Bench::cover`] seals it.
const SEALED: &[u8] = b"sealed";
const SIZE: u64 = 6;
/// Bytes of a full checkpoint and as many deltas as it can have.
const CHAIN: u64 = (DELTAS_MAX as u64 + 1) * SIZE;

fn limited(checkpoints_max: u64) -> OwnerPolicy {
    OwnerPolicy { checkpoints_max, ..policy() }
}

/// A session of which an end keeps the longest chain; the next checkpoint must not be a delta.
fn with_a_chain() -> Bench {
    let mut bench = Bench::begun(policy());
    (0..=DELTAS_MAX).for_each(|_| bench.cover(SEALED));
    bench.look();
    bench
}

/// The same, at an edge that takes so many bytes, of an end that keeps so many.
fn recovered(of_the_edge: u64, of_the_end: Option<u64>) -> Bench {
    let mut bench = with_a_chain();
    bench.kept[0].checkpoints_max = of_the_end;
    bench.fail_over_to(limited(of_the_edge));
    bench.ask();
    bench.restored(bench.kept[0].checkpoints[DELTAS_MAX].meta.log_offset);
    bench.look();
    bench
}

/// What is said and asked for when the next checkpoint is due.
fn next(bench: &mut Bench) -> Vec<String> {
    bench.consume(CLIENT, "a", EXPENSIVE_NS);
    let lines = bench.look().into_iter().skip(1);
    lines.take_while(|line| !line.starts_with("seal")).collect()
}

#[test]
fn a_full_checkpoint_is_taken_if_it_surely_fits_beside_the_chain() {
    // It may have become as large as all that an end keeps, and one more delta.
    let full = CHAIN + SIZE;
    for (of_the_edge, of_the_end, expected) in [
        (CHAIN + full, None, &["copy full"][..]),
        (CHAIN + full - 1, None, &["merges deltas", "copy merged"]),
        (1 << 30, Some(CHAIN + full), &["copy full"]),
        (1 << 30, Some(CHAIN + full - 1), &["merges deltas", "copy merged"]),
    ] {
        let mut bench = recovered(of_the_edge, of_the_end);
        assert_eq!(next(&mut bench), *expected, "{of_the_edge} {of_the_end:?}");
    }
}

#[test]
fn deltas_are_merged_again_and_again_while_there_is_room_for_it() {
    let mut bench = Bench::begun(limited(CHAIN + SIZE));
    let mut lines = Vec::new();
    for _ in 0..100 {
        bench.cover(SEALED);
        lines.extend(bench.look());
        assert!(bench.kept[0].checkpoints.len() <= 10, "so that a merged one as large as all deltas fits");
    }
    let count = |what: &str| lines.iter().filter(|line| *line == what).count();
    assert_eq!((count("copy full"), count("merges deltas"), count("no checkpoint")), (1, 1, 0));
    assert!(count("copy merged") > 10 && count("copy delta") > 50);
}

#[test]
fn a_merged_delta_builds_on_the_full_one_and_counts_as_one_delta() {
    let mut bench = recovered(CHAIN + SIZE, None);
    assert_eq!(next(&mut bench), ["merges deltas", "copy merged"]);
    let taken = bench.taken.as_ref().expect("a merged delta");
    let number = taken.number;
    assert_eq!(taken.base_number, 1, "the full one");
    assert_eq!(bench.checkpointed(SEALED), None, "it fits");
    bench.stored(CLIENT, SIZE, Some(number));
    assert_eq!(bench.kept[0].checkpoints.len(), 2);
    bench.look();
    assert_eq!(next(&mut bench), ["copy delta"]);
    assert_eq!(bench.taken.as_ref().map(|taken| taken.base_number), Some(number));
}

#[test]
fn after_a_checkpoint_that_was_given_up_deltas_are_merged() {
    let mut bench = Bench::begun(limited(6 * SIZE));
    (0..3).for_each(|_| bench.cover(SEALED));
    bench.look();
    let mut fail = |expected: &[&str]| {
        assert_eq!(next(&mut bench), *expected);
        let taken = bench.taken.take().expect("it was asked for");
        let cell = bench.owner.cell().expect("it runs");
        bench.answer_checkpoint(cell, taken.number, Err("no memory".into()));
        bench.look();
        taken.base_number
    };
    assert_eq!(fail(&["merges deltas", "copy merged"]), 1);
    // Not every holder has what was copied last, and a full one might not fit.
    assert_eq!(fail(&["copy merged"]), 1);
}

#[test]
fn a_session_goes_on_without_checkpoints_where_none_fits() {
    let mut bench = recovered(CHAIN + SIZE - 1, None);
    assert_eq!(next(&mut bench), ["merges deltas", "copy merged"], "it might be small");
    assert!(bench.checkpointed(SEALED).is_some_and(|reason| reason.contains("raise limits.checkpoints")));
    bench.look();
    assert_eq!(next(&mut bench), ["no checkpoint"]);
    // It is said once, and the session continues.
    assert!(next(&mut bench).is_empty());
}

#[test]
fn a_session_ends_with_the_reason_when_its_end_can_keep_nothing_more() {
    let mut bench = recovered(CHAIN, None);
    next(&mut bench);
    bench.checkpointed(SEALED);
    let largest = charged(MESSAGE_SIZE_MAX as u64);
    let count = RETAINED_MAX / MESSAGE_SIZE_MAX as u64;
    (1..count).for_each(|_| bench.consume(CLIENT, largest.clone(), 0));
    assert!(!bench.look().iter().any(|line| line.starts_with("over")), "there is still room");
    bench.consume(CLIENT, largest, 0);
    assert_eq!(bench.look().last().map(String::as_str), Some("over Guest"));
}

#[test]
fn an_edge_that_takes_less_than_an_end_has_leaves_the_session_to_another() {
    let mut bench = with_a_chain();
    bench.fail_over_to(limited(CHAIN - 1));
    bench.ask();
    let lines = bench.look();
    // What the end still sends finds no owner.
    assert_eq!(lines[..3], ["client: reject Busy", "server: reject Busy", "over Busy"]);
    bench.fail_over_to(limited(CHAIN));
    bench.ask();
    assert!(bench.look().iter().any(|line| line.starts_with("restore 1 2 3")), "it fits exactly");
}
