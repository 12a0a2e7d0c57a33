//! Shared cells that have a backup, on edges of one domain: one cell for all clients, wherever they ask, which outlives its edge.

mod ahead;
mod backups;
mod changes;
mod connections;
mod handed;
mod heirs;
mod key_moves;
mod keys;
mod lost;
mod moves;
mod operator;
mod policies;
mod rebalance;
mod rebalance_operator;
mod rebalance_slots;
mod traffic;
mod unkept;
mod versions;
mod won;
mod world;

use marram_session::owner::BackupForm;
use marram_shard::api::{Kill, ReplicationPolicy, ToShard};
use marram_wire::frame::Code;
use world::{LONG_MS, World};

const FORMS: [BackupForm; 3] = [BackupForm::Log, BackupForm::Auto, BackupForm::Pages];

/// What each client has heard, from its own joining on, is a piece of one history.
fn is_one_history(world: &World, clients: &[usize]) {
    let mut told = std::collections::BTreeMap::new();
    for client in clients {
        let mut last = None;
        for line in world.heard(*client) {
            let number: u64 =
                line.split(' ').next().expect("a line begins with its number").parse().expect("a number");
            assert!(
                last.is_none_or(|last| number == last + 1),
                "client {client}: {:?}",
                world.heard(*client)
            );
            last = Some(number);
            assert_eq!(*told.entry(number).or_insert(line), line, "client {client}");
        }
    }
}

/// Whether a client was told that some client said this.
fn heard(world: &World, client: usize, text: &str) -> bool {
    world.heard(client).iter().any(|line| line.split_once(' ').is_some_and(|(_, what)| what == text))
}

#[test]
fn all_clients_share_one_cell_wherever_they_ask() {
    for form in FORMS {
        let mut world = World::new(3, form);
        let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        assert_eq!(world.runs_at().len(), 1);
        world.says(2, "all");
        world.runs(100);
        for client in &clients {
            assert!(heard(&world, *client, "all"), "{client}: {:?}", world.heard(*client));
        }
        // Two of them asked another edge first, and were told where it is.
        assert!(world.led >= 2);
        is_one_history(&world, &clients);
    }
}

#[test]
fn a_cell_outlives_its_edge_with_all_its_clients() {
    for form in FORMS {
        let mut world = World::new(3, form);
        let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        for death in 0..2 {
            let at = world.runs_at();
            assert_eq!(at.len(), 1, "death {death}");
            world.says(0, "before");
            world.runs(100);
            world.kills(at[0]);
            world.says(1, "after");
            world.runs(LONG_MS);
            for client in &clients {
                assert!(heard(&world, *client, "after"), "{client}: {:?}", world.heard(*client));
                assert_eq!(world.ended(*client), None);
            }
            is_one_history(&world, &clients);
            if death == 0 {
                // Its next backup has all of it by now.
                world.says(2, "again");
                world.runs(LONG_MS);
            }
        }
    }
}

#[test]
fn two_edges_that_begin_at_once_have_one_cell() {
    let mut world = World::new(3, BackupForm::Log);
    let clients: Vec<usize> = (0..3).map(|edge| world.comes(edge)).collect();
    world.runs(LONG_MS);
    assert_eq!((world.runs_at().len(), world.store.slots.len()), (1, 1));
    is_one_history(&world, &clients);
    for client in &clients {
        assert!(!world.heard(*client).is_empty());
    }
    // The groups of those that lost are gone.
    assert_eq!(world.store.groups.len(), 1);
}

#[test]
fn an_edge_that_was_frozen_learns_that_its_cell_is_elsewhere() {
    for form in FORMS {
        let mut world = World::new(3, form);
        let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        let first = world.runs_at()[0];
        world.freezes(first);
        world.says(0, "asleep");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at().len(), 2, "the frozen one does not know yet");
        for client in &clients {
            assert!(heard(&world, *client, "asleep"), "{client}: {:?}", world.heard(*client));
        }
        world.thaws(first);
        world.says(1, "awake");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at().len(), 1);
        assert_ne!(world.runs_at()[0], first);
        for client in &clients {
            assert!(heard(&world, *client, "awake"));
        }
        is_one_history(&world, &clients);
    }
}

