//! Full checkpoints for keepers alone: the ends' list goes on as if they had not been taken.

use crate::owner::bench::{Bench, CLIENT, EXPENSIVE_NS, SERVER, message, policy};
use marram_session::{
    cell::CheckpointBase,
    owner::{Feed, KeeperId},
};

const KEEPER: KeeperId = KeeperId(7);

fn joins(bench: &mut Bench, keeper: u64, feed: Feed) {
    let channel = u32::try_from(2 * keeper + 1).expect("a small number");
    bench.step(|owner, _, out| owner.add_replica(KeeperId(keeper), channel, feed, out));
}

/// Lines about the ends, which begin with the end's name.
fn to_ends(lines: &[String]) -> Vec<&str> {
    let to_end = |line: &&String| line.starts_with("client:") || line.starts_with("server:");
    lines.iter().filter(to_end).map(String::as_str).collect()
}

#[test]
fn a_keeper_that_replays_begins_with_one_and_the_ends_get_their_log_only() {
    let mut bench = Bench::begun(policy());
    bench.cover(b"sealed");
    bench.consume(CLIENT, "a", 0);
    bench.look();
    joins(&mut bench, KEEPER.0, Feed::Moved);
    assert_eq!(bench.copied, Some(CheckpointBase::Apart));
    let header = bench.taken.clone().expect("it is sealed at once");
    assert_eq!((header.number, header.base_number), (2, 1), "it names the full one of the ends");
    assert_eq!(header.log_offset, bench.log_end());
    bench.look();
    assert_eq!(bench.checkpointed(&b"apart"[..]), None);
    let lines = bench.look();
    assert!(lines.iter().any(|line| line.starts_with("to keeper 7: Base")), "{lines:?}");
    let ends = to_ends(&lines);
    assert!(ends.len() == 2 && ends.iter().all(|line| line.contains("log")), "{ends:?}");
    // The next one for the ends is a delta on what they have.
    bench.consume(CLIENT, "b", EXPENSIVE_NS);
    assert_eq!(bench.copied, Some(CheckpointBase::Previous));
    let header = bench.taken.as_ref().expect("it is due");
    assert_eq!((header.number, header.base_number), (3, 1));
}

#[test]
fn it_does_not_wait_for_an_end_that_is_slow() {
    let mut bench = Bench::begun(policy());
    bench.cover(b"sealed");
    // A delta is on its way to the ends, and outputs are not acknowledged.
    bench.consume(CLIENT, "dear", EXPENSIVE_NS);
    assert_eq!(bench.checkpointed(&b"delta!"[..]), None);
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| ran.outputs = vec![message(SERVER, "A")]);
    joins(&mut bench, KEEPER.0, Feed::Replayed);
    assert_eq!(bench.copied, Some(CheckpointBase::Apart));
    let header = bench.taken.clone().expect("it is sealed at once");
    assert_eq!(header.ports[1].outbox.0.len(), 1, "with the output in it");
    // The delta is held meanwhile.
    bench.stored(CLIENT, 6, Some(2));
    assert_eq!(bench.checkpointed(&b"apart"[..]), None);
    // Another keeper begins with one of its own, of which no checkpoint can be made; the first one stays.
    joins(&mut bench, 8, Feed::Moved);
    let (cell, number) = (bench.owner.cell().expect("a cell"), bench.taken.take().expect("another").number);
    let reason = bench.answer_checkpoint(cell, number, Err("no memory is left".into()));
    assert_eq!(reason.as_deref(), Some("no memory is left"));
    assert_eq!(bench.owner.keepers().map(|replica| replica.keeper).collect::<Vec<_>>(), [KEEPER]);
    bench.consume(CLIENT, "b", EXPENSIVE_NS);
    assert_eq!(bench.copied, Some(CheckpointBase::Previous));
}

#[test]
fn where_the_ends_have_no_full_one_or_another_keeper_keeps_checkpoints_they_get_it_too() {
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, "a", 0);
    joins(&mut bench, KEEPER.0, Feed::Replayed);
    assert_eq!(bench.copied, Some(CheckpointBase::Image));
    let mut bench = Bench::begun(policy());
    bench.cover(b"sealed");
    // A delta is on its way, so that both wait.
    bench.consume(CLIENT, "dear", EXPENSIVE_NS);
    joins(&mut bench, KEEPER.0, Feed::Replayed);
    joins(&mut bench, 8, Feed::Kept);
    assert_eq!(bench.checkpointed(&b"delta!"[..]), None);
    bench.stored(CLIENT, 6, Some(2));
    assert_eq!(bench.copied, Some(CheckpointBase::Image));
}
