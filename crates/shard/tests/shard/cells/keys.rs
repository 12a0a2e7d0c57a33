//! One cell for each key: several cells in one slot, which go to the backup together, begin where their slot is, and end with their last
//! client.

use super::{FORMS, heard, is_one_history};
use crate::cells::world::{LONG_MS, World};
use marram_session::owner::BackupForm;
use marram_shard::api::{Kill, ToShard};
use marram_wire::frame::Code;

/// A client at each edge for each of these keys, by key.
fn clients(world: &mut World, keys: &[&str]) -> Vec<Vec<usize>> {
    keys.iter().map(|key| (0..2).map(|edge| world.joins_cell(edge, key)).collect()).collect()
}

/// Each key's clients say something, and all of them hear it, and no others do.
fn talk(world: &mut World, clients: &[Vec<usize>], what: &str) {
    for (number, of_key) in clients.iter().enumerate() {
        world.says(of_key[0], &format!("{what} {number}"));
    }
    world.runs(LONG_MS);
    for (number, of_key) in clients.iter().enumerate() {
        is_one_history(world, of_key);
        for client in of_key {
            assert_eq!(world.ended(*client), None);
            for other in 0..clients.len() {
                let said = heard(world, *client, &format!("{what} {other}"));
                assert_eq!(said, other == number, "{client}: {:?}", world.heard(*client));
            }
        }
    }
}

#[test]
fn each_key_has_a_cell_and_a_slot_has_several() {
    for form in FORMS {
        let mut world = World::with_keys(2, form, 1);
        let clients = clients(&mut world, &["a", "b", "c"]);
        talk(&mut world, &clients, "one");
        // One slot, with one group: so one claim decides about all of them.
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1));
        let at = world.runs_at();
        assert_eq!(at.len(), 1);
        let expected: Vec<_> = ["a", "b", "c"].map(|key| (key.to_string(), 2)).into();
        assert_eq!(world.cells_at(at[0]), expected);
    }
}

#[test]
fn keys_are_spread_over_slots_which_edges_take_as_they_are_asked() {
    let mut world = World::with_keys(3, BackupForm::Log, 64);
    let keys: Vec<String> = (0..12).map(|number| format!("key {number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        world.joins_cell(number % 3, key);
    }
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), [0, 1, 2]);
    let cells: usize = (0..3).map(|edge| world.cells_at(edge).len()).sum();
    assert_eq!(cells, 12);
    assert!((8..=12).contains(&world.store.slots.len()), "{} slots", world.store.slots.len());
    assert_eq!(world.store.slots.len(), world.store.groups.len());
}

#[test]
fn all_cells_of_a_slot_outlive_their_edge() {
    for form in FORMS {
        let mut world = World::with_keys(3, form, 1);
        let clients = clients(&mut world, &["a", "b", "c"]);
        talk(&mut world, &clients, "before");
        for death in 0..2 {
            let at = world.runs_at();
            assert_eq!(at.len(), 1, "death {death}");
            world.kills(at[0]);
            talk(&mut world, &clients, &format!("after {death}"));
            if death == 0 {
                let first = world.runs_at()[0];
                assert_ne!(first, at[0]);
                // A key that no client had asked for begins where its slot is now.
                let late = world.joins_cell(first, "late");
                assert!(heard(&world, late, "hi"), "{:?}", world.heard(late));
                assert_eq!(world.cells_at(first).len(), 4);
                world.runs(LONG_MS);
            }
        }
        assert!(world.notes.iter().all(|note| !note.contains("is lost")), "{:?}", world.notes);
    }
}

/// Two clients are in the cell of one key, and a third one has come for that of another key, so many events ago. Returns the first two,
/// and that one.
fn second_begins(events: usize) -> (World, Vec<usize>, usize) {
    let mut world = World::with_keys(3, BackupForm::Log, 1);
    let first = vec![world.joins_cell(0, "a"), world.joins_cell(1, "a")];
    world.runs(LONG_MS);
    let late = world.comes_for(2, "b");
    world.settles_some(events);
    (world, first, late)
}

#[test]
fn a_cell_that_has_not_begun_at_the_backup_begins_there() {
    // The owner dies at each moment of the time in which a second cell of its slot begins.
    for events in 0..60 {
        let (mut world, first, late) = second_begins(events);
        let at = world.runs_at()[0];
        world.kills(at);
        world.runs(3 * LONG_MS);
        world.says(late, "again");
        world.says(first[0], "all");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at().len(), 1, "{events}");
        assert!(heard(&world, late, "again"), "{events}: {:?}", world.heard(late));
        assert!(!heard(&world, late, "all"), "{events}: {:?}", world.heard(late));
        for client in &first {
            assert!(heard(&world, *client, "all"), "{events}: {:?}", world.heard(*client));
        }
        is_one_history(&world, &first);
        is_one_history(&world, &[late]);
        assert_eq!(world.ended(late), None);
    }
}