#[test]
fn a_backup_whose_primary_died_before_it_was_named_goes_on() {
    for form in FORMS {
        let mut world = World::new(2, form);
        world.kills(1);
        let client = world.joins(0);
        world.says(client, "alone");
        world.runs(LONG_MS);
        assert!(heard(&world, client, "alone"), "its edge runs it without a backup");
        world.store.loses_backups = true;
        world.restarts(1);
        world.runs(LONG_MS);
        world.says(client, "backed");
        world.runs(100);
        // The other edge has confirmed it, and the store does not know of it.
        assert!(heard(&world, client, "backed"));
        assert!(world.store.groups.values().all(|claim| claim.primary == "e0" && claim.backup.is_none()));
        world.kills(0);
        let late = world.joins(1);
        world.says(client, "after");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at(), [1]);
        assert!(heard(&world, client, "after") && heard(&world, late, "after"));
        is_one_history(&world, &[client, late]);
    }
}

#[test]
fn a_cell_waits_for_the_coordinator_and_is_not_lost() {
    let mut world = World::new(2, BackupForm::Log);
    let client = world.joins(0);
    world.runs(LONG_MS);
    world.store.away = true;
    world.kills(world.runs_at()[0]);
    // Longer than the app's linger time.
    world.runs(60_000);
    assert_eq!(world.runs_at(), Vec::<usize>::new());
    world.store.away = false;
    world.says(client, "back");
    world.runs(LONG_MS);
    let late = world.joins(1);
    world.says(late, "late");
    world.runs(LONG_MS);
    assert_eq!(world.runs_at().len(), 1);
    assert!(heard(&world, late, "late"), "{:?}", world.heard(late));
    is_one_history(&world, &[client, late]);
}

#[test]
fn an_edge_that_dies_before_its_cell_has_begun_leaves_a_slot_that_others_take() {
    // The frames and answers of the start are few: the death follows each of them.
    for steps in 0..60 {
        let mut world = World::new(3, BackupForm::Log);
        let client = world.comes(0);
        world.settles_some(steps);
        world.kills(0);
        world.runs(LONG_MS);
        world.says(client, "later");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at().len(), 1, "after {steps} steps");
        let late = world.joins(1);
        world.runs(LONG_MS);
        assert!(heard(&world, late, "hi"), "after {steps} steps: {:?}", world.heard(late));
        is_one_history(&world, &[late]);
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1), "after {steps} steps");
    }
}

#[test]
fn an_operator_ends_one_client_and_the_others_go_on() {
    let mut world = World::new(3, BackupForm::Log);
    let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
    world.runs(LONG_MS);
    let (at, session) = (world.runs_at()[0], world.session(clients[1]).expect("it said hello"));
    world.control(at, ToShard::Kill(Kill { tag: 1, session, reason: "no more".into() }));
    world.runs(100);
    assert_eq!(world.ended(clients[1]), Some(Code::Killed));
    world.says(clients[0], "on");
    world.runs(100);
    assert!(heard(&world, clients[2], "on"));
    assert_eq!(world.ended(clients[2]), None);
}

#[test]
fn a_stop_ends_the_client_whose_message_it_was_and_no_other() {
    for form in FORMS {
        let mut world = World::new(3, form);
        let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        world.says(clients[1], "poison");
        world.runs(LONG_MS);
        assert_eq!(world.ended(clients[1]), Some(Code::Guest));
        let told =
            world.notes.iter().filter(|note| note.contains("expelled") && note.contains("unreachable"));
        assert_eq!(told.count(), 1);
        world.says(clients[0], "on");
        world.runs(100);
        assert!(heard(&world, clients[2], "on"));
        // Also behind the death of the edge.
        world.kills(world.runs_at()[0]);
        world.says(clients[2], "after");
        world.runs(LONG_MS);
        assert!(heard(&world, clients[0], "after"));
        assert_eq!([0, 2].map(|client| world.ended(client)), [None; 2]);
        is_one_history(&world, &clients);
    }
}

