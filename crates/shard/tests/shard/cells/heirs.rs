//! Cells that move past their backup stay protected: it keeps its copies, and the next edge goes on to feed them.

use super::{
    FORMS,
    backups::{KEYS, all_hear, running, say},
    heard,
    moves::SOON_MS,
    world::{LONG_MS, World},
};
use marram_session::owner::BackupForm;
use marram_wire::frame::{Code, Ended};
use std::collections::BTreeSet;

/// Moves the cells to the third edge, until the claim of that is decided. No handler of them runs before that.
fn moves(world: &mut World, [at, _, third]: [usize; 3]) {
    world.moves(at, &format!("e{third}"));
    until_moved(world, third);
}

fn is_claimed_by(world: &World, edge: usize) -> bool {
    world.store.groups.values().all(|claim| claim.primary == format!("e{edge}"))
}

/// The cells are to move, and the edge to which they do has a copy of each.
pub(super) fn until_copied(world: &mut World, [at, third]: [usize; 2]) {
    let copies = world.feeds.copies + KEYS.len();
    world.moves(at, &format!("e{third}"));
    while world.feeds.copies < copies {
        world.steps(1);
    }
}

pub(super) fn until_moved(world: &mut World, third: usize) {
    for _ in 0..1_000 {
        world.steps(1);
        if is_claimed_by(world, third) {
            return;
        }
    }
    panic!("the cells do not move: {:?}", world.notes);
}

pub(super) fn is_backed_at(world: &World, backup: usize) -> bool {
    world.store.groups.values().all(|claim| claim.backup == Some(format!("e{backup}")))
}

pub(super) fn keys_at(world: &World, edge: usize) -> Vec<String> {
    world.cells_at(edge).into_iter().map(|(key, _)| key).collect()
}

/// How often edges have said that they run cells without a backup.
fn alone(world: &World) -> usize {
    world.notes.iter().filter(|note| note.contains("without a backup")).count()
}

#[test]
fn the_backup_of_cells_that_move_past_it_goes_on_without_a_new_copy() {
    for form in FORMS {
        let (mut world, edges, clients) = running(form);
        let [_, backup, third] = edges;
        say(&mut world, &clients, "before");
        world.runs(100);
        let (copies, runs_alone) = (world.feeds.copies, alone(&world));
        moves(&mut world, edges);
        assert!(is_backed_at(&world, backup), "{form:?}");
        world.runs(100);
        assert_eq!((world.runs_at(), &world.moves[..]), (vec![third], &[String::new()][..]), "{form:?}");
        assert_eq!(world.feeds.kept_on, KEYS.len(), "{form:?}");
        if form == BackupForm::Log {
            // The next primary got one of each cell, and the backup none.
            assert_eq!(world.feeds.copies - copies, KEYS.len());
        }
        say(&mut world, &clients, "after");
        world.runs(100);
        let what = format!("{form:?}");
        all_hear(&world, &clients, &["before", "after"], &what);
        assert_eq!(alone(&world), runs_alone, "{what}: {:?}", world.notes);
        // Another key's cell begins there and has the same backup.
        let late = world.comes_for(third, "late");
        world.runs(100);
        world.kills(third);
        say(&mut world, &clients, "later");
        world.says(late, "later");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at(), [backup], "{what}: {:?}", world.notes);
        all_hear(&world, &[clients, vec![vec![late]]].concat(), &["later"], &what);
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1));
    }
}

#[test]
fn a_cell_that_begins_while_others_move_past_their_backup_moves_with_them() {
    for form in FORMS {
        for steps in (0..60).step_by(2) {
            let (mut world, edges, mut clients) = running(form);
            let [at, backup, third] = edges;
            world.moves(at, &format!("e{third}"));
            world.steps(steps);
            // It does not confirm that the cell begins before that is looked at.
            world.freezes(backup);
            clients.push(vec![world.comes_for(at, "new"), world.comes_for(third, "new")]);
            world.runs(20);
            world.thaws(backup);
            world.runs(1_000);
            let what = format!("{form:?}, {steps} steps behind the wish");
            assert_eq!((world.runs_at(), &world.moves[..]), (vec![third], &[String::new()][..]), "{what}");
            say(&mut world, &clients, "after");
            world.runs(SOON_MS);
            all_hear(&world, &clients, &["after"], &what);
            world.kills(third);
            say(&mut world, &clients, "later");
            world.runs(LONG_MS);
            assert_eq!(world.runs_at(), [backup], "{what}: {:?}", world.notes);
            all_hear(&world, &clients, &["after", "later"], &what);
        }
    }
}