#[test]
fn a_cell_ends_with_its_last_client_and_the_next_one_begins_again() {
    for form in FORMS {
        let mut world = World::with_keys(2, form, 1);
        let clients = clients(&mut world, &["a", "b"]);
        talk(&mut world, &clients, "one");
        let at = world.runs_at()[0];
        clients[0].iter().for_each(|client| world.closes(*client));
        world.runs(LONG_MS);
        assert_eq!(world.cells_at(at), [("b".to_string(), 2)]);
        // The last cell of the slot stays without a client, so that its backup knows of it.
        clients[1].iter().for_each(|client| world.closes(*client));
        world.runs(LONG_MS);
        assert_eq!(world.cells_at(at), [("b".to_string(), 0)]);
        // But it is over.
        let next = world.joins_cell(1, "b");
        assert_eq!(world.heard(next).first(), Some(&"1 joins"), "{:?}", world.heard(next));
        world.runs(LONG_MS);
        assert_eq!(world.cells_at(at), [("b".to_string(), 1)]);
        // So is that of another key, as soon as there is one in the slot.
        world.closes(next);
        let other = world.joins_cell(0, "c");
        world.runs(LONG_MS);
        assert_eq!(world.cells_at(at), [("c".to_string(), 1)]);
        world.kills(at);
        world.runs(LONG_MS);
        world.says(other, "still here");
        world.runs(LONG_MS);
        assert!(heard(&world, other, "still here"));
        assert_eq!(world.ended(other), None);
    }
}

#[test]
fn a_slot_without_clients_outlives_its_edge() {
    for keys in [["a", "b"], ["b", "a"]] {
        let mut world = World::with_keys(3, BackupForm::Log, 1);
        let client = world.joins_cell(0, "a");
        world.runs(LONG_MS);
        world.closes(client);
        world.runs(LONG_MS);
        let at = world.runs_at()[0];
        world.kills(at);
        world.runs(LONG_MS);
        for key in keys {
            let next = world.joins_cell(2, key);
            world.runs(LONG_MS);
            assert_eq!(world.heard(next), ["1 joins", "2 hi"], "{keys:?}, {key}");
        }
    }
}

#[test]
fn a_backup_that_does_not_know_that_it_has_won_begins_no_other_cell() {
    let mut world = World::with_keys(3, BackupForm::Log, 1);
    let first: Vec<_> = (0..3).map(|edge| world.joins_cell(edge, "a")).collect();
    world.runs(LONG_MS);
    let at = world.runs_at()[0];
    world.store.loses_answers = true;
    world.kills(at);
    world.runs(LONG_MS);
    // Its claim is written, and the slot's record says so to who asks for another key.
    let late: Vec<_> = (0..3).filter(|edge| *edge != at).map(|edge| world.comes_for(edge, "b")).collect();
    world.runs(LONG_MS);
    world.store.loses_answers = false;
    world.runs(3 * LONG_MS);
    world.says(first[0], "all");
    world.says(late[0], "again");
    world.runs(LONG_MS);
    assert_eq!(world.runs_at().len(), 1);
    for client in first {
        assert!(heard(&world, client, "all"), "{:?}", world.heard(client));
        assert_eq!(world.ended(client), None);
    }
    is_one_history(&world, &late);
    assert!(heard(&world, late[1], "again"), "{:?}", world.heard(late[1]));
    assert!(world.notes.iter().all(|note| !note.contains("is lost")), "{:?}", world.notes);
}

/// The backup goes on with the one cell that has not ended, and begins the other one again.
fn goes_on_with_one_cell(mut world: World, backup: usize, stays: usize, form: BackupForm) {
    world.runs(LONG_MS);
    let next = world.joins_cell(backup, "b");
    world.runs(LONG_MS);
    assert_eq!(world.heard(next), ["1 joins", "2 hi"], "{form:?}");
    world.says(stays, "still here");
    world.runs(LONG_MS);
    assert!(heard(&world, stays, "still here"), "{form:?}");
    assert!(world.notes.iter().any(|note| note.contains("takes 1 sessions over")), "{:?}", world.notes);
}

