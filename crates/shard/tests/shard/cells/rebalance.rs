//! Elastic chords: sessions that move to an edge which joins.

use super::{heard, is_one_history, moves::number, world::World};
use crate::cells::world::LONG_MS;
use marram_shard::{
    api::{ReplicationPolicy, Tag, ToShard},
    ring::Ring,
};
use std::collections::BTreeMap;

/// How long an edge must be connected before anything moves onto it.
pub(super) const SETTLE_MS: u64 = 5_000;
pub(super) const EDGES: usize = 4;
/// The edge that is away at first.
pub(super) const LATE: usize = EDGES - 1;
const CLIENTS: usize = 24;

pub(super) fn rebalance(per_s: u32) -> ReplicationPolicy {
    ReplicationPolicy { name: "elastic".into(), rebalance: per_s, ..ReplicationPolicy::default() }
}

/// Three edges with the sessions of some clients, and a fourth one that has been away for long.
fn without_one(policies: &[ReplicationPolicy]) -> World {
    let mut world = World::with_own_cells(EDGES, policies);
    world.kills(LATE);
    world.runs(3 * SETTLE_MS);
    for client in 0..CLIENTS {
        assert_eq!(world.joins(client % LATE), client);
    }
    world.runs(LONG_MS);
    world
}

/// The edge at which a client's session belongs when all are there.
fn belongs_at(world: &World, client: usize) -> usize {
    let ring = Ring::new((0..EDGES).map(|edge| format!("e{edge}")));
    let session = world.session(client).expect("it has a session");
    number(ring.first_of(session).expect("there are edges"))
}

fn belonging_to(world: &World, edge: usize) -> Vec<usize> {
    (0..CLIENTS).filter(|client| belongs_at(world, *client) == edge).collect()
}

fn owners(world: &World) -> Vec<Option<usize>> {
    (0..CLIENTS).map(|client| world.owner_of(client)).collect()
}

/// All clients are answered, and none has missed anything.
fn all_talk(world: &mut World, text: &str) {
    (0..CLIENTS).for_each(|client| world.says(client, text));
    world.runs(LONG_MS);
    for client in 0..CLIENTS {
        assert!(heard(world, client, text), "{client}: {:?}", world.heard(client));
        is_one_history(world, &[client]);
    }
}

/// How many sessions have moved, but for those of which only the backup has.
pub(super) fn moved(world: &World) -> usize {
    world.moves.iter().filter(|why| why.is_empty()).count() - world.backups_moved
}

#[test]
fn what_belongs_at_an_edge_that_joins_moves_there_and_nothing_else() {
    let mut world = without_one(&[rebalance(100)]);
    let before = owners(&world);
    assert!(before.iter().enumerate().all(|(client, owner)| *owner == Some(client % LATE)));
    let belong = belonging_to(&world, LATE);
    assert!(belong.len() > 2 && belong.len() < CLIENTS, "{belong:?}");
    world.restarts(LATE);
    world.runs(SETTLE_MS - 500);
    assert_eq!(owners(&world), before, "it has only just come");
    for turn in 0..20 {
        (0..CLIENTS).for_each(|client| world.says(client, &format!("turn {turn}")));
        world.runs(100);
    }
    all_talk(&mut world, "moved");
    let expected: Vec<Option<usize>> = (0..CLIENTS)
        .map(|client| Some(if belong.contains(&client) { LATE } else { client % LATE }))
        .collect();
    assert_eq!(owners(&world), expected, "{:?}", world.moves);
    assert_eq!(moved(&world), belong.len());
    // Nothing goes back, however long they run.
    world.runs(20 * SETTLE_MS);
    all_talk(&mut world, "on");
    assert_eq!((owners(&world), moved(&world)), (expected, belong.len()));
    let said = |part: &str| world.notes.iter().filter(|note| note.contains(part)).count();
    assert_eq!((said("`e3` has joined"), said("rebalanced onto `e3`")), (LATE, LATE), "{:?}", world.notes);
}

#[test]
fn an_edge_that_comes_back_gets_its_sessions_back() {
    let mut world = without_one(&[rebalance(100)]);
    world.restarts(LATE);
    all_talk(&mut world, "there");
    let there = owners(&world);
    for turn in 0..2 {
        world.kills(LATE);
        all_talk(&mut world, &format!("away {turn}"));
        assert!(owners(&world).iter().all(|owner| owner.is_some_and(|owner| owner != LATE)));
        world.restarts(LATE);
        world.runs(LONG_MS);
        all_talk(&mut world, &format!("back {turn}"));
        let back = belonging_to(&world, LATE);
        assert!(back.iter().all(|client| there[*client] == Some(LATE)));
        assert!(back.iter().all(|client| world.owner_of(*client) == Some(LATE)), "{:?}", world.notes);
    }
}

#[test]
fn no_more_sessions_move_in_a_second_than_the_policy_says() {
    let mut world = without_one(&[rebalance(1)]);
    let mut from: BTreeMap<usize, usize> = BTreeMap::new();
    let belong = belonging_to(&world, LATE);
    belong.iter().for_each(|client| *from.entry(client % LATE).or_default() += 1);
    let most = *from.values().max().expect("some belong there");
    assert!(most > 1, "{from:?}");
    world.restarts(LATE);
    world.runs(SETTLE_MS);
    for second in 0..most {
        let at_most: usize = from.values().map(|sessions| (second + 1).min(*sessions)).sum();
        assert!(moved(&world) <= at_most, "{second}: {}", moved(&world));
        world.runs(1_000);
    }
    // Backups move by the same limit.
    world.runs(1_000 * CLIENTS as u64);
    assert_eq!(moved(&world), belong.len());
    assert!(world.backups_moved > 0);
}

