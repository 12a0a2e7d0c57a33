//! Shared cells that move to their backups: for an operator, or since their edge stops.

use super::{
    FORMS, heard, is_one_history,
    world::{LONG_MS, World},
};
use marram_session::owner::BackupForm;
use marram_shard::api::ToShard;

/// Less than any timeout, and less than an agent's first wait.
const SOON_MS: u64 = 5;

fn number(edge: &str) -> usize {
    edge.strip_prefix('e').and_then(|number| number.parse().ok()).expect("edges are e0, e1, ..")
}

/// Three edges with a cell that has a backup, and clients of each: where it runs, where its backup is, and the third edge.
fn running(form: BackupForm) -> (World, [usize; 3], Vec<usize>) {
    let mut world = World::new(3, form);
    let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
    world.runs(1_500);
    let at = world.runs_at()[0];
    let backup = number(&world.backup_at(at).expect("it has a backup"));
    (world, [at, backup, 3 - at - backup], clients)
}

#[test]
fn an_edge_that_stops_hands_its_cell_to_the_backup_before_a_client_notices() {
    for form in FORMS {
        let (mut world, [at, backup, _], clients) = running(form);
        world.says(clients[0], "before");
        world.control(at, ToShard::Drain);
        world.says(clients[1], "during");
        world.runs(SOON_MS);
        assert_eq!(
            (world.runs_at(), &world.drained[..]),
            (vec![backup], &[at][..]),
            "{form:?}: {:?}",
            world.notes
        );
        assert_eq!(world.moves, [""]);
        for client in &clients {
            assert!(
                heard(&world, *client, "before") && heard(&world, *client, "during"),
                "{form:?}: {client}"
            );
        }
        // A client that asks the edge that stops is led to where the cell is.
        let late = world.comes(at);
        world.runs(SOON_MS);
        assert!(heard(&world, late, "hi"), "{form:?}: {:?}", world.heard(late));
        world.kills(at);
        world.says(late, "after");
        world.runs(LONG_MS);
        for client in clients.iter().chain(&[late]) {
            assert!(heard(&world, *client, "after"));
            assert_eq!(world.ended(*client), None);
        }
        is_one_history(&world, &[&clients[..], &[late]].concat());
    }
}

#[test]
fn an_operator_moves_a_cell_to_its_backup_and_back() {
    for form in FORMS {
        let mut world = World::new(2, form);
        let clients: Vec<usize> = (0..3).map(|client| world.joins(client % 2)).collect();
        world.runs(LONG_MS);
        let mut at = world.runs_at()[0];
        for turn in 0..4 {
            let text = format!("turn {turn}");
            world.moves(at, &format!("e{}", 1 - at));
            world.says(clients[turn % 3], &text);
            world.runs(SOON_MS);
            assert_eq!(world.runs_at(), [1 - at], "{form:?}: {:?}", world.notes);
            for client in &clients {
                assert!(heard(&world, *client, &text), "{form:?}: {client}");
            }
            at = 1 - at;
            // The edge that it left becomes its backup.
            world.runs(LONG_MS);
        }
        assert_eq!(world.moves, [""; 4]);
        is_one_history(&world, &clients);
    }
}

#[test]
fn a_cell_moves_only_to_its_backup() {
    let (mut world, [at, backup, third], clients) = running(BackupForm::Log);
    world.moves(at, &format!("e{third}"));
    world.moves(at, &format!("e{at}"));
    world.runs(SOON_MS);
    let only = format!("only to its backup, which is `e{backup}`");
    assert!(world.moves[0].contains(&only), "{:?}", world.moves);
    assert!(world.moves[1].contains("already"), "{:?}", world.moves);
    assert_eq!(world.runs_at(), [at]);
    world.says(clients[0], "on");
    world.runs(SOON_MS);
    assert!(heard(&world, clients[2], "on"));
}

#[test]
fn a_cell_stays_while_the_coordinator_does_not_answer() {
    for form in FORMS {
        let (mut world, [at, backup, _], clients) = running(form);
        world.store.away = true;
        world.moves(at, &format!("e{backup}"));
        world.says(clients[0], "away");
        world.runs(SOON_MS);
        assert!(world.moves[0].contains("the coordinator does not answer"), "{:?}", world.moves);
        assert!(heard(&world, clients[2], "away"), "{form:?}: its backup goes on to confirm");
        world.runs(LONG_MS);
        world.store.away = false;
        world.runs(LONG_MS);
        world.moves(at, &format!("e{backup}"));
        world.says(clients[1], "back");
        world.runs(SOON_MS);
        assert_eq!(world.runs_at(), [backup], "{:?}", world.notes);
        assert!(heard(&world, clients[2], "back"));
        is_one_history(&world, &clients);
    }
}

#[test]
fn a_cell_goes_on_if_its_backup_does_not_take_it_in_time() {
    for form in FORMS {
        let (mut world, [at, backup, _], clients) = running(form);
        world.freezes(backup);
        world.moves(at, &format!("e{backup}"));
        world.says(clients[0], "asleep");
        world.runs(LONG_MS);
        assert!(!world.moves[0].is_empty(), "{form:?}");
        for client in &clients {
            assert!(heard(&world, *client, "asleep"), "{form:?}: {client}: {:?}", world.notes);
        }
        world.thaws(backup);
        world.says(clients[1], "awake");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at(), [at]);
        for client in &clients {
            assert!(heard(&world, *client, "awake"), "{form:?}: {client}");
            assert_eq!(world.ended(*client), None);
        }
        is_one_history(&world, &clients);
    }
}

/// What happens to an edge in the middle of a hand-over.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    PrimaryDies,
    PrimarySleeps,
    BackupSleeps,
    BackupStops,
    StoreAway,
}

