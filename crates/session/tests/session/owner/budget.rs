//! What of a session's handler time counts for its shard's replay budget, and the checkpoints that the budget requires.

use crate::owner::bench::{Bench, CLIENT, SERVER, policy};
use marram_session::owner::{Holder, OwnerPolicy, REPLAY_SHARE_MIN_NS, REPLAY_SHARE_NS_PER_BYTE};
use marram_wire::frame::Keeps;

const TARGET_NS: u64 = 20 * REPLAY_SHARE_MIN_NS;

/// A session that runs, of which no checkpoint is due for its own sake.
fn begun() -> Bench {
    Bench::begun(OwnerPolicy { recovery_target_ns: TARGET_NS, ..policy() })
}

/// As [`begun`], 1,000 ns above its share.
fn above() -> Bench {
    let mut bench = begun();
    bench.consume(CLIENT, "a", REPLAY_SHARE_MIN_NS + 1_000);
    assert_eq!(bench.owner.replay_above_share_ns(), 1_000);
    bench.look();
    bench
}

/// The shard requires a checkpoint.
fn require(bench: &mut Bench) {
    bench.step(|owner, _, out| owner.require_checkpoint(out));
}

#[test]
fn a_session_counts_with_what_is_above_its_share() {
    let mut bench = begun();
    for (cost_ns, above_ns) in [(REPLAY_SHARE_MIN_NS - 1, 0), (1, 0), (7, 7), (10, 17)] {
        bench.consume(CLIENT, "a", cost_ns);
        assert_eq!(bench.owner.replay_above_share_ns(), above_ns);
    }
    assert_eq!(bench.owner.uncovered_replay_ns(), REPLAY_SHARE_MIN_NS + 17);
}

#[test]
fn an_idle_session_takes_the_checkpoint_at_once() {
    let mut bench = above();
    require(&mut bench);
    assert_eq!(bench.look(), ["copy full", "seal 1 at 43"]);
    assert_eq!(bench.owner.replay_above_share_ns(), 0);
    assert_eq!(bench.owner.totals().budget_checkpoints, 1);
    // The edge may still be lost with it.
    assert_eq!(bench.owner.uncovered_replay_ns(), REPLAY_SHARE_MIN_NS + 1_000);
    bench.checkpointed("sealed");
    bench.stored(CLIENT, 6, Some(1));
    assert_eq!(bench.owner.uncovered_replay_ns(), 0);
}

#[test]
fn a_session_of_which_a_handler_runs_takes_it_when_the_handler_has_ended() {
    let mut bench = above();
    bench.say(CLIENT, "b");
    bench.say(CLIENT, "c");
    require(&mut bench);
    assert!(bench.taken.is_none());
    assert_eq!(bench.owner.replay_above_share_ns(), 0, "it counts once");
    bench.ran_with(|ran| ran.cost_ns = 5);
    let header = bench.taken.as_ref().expect("before the next handler");
    assert_eq!(header.ports[0].took, 2);
    assert_eq!(bench.owner.totals().budget_checkpoints, 1);
}

#[test]
fn while_a_checkpoint_is_under_way_nothing_counts_and_none_is_begun() {
    let mut bench = above();
    require(&mut bench);
    bench.consume(CLIENT, "b", REPLAY_SHARE_MIN_NS + 500_000);
    assert_eq!(bench.owner.replay_above_share_ns(), 0);
    bench.checkpointed("sealed");
    bench.stored(CLIENT, 6, Some(1));
    // The share has grown by what the checkpoint cost.
    assert_eq!(bench.owner.replay_above_share_ns(), 500_000 - 6 * REPLAY_SHARE_NS_PER_BYTE);
    assert_eq!(bench.owner.totals().budget_checkpoints, 1);
}

#[test]
fn nothing_counts_while_a_holder_is_away() {
    let both = OwnerPolicy { recovery_target_ns: TARGET_NS, holder: Holder::Both, ..policy() };
    let mut bench = Bench::begun(both);
    bench.consume(CLIENT, "a", REPLAY_SHARE_MIN_NS + 1_000);
    bench.unlinked(SERVER);
    assert_eq!(bench.owner.replay_above_share_ns(), 0);
    assert_eq!(bench.owner.uncovered_replay_ns(), REPLAY_SHARE_MIN_NS + 1_000);
    // An end that keeps no checkpoints may be away.
    let mut bench = above();
    bench.unlinked(SERVER);
    assert_eq!(bench.owner.replay_above_share_ns(), 1_000);
    bench.unlinked(CLIENT);
    assert_eq!(bench.owner.replay_above_share_ns(), 0);
}

#[test]
fn a_large_cell_counts_for_nothing() {
    let mut bench = above();
    let cell = bench.owner.cell().expect("it runs");
    bench.step(|owner, _, _| owner.large(cell));
    assert_eq!(bench.owner.replay_above_share_ns(), 0);
}

#[test]
fn a_session_without_protection_counts_for_nothing() {
    let none = OwnerPolicy { recovery_target_ns: TARGET_NS, keeps: Keeps::Nothing, ..policy() };
    let mut bench = Bench::begun(none);
    bench.consume(CLIENT, "a", REPLAY_SHARE_MIN_NS + 1_000);
    assert_eq!((bench.owner.replay_above_share_ns(), bench.owner.uncovered_replay_ns()), (0, 0));
}

#[test]
fn a_checkpoint_that_is_not_begun_is_not_required_by_the_next_generation() {
    let mut bench = above();
    bench.say(CLIENT, "b");
    require(&mut bench);
    // The handler ends while no end is linked.
    bench.unlinked(CLIENT);
    bench.unlinked(SERVER);
    bench.ran_with(|ran| ran.cost_ns = 5);
    assert!(bench.taken.is_none());
    bench.open();
    bench.kept[0].live_at(2);
    bench.kept[1].live_at(0);
    bench.hand_over();
    assert!(bench.taken.is_none());
    assert_eq!(bench.owner.replay_above_share_ns(), 1_005, "the shard decides once more");
    assert_eq!(bench.owner.totals().budget_checkpoints, 0);
}
