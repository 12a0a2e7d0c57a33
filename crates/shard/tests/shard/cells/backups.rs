//! The backup of shared cells moves while they run, and cells move to an edge that is not their backup. At each moment an edge may die or
//! sleep, and the coordinator be away.

use super::{
    FORMS, heard, is_one_history,
    key_moves::with_cells,
    moves::{SOON_MS, number},
    world::{LONG_MS, World},
};
use marram_session::owner::BackupForm;
use marram_shard::api::{ReplicationPolicy, Tag, ToShard};
use std::collections::BTreeSet;

/// What is sent of a copy at a time.
const PART: usize = marram_wire::limits::PART_SIZE;
pub(super) const KEYS: [&str; 2] = ["a", "b"];

/// Three edges with a cell for each of [`KEYS`], as [`with_cells`] has them.
pub(super) fn running(form: BackupForm) -> (World, [usize; 3], Vec<Vec<usize>>) {
    with_cells(form, &KEYS)
}

pub(super) fn say(world: &mut World, clients: &[Vec<usize>], text: &str) {
    clients.iter().for_each(|of_key| world.says(of_key[0], text));
}

pub(super) fn all_hear(world: &World, clients: &[Vec<usize>], texts: &[&str], what: &str) {
    for of_key in clients {
        for (client, text) in of_key.iter().flat_map(|client| texts.iter().map(move |text| (client, text))) {
            assert!(heard(world, *client, text), "{what}: {client}: {text}: {:?}", world.notes);
        }
        of_key.iter().for_each(|client| assert_eq!(world.ended(*client), None, "{what}: {client}"));
        is_one_history(world, of_key);
    }
}

#[test]
fn the_backup_of_a_slot_moves_and_goes_on_when_the_primary_dies() {
    for form in FORMS {
        let (mut world, [at, _, third], clients) = running(form);
        say(&mut world, &clients, "before");
        world.moves_backup(at, &format!("e{third}"));
        say(&mut world, &clients, "meanwhile");
        world.runs(100);
        assert_eq!(world.moves, [""], "{form:?}");
        assert_eq!((world.runs_at(), world.backup_at(at)), (vec![at], Some(format!("e{third}"))));
        say(&mut world, &clients, "after");
        world.runs(SOON_MS);
        all_hear(&world, &clients, &["before", "meanwhile", "after"], &format!("{form:?}"));
        world.kills(at);
        say(&mut world, &clients, "later");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at(), [third], "{form:?}");
        all_hear(&world, &clients, &["before", "meanwhile", "after", "later"], &format!("{form:?}"));
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1));
    }
}

#[test]
fn a_copy_that_cannot_be_made_costs_the_backup_nothing_that_it_has() {
    let (mut world, [at, backup, _], clients) = running(BackupForm::Pages);
    say(&mut world, &clients, "before");
    world.runs(SOON_MS);
    all_hear(&world, &clients, &["before"], "before");
    world.failing_copies = 1;
    say(&mut world, &clients, "after");
    while world.failing_copies > 0 {
        world.steps(1);
    }
    world.kills(at);
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), [backup], "{:?}", world.notes);
    all_hear(&world, &clients, &["before", "after"], "at the backup");
}

#[test]
fn a_backup_for_which_no_copy_can_be_made_is_claimed_away() {
    let (mut world, [at, ..], clients) = running(BackupForm::Pages);
    world.failing_copies = usize::MAX;
    say(&mut world, &clients, "before");
    world.runs(LONG_MS);
    all_hear(&world, &clients, &["before"], "without a backup");
    assert_eq!((world.runs_at(), world.backup_at(at)), (vec![at], None));
    world.failing_copies = 0;
    world.runs(LONG_MS);
    assert_ne!(world.backup_at(at), None, "{:?}", world.notes);
}

#[test]
fn cells_move_to_an_edge_that_is_not_their_backup() {
    for form in FORMS {
        let (mut world, [mut at, _, mut third], clients) = running(form);
        for turn in 0..4 {
            let text = format!("turn {turn}");
            world.moves(at, &format!("e{third}"));
            say(&mut world, &clients, &text);
            world.runs(100);
            let what = format!("{form:?}, turn {turn}");
            assert_eq!(world.runs_at(), [third], "{what}: {:?}", world.notes);
            assert_eq!(world.cells_at(third), KEYS.map(|key| (key.to_string(), 2)), "{what}");
            all_hear(&world, &clients, &[&text], &what);
            world.runs(LONG_MS);
            at = third;
            third = 3 - at - number(&world.backup_at(at).expect("it has a backup"));
        }
        assert_eq!(world.moves, [""; 4]);
    }
}