fn disturb(world: &mut World, fault: Fault, [at, backup]: [usize; 2]) {
    match fault {
        Fault::PrimaryDies => world.kills(at),
        Fault::PrimarySleeps => world.freezes(at),
        Fault::BackupSleeps => world.freezes(backup),
        Fault::BackupStops => world.control(backup, ToShard::Drain),
        Fault::StoreAway => world.store.away = true,
    }
}

#[test]
fn a_hand_over_that_is_disturbed_at_any_step_leaves_one_history() {
    use Fault::{BackupSleeps, BackupStops, PrimaryDies, PrimarySleeps, StoreAway};
    for fault in [PrimaryDies, PrimarySleeps, BackupSleeps, BackupStops, StoreAway] {
        for form in [BackupForm::Log, BackupForm::Pages] {
            for steps in 0..36 {
                let what = format!("{fault:?} after {steps} steps, {form:?}");
                let (mut world, [at, backup, _], clients) = running(form);
                world.says(clients[0], "before");
                world.moves(at, &format!("e{backup}"));
                world.says(clients[1], "during");
                world.settles_some(steps);
                disturb(&mut world, fault, [at, backup]);
                world.runs(LONG_MS);
                world.store.away = false;
                world.thaws(at);
                world.thaws(backup);
                world.says(clients[2], "after");
                world.runs(LONG_MS);
                assert_eq!(world.runs_at().len(), 1, "{what}: {:?}", world.notes);
                for client in &clients {
                    for text in ["before", "during", "after"] {
                        assert!(heard(&world, *client, text), "{what}: {client}: {text}: {:?}", world.notes);
                    }
                    assert_eq!(world.ended(*client), None, "{what}: {client}");
                }
                is_one_history(&world, &clients);
            }
        }
    }
}

/// Three edges with a slot of three cells, and two clients of each: where it runs, where its backup is, and the clients by key.
fn keyed(form: BackupForm) -> (World, [usize; 2], Vec<Vec<usize>>) {
    let mut world = World::with_keys(3, form, 1);
    let clients = ["a", "b", "c"].map(|key| vec![world.joins_cell(0, key), world.joins_cell(1, key)]);
    world.runs(1_500);
    let at = world.runs_at()[0];
    let backup = number(&world.backup_at(at).expect("it has a backup"));
    (world, [at, backup], clients.into())
}

/// Each cell's clients have heard this, in one history.
fn have_heard(world: &World, clients: &[Vec<usize>], text: &str, what: &str) {
    for of_key in clients {
        is_one_history(world, of_key);
        for client in of_key {
            assert!(heard(world, *client, text), "{what}: {client}: {text}: {:?}", world.notes);
            assert_eq!(world.ended(*client), None, "{what}: {client}");
        }
    }
}

#[test]
fn a_cell_that_moves_takes_the_others_of_its_slot_along() {
    for form in FORMS {
        for stops in [false, true] {
            let (mut world, [at, backup], clients) = keyed(form);
            let what = format!("{form:?}, {stops}");
            if stops {
                world.control(at, ToShard::Drain);
            } else {
                world.moves(at, &format!("e{backup}"));
            }
            clients.iter().for_each(|of_key| world.says(of_key[0], "during"));
            world.runs(SOON_MS);
            assert_eq!((world.runs_at(), world.cells_at(backup).len()), (vec![backup], 3), "{what}");
            assert_eq!(world.moves, [""], "{what}");
            have_heard(&world, &clients, "during", &what);
            // A key that has no cell yet begins there, too.
            let late = world.comes_for(at, "late");
            world.runs(SOON_MS);
            assert!(heard(&world, late, "hi"), "{what}: {:?}", world.heard(late));
            if stops {
                assert_eq!(world.drained, [at]);
                world.kills(at);
            }
            clients.iter().for_each(|of_key| world.says(of_key[1], "after"));
            world.runs(LONG_MS);
            have_heard(&world, &clients, "after", &what);
        }
    }
}

#[test]
fn a_second_cell_of_a_slot_that_moves_is_not_moved() {
    let (mut world, [at, backup], clients) = keyed(BackupForm::Log);
    world.moves_all(at, &format!("e{backup}"));
    world.runs(SOON_MS);
    let along = |why: &&String| why.contains("takes it along");
    assert_eq!((world.moves.iter().filter(along).count(), world.moves.len()), (2, 3), "{:?}", world.moves);
    assert_eq!(world.runs_at(), [backup]);
    clients.iter().for_each(|of_key| world.says(of_key[1], "after"));
    world.runs(SOON_MS);
    have_heard(&world, &clients, "after", "");
}

#[test]
fn a_slot_whose_hand_over_is_disturbed_at_any_step_has_one_history_of_each_cell() {
    use Fault::{BackupSleeps, BackupStops, PrimaryDies, PrimarySleeps, StoreAway};
    for fault in [PrimaryDies, PrimarySleeps, BackupSleeps, BackupStops, StoreAway] {
        for steps in (0..60).step_by(4) {
            let what = format!("{fault:?} after {steps} steps");
            let (mut world, [at, backup], clients) = keyed(BackupForm::Log);
            world.moves(at, &format!("e{backup}"));
            clients.iter().for_each(|of_key| world.says(of_key[0], "during"));
            world.settles_some(steps);
            disturb(&mut world, fault, [at, backup]);
            world.runs(LONG_MS);
            world.store.away = false;
            world.thaws(at);
            world.thaws(backup);
            clients.iter().for_each(|of_key| world.says(of_key[1], "after"));
            world.runs(LONG_MS);
            assert_eq!(world.runs_at().len(), 1, "{what}: {:?}", world.notes);
            have_heard(&world, &clients, "during", &what);
            have_heard(&world, &clients, "after", &what);
        }
    }
}
