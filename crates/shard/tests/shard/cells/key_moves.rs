//! Cells with keys move with all other cells of their slot: for an operator, or since their edge stops.

use super::{
    FORMS, heard, is_one_history,
    moves::{Fault, SOON_MS, disturb, number, places},
    world::{LONG_MS, World},
};
use marram_session::owner::BackupForm;
use marram_shard::api::{Tag, ToShard};

const KEYS: [&str; 3] = ["a", "b", "c"];

/// Three edges with one slot and a cell for each of these keys, each with two clients: where they run, their backup, the third edge, and the
/// clients.
pub(super) fn with_cells(form: BackupForm, keys: &[&str]) -> (World, [usize; 3], Vec<Vec<usize>>) {
    let mut world = World::with_keys(3, form, 1);
    let clients = keys.iter().map(|key| vec![world.joins_cell(0, key), world.joins_cell(2, key)]).collect();
    world.runs(1_500);
    let places = places(&world);
    (world, places, clients)
}

/// The same for all [`KEYS`].
fn running(form: BackupForm) -> (World, [usize; 2], Vec<Vec<usize>>) {
    let (world, [at, backup, _], clients) = with_cells(form, &KEYS);
    (world, [at, backup], clients)
}

/// One client of each key says this.
fn say(world: &mut World, clients: &[Vec<usize>], text: &str) {
    for (key, of_key) in KEYS.iter().zip(clients) {
        world.says(of_key[0], &format!("{text} {key}"));
    }
}

/// Each key's clients have heard each of these texts of their key, and no others; none was disconnected.
fn hears(world: &World, clients: &[Vec<usize>], texts: &[&str], what: &str) {
    for (key, of_key) in KEYS.iter().zip(clients) {
        for client in of_key {
            for text in texts {
                for other in KEYS {
                    let has = heard(world, *client, &format!("{text} {other}"));
                    assert_eq!(has, other == *key, "{what}: {client} of {key}: {text}: {:?}", world.notes);
                }
            }
            assert_eq!(world.ended(*client), None, "{what}: {client}");
        }
        is_one_history(world, of_key);
    }
}

#[test]
fn all_cells_of_a_slot_move_with_one_of_them_and_back() {
    for form in FORMS {
        let (mut world, [mut at, mut backup], clients) = running(form);
        for turn in 0..4 {
            let text = format!("turn {turn}");
            world.moves(at, &format!("e{backup}"));
            say(&mut world, &clients, &text);
            world.runs(SOON_MS);
            let what = format!("{form:?}, turn {turn}");
            assert_eq!(world.runs_at(), [backup], "{what}: {:?}", world.notes);
            assert_eq!(world.cells_at(backup), KEYS.map(|key| (key.to_string(), 2)), "{what}");
            hears(&world, &clients, &[&text], &what);
            // The next backup gets copies.
            world.runs(LONG_MS);
            at = backup;
            backup = number(&world.backup_at(at).expect("it has a backup"));
        }
        assert_eq!(world.moves, [""; 4]);
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1));
    }
}

#[test]
fn an_edge_that_stops_hands_slots_over_with_all_of_their_cells() {
    for form in FORMS {
        let (mut world, [at, backup], clients) = running(form);
        // More cells than are handed over at a time.
        let more: Vec<usize> = (0..10).map(|cell| world.joins_cell(1, &format!("more {cell}"))).collect();
        world.runs(LONG_MS);
        say(&mut world, &clients, "before");
        world.control(at, ToShard::Drain(Tag { tag: 1 }));
        say(&mut world, &clients, "during");
        world.runs(SOON_MS);
        let what = format!("{form:?}: {:?}", world.notes);
        assert_eq!((world.runs_at(), &world.drained[..]), (vec![backup], &[at][..]), "{what}");
        // Also those that went along with the first ones.
        assert_eq!(world.moves, [""; 13], "{what}");
        more.iter().for_each(|client| assert_eq!(world.ended(*client), None, "{what}"));
        hears(&world, &clients, &["before", "during"], &what);
        world.kills(at);
        // A key that no client had asked for begins where its slot is now.
        let late = world.joins_cell(2, "late");
        assert!(heard(&world, late, "hi"), "{:?}", world.heard(late));
        say(&mut world, &clients, "after");
        world.runs(LONG_MS);
        hears(&world, &clients, &["after"], &what);
    }
}