#[test]
fn a_client_that_leaves_is_not_waited_for() {
    let mut world = World::new(3, BackupForm::Log);
    let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
    world.runs(LONG_MS);
    world.closes(clients[0]);
    world.runs(100);
    assert_eq!(world.ended(clients[0]), Some(Code::Finished));
    world.says(clients[1], "on");
    world.runs(100);
    assert!(heard(&world, clients[2], "on"));
    is_one_history(&world, &clients);
}

#[test]
fn the_backup_is_the_first_edge_of_a_policy_that_is_connected() {
    let policy = |targets: &[&str]| ReplicationPolicy {
        name: "near".into(),
        app: Some("hall".into()),
        targets: targets.iter().map(ToString::to_string).collect(),
        ..ReplicationPolicy::default()
    };
    // Its own edge, and one that does not exist, are passed over.
    for backup in ["e1", "e2", "e3"] {
        let mut world = World::with_policies(4, BackupForm::Log, &[policy(&["e0", "nowhere", backup, "e3"])]);
        let client = world.joins(0);
        world.runs(LONG_MS);
        assert_eq!((world.runs_at(), world.backup_at(0)), (vec![0], Some(backup.into())));
        // The backup goes on, and the next one is the first of the list that is left.
        world.kills(0);
        world.says(client, "after");
        world.runs(LONG_MS);
        assert!(heard(&world, client, "after"), "{:?}", world.heard(client));
        let at = world.runs_at()[0];
        assert_eq!(format!("e{at}"), backup);
        if at != 3 {
            assert_eq!(world.backup_at(at).as_deref(), Some("e3"));
        }
    }
}

#[test]
fn an_edge_that_was_replaced_while_it_slept_does_not_end_clients_that_joined_since() {
    for form in FORMS {
        let mut world = World::new(3, form);
        let old = world.joins(0);
        world.runs(LONG_MS);
        let first = world.runs_at()[0];
        world.freezes(first);
        world.says(old, "asleep");
        while world.runs_at().len() < 2 {
            world.runs(10);
        }
        let second = *world.runs_at().iter().find(|edge| **edge != first).expect("its backup goes on");
        let new = world.joins(second);
        assert!(heard(&world, new, "hi"), "{:?}", world.heard(new));
        // The one that slept still believes that it has the cell when the client asks it.
        world.thaws(first);
        world.freezes(second);
        world.says(new, "where");
        world.runs(LONG_MS);
        world.thaws(second);
        world.runs(LONG_MS);
        assert_eq!([old, new].map(|client| world.ended(client)), [None; 2]);
        assert!(heard(&world, old, "where"), "{:?}", world.heard(old));
        is_one_history(&world, &[old, new]);
    }
}

#[test]
fn a_client_that_was_ended_while_it_was_away_is_told_that_it_has_left() {
    for form in FORMS {
        let mut world = World::new(3, form);
        let clients: Vec<usize> = (0..2).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        world.cuts_off(clients[1], true);
        let (at, session) = (world.runs_at()[0], world.session(clients[1]).expect("it said hello"));
        world.control(at, ToShard::Kill(Kill { tag: 1, session, reason: "no more".into() }));
        world.runs(100);
        world.cuts_off(clients[1], false);
        world.runs(LONG_MS);
        assert_eq!(world.ended(clients[1]), Some(Code::Forgotten));
        world.says(clients[0], "on");
        world.runs(100);
        assert!(heard(&world, clients[0], "on"));
        is_one_history(&world, &clients);
    }
}
