//! Moves that are late once they are handed over: because the other edge does nothing, or because this one slept.

use crate::{
    agents::world::World,
    moves::{handed_over, over},
};
use marram_wire::id::Generation;

/// How long the other edge may take.
const TAKE_MS: u64 = 5_000;
/// How long this one reads what has arrived before it gives the move up.
const READ_MS: u64 = 1_000;
/// A shard that looks so late has slept.
const SLEPT_MS: u64 = 101;

#[test]
fn a_session_that_was_taken_over_while_its_shard_slept_has_moved() {
    // Once, and again while it would have read.
    for sleeps_ms in [&[TAKE_MS][..], &[TAKE_MS + READ_MS + 1], &[20_000], &[TAKE_MS, READ_MS + SLEPT_MS]] {
        let mut world = World::new();
        handed_over(&mut world, "there");
        // Its timer is first, and what an end says is read behind that.
        sleeps_ms.iter().for_each(|ms| world.wait_ms(*ms));
        assert_eq!(over(&mut world), [], "{sleeps_ms:?}");
        world.superseded(Generation { count: 50, opener: 1 });
        assert_eq!(over(&mut world), [(world.session, "there".into(), String::new())], "{sleeps_ms:?}");
        assert!(world.shard.owner(world.session).is_none());
    }
}

#[test]
fn a_session_that_the_other_edge_does_not_take_over_in_time_stays() {
    for sleep_ms in [TAKE_MS, 20_000] {
        let mut world = World::new();
        handed_over(&mut world, "there");
        world.wait_ms(sleep_ms);
        world.wait_ms(READ_MS - 1);
        assert_eq!(over(&mut world), [], "{sleep_ms}");
        world.wait_ms(1);
        let results = over(&mut world);
        let [(session, to, why)] = &results[..] else { panic!("{results:?}") };
        assert_eq!((*session, &to[..]), (world.session, "there"));
        assert!(why.contains("did not take the session over in time"), "{why}");
        world.unharmed();
    }
}
