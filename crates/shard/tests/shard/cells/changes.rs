//! Sessions that change their group while they run: their backup moves, or policies divide a group. Nothing is lost or repeated, and at
//! each moment an edge may die.

use super::{heard, is_one_history};
use crate::cells::world::{LONG_MS, World};
use marram_shard::api::ReplicationPolicy;

fn to(edge: &str) -> ReplicationPolicy {
    ReplicationPolicy { name: "near".into(), targets: vec![edge.into()], ..ReplicationPolicy::default() }
}

/// A session of its own at the first of three edges, with the second one as its backup.
fn backed() -> (World, usize) {
    let mut world = World::with_own_cells(3, &[to("e1")]);
    let client = world.joins(0);
    world.runs(LONG_MS);
    assert_eq!((world.runs_at(), world.backup_at(0)), (vec![0], Some("e1".into())));
    (world, client)
}

#[test]
fn the_next_backup_goes_on_when_the_primary_dies() {
    let (mut world, client) = backed();
    world.says(client, "before");
    world.moves_backup(0, "e2");
    world.says(client, "meanwhile");
    world.runs(100);
    assert_eq!((world.backup_at(0), &world.moves[..]), (Some("e2".into()), &[String::new()][..]));
    // What is said from now on is nowhere else.
    world.says(client, "after");
    world.runs(100);
    world.kills(0);
    world.says(client, "later");
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), vec![2]);
    for text in ["before", "meanwhile", "after", "later"] {
        assert!(heard(&world, client, text), "{text}: {:?}", world.heard(client));
    }
    is_one_history(&world, &[client]);
}

#[test]
fn whenever_the_primary_dies_one_of_the_two_backups_goes_on() {
    let mut went_on = std::collections::BTreeSet::new();
    for events in 0..120 {
        let (mut world, client) = backed();
        world.says(client, "before");
        world.moves_backup(0, "e2");
        world.says(client, "meanwhile");
        world.settles_some(events);
        world.kills(0);
        world.says(client, "later");
        world.runs(LONG_MS);
        went_on.extend(world.runs_at());
        assert_eq!(world.runs_at().len(), 1, "after {events} events");
        assert!(heard(&world, client, "later"), "after {events} events: {:?}", world.heard(client));
        is_one_history(&world, &[client]);
    }
    assert_eq!(went_on.into_iter().collect::<Vec<_>>(), vec![1, 2]);
}

#[test]
fn a_next_backup_that_is_silent_changes_nothing() {
    let (mut world, client) = backed();
    world.freezes(2);
    world.moves_backup(0, "e2");
    world.says(client, "silent");
    world.runs(100);
    assert!(heard(&world, client, "silent"));
    world.kills(2);
    world.runs(LONG_MS);
    assert_eq!(world.backup_at(0), Some("e1".into()));
    assert!(world.moves.iter().all(|why| why.contains("connection to that edge broke")), "{:?}", world.moves);
    world.kills(0);
    world.says(client, "later");
    world.runs(LONG_MS);
    assert!(heard(&world, client, "later"));
    is_one_history(&world, &[client]);
}

#[test]
fn a_backup_that_cannot_move_says_why() {
    let (mut world, _) = backed();
    for (edge, why) in [
        ("e0", "its own backup: name another edge"),
        ("e1", "backup already"),
        ("e7", "must name this edge in `standby.edges`"),
    ] {
        world.moves.clear();
        world.moves_backup(0, edge);
        world.runs(10);
        assert!(world.moves.len() == 1 && world.moves[0].contains(why), "{edge}: {:?}", world.moves);
    }
}

#[test]
fn sessions_whose_policy_names_another_edge_move_their_backups_there() {
    let mut world = World::with_own_cells(3, &[to("e1")]);
    let clients: Vec<usize> = (0..3).map(|_| world.joins(0)).collect();
    world.runs(LONG_MS);
    world.sets_policies(0, &[to("e2")]);
    clients.iter().for_each(|client| world.says(*client, "meanwhile"));
    world.runs(LONG_MS);
    assert_eq!(world.backup_at(0), Some("e2".into()));
    assert!(world.replication_at(0).iter().all(|row| !row.former));
    world.kills(0);
    clients.iter().for_each(|client| world.says(*client, "later"));
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), vec![2]);
    for client in clients {
        assert!(heard(&world, client, "meanwhile") && heard(&world, client, "later"));
        is_one_history(&world, &[client]);
    }
}

#[test]
fn a_session_whose_outputs_do_not_wait_keeps_its_backup() {
    let ahead = |edge: &str| ReplicationPolicy { runs_ahead: true, ..to(edge) };
    let mut world = World::with_own_cells(3, &[ahead("e1")]);
    let client = world.joins(0);
    world.says(client, "before");
    world.runs(LONG_MS);
    world.moves_backup(0, "e2");
    world.runs(10);
    assert!(world.moves[0].contains("do not wait"), "{:?}", world.moves);
    world.sets_policies(0, &[ahead("e2")]);
    world.runs(LONG_MS);
    assert_eq!(world.backup_at(0), Some("e1".into()));
    // Once they wait, it moves.
    world.sets_policies(0, &[to("e2")]);
    world.says(client, "waits");
    world.runs(LONG_MS);
    assert_eq!(world.backup_at(0), Some("e2".into()));
    world.kills(0);
    world.says(client, "later");
    world.runs(LONG_MS);
    assert!(heard(&world, client, "later"));
    is_one_history(&world, &[client]);
}