#[test]
fn cells_go_on_if_one_of_their_slot_does_not_come_to_stand() {
    for form in FORMS {
        let (mut world, [at, _, third], clients) = running(form);
        until_copied(&mut world, [at, third]);
        world.dawdles(at);
        world.says(clients[0][0], "long");
        world.runs(4_000);
        world.says(clients[1][0], "meanwhile");
        world.runs(500);
        let has_heard = heard(&world, clients[1][0], "meanwhile");
        assert_eq!((&world.moves[..], has_heard), (&[][..], false), "{form:?}: {:?}", world.notes);
        world.runs(1_000);
        let why = "its slot's cells did not all stand still in time";
        assert_eq!(world.moves, [why], "{form:?}");
        world.hurries(at);
        say(&mut world, &clients, "after");
        world.runs(SOON_MS);
        assert_eq!(world.runs_at(), [at], "{form:?}");
        all_hear(&world, &clients[..1], &["long", "after"], &format!("{form:?}"));
        all_hear(&world, &clients[1..], &["meanwhile", "after"], &format!("{form:?}"));
    }
}

#[test]
fn an_edge_that_dies_behind_the_claim_of_cells_leaves_them_to_their_backup() {
    for form in FORMS {
        let mut went_on = BTreeSet::new();
        for steps in 0..90 {
            let (mut world, edges, clients) = running(form);
            say(&mut world, &clients, "before");
            moves(&mut world, edges);
            say(&mut world, &clients, "during");
            world.steps(steps);
            world.kills(edges[2]);
            say(&mut world, &clients, "after");
            world.runs(LONG_MS);
            let what = format!("{form:?}, {steps} steps behind the claim");
            assert_eq!(world.runs_at(), [edges[1]], "{what}: {:?}", world.notes);
            all_hear(&world, &clients, &["before", "during", "after"], &what);
            went_on.extend(world.runs_at());
        }
        assert_eq!(went_on.len(), 1, "{form:?}");
    }
}

#[test]
fn a_primary_that_dies_with_the_next_one_leaves_cells_to_their_backup() {
    for form in FORMS {
        for steps in (0..60).step_by(3) {
            let (mut world, edges, clients) = running(form);
            say(&mut world, &clients, "before");
            moves(&mut world, edges);
            world.steps(steps);
            world.kills(edges[0]);
            world.kills(edges[2]);
            say(&mut world, &clients, "after");
            world.runs(2 * LONG_MS);
            let what = format!("{form:?}, {steps} steps behind the claim");
            assert_eq!(world.runs_at(), [edges[1]], "{what}: {:?}", world.notes);
            all_hear(&world, &clients, &["before", "after"], &what);
        }
    }
}

#[test]
fn a_backup_that_is_gone_when_cells_have_moved_is_replaced() {
    for form in FORMS {
        for steps in (0..60).step_by(3) {
            let (mut world, edges, clients) = running(form);
            moves(&mut world, edges);
            world.steps(steps);
            world.kills(edges[1]);
            say(&mut world, &clients, "after");
            world.runs(2 * LONG_MS);
            let what = format!("{form:?}, {steps} steps behind the claim");
            assert_eq!(world.runs_at(), [edges[2]], "{what}: {:?}", world.notes);
            assert_eq!(
                world.backup_at(edges[2]),
                Some(format!("e{}", edges[0])),
                "{what}: {:?}",
                world.notes
            );
            all_hear(&world, &clients, &["after"], &what);
        }
    }
}

#[test]
fn a_backup_that_was_started_again_has_no_copy_to_go_on_with() {
    for form in FORMS {
        let (mut world, edges, clients) = running(form);
        moves(&mut world, edges);
        world.kills(edges[1]);
        world.restarts(edges[1]);
        say(&mut world, &clients, "after");
        world.runs(2 * LONG_MS);
        assert_eq!(world.runs_at(), [edges[2]], "{form:?}: {:?}", world.notes);
        assert!(world.backup_at(edges[2]).is_some(), "{form:?}: {:?}", world.notes);
        all_hear(&world, &clients, &["after"], &format!("{form:?}"));
    }
}

#[test]
fn an_edge_that_knows_no_such_hand_over_gets_cells_as_before() {
    for old in 0..3 {
        let (mut world, edges, clients) = running(BackupForm::Log);
        let [at, backup, third] = edges;
        world.feeds.old.insert(edges[old]);
        if old > 0 {
            // It greets again.
            world.kills(edges[old]);
            world.runs(LONG_MS);
            world.restarts(edges[old]);
            world.runs(2 * LONG_MS);
        }
        let places = [world.runs_at()[0], super::moves::number(&world.backup_at(at).expect("it has one"))];
        let to = 3 - places[0] - places[1];
        world.moves(places[0], &format!("e{to}"));
        say(&mut world, &clients, "after");
        world.runs(2 * LONG_MS);
        let what = format!("{old} of {at}, {backup}, {third}");
        assert_eq!((world.runs_at(), &world.moves[..]), (vec![to], &[String::new()][..]), "{what}");
        assert_eq!(world.feeds.kept_on, if old == 0 { KEYS.len() } else { 0 }, "{what}");
        all_hear(&world, &clients, &["after"], &what);
    }
}

