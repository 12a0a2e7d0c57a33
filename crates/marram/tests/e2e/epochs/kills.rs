//! The edge that runs a session is killed, or stopped and woken, again and again.

use super::world::{World, hear};
use crate::support::{
    self,
    stream::{Stream, until},
};

/// Kills the edge of a session, again and again. The backups take over, and the sessions go on.
fn killed(purpose: &'static str, kills: usize, epoch: &str) {
    let mut world = World::new(purpose, 3, support::UNSUSPECTING, epoch);
    let streams = world.streams(4);
    for round in 0..kills {
        hear(&streams);
        let before = world.backed(streams.len());
        let victim = before.values().nth(round % streams.len()).unwrap().owner;
        world.cluster.edges[victim].kill();
        hear(&streams);
        let after = world.backed(streams.len());
        for (session, was) in before.iter().filter(|(_, was)| was.owner == victim) {
            assert_eq!(Some(after[session].owner), was.backup, "round {round}: {session}");
        }
        world.restart(victim);
    }
    assert_eq!(world.lost(0), 0, "no session ended");
    streams.into_iter().for_each(Stream::finish);
}

#[test]
fn backups_go_on_when_owners_are_killed_with_epochs_of_a_millisecond() {
    let kills = support::amount("MARRAM_EPOCH_KILLS", 40);
    killed("epoch-kills", kills.div_ceil(2), "every = \"1ms\"");
}

#[test]
fn backups_go_on_when_owners_are_killed_with_an_epoch_for_each_message() {
    let kills = support::amount("MARRAM_EPOCH_KILLS", 40);
    killed("epoch-kills-message", kills.div_ceil(2), "every = \"message\"");
}

#[test]
fn backups_go_on_from_pages_when_owners_are_killed() {
    let kills = support::amount("MARRAM_EPOCH_KILLS", 20);
    killed("epoch-kills-pages", kills.div_ceil(2), "every = \"1ms\"\nform = \"pages\"");
}

#[test]
fn a_primary_that_was_replaced_while_it_slept_has_nothing_accepted() {
    const ROUNDS: usize = 3;
    let world = World::new("epoch-sleeps", 2, support::PATIENT, "every = \"1ms\"");
    let streams = world.streams(2);
    for _ in 0..ROUNDS {
        hear(&streams);
        let before = world.backed(streams.len());
        let sleeper = before.values().next().unwrap().owner;
        world.cluster.edges[sleeper].stop();
        hear(&streams);
        // It is not only slow: its backup has gone on in its place.
        let promoted = || {
            let seen = world.seen_by(&[1 - sleeper]);
            let is_promoted = |session: &String| seen.get(session).is_some_and(|it| it.owner == 1 - sleeper);
            before.keys().all(is_promoted).then_some(())
        };
        until(promoted, || world.cluster.logs.tail(60));
        world.cluster.edges[sleeper].wake();
        hear(&streams);
        world.backed(streams.len());
    }
    streams.into_iter().for_each(Stream::finish);
}
