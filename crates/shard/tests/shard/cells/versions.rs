//! Cells of versions that are not deployed any more.

use super::{FORMS, heard, is_one_history, world::*};
use marram_session::owner::BackupForm;
use marram_wire::frame::Code;

/// Longer than a group without sessions is kept.
const REMOVED_MS: u64 = 10_000;

#[test]
fn the_cell_of_a_former_version_ends_with_its_last_client_and_leaves_nothing() {
    for form in FORMS {
        let mut world = World::new(3, form);
        let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
        world.runs(LONG_MS);
        (0..3).for_each(|edge| world.deploys_another(edge));
        world.runs(REMOVED_MS);
        assert_eq!(world.store.slots.len(), 1, "it still has clients");
        let late = world.joins(1);
        world.says(clients[0], "old");
        world.runs(LONG_MS);
        assert!(heard(&world, clients[2], "old") && !heard(&world, late, "old"), "each version has a cell");
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (2, 2));
        for client in &clients {
            world.closes(*client);
        }
        world.runs(REMOVED_MS);
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1));
        assert_eq!(
            clients.iter().map(|client| world.ended(*client)).collect::<Vec<_>>(),
            [Some(Code::Finished); 3]
        );
        assert_eq!(world.ended(late), None);
        is_one_history(&world, &clients);
    }
}

#[test]
fn the_cell_of_an_app_that_is_removed_leaves_nothing() {
    let mut world = World::new(2, BackupForm::Log);
    let client = world.joins(0);
    world.runs(LONG_MS);
    world.closes(client);
    world.runs(REMOVED_MS);
    assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1), "a cell needs no clients");
    (0..2).for_each(|edge| world.undeploys(edge));
    world.runs(REMOVED_MS);
    assert_eq!((world.store.slots.len(), world.store.groups.len()), (0, 0));
    assert_eq!(world.runs_at(), Vec::<usize>::new());
}

#[test]
fn a_promoted_cell_of_a_former_version_ends_too() {
    for is_away in [false, true] {
        let mut world = World::new(3, BackupForm::Log);
        let client = world.joins(0);
        world.runs(LONG_MS);
        let first = world.runs_at()[0];
        (0..3).for_each(|edge| world.deploys_another(edge));
        world.closes(client);
        if !is_away {
            world.runs(REMOVED_MS);
        }
        world.kills(first);
        world.runs(2 * LONG_MS + REMOVED_MS);
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (0, 0), "{is_away}");
    }
}
