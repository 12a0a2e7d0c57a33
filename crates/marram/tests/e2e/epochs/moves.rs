//! Sessions move to their backups: by an operator's command, and because their edge stops.

use super::world::{World, hear};
use crate::support::{
    self, marram,
    stream::{Stream, until},
};

#[test]
fn operators_move_sessions_to_their_backups_and_to_no_other_edge() {
    const ROUNDS: usize = 5;
    let world = World::new("epoch-moves", 3, support::UNSUSPECTING, "every = \"1ms\"");
    let streams = world.streams(2);
    for _ in 0..ROUNDS {
        hear(&streams);
        let before = world.backed(streams.len());
        let (session, was) = before.first_key_value().unwrap();
        let (owner, backup) = (was.owner, was.backup.unwrap());
        let third = 3 - owner - backup;
        let edge = format!("http://{}", world.cluster.edges[owner].admin());
        let refused =
            marram().args(["move", session, "--to", &world.name(third), "--edge", &edge]).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(&world.name(backup)), "{said}");
        let planned = world.marram(owner, &["move", session, "--to", &world.name(backup), "--dry-run"]);
        assert!(planned.contains(&**session), "{planned}");
        world.marram(owner, &["move", session, "--to", &world.name(backup)]);
        until(
            || world.seen_by(&world.all()).get(session).filter(|seen| seen.owner == backup).map(drop),
            || format!("not moved: {}", world.cluster.logs.tail(60)),
        );
        hear(&streams);
    }
    let failed = world.cluster.logs.count(0, |event| event.name() == "failed");
    assert_eq!(failed, 0, "no session ended");
    streams.into_iter().for_each(Stream::finish);
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
    let orphaned = world.cluster.logs.count(start, |event| event.name() == "failed");
    assert_eq!(orphaned, 0, "no session ended");
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