/// Lets time pass until the store has a claim of this edge on the group.
fn until_claimed_by(world: &mut World, edge: usize) {
    for _ in 0..100_000 {
        if is_claimed_by(world, edge) {
            return;
        }
        world.steps(1);
    }
    panic!("e{edge} does not claim: {:?}", world.notes);
}

/// The third edge, to which the cells have moved, sleeps until the backup has learned of its claim from the store.
fn sleeps(world: &mut World, third: usize) {
    world.freezes(third);
    let knows = |world: &World| world.notes.iter().any(|note| note.contains("stays the backup of"));
    for _ in 0..1_000 {
        if knows(world) {
            return;
        }
        world.runs(10);
    }
    panic!("the backup does not ask: {:?}", world.notes);
}

#[test]
fn a_backup_that_claims_moved_cells_goes_on_with_them_however_late_it_learns_that_it_has_won() {
    for form in FORMS {
        for is_slot_late in [false, true] {
            let (mut world, edges, clients) = running(form);
            let [_, backup, third] = edges;
            let what = format!("{form:?}, slot: {is_slot_late}");
            say(&mut world, &clients, "before");
            moves(&mut world, edges);
            sleeps(&mut world, third);
            // Either the answer to its claim is lost, or it waits for the slot when the third edge wakes.
            (world.store.loses_answers, world.store.slots_away) = (!is_slot_late, true);
            until_claimed_by(&mut world, backup);
            if is_slot_late {
                world.runs(1);
            }
            world.thaws(third);
            // What the third edge asks for is lost, too.
            world.runs(50);
            (world.store.loses_answers, world.store.slots_away) = (false, false);
            say(&mut world, &clients, "after");
            world.runs(LONG_MS);
            assert_eq!(world.runs_at(), [backup], "{what}: {:?}", world.notes);
            all_hear(&world, &clients, &["before", "after"], &what);
            world.kills(third);
            say(&mut world, &clients, "later");
            world.runs(2 * LONG_MS);
            assert_eq!(world.runs_at(), [backup], "{what}: {:?}", world.notes);
            all_hear(&world, &clients, &["later"], &what);
        }
    }
}

#[test]
fn a_cell_that_begins_at_an_edge_which_its_backup_refuses_takes_no_claim_from_that() {
    for steps in 0..60 {
        let (mut world, edges, clients) = running(BackupForm::Log);
        let [at, backup, third] = edges;
        until_copied(&mut world, [at, third]);
        world.dawdles(third);
        say(&mut world, &clients, "before");
        until_moved(&mut world, third);
        sleeps(&mut world, third);
        world.store.loses_answers = true;
        until_claimed_by(&mut world, backup);
        world.thaws(third);
        // It is fed to the backup at about the time at which that is told to go on with the others, and refuses.
        let late = world.comes_for(third, "late");
        world.steps(steps);
        world.hurries(third);
        world.runs(50);
        world.store.loses_answers = false;
        say(&mut world, &clients, "after");
        world.runs(2 * LONG_MS);
        let what = format!("{steps} steps");
        assert_eq!(world.runs_at(), [backup], "{what}: {:?}", world.notes);
        world.says(late, "after");
        world.runs(LONG_MS);
        all_hear(&world, &clients, &["before", "after"], &what);
        assert!(heard(&world, late, "after"), "{what}: {:?}", world.notes);
    }
}

#[test]
fn a_backup_waits_for_an_edge_that_wakes_with_moved_cells_and_replays() {
    let (mut world, edges, clients) = running(BackupForm::Log);
    let [at, backup, third] = edges;
    until_copied(&mut world, [at, third]);
    // Its checkpoints lack that, and it does not get it done.
    world.dawdles(third);
    say(&mut world, &clients, "before");
    until_moved(&mut world, third);
    sleeps(&mut world, third);
    world.thaws(third);
    world.runs(5_000);
    assert_eq!((world.feeds.kept_on, is_backed_at(&world, backup)), (0, true), "{:?}", world.notes);
    world.hurries(third);
    say(&mut world, &clients, "after");
    world.runs(100);
    assert_eq!((world.feeds.kept_on, world.runs_at()), (KEYS.len(), vec![third]), "{:?}", world.notes);
    all_hear(&world, &clients, &["before", "after"], "it has replayed");
    world.kills(third);
    say(&mut world, &clients, "later");
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), [backup], "{:?}", world.notes);
    all_hear(&world, &clients, &["later"], "it has died");
}

