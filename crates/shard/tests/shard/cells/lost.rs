//! Cells whose slot, or whose last copy, is lost.

use super::{FORMS, heard, is_one_history, world::*};
use marram_session::owner::BackupForm;
use marram_wire::frame::Code;

/// How often operators were told that a cell is lost.
fn told_lost(world: &World) -> usize {
    world.notes.iter().filter(|note| note.contains("is lost: ")).count()
}

/// The backup of the only cell, and an edge that has no part in it.
fn backup_and_other(world: &World, edges: usize) -> (usize, usize) {
    let claim = world.store.groups.values().next().expect("there is a cell");
    let is = |name: &str, edge: &usize| name == format!("e{edge}");
    let backup = claim.backup.as_deref().expect("it has a backup");
    let other = (0..edges).find(|edge| !is(&claim.primary, edge) && !is(backup, edge));
    ((0..edges).find(|edge| is(backup, edge)).expect("an edge"), other.expect("there is another edge"))
}

#[test]
fn a_cell_takes_its_slot_again_when_the_store_has_lost_it() {
    for form in FORMS {
        let mut world = World::new(3, form);
        let mut clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        let at = world.runs_at();
        world.store.loses_all();
        (0..3).for_each(|edge| world.sees_store(edge, 2));
        world.runs(100);
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1));
        // Clients that come now find it, and it still has a backup.
        clients.extend((0..3).map(|edge| world.joins(edge)));
        world.says(0, "all");
        world.runs(100);
        assert_eq!(world.runs_at(), at);
        world.kills(at[0]);
        world.says(1, "after");
        world.runs(LONG_MS);
        for client in &clients {
            assert!(heard(&world, *client, "all") && heard(&world, *client, "after"), "{client}");
            assert_eq!(world.ended(*client), None);
        }
        is_one_history(&world, &clients);
        assert_eq!(told_lost(&world), 0);
    }
}

#[test]
fn a_cell_whose_lost_slot_another_edge_took_ends_and_its_clients_begin_again() {
    for form in FORMS {
        let mut world = World::new(3, form);
        let clients: Vec<usize> = (0..2).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        let at = world.runs_at();
        let (_, other) = backup_and_other(&world, 3);
        world.store.loses_all();
        // An edge that has no part in the cell learns it first.
        let late = world.joins(other);
        world.runs(1_000);
        assert_eq!((world.runs_at().len(), world.store.slots.len()), (2, 1));
        (0..3).for_each(|edge| world.sees_store(edge, 2));
        world.runs(1_000);
        assert_eq!(world.runs_at().len(), 1);
        assert_ne!(world.runs_at(), at);
        for client in clients {
            assert_eq!(world.ended(client), Some(Code::Lost));
        }
        assert_eq!((world.ended(late), told_lost(&world)), (None, 1));
        let again = world.joins(0);
        world.says(again, "again");
        world.runs(LONG_MS);
        assert!(heard(&world, late, "again"));
        is_one_history(&world, &[late, again]);
        // Nothing is left of the former cell.
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1));
    }
}

#[test]
fn a_backup_that_goes_on_after_the_loss_takes_the_slot_again() {
    for form in FORMS {
        for is_taken in [false, true] {
            let mut world = World::new(3, form);
            let clients: Vec<usize> = (0..2).map(|edge| world.joins(edge)).collect();
            world.runs(LONG_MS);
            let at = world.runs_at()[0];
            let (backup, bystander) = backup_and_other(&world, 3);
            world.store.loses_all();
            let late = is_taken.then(|| world.joins(bystander));
            world.kills(at);
            world.runs(LONG_MS);
            let other = world.joins(backup);
            world.says(other, "now");
            world.runs(LONG_MS);
            assert_eq!((world.runs_at().len(), world.store.slots.len()), (1, 1));
            assert_eq!(world.store.groups.len(), 1);
            assert!(heard(&world, late.unwrap_or(clients[1]), "now"), "{is_taken}");
            assert_eq!(told_lost(&world), usize::from(is_taken));
            is_one_history(&world, &[late.unwrap_or(clients[1]), other]);
        }
    }
}