#[test]
fn a_wire_that_breaks_for_a_moment_moves_nothing() {
    let mut world = without_one(&[rebalance(100)]);
    let before = owners(&world);
    for _ in 0..5 {
        world.restarts(LATE);
        world.runs(SETTLE_MS / 2);
        world.kills(LATE);
        world.runs(SETTLE_MS / 2);
    }
    assert_eq!((owners(&world), moved(&world)), (before, 0));
}

#[test]
fn only_what_its_policy_says_moves() {
    let some = ReplicationPolicy { client: Some("10.0.0.0/29".parse().expect("a prefix")), ..rebalance(100) };
    let rest = ReplicationPolicy { name: "rest".into(), every_us: Some(0), ..ReplicationPolicy::default() };
    let mut world = without_one(&[some, rest]);
    let belong: Vec<usize> = belonging_to(&world, LATE).into_iter().filter(|client| *client < 8).collect();
    assert!(!belong.is_empty());
    world.restarts(LATE);
    world.runs(LONG_MS);
    all_talk(&mut world, "on");
    let there: Vec<usize> = (0..CLIENTS).filter(|client| world.owner_of(*client) == Some(LATE)).collect();
    assert_eq!(there, belong);
}

#[test]
fn without_a_policy_nothing_moves_and_nothing_is_said() {
    let mut world = without_one(&[]);
    let before = owners(&world);
    world.restarts(LATE);
    all_talk(&mut world, "on");
    assert_eq!((owners(&world), moved(&world)), (before.clone(), 0));
    assert!(!world.notes.iter().any(|note| note.contains("joined")));
    // A policy that comes later is for edges that join later.
    for edge in 0..EDGES {
        world.sets_policies(edge, &[rebalance(100)]);
    }
    all_talk(&mut world, "later");
    assert_eq!(owners(&world), before);
}

#[test]
fn an_edge_that_is_lost_in_the_middle_gets_the_rest_when_it_is_back() {
    let mut world = without_one(&[rebalance(1)]);
    let belong = belonging_to(&world, LATE);
    world.restarts(LATE);
    world.runs(SETTLE_MS + 100);
    let first = moved(&world);
    assert!(first > 0 && first < belong.len(), "{first} of {}", belong.len());
    world.kills(LATE);
    all_talk(&mut world, "lost");
    assert!(world.notes.iter().any(|note| note.contains("once it is back")), "{:?}", world.notes);
    world.restarts(LATE);
    world.runs(4 * SETTLE_MS);
    all_talk(&mut world, "back");
    assert!(belong.iter().all(|client| world.owner_of(*client) == Some(LATE)), "{:?}", owners(&world));
}

#[test]
fn an_edge_that_stops_begins_nothing() {
    let mut world = without_one(&[rebalance(100)]);
    world.restarts(LATE);
    world.runs(SETTLE_MS - 500);
    world.control(0, ToShard::Drain(Tag { tag: 1 }));
    world.runs(LONG_MS);
    assert!(!world.notes.iter().any(|note| note.contains("0 of") && note.contains("rebalanced")));
    all_talk(&mut world, "on");
    assert!(owners(&world).iter().all(|owner| owner.is_some_and(|owner| owner != 0)));
}

#[test]
fn what_an_operator_moves_goes_where_the_operator_says() {
    let mut world = without_one(&[rebalance(100)]);
    let belong = belonging_to(&world, LATE);
    let client = *belong.iter().find(|client| *client % LATE == 0).expect("one is at the first edge");
    let session = world.session(client).expect("it has one");
    // Moves of others wait: those that an operator asked for come first.
    world.restarts(LATE);
    world.runs(SETTLE_MS - 500);
    world.moves_session(session, 0, "e1");
    world.runs(LONG_MS);
    all_talk(&mut world, "on");
    // It was at another edge when that began its own pass, or not: both are its policy.
    assert!([Some(1), Some(LATE)].contains(&world.owner_of(client)));
    // Behind the pass it stays where an operator sends it.
    let (at, to) = (world.owner_of(client).expect("it runs"), 2);
    world.moves_session(session, at, &format!("e{to}"));
    world.runs(20 * SETTLE_MS);
    all_talk(&mut world, "there");
    assert_eq!(world.owner_of(client), Some(to));
}

#[test]
fn backups_move_to_the_edge_that_joins_where_the_ring_says_so() {
    let mut world = without_one(&[rebalance(100)]);
    let ring = Ring::new((0..EDGES).map(|edge| format!("e{edge}")));
    world.restarts(LATE);
    world.runs(4 * SETTLE_MS);
    let mut count = 0;
    for client in 0..CLIENTS {
        let (session, owner) = (world.session(client).expect("it has one"), world.owner_of(client));
        let owner = owner.expect("it runs");
        let is_there = world.shard(owner).backup_of(session) == Some("e3");
        let belongs = ring.standby_of(session, &format!("e{owner}")) == Some("e3");
        assert!(is_there || !belongs, "client {client} at e{owner}");
        count += usize::from(is_there);
    }
    assert!(count > 0);
    all_talk(&mut world, "on");
}
