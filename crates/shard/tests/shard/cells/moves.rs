//! Shared cells that move to their backups: for an operator, or since their edge stops.

use super::{
    FORMS, heard, is_one_history,
    world::{LONG_MS, World},
};
use marram_session::owner::BackupForm;
use marram_shard::api::{Tag, ToShard};

/// Less than any timeout, and less than an agent's first wait.
pub(super) const SOON_MS: u64 = 5;

pub(super) fn number(edge: &str) -> usize {
    edge.strip_prefix('e').and_then(|number| number.parse().ok()).expect("edges are e0, e1, ..")
}

/// Where the cells of three edges run, where their backup is, and the third edge.
pub(super) fn places(world: &World) -> [usize; 3] {
    let at = world.runs_at()[0];
    let backup = number(&world.backup_at(at).expect("it has a backup"));
    [at, backup, 3 - at - backup]
}

/// Three edges with a cell that has a backup, and clients of each: where it runs, where its backup is, and the third edge.
fn running(form: BackupForm) -> (World, [usize; 3], Vec<usize>) {
    let mut world = World::new(3, form);
    let clients: Vec<usize> = (0..3).map(|edge| world.joins(edge)).collect();
    world.runs(1_500);
    let places = places(&world);
    (world, places, clients)
}

#[test]
fn an_edge_that_stops_hands_its_cell_to_the_backup_before_a_client_notices() {
    for form in FORMS {
        let (mut world, [at, backup, _], clients) = running(form);
        world.says(clients[0], "before");
        world.control(at, ToShard::Drain(Tag { tag: 1 }));
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
pub(super) enum Fault {
    PrimaryDies,
    PrimarySleeps,
    BackupSleeps,
    BackupStops,
    StoreAway,
}

pub(super) fn disturb(world: &mut World, fault: Fault, [at, backup]: [usize; 2]) {
    match fault {
        Fault::PrimaryDies => world.kills(at),
        Fault::PrimarySleeps => world.freezes(at),
        Fault::BackupSleeps => world.freezes(backup),
        Fault::BackupStops => world.control(backup, ToShard::Drain(Tag { tag: 1 })),
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

#[test]
fn a_cell_that_another_edge_than_the_one_asked_for_goes_on_with_has_not_moved_there() {
    for form in [BackupForm::Log, BackupForm::Pages] {
        let mut handed_over = 0;
        for steps in 0..36 {
            let (mut world, [at, backup, third], clients) = running(form);
            world.moves(at, &format!("e{backup}"));
            world.settles_some(steps);
            world.freezes(at);
            if !world.moves.is_empty() {
                // It is over before this edge falls silent.
                break;
            }
            // The backup goes on and is backed by the third edge, which goes on in its turn.
            world.runs(LONG_MS);
            world.kills(backup);
            world.runs(LONG_MS);
            assert!(world.runs_at().contains(&third), "{form:?} after {steps} steps: {:?}", world.notes);
            world.thaws(at);
            world.says(clients[0], "after");
            world.runs(LONG_MS);
            assert_eq!(world.runs_at(), [third], "{form:?} after {steps} steps");
            let [why] = &world.moves[..] else { panic!("one result: {:?}", world.moves) };
            // What this edge learns first may still be that its backup has it.
            let taken_by = |edge| {
                world.notes.contains(&format!("Superseded: `e{edge}` has claimed the session's group"))
            };
            assert_eq!(why.is_empty(), taken_by(backup), "{form:?} after {steps} steps: {:?}", world.notes);
            handed_over += usize::from(taken_by(third));
            assert!(heard(&world, clients[2], "after"));
        }
        assert!(handed_over > 0, "{form:?}: it was never handed over");
    }
}

#[test]
fn a_session_with_which_its_backup_goes_on_has_not_moved_to_the_edge_asked_for() {
    let (mut at_backup, mut moved) = (0, 0);
    for steps in 0..60 {
        let mut world = World::with_own_cells(3, &[]);
        let client = world.joins(0);
        world.runs(1_500);
        let [at, backup, third] = places(&world);
        world.moves(at, &format!("e{third}"));
        world.steps(steps);
        world.freezes(at);
        if !world.moves.is_empty() {
            break;
        }
        world.runs(LONG_MS);
        world.thaws(at);
        world.says(client, "after");
        world.runs(LONG_MS);
        assert!(heard(&world, client, "after"));
        let [why] = &world.moves[..] else { panic!("one result: {:?}", world.moves) };
        let runs_at = world.runs_at();
        assert!(!why.is_empty() || runs_at == [third], "after {steps} steps: {:?}", world.notes);
        at_backup += usize::from(runs_at == [backup]);
        moved += usize::from(why.is_empty());
    }
    assert!(at_backup > 0 && moved > 0, "{at_backup} {moved}");
}

#[test]
fn a_planned_change_of_the_edges_of_cells_is_no_loss_in_the_log() {
    for to_backup in [true, false] {
        for form in FORMS {
            let (mut world, [at, backup, third], _) = super::key_moves::with_cells(form, &["a", "b"]);
            (world.notes, world.warnings) = Default::default();
            let to = if to_backup { backup } else { third };
            world.moves(at, &format!("e{to}"));
            world.runs(100);
            assert_eq!(world.runs_at(), [to], "{form:?}: {:?}", world.notes);
            let said = |part: &str| world.notes.iter().filter(|note| note.contains(part)).count();
            let handed = format!("hands 2 shared cells over to `e{to}`, which goes on with them");
            assert_eq!((said(&handed), said("lost their backup")), (1, 0), "{form:?}: {:?}", world.notes);
            assert_eq!(
                (said("no longer keeps"), &world.warnings[..]),
                (0, &[][..]),
                "{form:?}: {:?}",
                world.notes
            );
        }
    }
}

#[test]
fn a_backup_that_is_lost_is_warned_of() {
    for form in FORMS {
        let (mut world, [_, backup, _], _) = running(form);
        world.warnings.clear();
        world.kills(backup);
        world.runs(100);
        let lost = format!("1 sessions have lost their backup `e{backup}`: the connection broke");
        assert_eq!(world.warnings, [lost], "{form:?}: {:?}", world.notes);
    }
}

#[test]
fn a_backup_that_does_not_go_on_with_cells_that_are_handed_over_is_lost() {
    let (mut world, [at, backup, third], _) = running(BackupForm::Log);
    world.store.away_from = Some(backup);
    world.warnings.clear();
    world.moves(at, &format!("e{backup}"));
    world.runs(1_000);
    let lost =
        format!("1 sessions have lost their backup `e{backup}`: the coordinator does not answer this edge");
    assert!(world.warnings.iter().any(|it| it.contains(&lost)), "{third}: {:?}", world.notes);
    assert_eq!(world.runs_at(), [at]);
}