#[test]
fn a_store_that_was_put_back_costs_no_cell() {
    let mut world = World::new(3, BackupForm::Log);
    let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
    world.runs(LONG_MS);
    let copy = (world.store.groups.clone(), world.store.slots.clone());
    let first = world.runs_at()[0];
    // The backup dies, and the cell gets another one.
    let (backup, other) = backup_and_other(&world, 3);
    world.kills(backup);
    world.runs(LONG_MS);
    assert_ne!(world.store.groups, copy.0);
    (world.store.groups, world.store.slots) = copy;
    (0..3).for_each(|edge| world.sees_store(edge, 2));
    world.says(first, "on");
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), [first]);
    world.kills(first);
    world.says(other, "after");
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), [other]);
    assert!(heard(&world, other, "after"));
    is_one_history(&world, &clients);
}

#[test]
fn an_edge_that_had_the_only_copy_begins_a_new_cell() {
    for form in FORMS {
        let mut world = World::new(1, form);
        let client = world.joins(0);
        world.runs(LONG_MS);
        let before = world.store.slots.clone();
        world.kills(0);
        world.restarts(0);
        let late = world.joins(0);
        world.says(late, "now");
        world.runs(LONG_MS);
        assert!(heard(&world, late, "now"), "{:?}", world.heard(late));
        assert_eq!(world.ended(client), Some(Code::Forgotten));
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1));
        assert_ne!(world.store.slots, before, "another incarnation");
        assert_eq!(told_lost(&world), 1);
        is_one_history(&world, &[late]);
    }
}

#[test]
fn other_edges_wait_for_the_one_that_had_the_only_copy() {
    let mut world = World::new(2, BackupForm::Log);
    world.kills(1);
    let client = world.joins(0);
    world.runs(LONG_MS);
    assert!(world.store.groups.values().all(|claim| claim.backup.is_none()));
    world.kills(0);
    world.restarts(1);
    let late = world.joins(1);
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), Vec::<usize>::new(), "it may live");
    world.restarts(0);
    world.runs(LONG_MS);
    let last = world.joins(0);
    world.says(last, "all");
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), [0]);
    assert!(heard(&world, late, "all"), "{:?}", world.heard(late));
    assert_eq!((world.ended(client), told_lost(&world)), (Some(Code::Forgotten), 1));
    is_one_history(&world, &[late, last]);
}

#[test]
fn an_edge_that_was_started_again_does_not_take_what_its_backup_has() {
    for form in FORMS {
        let mut world = World::new(2, form);
        let clients: Vec<usize> = (0..2).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        let first = world.runs_at()[0];
        world.kills(first);
        world.restarts(first);
        let late = world.joins(first);
        world.says(late, "after");
        world.runs(LONG_MS);
        assert_eq!((world.runs_at().len(), told_lost(&world)), (1, 0));
        assert!(clients.iter().all(|client| heard(&world, *client, "after")));
        is_one_history(&world, &[clients[0], clients[1], late]);
    }
}

/// Three edges, their clients, and the edges of the cell, its backup and the other one.
fn with_backup(form: BackupForm) -> (World, Vec<usize>, [usize; 3]) {
    let mut world = World::new(3, form);
    let clients = (0..3).map(|edge| world.joins(edge)).collect();
    world.runs(LONG_MS);
    let (first, (backup, other)) = (world.runs_at()[0], backup_and_other(&world, 3));
    (world, clients, [first, backup, other])
}

/// Whether the coordinator's only claim names this edge, and no backup.
fn is_alone(world: &World, edge: usize) -> bool {
    world.store.groups.values().all(|claim| claim.primary == format!("e{edge}") && claim.backup.is_none())
}

#[test]
fn edges_that_were_started_again_at_once_begin_a_new_cell() {
    for form in FORMS {
        for order in 0..4 {
            let (mut world, clients, [first, backup, other]) = with_backup(form);
            world.kills(first);
            world.kills(backup);
            let [one, two] = if order % 2 == 0 { [first, backup] } else { [backup, first] };
            world.restarts(one);
            // Clients come before the second one is back, or not.
            let early = (order / 2 == 1).then(|| world.joins(one));
            world.runs(1_000);
            world.restarts(two);
            let late: Vec<usize> = [first, backup, other].map(|edge| world.joins(edge)).into();
            world.runs(LONG_MS);
            world.says(late[0], "now");
            world.runs(LONG_MS);
            assert_eq!((world.runs_at(), told_lost(&world)), (vec![first], 1), "{order}");
            for client in late.iter().copied().chain(early) {
                assert!(heard(&world, client, "now"), "{order}: {:?}", world.heard(client));
            }
            for client in clients {
                assert_eq!(world.ended(client), Some(Code::Forgotten), "{order}");
            }
            is_one_history(&world, &late);
            assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1));
            // The new one has a backup.
            world.kills(first);
            world.says(late[1], "after");
            world.runs(LONG_MS);
            assert!(heard(&world, late[1], "after"), "{order}");
        }
    }
}