#[test]
fn a_slot_that_is_handed_over_is_not_claimed_again_and_gets_no_further_cell() {
    for stops in [false, true] {
        let (mut world, [at, backup], clients) = running(BackupForm::Log);
        let count = |world: &World| world.store.groups.values().next().expect("it is there").generation.count;
        let before = count(&world);
        world.freezes(backup);
        if stops {
            world.control(at, ToShard::Drain(Tag { tag: 1 }));
        } else {
            world.moves(at, &format!("e{backup}"));
        }
        world.runs(SOON_MS);
        let late = world.comes_for(at, "late");
        world.runs(100);
        assert_eq!(world.cells_at(at), KEYS.map(|key| (key.to_string(), 2)), "{stops}");
        // The record is the one that the backup knows.
        assert_eq!(count(&world), before, "{stops}");
        world.thaws(backup);
        say(&mut world, &clients, "after");
        world.says(late, "late");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at(), [backup], "{stops}: {:?}", world.notes);
        assert!(world.moves.iter().all(String::is_empty), "{stops}: {:?}", world.moves);
        hears(&world, &clients, &["after"], "after");
        assert!(heard(&world, late, "late"), "{stops}: {:?}", world.heard(late));
    }
}

#[test]
fn a_hand_over_of_a_slot_that_is_disturbed_at_any_step_leaves_one_history_for_each_key() {
    use Fault::{BackupSleeps, BackupStops, PrimaryDies, PrimarySleeps, StoreAway};
    for fault in [PrimaryDies, PrimarySleeps, BackupSleeps, BackupStops, StoreAway] {
        for form in [BackupForm::Log, BackupForm::Pages] {
            for steps in (0..72).step_by(5) {
                let what = format!("{fault:?} after {steps} steps, {form:?}");
                let (mut world, [at, backup], clients) = running(form);
                say(&mut world, &clients, "before");
                world.moves(at, &format!("e{backup}"));
                say(&mut world, &clients, "during");
                // It comes for a cell that does not exist yet.
                let late = world.comes_for(steps % 3, "late");
                world.settles_some(steps);
                disturb(&mut world, fault, [at, backup]);
                world.runs(LONG_MS);
                if fault == BackupStops {
                    // It has stopped. Meanwhile no cell of a further key began there.
                    world.kills(backup);
                }
                world.store.away = false;
                world.thaws(at);
                world.thaws(backup);
                say(&mut world, &clients, "after");
                world.says(late, "late");
                world.runs(LONG_MS);
                assert_eq!(world.runs_at().len(), 1, "{what}: {:?}", world.notes);
                hears(&world, &clients, &["before", "during", "after"], &what);
                assert!(heard(&world, late, "late"), "{what}: {:?}: {:?}", world.heard(late), world.notes);
                is_one_history(&world, &[late]);
                assert_eq!(world.ended(late), None, "{what}");
            }
        }
    }
}

#[test]
fn a_drain_that_is_disturbed_at_any_step_leaves_one_history_for_each_key() {
    for fault in [Fault::PrimaryDies, Fault::StoreAway] {
        for steps in (0..72).step_by(5) {
            let what = format!("{fault:?} after {steps} steps");
            let (mut world, [at, backup], clients) = running(BackupForm::Log);
            say(&mut world, &clients, "before");
            world.control(at, ToShard::Drain(Tag { tag: 1 }));
            say(&mut world, &clients, "during");
            world.settles_some(steps);
            disturb(&mut world, fault, [at, backup]);
            world.runs(LONG_MS);
            if fault == Fault::StoreAway {
                // It waits no longer, whether or not its cells have moved.
                world.kills(at);
            }
            world.store.away = false;
            say(&mut world, &clients, "after");
            world.runs(LONG_MS);
            assert_eq!(world.runs_at().len(), 1, "{what}: {:?}", world.notes);
            hears(&world, &clients, &["before", "during", "after"], &what);
        }
    }
}

#[test]
fn a_drain_that_is_cancelled_at_any_step_leaves_one_history_for_each_key() {
    for form in [BackupForm::Log, BackupForm::Pages] {
        for steps in (0..72).step_by(5) {
            let what = format!("{form:?} after {steps} steps");
            let (mut world, [at, _], clients) = running(form);
            say(&mut world, &clients, "before");
            world.control(at, ToShard::Drain(Tag { tag: 1 }));
            say(&mut world, &clients, "during");
            world.settles_some(steps);
            world.control(at, ToShard::CancelDrain(Tag { tag: 1 }));
            let late = world.comes_for(at, "late");
            say(&mut world, &clients, "after");
            world.runs(LONG_MS);
            assert_eq!(world.runs_at().len(), 1, "{what}: {:?}", world.notes);
            hears(&world, &clients, &["before", "during", "after"], &what);
            assert!(heard(&world, late, "hi"), "{what}: {:?}", world.notes);
            // Wherever they run now, they have a backup again.
            world.kills(world.runs_at()[0]);
            say(&mut world, &clients, "later");
            world.runs(LONG_MS);
            assert_eq!(world.runs_at().len(), 1, "{what}: {:?}", world.notes);
            hears(&world, &clients, &["before", "during", "after", "later"], &what);
        }
    }
}