#[test]
fn copies_that_are_elsewhere_than_the_next_primary_are_dropped_when_that_has_another_backup() {
    for form in FORMS {
        let (mut world, edges, clients) = running(form);
        let [at, backup, third] = edges;
        world.feeds.misplaces = true;
        moves(&mut world, edges);
        say(&mut world, &clients, "after");
        world.runs(LONG_MS);
        assert_eq!((world.runs_at(), world.feeds.kept_on > 0), (vec![third], true), "{form:?}");
        assert_eq!(world.backup_at(third), Some(format!("e{at}")), "{form:?}: {:?}", world.notes);
        assert_eq!(world.copies_at(backup), 0, "{form:?}");
        all_hear(&world, &clients, &["after"], &format!("{form:?}"));
    }
}

#[test]
fn a_backup_that_refuses_to_go_on_claims_nothing_while_the_next_primary_lives() {
    for dies in [false, true] {
        let (mut world, edges, clients) = running(BackupForm::Log);
        let [at, backup, third] = edges;
        until_copied(&mut world, [at, third]);
        world.dawdles(third);
        say(&mut world, &clients, "before");
        until_moved(&mut world, third);
        world.runs(50);
        // The backup leads it to the next primary, and refuses what that asks soon after.
        let late = world.comes_for(backup, KEYS[0]);
        world.runs(20);
        (world.feeds.misplaces, world.store.away_from) = (true, Some(third));
        world.hurries(third);
        world.runs(LONG_MS);
        let what = format!("dies: {dies}: {:?}", world.notes);
        assert!(world.feeds.kept_on > 0 && is_claimed_by(&world, third), "{what}");
        assert!(is_backed_at(&world, backup) && world.copies_at(backup) == KEYS.len(), "{what}");
        if dies {
            world.kills(third);
        }
        world.store.away_from = None;
        say(&mut world, &clients, "after");
        world.runs(2 * LONG_MS);
        let goes_on = if dies { backup } else { third };
        let what = format!("dies: {dies}: {:?}", world.notes);
        assert_eq!((world.runs_at(), keys_at(&world, goes_on).len()), (vec![goes_on], KEYS.len()), "{what}");
        all_hear(&world, &clients, &["before", "after"], &what);
        say(&mut world, &clients, "later");
        world.runs(100);
        assert!(heard(&world, late, "later"), "{what}");
        if !dies {
            assert_eq!(world.copies_at(backup), 0, "{what}");
        }
    }
}

#[test]
fn a_cell_that_ended_while_its_next_edge_had_no_backup_does_not_come_back() {
    for form in FORMS {
        let (mut world, edges, clients) = running(form);
        let [at, backup, third] = edges;
        world.feeds.misplaces = true;
        moves(&mut world, edges);
        world.runs(100);
        world.kills(at);
        world.runs(2_000);
        assert_eq!(world.runs_at(), [third], "{form:?}: {:?}", world.notes);
        world.kills_cell(third);
        // Its backup is chosen again.
        world.runs(LONG_MS);
        let cells = world.cells_at(third);
        assert_eq!((cells.len(), world.backup_at(third)), (1, Some(format!("e{backup}"))), "{form:?}");
        world.kills(third);
        let of_key = |of_key: &&Vec<usize>| world.ended(of_key[0]).is_none();
        let others: Vec<Vec<usize>> = clients.iter().filter(of_key).cloned().collect();
        say(&mut world, &others, "later");
        world.runs(LONG_MS);
        assert_eq!(world.cells_at(backup), cells, "{form:?}: {:?}", world.notes);
        all_hear(&world, &others, &["later"], &format!("{form:?}"));
    }
}

#[test]
fn a_backup_that_is_told_that_another_owner_is_newer_drops_that_copy_alone() {
    for form in FORMS {
        let (mut world, [at, backup, _], _) = running(form);
        let (record, copies) = (world.store.groups.clone(), world.copies_at(backup));
        world.hears_primary(backup, |channel| {
            let (code, reason) = (Code::Superseded, "another owner is newer".into());
            Ended { channel, code, reason }.into()
        });
        assert_eq!(world.copies_at(backup), copies - 1, "{form:?}");
        world.runs(LONG_MS);
        assert_eq!(
            (world.runs_at(), &world.store.groups),
            (vec![at], &record),
            "{form:?}: {:?}",
            world.notes
        );
    }
}