#[test]
fn a_primary_that_slept_goes_on_when_its_backup_was_started_again() {
    for form in FORMS {
        for restarts in 1..3 {
            let (mut world, clients, [first, backup, _]) = with_backup(form);
            world.freezes(first);
            for _ in 0..restarts {
                world.kills(backup);
                world.restarts(backup);
                world.comes(backup);
                world.runs(500);
            }
            assert!(is_alone(&world, first), "its backup has resigned");
            world.thaws(first);
            world.runs(LONG_MS);
            world.says(clients[0], "all");
            world.runs(LONG_MS);
            assert_eq!((world.runs_at(), told_lost(&world)), (vec![first], 0));
            for client in &clients {
                assert!(heard(&world, *client, "all"), "{:?}", world.heard(*client));
                assert_eq!(world.ended(*client), None);
            }
            is_one_history(&world, &clients);
            // It has another backup.
            world.kills(first);
            world.says(clients[1], "after");
            world.runs(LONG_MS);
            assert!(clients.iter().all(|client| heard(&world, *client, "after")));
            is_one_history(&world, &clients);
        }
    }
}

#[test]
fn a_primary_that_slept_ends_the_cell_when_its_next_life_has_begun_another_one() {
    // No machine runs two lives of an edge at a time; what holds if it did.
    let (mut world, _, [first, backup, _]) = with_backup(BackupForm::Log);
    world.freezes(first);
    world.kills(backup);
    world.restarts(backup);
    world.comes(backup);
    world.runs(500);
    assert!(is_alone(&world, first));
    world.store.next_life_claims(Some(backup));
    world.thaws(first);
    world.runs(1_000);
    assert_eq!(world.runs_at(), Vec::<usize>::new(), "the claim is not this life's");
}

#[test]
fn a_cell_that_had_another_backup_by_then_is_not_resigned_from() {
    for form in FORMS {
        let (mut world, clients, [first, backup, other]) = with_backup(form);
        world.kills(backup);
        world.runs(LONG_MS);
        assert_eq!(world.backup_at(first), Some(format!("e{other}")));
        let before = world.store.groups.clone();
        world.restarts(backup);
        let late = world.joins(backup);
        world.runs(LONG_MS);
        assert_eq!(world.store.groups, before);
        world.kills(first);
        world.says(late, "after");
        world.runs(LONG_MS);
        assert_eq!((world.runs_at(), told_lost(&world)), (vec![other], 0));
        assert!(clients.iter().all(|client| heard(&world, *client, "after")));
        is_one_history(&world, &clients);
    }
}

#[test]
fn a_cell_that_is_killed_keeps_its_backup_for_the_next_one() {
    let (mut world, clients, [first, backup, _]) = with_backup(BackupForm::Log);
    let claims = world.store.groups.clone();
    world.kills_cell(first);
    world.runs(100);
    assert!(clients.iter().all(|client| world.ended(*client).is_some()));
    // The backup is asked first. It has nothing, and no cell runs yet.
    let late = world.joins(backup);
    world.says(late, "new");
    world.runs(1_000);
    assert!(heard(&world, late, "new"));
    assert_eq!(world.store.groups, claims);
    world.kills(first);
    world.says(late, "after");
    world.runs(LONG_MS);
    assert!(heard(&world, late, "after"));
    assert_eq!(told_lost(&world), 0);
}