#[test]
fn a_backup_forgets_cells_that_have_ended_while_it_was_away() {
    for form in FORMS {
        let mut world = World::with_keys(2, form, 1);
        let (stays, leaves) = (world.joins_cell(0, "a"), world.joins_cell(0, "b"));
        world.runs(LONG_MS);
        let at = world.runs_at()[0];
        // It asks for the claim of what it is handed, in vain: it keeps its copies, and its primary goes on without it.
        world.store.away_from = Some(1 - at);
        world.moves(at, &format!("e{}", 1 - at));
        world.runs(50);
        world.closes(leaves);
        world.runs(LONG_MS);
        assert_eq!(world.cells_at(at), [("a".to_string(), 1)], "{form:?}");
        assert!(world.backup_at(at).is_some(), "{form:?}");
        world.store.away_from = None;
        world.kills(at);
        goes_on_with_one_cell(world, 1 - at, stays, form);
    }
}

#[test]
fn a_backup_that_never_hears_of_its_claim_forgets_cells_that_have_ended_while_it_was_away() {
    for form in FORMS {
        let mut world = World::with_keys(2, form, 1);
        let (stays, leaves) = (world.joins_cell(0, "a"), world.joins_cell(0, "b"));
        world.runs(LONG_MS);
        let at = world.runs_at()[0];
        let backup = 1 - at;
        let names_backup = |world: &World| {
            world.store.groups.values().any(|claim| claim.backup.as_ref() == Some(&format!("e{backup}")))
        };
        world.store.away_from = Some(backup);
        world.moves(at, &format!("e{backup}"));
        world.runs(50);
        world.closes(leaves);
        for _ in 0..LONG_MS {
            world.runs(1);
            if !names_backup(&world) {
                break;
            }
        }
        assert!(!names_backup(&world), "{form:?}: its primary goes on alone");
        // It is the backup again. What tells it so is lost, and then its primary dies.
        while !names_backup(&world) {
            world.steps(1);
        }
        world.freezes(backup);
        world.runs(0);
        world.loses_unread(backup);
        world.thaws(backup);
        assert_eq!(world.cells_at(at), [("a".to_string(), 1)], "{form:?}");
        world.store.away_from = None;
        // The machine of the client that has left is off, so that nothing tells this edge that it has.
        world.cuts_off(leaves, true);
        world.kills(at);
        goes_on_with_one_cell(world, backup, stays, form);
    }
}

#[test]
fn a_client_without_a_key_is_told_so() {
    let mut world = World::with_keys(2, BackupForm::Log, 4);
    let client = world.joins(0);
    assert_eq!(world.ended(client), Some(Code::Protocol));
    let mut world = World::new(2, BackupForm::Log);
    let client = world.joins_cell(0, "a");
    assert_eq!(world.ended(client), Some(Code::Protocol));
    assert_eq!(world.store.slots.len(), 0);
}

#[test]
fn a_client_that_comes_back_after_its_cell_has_ended_is_told_so() {
    for dies in [false, true] {
        let mut world = World::with_keys(3, BackupForm::Log, 1);
        let (lost, other) = (world.joins_cell(0, "a"), world.joins_cell(1, "b"));
        world.runs(LONG_MS);
        world.cuts_off(lost, true);
        let (at, session) = (world.runs_at()[0], world.session(lost).expect("it said hello"));
        world.control(at, ToShard::Kill(Kill { tag: 1, session, reason: "no more".into() }));
        world.runs(100);
        assert_eq!(world.cells_at(at), [("b".to_string(), 1)]);
        if dies {
            world.kills(at);
            world.runs(LONG_MS);
        }
        world.cuts_off(lost, false);
        world.runs(LONG_MS);
        assert_eq!(world.ended(lost), Some(Code::Forgotten), "{dies}");
        assert_eq!(world.ended(other), None);
        let next = world.joins_cell(2, "a");
        assert_eq!(world.heard(next), ["1 joins", "2 hi"]);
    }
}

#[test]
fn a_cell_that_an_edge_began_before_it_was_replaced_has_released_nothing() {
    // The owner is frozen at each moment of the time in which a second cell of its slot begins, and wakes when another edge has both.
    for events in (0..60).step_by(3) {
        let (mut world, first, late) = second_begins(events);
        let at = world.runs_at()[0];
        world.freezes(at);
        world.runs(3 * LONG_MS);
        world.thaws(at);
        world.says(late, "again");
        world.says(first[0], "all");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at().len(), 1, "{events}");
        assert_ne!(world.runs_at()[0], at, "{events}");
        assert!(heard(&world, late, "again"), "{events}: {:?}", world.heard(late));
        for client in &first {
            assert!(heard(&world, *client, "all"), "{events}: {:?}", world.heard(*client));
        }
        is_one_history(&world, &first);
        is_one_history(&world, &[late]);
        assert_eq!(world.ended(late), None);
    }
}