#[test]
fn clients_that_come_while_the_backup_moves_find_their_cell() {
    for form in FORMS {
        for steps in (0..60).step_by(3) {
            let (mut world, [at, _, third], mut clients) = running(form);
            world.moves_backup(at, &format!("e{third}"));
            world.steps(steps);
            // A cell that runs, and one that begins now.
            clients[0].push(world.comes_for(third, KEYS[0]));
            clients.push(vec![world.comes_for(third, "new"), world.comes_for(at, "new")]);
            world.runs(100);
            let what = format!("{form:?} after {steps} steps");
            assert_eq!(world.moves, [""], "{what}: {:?}", world.notes);
            say(&mut world, &clients, "here");
            world.runs(SOON_MS);
            all_hear(&world, &clients, &["here"], &what);
            world.kills(at);
            say(&mut world, &clients, "later");
            world.runs(LONG_MS);
            assert_eq!(world.runs_at(), [third], "{what}");
            all_hear(&world, &clients, &["here", "later"], &what);
        }
    }
}

/// What happens in the middle.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    Dies(usize),
    Sleeps(usize),
    Stops(usize),
    StoreAway,
    /// The coordinator goes away, and then the primary dies.
    StoreAwayAndDies,
}

impl Fault {
    /// The step before which it happens first: others of one kind happen at other steps.
    fn first(self) -> usize {
        match self {
            Self::Dies(role) => role,
            Self::Sleeps(role) | Self::Stops(role) => 3 + role,
            Self::StoreAway | Self::StoreAwayAndDies => 6,
        }
    }
}

/// The primary, the present backup, and the next one.
const ROLES: [usize; 3] = [0, 1, 2];

/// Disturbs a move after each so many events until it is over. Returns the edges that went on: the primary, its backup, the next one.
fn disturbed(form: BackupForm, fault: Fault, moves_cell: bool) -> BTreeSet<usize> {
    const STRIDE: usize = 13;
    let mut went_on = BTreeSet::new();
    for steps in (fault.first()..).step_by(STRIDE) {
        let (mut world, edges, clients) = running(form);
        let to = format!("e{}", edges[2]);
        let what = format!("{fault:?} after {steps} steps, {form:?}, moves the cell: {moves_cell}");
        say(&mut world, &clients, "before");
        if moves_cell {
            world.moves(edges[0], &to)
        } else {
            world.moves_backup(edges[0], &to)
        }
        say(&mut world, &clients, "during");
        world.steps(steps);
        let is_over = !world.moves.is_empty();
        match fault {
            Fault::Dies(role) => world.kills(edges[role]),
            Fault::Sleeps(role) => world.freezes(edges[role]),
            Fault::Stops(role) => world.control(edges[role], ToShard::Drain(Tag { tag: 1 })),
            Fault::StoreAway | Fault::StoreAwayAndDies => world.store.away = true,
        }
        say(&mut world, &clients, "then");
        if fault == Fault::StoreAwayAndDies {
            world.runs(100);
            world.kills(edges[0]);
        }
        world.runs(LONG_MS);
        world.store.away = false;
        edges.iter().for_each(|edge| world.thaws(*edge));
        say(&mut world, &clients, "after");
        world.runs(2 * LONG_MS);
        assert_eq!(world.runs_at().len(), 1, "{what}: {:?}", world.notes);
        if !matches!(fault, Fault::Dies(0) | Fault::Stops(0) | Fault::StoreAwayAndDies) {
            assert_eq!(world.moves.len(), 1, "{what}: the operator is told how it ended: {:?}", world.moves);
        }
        all_hear(&world, &clients, &["before", "during", "then", "after"], &what);
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1), "{what}");
        went_on.extend(edges.iter().position(|edge| world.runs_at() == [*edge]));
        if is_over {
            return went_on;
        }
        assert!(steps < 1_000, "{what}: it does not end");
    }
    went_on
}

#[test]
fn a_change_that_is_disturbed_at_any_step_leaves_one_history() {
    for form in [BackupForm::Log, BackupForm::Pages] {
        for role in ROLES {
            let went_on = disturbed(form, Fault::Dies(role), false);
            assert_eq!(went_on, if role == 0 { [1, 2].into() } else { [0].into() }, "{form:?}");
            disturbed(form, Fault::Sleeps(role), false);
        }
        disturbed(form, Fault::StoreAway, false);
        disturbed(form, Fault::StoreAwayAndDies, false);
    }
    ROLES.into_iter().for_each(|role| drop(disturbed(BackupForm::Log, Fault::Stops(role), false)));
}

#[test]
fn a_move_past_the_backup_that_is_disturbed_at_any_step_leaves_one_history() {
    for form in [BackupForm::Log, BackupForm::Pages] {
        // While the cell moves, and behind that: each of two edges may go on without the third one.
        let others = [[1, 2], [0, 2], [0, 1]].map(BTreeSet::from);
        for (role, expected) in ROLES.into_iter().zip(others) {
            assert_eq!(disturbed(form, Fault::Dies(role), true), expected, "{form:?}: {role}");
            disturbed(form, Fault::Sleeps(role), true);
        }
        disturbed(form, Fault::StoreAway, true);
        disturbed(form, Fault::StoreAwayAndDies, true);
    }
    // The edge to which it has moved would move it on.
    [0, 1].into_iter().for_each(|role| drop(disturbed(BackupForm::Log, Fault::Stops(role), true)));
}

