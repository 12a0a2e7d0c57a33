//! Policies that ask for what is measured of a session: it changes its group when its rate crosses a limit, and back, and nothing is lost
//! or repeated.

use super::{FORMS, heard, is_one_history};
use crate::cells::world::{LONG_MS, World};
use marram_shard::api::{ReplicationPolicy, TrafficCondition};

const KIB: u64 = 1 << 10;
/// What is sent of a copy at a time.
const PART: usize = marram_wire::limits::PART_SIZE;
/// Longer than a session that is outside of the limits takes to leave a policy, and its group.
const LEAVES_MS: u64 = 30_000;

fn policy(name: &str, every_us: u32, target: &str) -> ReplicationPolicy {
    let targets = Vec::from_iter((!target.is_empty()).then(|| target.to_string()));
    ReplicationPolicy { name: name.into(), every_us: Some(every_us), targets, ..ReplicationPolicy::default() }
}

/// For sessions of 4 KiB a second and more.
fn bulk(every_us: u32, target: &str) -> ReplicationPolicy {
    let traffic = TrafficCondition { rate_min: Some(4 * KIB), ..TrafficCondition::default() };
    ReplicationPolicy { traffic, ..policy("bulk", every_us, target) }
}

/// These clients say much for so many seconds: each hears all of it from its cell, which doubles its rate.
fn send(world: &mut World, clients: &[usize], seconds: usize, word: &str) {
    let text = format!("{word} {}", "x".repeat(500));
    for _ in 0..10 * seconds {
        clients.iter().for_each(|client| world.says(*client, &text));
        world.runs(100);
    }
}

/// The policies that the sessions at an edge follow, with their intervals, and whether they keep something of a former one.
fn followed(world: &mut World, edge: usize) -> Vec<(String, u32, bool)> {
    let rows = world.replication_at(edge).into_iter();
    let mut rows: Vec<_> =
        rows.map(|row| (row.policy.unwrap_or_default(), row.every_us, row.former)).collect();
    rows.sort();
    rows
}

fn row(name: &str, every_us: u32) -> (String, u32, bool) {
    (name.to_string(), every_us, false)
}

