//! Sessions whose outputs do not wait for the backup: it goes on although it is behind what the client has heard.

use super::{heard, is_one_history};
use crate::cells::world::{LONG_MS, World};
use marram_shard::api::ReplicationPolicy;

/// Outputs leave before the backup has them.
fn ahead() -> ReplicationPolicy {
    ReplicationPolicy { name: "ahead".into(), runs_ahead: true, ..ReplicationPolicy::default() }
}

/// The same, and they wait.
fn waits() -> ReplicationPolicy {
    ReplicationPolicy { name: "waits".into(), ..ReplicationPolicy::default() }
}

/// A client with a cell of its own, which runs with a backup: the client, and the two edges.
fn begun(edges: usize, policy: ReplicationPolicy) -> (World, usize, [usize; 2]) {
    let mut world = World::with_own_cells(edges, &[policy]);
    let client = world.joins(0);
    world.runs(LONG_MS);
    // The backup has confirmed something since it was told of the claim.
    world.says(client, "first");
    world.runs(100);
    let at = world.runs_at()[0];
    let backup = world.backup_at(at).expect("it has one")[1..].parse().expect("a number");
    (world, client, [at, backup])
}

/// The primary dies, and what it has sent since is lost on the way to the backup.
fn dies_ahead(world: &mut World, [at, backup]: [usize; 2]) {
    world.loses_unread(backup);
    world.kills(at);
    world.thaws(backup);
}

#[test]
fn outputs_leave_before_the_backup_has_them_and_it_goes_on_all_the_same() {
    for edges in [2, 3] {
        let (mut world, client, places) = begun(edges, ahead());
        world.freezes(places[1]);
        for text in ["one", "two", "three"] {
            world.says(client, text);
            world.runs(20);
            assert!(heard(&world, client, text), "{edges}: {text} has waited");
        }
        dies_ahead(&mut world, places);
        world.says(client, "after");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at(), [places[1]], "{edges}");
        // The cell consumes all of it again, and what the client has heard of that is not said twice.
        for text in ["one", "two", "three", "after"] {
            assert!(heard(&world, client, text), "{edges}: {text}: {:?}", world.heard(client));
        }
        is_one_history(&world, &[client]);
    }
}

#[test]
fn a_session_that_ran_ahead_outlives_one_edge_after_another() {
    let (mut world, client, places) = begun(4, ahead());
    world.freezes(places[1]);
    world.says(client, "ahead");
    world.runs(20);
    dies_ahead(&mut world, places);
    world.runs(LONG_MS);
    let at = world.runs_at()[0];
    assert_eq!(at, places[1]);
    world.says(client, "between");
    world.runs(100);
    let backup = world.backup_at(at).expect("it has the next one")[1..].parse().expect("a number");
    world.freezes(backup);
    world.says(client, "again");
    world.runs(20);
    assert!(heard(&world, client, "again"));
    dies_ahead(&mut world, [at, backup]);
    world.says(client, "after");
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), [backup]);
    for text in ["ahead", "between", "again", "after"] {
        assert!(heard(&world, client, text), "{text}: {:?}", world.heard(client));
    }
    is_one_history(&world, &[client]);
}

#[test]
fn an_owner_that_is_behind_is_refused_where_outputs_wait() {
    // The policy says that they wait again, and the backup has confirmed all that had left before.
    let (mut world, client, places) = begun(2, ahead());
    world.sets_policies(places[0], &[waits()]);
    world.says(client, "waits");
    world.runs(100);
    world.freezes(places[1]);
    world.says(client, "unconfirmed");
    world.runs(20);
    assert!(!heard(&world, client, "unconfirmed"));
    dies_ahead(&mut world, places);
    world.runs(LONG_MS);
    // Nothing has left that the backup lacks, so it goes on.
    assert!(heard(&world, client, "unconfirmed"), "{:?}", world.heard(client));
    is_one_history(&world, &[client]);
}

#[test]
fn what_ran_ahead_may_be_behind_until_it_is_confirmed() {
    // The policy changes while something is unconfirmed, and the primary dies before the backup has it.
    let (mut world, client, places) = begun(2, ahead());
    world.freezes(places[1]);
    world.says(client, "ahead");
    world.runs(20);
    assert!(heard(&world, client, "ahead"));
    world.sets_policies(places[0], &[waits()]);
    world.says(client, "waits");
    world.runs(20);
    assert!(!heard(&world, client, "waits"));
    dies_ahead(&mut world, places);
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), [places[1]]);
    assert!(heard(&world, client, "waits"), "{:?}", world.heard(client));
    is_one_history(&world, &[client]);
}

#[test]
fn outputs_wait_until_the_backup_knows_that_it_is_one() {
    let mut world = World::with_own_cells(2, &[ahead()]);
    let client = world.joins(0);
    world.runs(LONG_MS);
    let at = world.runs_at()[0];
    // All that the cell has said so far was confirmed. The backup is lost, and another one is fed.
    let backup = world.backup_at(at).expect("it has one")[1..].parse().expect("a number");
    world.freezes(backup);
    world.loses_unread(backup);
    world.says(client, "held");
    world.runs(1);
    world.kills(backup);
    world.says(client, "alone");
    world.runs(LONG_MS);
    assert!(heard(&world, client, "held") && heard(&world, client, "alone"), "{:?}", world.heard(client));
    is_one_history(&world, &[client]);
}

#[test]
fn a_shared_cell_waits_whatever_the_policy_says() {
    let mut world = World::with_policies(3, marram_session::owner::BackupForm::Log, &[ahead()]);
    let client = world.joins(0);
    world.runs(LONG_MS);
    world.says(client, "first");
    world.runs(100);
    let at = world.runs_at()[0];
    let backup = world.backup_at(at).expect("it has one")[1..].parse().expect("a number");
    world.freezes(backup);
    world.says(client, "waits");
    world.runs(20);
    assert!(!heard(&world, client, "waits"));
    world.thaws(backup);
    world.runs(LONG_MS);
    assert!(heard(&world, client, "waits"));
}
