//! Policies that change while cells run: how often epochs end, which backup a group gets next, and that nothing is lost or repeated.

use super::{FORMS, heard, is_one_history};
use crate::cells::world::{LONG_MS, World};
use marram_shard::api::ReplicationPolicy;

/// An interval that shows.
const SLOW_MS: u64 = 1_000;

fn policy(name: &str, every_ms: u64) -> ReplicationPolicy {
    let every_us = u32::try_from(every_ms * 1_000).expect("an epoch is short");
    ReplicationPolicy { name: name.into(), every_us: Some(every_us), ..ReplicationPolicy::default() }
}

fn with_targets(name: &str, targets: &[&str]) -> ReplicationPolicy {
    let targets = targets.iter().map(ToString::to_string).collect();
    ReplicationPolicy { targets, ..policy(name, 0) }
}

fn of_clients(policy: ReplicationPolicy, prefix: &str) -> ReplicationPolicy {
    ReplicationPolicy { client: Some(prefix.parse().expect("a prefix")), ..policy }
}

/// A client says ten things, one each 10 ms. Returns how often it heard something of that meanwhile: as often as epochs have ended.
fn times_heard(world: &mut World, client: usize, text: &str) -> usize {
    let mut times = 0;
    for number in 0..10 {
        let before = world.heard(client).len();
        world.says(client, &format!("{text} {number}"));
        world.runs(10);
        times += usize::from(world.heard(client).len() > before);
    }
    times
}

#[test]
fn another_interval_holds_at_once_and_nothing_is_lost_or_repeated() {
    for form in FORMS {
        let mut world = World::with_policies(3, form, &[policy("a", SLOW_MS)]);
        let clients: Vec<usize> = (0..2).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        let at = world.runs_at()[0];
        let backup = world.backup_at(at);
        let times = times_heard(&mut world, clients[0], "slow");
        // Pages release what they cover when they are stored, also between two ends of epochs.
        assert!(form != FORMS[0] || times <= 2, "{form:?}: {times}");
        world.sets_policies(at, &[policy("b", 0)]);
        assert_eq!(times_heard(&mut world, clients[0], "fast"), 10);
        // It is the same group: no claim, and the same backup.
        assert_eq!((world.runs_at(), world.backup_at(at)), (vec![at], backup));
        let rows = world.replication_at(at);
        let row = rows.iter().find(|row| row.policy.is_some()).expect("the cell is listed");
        assert_eq!((row.policy.as_deref(), row.every_us, row.former), (Some("b"), 0, false));
        // What waits for the end of a long epoch leaves at the end of a short one.
        world.sets_policies(at, &[policy("a", SLOW_MS)]);
        let times = times_heard(&mut world, clients[1], "waits");
        assert!(form != FORMS[0] || times <= 2, "{form:?}: {times}");
        world.sets_policies(at, &[]);
        world.runs(10);
        assert!(heard(&world, clients[1], "waits 9"), "{:?}", world.heard(clients[1]));
        world.sets_policies(at, &[policy("a", SLOW_MS)]);
        world.says(clients[0], "dies");
        world.kills(at);
        world.says(clients[1], "after");
        world.runs(LONG_MS);
        for client in &clients {
            assert!(heard(&world, *client, "dies") && heard(&world, *client, "after"));
        }
        is_one_history(&world, &clients);
    }
}

#[test]
fn no_change_of_policies_lets_outputs_go_before_the_backup_has_them() {
    let lists = [vec![], vec![policy("a", 0)], vec![policy("a", 1)], vec![with_targets("c", &["nowhere"])]];
    for list in lists {
        let mut world = World::with_policies(3, FORMS[0], &[policy("a", 0)]);
        let client = world.joins(0);
        world.runs(LONG_MS);
        let at = world.runs_at()[0];
        let backup: usize = world.backup_at(at).expect("it has one")[1..].parse().expect("a number");
        world.freezes(backup);
        world.sets_policies(at, &list);
        world.says(client, "unconfirmed");
        world.runs(20);
        assert!(!heard(&world, client, "unconfirmed"), "{list:?}");
        world.sets_policies(at, &[]);
        world.runs(20);
        assert!(!heard(&world, client, "unconfirmed"), "{list:?}");
        world.thaws(backup);
        world.runs(LONG_MS);
        assert!(heard(&world, client, "unconfirmed"), "{list:?}");
        is_one_history(&world, &[client]);
    }
}