#[test]
fn a_session_changes_its_group_when_its_rate_crosses_the_limit_and_back() {
    let mut world = World::with_own_cells(3, &[bulk(5_000, "e2"), policy("rest", 1_000, "e1")]);
    let clients: Vec<usize> = (0..3).map(|_| world.joins(0)).collect();
    world.runs(LONG_MS);
    assert_eq!(followed(&mut world, 0), vec![row("rest", 1_000); 3]);
    let backups = |world: &World| {
        let backup = |client: &usize| {
            let shard = world.shard(0);
            shard.backup_of(world.session(*client)?).map(ToString::to_string)
        };
        clients.iter().map(|client| backup(client).unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(backups(&world), ["e1"; 3]);
    send(&mut world, &clients[..1], 2, "soon");
    assert_eq!(followed(&mut world, 0), vec![row("rest", 1_000); 3], "it is within for a moment only");
    send(&mut world, &clients[..1], 8, "much");
    let (many, rest) = (row("bulk", 5_000), row("rest", 1_000));
    assert_eq!(followed(&mut world, 0), [many.clone(), rest.clone(), rest.clone()]);
    assert_eq!(backups(&world), ["e2", "e1", "e1"]);
    let rate = world.replication_at(0).into_iter().filter_map(|row| row.rate).max();
    assert!(rate.is_some_and(|rate| (8 * KIB..12 * KIB).contains(&rate)), "{rate:?}");
    // A pause is no reason to go back.
    world.runs(8_000);
    send(&mut world, &clients[..1], 4, "again");
    assert_eq!(followed(&mut world, 0)[0], many);
    world.runs(LEAVES_MS);
    assert_eq!(followed(&mut world, 0), vec![rest; 3]);
    assert_eq!(backups(&world), ["e1"; 3]);
    for client in &clients {
        world.says(*client, "end");
    }
    world.kills(0);
    world.runs(LONG_MS);
    for client in clients {
        assert!(heard(&world, client, "end"));
        is_one_history(&world, &[client]);
    }
}

#[test]
fn a_session_that_crosses_the_limit_back_while_it_is_copied_gets_its_former_backup_again() {
    let mut world = World::with_own_cells(3, &[bulk(5_000, "e2"), policy("rest", 1_000, "e1")]);
    world.copy_size = 40 * PART;
    let clients: Vec<usize> = (0..2).map(|_| world.joins(0)).collect();
    world.runs(LONG_MS);
    // A part a second.
    world.limits_moves(0, PART as u64);
    send(&mut world, &clients[..1], 8, "much");
    assert_eq!(world.moves, [""; 0], "its copy is under way");
    // It is quiet from now on.
    world.runs(45_000);
    assert_eq!((world.moves.len(), world.backups_moved), (1, 1), "{:?}", world.moves);
    world.runs(45_000);
    assert_eq!(world.backups_moved, 2, "{:?}", world.moves);
    for client in &clients {
        let backup = world.session(*client).and_then(|session| world.shard(0).backup_of(session));
        assert_eq!(backup, Some("e1"));
    }
    assert_eq!(followed(&mut world, 0), vec![row("rest", 1_000); 2]);
    clients.into_iter().for_each(|client| is_one_history(&world, &[client]));
}

#[test]
fn a_group_follows_at_once_if_all_of_its_sessions_cross_the_limit() {
    let mut world = World::with_own_cells(2, &[bulk(700_000, ""), policy("rest", 0, "")]);
    let clients: Vec<usize> = (0..2).map(|_| world.joins(0)).collect();
    world.runs(LONG_MS);
    send(&mut world, &clients, 9, "much");
    assert_eq!(followed(&mut world, 0), vec![row("bulk", 700_000); 2]);
    // It is the same group.
    assert!(world.moves.is_empty(), "{:?}", world.moves);
    world.runs(1_000);
    world.says(clients[0], "waits");
    world.runs(100);
    world.says(clients[0], "waits longer");
    world.runs(100);
    assert!(!heard(&world, clients[0], "waits longer"), "its epochs are long");
    world.runs(LEAVES_MS);
    assert!(heard(&world, clients[0], "waits longer"));
    assert_eq!(followed(&mut world, 0), vec![row("rest", 0); 2]);
    clients.into_iter().for_each(|client| is_one_history(&world, &[client]));
}

#[test]
fn the_backup_of_a_session_measures_it_from_nothing() {
    let mut world = World::with_own_cells(3, &[bulk(5_000, "e1"), policy("rest", 1_000, "e1")]);
    let client = world.joins(0);
    world.runs(LONG_MS);
    send(&mut world, &[client], 8, "much");
    assert_eq!((followed(&mut world, 0), world.backup_at(0)), (vec![row("bulk", 5_000)], Some("e1".into())));
    world.kills(0);
    world.says(client, "there");
    world.runs(2_000);
    assert_eq!(world.runs_at(), [1]);
    assert_eq!(followed(&mut world, 1), [row("rest", 1_000)]);
    assert!(world.replication_at(1)[0].rate.is_some_and(|rate| rate < KIB), "{:?}", world.replication_at(1));
    send(&mut world, &[client], 8, "more");
    assert_eq!(followed(&mut world, 1), [row("bulk", 5_000)]);
    assert!(heard(&world, client, "there"));
    is_one_history(&world, &[client]);
}

#[test]
fn a_shared_cell_is_not_measured() {
    let much = TrafficCondition { bytes_min: Some(1), ..TrafficCondition::default() };
    let much = ReplicationPolicy { traffic: much, ..policy("much", 5_000, "") };
    let mut world = World::with_policies(2, FORMS[0], &[bulk(5_000, ""), much, policy("rest", 1_000, "")]);
    let client = world.joins(0);
    world.runs(LONG_MS);
    send(&mut world, &[client], 8, "much");
    let at = world.runs_at()[0];
    assert_eq!(
        (followed(&mut world, at), world.replication_at(at)[0].rate),
        (vec![row("rest", 1_000)], None)
    );
}

#[test]
fn all_of_many_sessions_are_measured_and_none_when_no_policy_asks_for_it() {
    const MANY: usize = 80;
    let much = TrafficCondition { bytes_min: Some(2 * KIB), ..TrafficCondition::default() };
    let much = ReplicationPolicy { traffic: much, ..policy("much", 5_000, "") };
    let mut world = World::with_own_cells(2, &[much, policy("rest", 0, "")]);
    let clients: Vec<usize> = (0..MANY).map(|_| world.joins(0)).collect();
    world.runs(LONG_MS);
    let is_measured = |world: &mut World| {
        let rows = world.replication_at(0);
        (rows.len(), rows.iter().filter(|row| row.rate.is_some()).count())
    };
    assert_eq!(is_measured(&mut world), (MANY, MANY));
    send(&mut world, &clients, 1, "much");
    world.runs(2_000);
    assert_eq!(followed(&mut world, 0), vec![row("much", 5_000); MANY]);
    world.sets_policies(0, &[policy("rest", 0, "")]);
    assert_eq!((is_measured(&mut world), followed(&mut world, 0)), ((MANY, 0), vec![row("rest", 0); MANY]));
}