#[test]
fn a_slot_whose_cells_are_large_gets_its_next_backup_whatever_the_bandwidth() {
    for form in [BackupForm::Log, BackupForm::Pages] {
        let (mut world, [at, _, third], clients) = running(form);
        // Longer than a move may take, but for the bandwidth that it waits for.
        world.copy_size = 100 * PART;
        world.limits_moves(at, PART as u64);
        world.moves_backup(at, &format!("e{third}"));
        for minute in 0..3 {
            say(&mut world, &clients, &format!("minute {minute}"));
            world.runs(60_000);
            assert_eq!(world.moves, [""; 0], "{form:?}, minute {minute}");
        }
        world.runs(60_000);
        assert_eq!(
            (&world.moves[..], world.backup_at(at)),
            (&[String::new()][..], Some(format!("e{third}")))
        );
        world.kills(at);
        say(&mut world, &clients, "later");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at(), [third], "{form:?}");
        all_hear(&world, &clients, &["minute 0", "minute 2", "later"], &format!("{form:?}"));
    }
}

#[test]
fn a_cell_moves_to_its_backup_while_its_slot_would_get_another_one() {
    for second in [0, 5, 15, 25] {
        let (mut world, [at, backup, third], clients) = running(BackupForm::Log);
        world.copy_size = 10 * PART;
        world.limits_moves(at, PART as u64);
        world.moves_backup(at, &format!("e{third}"));
        world.runs(second * 1_000);
        let was_over = !world.moves.is_empty();
        let to = if was_over { third } else { backup };
        world.moves(at, &format!("e{to}"));
        say(&mut world, &clients, "meanwhile");
        world.runs(60_000);
        let what = format!("after {second} s: {:?}", world.moves);
        assert_eq!(world.runs_at(), [to], "{what}");
        all_hear(&world, &clients, &["meanwhile"], &what);
        assert_eq!((world.store.slots.len(), world.store.groups.len()), (1, 1), "{what}");
    }
}

#[test]
fn cells_end_while_their_slot_goes_over_to_another_edge() {
    let mut over = [false; 2];
    for form in [BackupForm::Log, BackupForm::Pages] {
        for turn in 0..50 {
            let (mut world, [at, _, third], clients) = running(form);
            let (steps, first) = (3 * turn, turn % 2);
            let what = format!("{form:?} after {steps} steps");
            world.moves_backup(at, &format!("e{third}"));
            world.steps(steps);
            over[usize::from(!world.moves.is_empty())] = true;
            // The one that leads the change, or the other one.
            let (ends, stays) = (&clients[first], &clients[1 - first]);
            ends.iter().for_each(|client| world.closes(*client));
            world.runs(LONG_MS);
            assert_eq!(world.moves.len(), 1, "{what}: {:?}", world.moves);
            assert_eq!(world.cells_at(at), [(KEYS[1 - first].to_string(), 2)], "{what}");
            world.says(stays[0], "on");
            world.runs(SOON_MS);
            world.kills(at);
            world.says(stays[1], "later");
            // A client of the key whose cell has ended finds a new one.
            let next = world.comes_for(third, KEYS[first]);
            world.runs(LONG_MS);
            assert_eq!(world.runs_at().len(), 1, "{what}");
            assert_eq!(world.heard(next)[0], "1 joins", "{what}");
            all_hear(&world, &[stays.clone(), vec![next]], &[], &what);
            assert!(stays.iter().all(|it| heard(&world, *it, "on") && heard(&world, *it, "later")), "{what}");
        }
    }
    assert_eq!(over, [true; 2], "during the change, and behind it");
}

#[test]
fn a_cell_that_cannot_change_says_why() {
    let (mut world, [at, backup, third], _) = running(BackupForm::Log);
    for (edge, why) in [
        (at, "its own backup: name another edge"),
        (backup, "backup already"),
        (7, "must name this edge in `standby.edges`"),
    ] {
        world.moves.clear();
        world.moves_backup(at, &format!("e{edge}"));
        world.runs(SOON_MS);
        assert!(world.moves.len() == 1 && world.moves[0].contains(why), "{edge}: {:?}", world.moves);
    }
    world.moves.clear();
    world.store.away = true;
    world.moves_backup(at, &format!("e{third}"));
    world.runs(100);
    assert!(world.moves[0].contains("the coordinator does not answer"), "{:?}", world.moves);
}

#[test]
fn a_slot_whose_policy_names_another_edge_moves_its_backup_there() {
    let policy = |edge: usize| ReplicationPolicy {
        name: "near".into(),
        targets: vec![format!("e{edge}")],
        ..ReplicationPolicy::default()
    };
    let (mut world, [at, backup, third], clients) = running(BackupForm::Log);
    for to in [third, backup] {
        (0..3).for_each(|edge| world.sets_policies(edge, &[policy(to)]));
        world.runs(LONG_MS);
        assert_eq!(world.backup_at(at), Some(format!("e{to}")), "{:?}", world.notes);
    }
    world.kills(at);
    say(&mut world, &clients, "later");
    world.runs(LONG_MS);
    assert_eq!(world.runs_at(), [backup]);
    all_hear(&world, &clients, &["later"], "policies");
}