#[test]
fn a_cell_gets_the_backup_that_the_new_policy_names_and_the_next_one_of_its_list() {
    let mut world = World::with_policies(4, FORMS[0], &[with_targets("near", &["e0", "e1"])]);
    let client = world.joins(0);
    world.runs(LONG_MS);
    assert_eq!((world.runs_at(), world.backup_at(0)), (vec![0], Some("e1".into())));
    // The same backup by another list is nothing former.
    world.sets_policies(0, &[with_targets("near", &["e1", "e3"])]);
    assert!(!world.replication_at(0)[0].former);
    world.sets_policies(0, &[with_targets("near", &["e2", "e3"])]);
    assert!(world.replication_at(0)[0].former);
    world.runs(LONG_MS);
    assert_eq!(world.backup_at(0), Some("e2".into()));
    assert!(!world.replication_at(0)[0].former);
    world.kills(2);
    world.says(client, "after");
    world.runs(LONG_MS);
    assert_eq!((world.runs_at(), world.backup_at(0)), (vec![0], Some("e3".into())));
    assert!(!world.replication_at(0)[0].former);
    assert!(heard(&world, client, "after"));
    is_one_history(&world, &[client]);
}

#[test]
fn a_group_whose_sessions_follow_several_policies_divides() {
    let mut world = World::with_own_cells(3, &[policy("all", 0)]);
    for first in [0; 4] {
        world.joins(first);
    }
    world.runs(LONG_MS);
    let followed = |world: &mut World| {
        let rows = world.replication_at(0);
        let mut rows: Vec<_> = rows.into_iter().map(|row| (row.policy, row.every_us, row.former)).collect();
        rows.sort();
        rows
    };
    let row = |name: &str, every_ms: u32, former| (Some(name.to_string()), every_ms * 1_000, former);
    assert_eq!(followed(&mut world), vec![row("all", 0, false); 4]);
    // Three of them are one group, with the same backup; one is in another.
    let some = of_clients(policy("some", 5), "10.0.0.0/31");
    world.sets_policies(0, &[some.clone(), policy("rest", 7)]);
    let rows = followed(&mut world);
    assert!(rows.contains(&row("all", 0, true)), "{rows:?}");
    // It takes a moment until each is in a group of its policy.
    (0..4).for_each(|client| world.says(client, "divides"));
    world.runs(LONG_MS);
    let rows = followed(&mut world);
    assert!(rows.iter().all(|it| *it == row("some", 5, false) || *it == row("rest", 7, false)), "{rows:?}");
    let follow_rest =
        |rows: &[(Option<String>, u32, bool)]| rows.iter().filter(|it| **it == row("rest", 7, false)).count();
    assert!((1..4).contains(&follow_rest(&rows)), "{rows:?}");
    // Sessions that begin join them.
    let new = world.joins(0);
    world.runs(LONG_MS);
    assert_eq!(follow_rest(&followed(&mut world)), follow_rest(&rows) + 1);
    // All agree again.
    world.sets_policies(0, &[policy("one", 3)]);
    assert_eq!(followed(&mut world), vec![row("one", 3, false); 5]);
    world.says(new, "on");
    world.runs(100);
    assert!(heard(&world, new, "on"));
    world.kills(0);
    for client in 0..5 {
        world.says(client, "after");
    }
    world.runs(LONG_MS);
    for client in 0..5 {
        assert!(heard(&world, client, "after"), "{client}: {:?}", world.heard(client));
        is_one_history(&world, &[client]);
    }
}
