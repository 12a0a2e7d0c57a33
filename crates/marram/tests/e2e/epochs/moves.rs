//! Sessions move to their backups and to other edges: by an operator's command, and because their edge stops.

use super::world::{World, hear};
use crate::support::{
    self,
    stream::{Stream, until},
};

/// In turn to the backup and to the third edge, of which the first has what was released, and the other one nothing.
fn moves(purpose: &'static str, epoch: &str) {
    const ROUNDS: usize = 6;
    let world = World::new(purpose, 3, support::UNSUSPECTING, epoch);
    let streams = world.streams(2);
    for round in 0..ROUNDS {
        hear(&streams);
        let before = world.backed(streams.len());
        let (session, was) = before.first_key_value().unwrap();
        let (owner, backup) = (was.owner, was.backup.unwrap());
        let to = if round % 2 == 0 { backup } else { 3 - owner - backup };
        let planned = world.marram(owner, &["move", session, "--to", &world.name(to), "--dry-run"]);
        assert!(planned.contains(&**session), "{planned}");
        world.marram(owner, &["move", session, "--to", &world.name(to)]);
        until(
            || world.seen_by(&world.all()).get(session).filter(|seen| seen.owner == to).map(drop),
            || format!("round {round}: not moved to {to}: {}", world.cluster.logs.tail(60)),
        );
        hear(&streams);
    }
    assert_eq!(world.lost(0), 0, "no session ended");
    streams.into_iter().for_each(Stream::finish);
}

#[test]
fn operators_move_sessions_to_their_backups_and_to_other_edges() {
    moves("epoch-moves", "every = \"1ms\"");
}

#[test]
fn sessions_move_past_backups_that_hold_pages() {
    moves("epoch-moves-pages", "every = \"1ms\"\nform = \"pages\"");
}

/// An edge stops in order. Its sessions go on at their backups, and it waits until its copies of them are needed no more.
fn leaves(purpose: &'static str, edges: usize, epoch: &str) {
    let mut world = World::new(purpose, edges, support::UNSUSPECTING, epoch);
    let streams = world.streams(2);
    hear(&streams);
    let owner = world.backed(streams.len()).values().next().unwrap().owner;
    let start = world.cluster.logs.end();
    world.cluster.edges[owner].terminate();
    let status = world.cluster.edges[owner].process().unwrap().wait().unwrap();
    assert!(status.success(), "{status:?}");
    // It says so if the time is over before all sessions have left.
    let late = world.cluster.logs.count(start, |event| event.text("message").starts_with("stopping with"));
    assert_eq!(late, 0, "{}", world.cluster.logs.tail(60));
    assert_eq!(world.lost(start), 0, "no session ended");
    world.cluster.edges[owner].kill();
    hear(&streams);
    assert!(world.seen_by(&world.all()).values().all(|seen| seen.owner != owner));
    streams.into_iter().for_each(Stream::finish);
}

#[test]
fn an_edge_that_stops_is_done_when_its_sessions_have_backups_elsewhere() {
    leaves("epoch-leaves", 3, "every = \"1ms\"");
}

#[test]
fn one_of_two_edges_that_stops_is_done_when_the_other_one_runs_alone() {
    leaves("epoch-leaves-two", 2, "every = \"1ms\"\nalone_after = \"1s\"");
}
