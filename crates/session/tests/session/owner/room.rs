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
fn a_full_checkpoint_is_taken_only_if_it_fits_beside_the_chain() {
    for (of_the_edge, of_the_end, taken) in [
        (CHAIN + SIZE, None, true),
        (CHAIN + SIZE - 1, None, false),
        (1 << 30, Some(CHAIN + SIZE), true),
        (1 << 30, Some(CHAIN + SIZE - 1), false),
    ] {
        let mut bench = with_a_chain(limited(of_the_edge), of_the_end);
        bench.consume(CLIENT, "a", EXPENSIVE_NS);
        let lines = bench.look();
        assert_eq!(
            lines[1],
            if taken { "copy full" } else { "no checkpoint" },
            "{of_the_edge} {of_the_end:?}"
        );
        // It is said once, and the session continues.
        bench.consume(CLIENT, "b", EXPENSIVE_NS);
        assert_eq!(bench.look().len(), 1);
    }
}

#[test]
fn deltas_go_on_while_a_full_checkpoint_might_not_fit() {
    // A second full one would fit if the cell did not grow; with all that the delta may have added, it does not.
    let mut bench = Bench::begun(limited(3 * SIZE));
    let request_full = |bench: &mut Bench| {
        bench.consume(CLIENT, "a", EXPENSIVE_NS);
        bench.look()[1].clone()
    };
    bench.cover(SEALED);
    bench.cover(SEALED);
    assert_eq!(bench.look().iter().filter(|line| line.starts_with("copy")).count(), 2);
    assert_eq!(request_full(&mut bench), "copy delta");
    let number = bench.taken.as_ref().expect("a delta").number;
    assert_eq!(bench.checkpointed(SEALED), None, "it fills the limit");
    bench.stored(CLIENT, SIZE, Some(number));
    bench.look();
    assert_eq!(request_full(&mut bench), "no checkpoint");
}

#[test]
fn a_session_ends_with_the_reason_when_its_end_can_keep_nothing_more() {
    let mut bench = with_a_chain(limited(CHAIN), None);
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