#[test]
fn a_cell_whose_edges_are_gone_is_given_up() {
    for form in FORMS {
        let mut world = World::new(3, form);
        let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        let (first, (backup, other)) = (world.runs_at()[0], backup_and_other(&world, 3));
        world.kills(first);
        world.kills(backup);
        let late = world.joins(other);
        world.runs(60_000);
        assert_eq!(world.runs_at(), Vec::<usize>::new());
        world.store.gives_up(other);
        world.runs(LONG_MS);
        let last = world.joins(other);
        world.says(last, "new");
        world.runs(100);
        assert_eq!((world.runs_at(), told_lost(&world)), (vec![other], 1));
        assert!(heard(&world, last, "new"));
        // One that has waited for longer than it lingers has ended.
        assert!(heard(&world, late, "new") || world.ended(late).is_some());
        for client in clients {
            assert!(world.ended(client).is_some());
        }
        // The former edges come back, with nothing.
        world.restarts(first);
        world.restarts(backup);
        world.runs(LONG_MS);
        let again = world.joins(first);
        world.says(again, "all");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at(), [other]);
        assert!(heard(&world, last, "all"));
        is_one_history(&world, &[last, again]);
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1));
    }
}

#[test]
fn an_edge_that_was_not_dead_ends_the_cell_that_was_given_up() {
    for form in FORMS {
        let mut world = World::new(3, form);
        let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        let (first, (backup, other)) = (world.runs_at()[0], backup_and_other(&world, 3));
        world.freezes(first);
        world.kills(backup);
        world.store.gives_up(other);
        let late = world.joins(other);
        world.runs(LONG_MS);
        assert_eq!(world.runs_at().len(), 2, "the frozen one does not know yet");
        world.thaws(first);
        world.runs(LONG_MS);
        assert_eq!(world.runs_at(), [other]);
        world.says(late, "new");
        world.runs(100);
        assert!(heard(&world, late, "new"));
        for client in clients {
            assert_eq!(world.ended(client), Some(Code::Forgotten));
        }
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1));
    }
}

#[test]
fn a_primary_that_slept_until_its_successors_record_was_removed_does_not_go_on() {
    for form in FORMS {
        for answers_lost in [0, 1] {
            let (mut world, clients, [first, backup, other]) = with_backup(form);
            world.freezes(first);
            world.says(clients[0], "asleep");
            world.runs(LONG_MS);
            assert!(clients.iter().all(|client| heard(&world, *client, "asleep")));
            assert!(is_alone(&world, backup) || world.backup_at(backup).is_some());
            // All who know more than the sleeping one die, and what they have left in the store is removed.
            for edge in [backup, other] {
                world.kills(edge);
                world.restarts(edge);
            }
            world.store.removes_all();
            world.store.answers_lost = answers_lost;
            world.thaws(first);
            world.runs(LONG_MS);
            assert_eq!(told_lost(&world), 1, "{form:?}: {:?}", world.notes);
            // The next client has a new cell, and no other one hears of the older history.
            let late = world.joins(first);
            world.says(late, "new");
            world.runs(100);
            assert_eq!(world.heard(late).first(), Some(&"1 joins"), "{:?}", world.heard(late));
            assert!(heard(&world, late, "new"));
            is_one_history(&world, &clients);
            assert!(!clients.iter().any(|client| heard(&world, *client, "new")));
            world.runs(2 * LONG_MS);
            assert_eq!((world.runs_at().len(), world.store.slots.len(), world.store.groups.len()), (1, 1, 1));
        }
    }
}

#[test]
fn a_primary_that_slept_while_the_store_was_lost_goes_on() {
    for form in FORMS {
        for answers_lost in [0, 1] {
            let (mut world, clients, [first, backup, other]) = with_backup(form);
            world.freezes(first);
            // Its backup dies before it has claimed the group.
            world.kills(backup);
            world.store.loses_all();
            world.store.answers_lost = answers_lost;
            for edge in [first, other] {
                world.sees_store(edge, 2);
            }
            world.thaws(first);
            world.runs(2 * LONG_MS);
            world.says(clients[0], "on");
            world.runs(100);
            assert_eq!((world.runs_at(), told_lost(&world)), (vec![first], 0));
            for client in &clients {
                assert!(heard(&world, *client, "on"), "{form:?} {answers_lost}: {:?}", world.heard(*client));
                assert_eq!(world.ended(*client), None);
            }
            is_one_history(&world, &clients);
        }
    }
}
