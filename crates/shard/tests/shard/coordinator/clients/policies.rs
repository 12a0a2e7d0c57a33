//! Replication policies of the domain: set at one edge, known at all of them.

use super::{Ask, AskAnswer, CoordinatorClient, CoordinatorInput, StoreRequest, World, config, registration};
use bytes::Bytes;
use marram_shard::{
    api::{POLICIES_MAX, ReplicationPolicy, TrafficCondition},
    coordinator::contents::POLICIES,
};

fn policies(names: &[&str]) -> Vec<ReplicationPolicy> {
    let policy = |name: &&str| ReplicationPolicy { name: (*name).into(), ..ReplicationPolicy::default() };
    names.iter().map(policy).collect()
}

/// What an edge knows: the names, and the revision.
fn known(world: &World, edge: usize) -> Option<(Vec<String>, u64)> {
    let known = world.edges[edge].client.policies()?;
    Some((known.policies.iter().map(|policy| policy.name.clone()).collect(), known.revision))
}

fn set(world: &mut World, edge: usize, names: Option<&[&str]>) -> AskAnswer {
    world.asked(edge, Ask::SetPolicies(names.map(policies)))
}

#[test]
fn all_edges_know_what_one_has_set_and_so_does_one_that_starts_later() {
    let mut world = World::new(3, 5);
    world.edges[2].alive = false;
    world.run(2);
    assert_eq!(known(&world, 0), None);
    assert_eq!(set(&mut world, 0, Some(&["calls", "bulk"])), AskAnswer::Done);
    world.run(1);
    let first = known(&world, 0).expect("it is set");
    assert_eq!(
        (first.0.as_slice(), known(&world, 1)),
        (&["calls".into(), "bulk".into()][..], Some(first.clone()))
    );
    // The same again is no change.
    assert_eq!(set(&mut world, 1, Some(&["calls", "bulk"])), AskAnswer::Done);
    world.run(1);
    assert_eq!(known(&world, 0), Some(first.clone()));
    // With nothing in flight.
    world.edges[2].client = CoordinatorClient::new(config("edge-2"), world.now);
    world.edges[2].alive = true;
    world.step(2, CoordinatorInput::Here(registration(2)));
    world.run(4);
    assert_eq!(known(&world, 2), Some(first.clone()));
    // It expires with no edge, and outlives the store's process.
    world.restart();
    world.edges[1].watch = None;
    world.run(20);
    assert_eq!(known(&world, 0), Some(first));
    assert_eq!(set(&mut world, 2, Some(&[])), AskAnswer::Done);
    world.run(1);
    assert_eq!(known(&world, 0).map(|(names, _)| names), Some(Vec::new()), "a list of none is a list");
    assert_eq!(set(&mut world, 1, None), AskAnswer::Done);
    world.run(1);
    assert_eq!([0, 2].map(|edge| known(&world, edge)), [None, None]);
    assert_eq!(set(&mut world, 1, None), AskAnswer::Done, "there is nothing to remove");
}

#[test]
fn an_edge_keeps_what_it_knows_while_the_coordinator_is_away_and_learns_the_rest_afterwards() {
    for names in [Some(&["new"][..]), None] {
        let mut world = World::new(2, 6);
        world.run(2);
        assert_eq!(set(&mut world, 0, Some(&["old"])), AskAnswer::Done);
        world.run(1);
        // One edge is cut off, the other one is not.
        world.edges[1].alive = false;
        assert_eq!(set(&mut world, 0, names), AskAnswer::Done);
        assert_eq!(known(&world, 1).map(|(names, _)| names), Some(vec!["old".into()]));
        world.edges[1].alive = true;
        let watch = world.edges[1].watch.take().expect("it watches").0;
        world.step(1, CoordinatorInput::WatchEnded { watch, why: "it broke".into() });
        world.run(10);
        assert_eq!(known(&world, 1), known(&world, 0));
    }
    let mut world = World::new(1, 7);
    world.run(2);
    world.there = false;
    world.run(10);
    assert!(matches!(set(&mut world, 0, Some(&["late"])), AskAnswer::Away(_)));
}

