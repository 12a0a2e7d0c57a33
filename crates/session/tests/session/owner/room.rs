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

/// A session of which an end keeps the longest chain; the next checkpoint must be a full one.
fn with_a_chain(policy: OwnerPolicy, of_the_end: Option<u64>) -> Bench {
    let mut bench = Bench::new(policy);
    bench.kept[0].checkpoints_max = of_the_end;
    bench.begin();
    (0..=DELTAS_MAX).for_each(|_| bench.cover(SEALED));
    bench.look();
    bench
}

#[test]
fn a_full_checkpoint_is_taken_only_if_it_surely_fits_beside_the_chain() {
    // It may have become as large as all that an end keeps, and one more delta.
    let full = CHAIN + SIZE;
    for (of_the_edge, of_the_end, taken) in [
        (CHAIN + full, None, "copy full"),
        (CHAIN + full - 1, None, "merges deltas"),
        (1 << 30, Some(CHAIN + full), "copy full"),
        (1 << 30, Some(CHAIN + full - 1), "merges deltas"),
    ] {
        let mut bench = with_a_chain(limited(of_the_edge), of_the_end);
        bench.consume(CLIENT, "a", EXPENSIVE_NS);
        assert_eq!(bench.look()[1], taken, "{of_the_edge} {of_the_end:?}");
    }
}

#[test]
fn deltas_are_merged_again_and_again_and_it_is_said_once() {
    let mut bench = with_a_chain(limited(CHAIN + SIZE), None);
    for round in 0..3 {
        bench.consume(CLIENT, "a", EXPENSIVE_NS);
        let said: &[&str] = if round == 0 { &["merges deltas", "copy merged"] } else { &["copy merged"] };
        assert_eq!(bench.look()[1..=said.len()], *said, "{round}");
        let taken = bench.taken.as_ref().expect("a merged delta");
        let number = taken.number;
        assert_eq!((taken.base_generation, taken.base_number), (bench.generation, 1), "the full one");
        assert_eq!(bench.checkpointed(SEALED), None, "it fits");
        bench.stored(CLIENT, SIZE, Some(number));
        assert_eq!(bench.kept[0].checkpoints.len(), 2);
        bench.look();
        // It counts as one delta.
        for _ in 1..DELTAS_MAX {
            bench.cover(SEALED);
            assert!(bench.look().contains(&"copy delta".into()));
        }
    }
}

#[test]
fn a_recovered_session_goes_on_merging() {
    let mut bench = with_a_chain(limited(CHAIN + SIZE), None);
    bench.fail_over();
    bench.ask();
    bench.restored(bench.kept[0].checkpoints[DELTAS_MAX].meta.log_offset);
    bench.look();
    bench.consume(CLIENT, "a", EXPENSIVE_NS);
    assert_eq!(bench.look()[1..3], ["merges deltas", "copy merged"]);
    assert_eq!(bench.taken.as_ref().map(|taken| taken.base_number), Some(1));
}

#[test]
fn a_session_goes_on_without_checkpoints_where_none_fits() {
    let mut bench = with_a_chain(limited(CHAIN + SIZE - 1), None);
    bench.consume(CLIENT, "a", EXPENSIVE_NS);
    assert_eq!(bench.look()[1..3], ["merges deltas", "copy merged"], "it might be small");
    assert!(bench.checkpointed(SEALED).is_some_and(|reason| reason.contains("raise limits.checkpoints")));
    bench.look();
    bench.consume(CLIENT, "b", EXPENSIVE_NS);
    assert_eq!(bench.look()[1], "no checkpoint");
    // It is said once, and the session continues.
    bench.consume(CLIENT, "c", EXPENSIVE_NS);
    assert_eq!(bench.look().len(), 1);
}

#[test]
fn a_session_ends_with_the_reason_when_its_end_can_keep_nothing_more() {
    let mut bench = with_a_chain(limited(CHAIN), None);
    bench.consume(CLIENT, "a", EXPENSIVE_NS);
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
    let mut bench = with_a_chain(policy(), None);
    bench.fail_over_to(limited(CHAIN - 1));
    bench.ask();
    let lines = bench.look();
    // What the end still sends finds no owner.
    assert_eq!(lines[..3], ["client: reject Busy", "server: reject Busy", "over Busy"]);
    bench.fail_over_to(limited(CHAIN));
    bench.ask();
    assert!(bench.look().iter().any(|line| line.starts_with("restore 1 2 3")), "it fits exactly");
}