#[test]
fn a_list_that_cannot_be_read_changes_nothing_and_is_logged() {
    let mut world = World::new(2, 8);
    world.run(2);
    assert_eq!(set(&mut world, 0, Some(&["old"])), AskAnswer::Done);
    world.run(1);
    let value = Some(Bytes::from_static(b"of another version"));
    let write = StoreRequest::Write { key: POLICIES.into(), expect: None, value, lease: None };
    world.store.apply(world.now, write).expect("the store takes it");
    world.run(1);
    assert_eq!(known(&world, 1).map(|(names, _)| names), Some(vec!["old".into()]));
    let is_told = |client: &[String]| client.iter().any(|line| line.contains(POLICIES));
    assert!(is_told(&world.edges[1].log));
    // An operator of this version replaces it.
    assert_eq!(set(&mut world, 0, Some(&["new"])), AskAnswer::Done);
    world.run(1);
    assert_eq!(known(&world, 1).map(|(names, _)| names), Some(vec!["new".into()]));
}

#[test]
fn a_list_that_no_operator_could_set_changes_nothing_and_is_logged() {
    let many = vec![ReplicationPolicy::default(); POLICIES_MAX + 1];
    let traffic = TrafficCondition { bytes_min: Some(1), ..TrafficCondition::default() };
    let measured = ReplicationPolicy { runs_ahead: true, traffic, ..ReplicationPolicy::default() };
    for list in [many, vec![ReplicationPolicy::default(), measured]] {
        let mut world = World::new(2, 8);
        world.run(2);
        assert_eq!(set(&mut world, 0, Some(&["old"])), AskAnswer::Done);
        world.run(1);
        // As an edge would have written it that knows no such limit.
        assert_eq!(world.asked(0, Ask::SetPolicies(Some(list))), AskAnswer::Done);
        world.run(1);
        for edge in [0, 1] {
            assert_eq!(known(&world, edge).map(|(names, _)| names), Some(vec!["old".into()]));
            assert!(world.edges[edge].log.iter().any(|line| line.contains(POLICIES)));
        }
        assert_eq!(set(&mut world, 0, Some(&["new"])), AskAnswer::Done);
        world.run(1);
        assert_eq!(known(&world, 1).map(|(names, _)| names), Some(vec!["new".into()]));
    }
}

#[test]
fn a_list_that_does_not_fit_into_a_value_is_refused() {
    let mut world = World::new(1, 9);
    world.run(2);
    let targets = vec!["x".repeat(64); 16];
    let policy = ReplicationPolicy { targets, ..ReplicationPolicy::default() };
    let answer = world.asked(0, Ask::SetPolicies(Some(vec![policy; 64])));
    let AskAnswer::Refused(why) = answer else { panic!("{answer:?}") };
    assert!(why.contains("bytes"), "{why}");
    assert_eq!(known(&world, 0), None);
}

#[test]
fn one_policy_is_removed_from_what_is_there_then() {
    let mut world = World::new(2, 10);
    world.run(2);
    let remove = |world: &mut World, edge, name: &str| world.asked(edge, Ask::RemovePolicy(name.into()));
    assert_eq!(remove(&mut world, 0, "bulk"), AskAnswer::PoliciesLeft(None), "there are none");
    assert_eq!(set(&mut world, 0, Some(&["calls", "bulk", "rest"])), AskAnswer::Done);
    assert_eq!(remove(&mut world, 1, "bulk"), AskAnswer::PoliciesLeft(Some(2)));
    assert_eq!(remove(&mut world, 0, "bulk"), AskAnswer::PoliciesLeft(None), "it is gone");
    world.run(1);
    assert_eq!(known(&world, 0).map(|(names, _)| names), Some(vec!["calls".into(), "rest".into()]));
    // Two edges remove one each at the same time: none brings the other's back.
    for (edge, name) in [(0, "calls"), (1, "rest")] {
        world.step(edge, CoordinatorInput::Ask { tag: 70, ask: Ask::RemovePolicy(name.into()) });
    }
    world.run(1);
    assert_eq!(known(&world, 1).map(|(names, _)| names), Some(Vec::new()), "a list of none is a list");
    // One that this version cannot read is not touched.
    let value = Some(Bytes::from_static(b"of another version"));
    let write = StoreRequest::Write { key: POLICIES.into(), expect: None, value, lease: None };
    world.store.apply(world.now, write).expect("the store takes it");
    let AskAnswer::Refused(why) = remove(&mut world, 0, "calls") else { panic!("it is refused") };
    assert!(why.contains("another version"), "{why}");
}
