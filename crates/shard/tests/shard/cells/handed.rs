//! Cells that are handed over past their backup, of which one fails or ends before it is decided which edge goes on with them.

use super::{
    FORMS,
    backups::{KEYS, all_hear, running, say},
    heirs::{is_backed_at, keys_at, until_copied},
    key_moves::with_cells,
    moves::{SOON_MS, number},
    world::{LONG_MS, World},
};
use bytes::Bytes;
use marram_session::owner::BackupForm;
use marram_wire::{
    frame::{Backup, Code, Fed, HandGroup, Reject},
    id::Generation,
};

#[test]
fn an_edge_that_has_lost_cells_when_it_has_claimed_them_leaves_them_to_their_backup() {
    for form in FORMS {
        let (mut world, edges, clients) = with_cells(form, &KEYS[..1]);
        let [_, backup, third] = edges;
        say(&mut world, &clients, "before");
        world.moves(edges[0], &format!("e{third}"));
        for _ in 0..1_000 {
            if world.feeds.handed > 0 {
                break;
            }
            world.steps(1);
        }
        world.freezes(backup);
        // That comes behind its claim, and before the answer.
        world.hears_primary(third, |channel| {
            let entry = Bytes::from_static(b"no entry");
            Fed { channel, entry, tag: [0; 8], from: 2, close: false, payload: Bytes::new() }.into()
        });
        world.runs(LONG_MS);
        let places = (world.runs_at(), is_backed_at(&world, backup));
        assert_eq!(places, (vec![], true), "{form:?}: {:?}", world.notes);
        world.thaws(backup);
        say(&mut world, &clients, "after");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at(), [backup], "{form:?}: {:?}", world.notes);
        all_hear(&world, &clients, &["before", "after"], &format!("{form:?}"));
    }
}

#[test]
fn a_wire_on_which_a_claim_is_announced_that_none_can_follow_is_closed() {
    for is_handed in [false, true] {
        for count in [u64::MAX, u64::MAX / 2 + 1] {
            let (mut world, [at, backup, _], clients) = running(BackupForm::Log);
            let group = *world.store.groups.keys().next().expect("there is one");
            let record = world.store.groups.clone();
            for _ in 0..2 {
                world.hears_primary(backup, |_| {
                    let generation = Generation { count, opener: 1 };
                    match is_handed {
                        true => HandGroup { group, generation, backup: "e2".into(), cells: 2 }.into(),
                        false => Backup { group, generation }.into(),
                    }
                });
            }
            let what = format!("{is_handed}, {count}: {:?}", world.notes);
            assert!(world.notes.iter().any(|note| note.contains("the connection broke")), "{what}");
            assert_eq!(world.store.groups.len(), record.len(), "{what}");
            say(&mut world, &clients, "after");
            world.runs(LONG_MS);
            assert_eq!(world.runs_at(), [at], "{what}: {:?}", world.notes);
            all_hear(&world, &clients, &["after"], &what);
        }
    }
}

/// Lets events be handled until an edge was told to go on with cells beside their backup.
fn until_handed(world: &mut World) {
    for _ in 0..10_000 {
        if world.feeds.handed > 0 {
            return;
        }
        world.steps(1);
    }
    panic!("the cells are not handed over: {:?}", world.notes);
}

#[test]
fn cells_that_move_to_a_former_backup_do_not_bring_back_what_has_ended_since() {
    for form in FORMS {
        let (mut world, edges, clients) = running(form);
        let [at, former, third] = edges;
        // It asks for their group, and gets no answer before they move there.
        world.store.away_from = Some(former);
        world.parts([at, former]);
        world.runs(LONG_MS);
        assert_eq!(world.backup_at(at), Some(format!("e{third}")), "{form:?}: {:?}", world.notes);
        world.kills_cell(at);
        world.feeds.apart = None;
        world.runs(LONG_MS);
        let cells = world.cells_at(at);
        assert_eq!((cells.len(), world.copies_at(former)), (1, KEYS.len()), "{form:?}: {:?}", world.notes);
        world.moves(at, &format!("e{former}"));
        until_handed(&mut world);
        world.store.away_from = None;
        world.runs(100);
        let what = format!("{form:?}: {:?}", world.notes);
        assert_eq!((world.runs_at(), world.cells_at(former)), (vec![former], cells), "{what}");
        assert_eq!((world.feeds.kept_on, is_backed_at(&world, third)), (1, true), "{what}");
        let of_key = |of_key: &&Vec<usize>| world.ended(of_key[0]).is_none();
        let others: Vec<Vec<usize>> = clients.iter().filter(of_key).cloned().collect();
        say(&mut world, &others, "later");
        world.runs(SOON_MS);
        all_hear(&world, &others, &["later"], &format!("{form:?}"));
    }
}

#[test]
fn cells_go_on_if_the_one_with_which_they_move_ends_before_they_are_claimed() {
    for form in FORMS {
        let (mut world, edges, clients) = running(form);
        let [at, backup, third] = edges;
        world.moves(at, &format!("e{third}"));
        until_handed(&mut world);
        let confirmed = world.confirmed.len();
        while world.confirmed.len() == confirmed {
            world.steps(1);
        }
        // It has confirmed all, and does not claim.
        world.freezes(third);
        world.kills_cell(at);
        world.runs(100);
        assert_eq!(world.cells_at(at).len(), KEYS.len() - 1, "{form:?}: {:?}", world.notes);
        let of_key = |of_key: &&Vec<usize>| world.ended(of_key[0]).is_none();
        let others: Vec<Vec<usize>> = clients.iter().filter(of_key).cloned().collect();
        say(&mut world, &others, "after");
        world.runs(LONG_MS);
        let what = format!("{form:?}: {:?}", world.notes);
        assert_eq!((world.runs_at(), world.backup_at(at)), (vec![at], Some(format!("e{backup}"))), "{what}");
        all_hear(&world, &others, &["after"], &what);
        world.thaws(third);
        say(&mut world, &others, "later");
        world.runs(LONG_MS);
        assert_eq!(world.runs_at(), [at], "{form:?}: {:?}", world.notes);
        all_hear(&world, &others, &["later"], &format!("{form:?}"));
    }
}

#[test]
fn a_cell_that_ends_at_the_former_edge_before_the_next_one_is_known_costs_no_cell_its_copy() {
    for form in FORMS {
        let (mut went_on, mut stayed) = (0, 0);
        for (steps, is_first) in (0..60).flat_map(|steps| [(steps, true), (steps, false)]) {
            let (mut world, edges, clients) = running(form);
            let [at, backup, third] = edges;
            world.moves(at, &format!("e{third}"));
            until_handed(&mut world);
            world.steps(steps);
            if !world.runs_at().contains(&at) {
                break;
            }
            let copies = world.feeds.copies;
            if is_first {
                world.kills_cell(at)
            } else {
                world.kills_last_cell(at)
            }
            world.runs(200);
            let what = format!("{form:?}, {steps} steps, {is_first}: {:?}", world.notes);
            let of_key = |of_key: &&Vec<usize>| world.ended(of_key[0]).is_none();
            let others: Vec<Vec<usize>> = clients.iter().filter(of_key).cloned().collect();
            if world.runs_at() == [third] {
                went_on += 1;
                assert_eq!((world.feeds.kept_on, is_backed_at(&world, backup)), (KEYS.len(), true), "{what}");
                if form == BackupForm::Log {
                    assert_eq!(world.feeds.copies, copies, "{what}");
                }
            } else {
                stayed += 1;
                assert_eq!((world.runs_at(), world.feeds.kept_on), (vec![at], 0), "{what}");
            }
            let at = world.runs_at()[0];
            say(&mut world, &others, "after");
            world.runs(LONG_MS);
            let cells = world.cells_at(at);
            all_hear(&world, &others, &["after"], &what);
            let next = number(&world.backup_at(at).expect("it has a backup"));
            assert_eq!(world.copies_at(next), cells.len(), "{what}");
            world.kills(at);
            say(&mut world, &others, "later");
            world.runs(LONG_MS);
            assert_eq!((world.runs_at(), world.cells_at(next)), (vec![next], cells), "{what}");
            all_hear(&world, &others, &["after", "later"], &what);
        }
        assert!(went_on > 0 && stayed == 0, "{form:?}: {went_on}, {stayed}");
    }
}

#[test]
fn cells_are_handed_over_only_when_their_backup_has_each_of_them() {
    for form in FORMS {
        for refusals in 1..3 {
            let (mut world, [at, backup, third], clients) = running(form);
            world.restores_late(backup);
            // It says of one cell that it is not kept there, and is fed it again: at once, and then later.
            for _ in 0..refusals {
                world.hears_keeper(at, |channel| {
                    let reason = "the session is not kept here any more".into();
                    Reject { channel, code: Code::Superseded, reason }.into()
                });
            }
            let feeds = world.feeds.feeds;
            world.moves(at, &format!("e{third}"));
            world.runs(50);
            let what = format!("{form:?}, {refusals}: {:?}", world.notes);
            let fed = world.feeds.feeds - feeds;
            assert_eq!((fed, world.feeds.handed, world.runs_at()), (KEYS.len(), 0, vec![at]), "{what}");
            world.runs(1_000);
            assert_eq!((world.feeds.handed, world.runs_at()), (0, vec![at]), "{what}");
            world.hurries(backup);
            world.runs(2_000);
            let what = format!("{form:?}, {refusals}: {:?}", world.notes);
            assert_eq!((world.feeds.kept_on, is_backed_at(&world, backup)), (KEYS.len(), true), "{what}");
            say(&mut world, &clients, "moved");
            world.runs(100);
            world.kills(third);
            say(&mut world, &clients, "later");
            world.runs(LONG_MS);
            assert_eq!(world.runs_at(), [backup], "{what}");
            all_hear(&world, &clients, &["moved", "later"], &what);
        }
    }
}

/// A copy of the third edge, which was told to go on with the cells, fails: the last one that it was fed.
fn loses_one(world: &mut World, third: usize) {
    // That comes behind its claim, and before the answer.
    world.hears_primary(third, |channel| {
        let entry = Bytes::from_static(b"no entry");
        Fed { channel, entry, tag: [0; 8], from: 2, close: false, payload: Bytes::new() }.into()
    });
}

#[test]
fn a_copy_of_a_cell_that_was_lost_where_it_moved_to_is_dropped() {
    for form in FORMS {
        let (mut world, edges, _) = running(form);
        let [at, backup, third] = edges;
        world.moves(at, &format!("e{third}"));
        until_handed(&mut world);
        loses_one(&mut world, third);
        world.runs(100);
        let keys = keys_at(&world, third);
        let what = format!("{form:?}: {:?}", world.notes);
        assert_eq!((keys.len(), world.feeds.kept_on, is_backed_at(&world, backup)), (1, 1, true), "{what}");
        assert_eq!(world.copies_at(backup), 1, "{what}");
        world.kills(third);
        world.runs(LONG_MS);
        assert_eq!(keys_at(&world, backup), keys, "{form:?}: {:?}", world.notes);
    }
}

#[test]
fn cells_stay_if_the_edge_to_which_they_move_has_lost_one_when_it_is_told_to_claim_them() {
    for form in FORMS {
        for steps in 0..80 {
            let (mut world, edges, clients) = running(form);
            let [at, backup, third] = edges;
            let fed = (world.feeds.feeds, world.feeds.handed);
            world.moves(at, &format!("e{third}"));
            while world.feeds.feeds < fed.0 + KEYS.len() {
                world.steps(1);
            }
            world.steps(steps);
            let was_handed = world.feeds.handed > fed.1;
            if was_handed {
                break;
            }
            // Its word is on its way when it is told to claim them.
            loses_one(&mut world, third);
            say(&mut world, &clients, "after");
            world.runs(2 * LONG_MS);
            let what = format!("{form:?}, {steps} steps behind the feeds: {:?}", world.notes);
            assert_eq!((world.runs_at(), keys_at(&world, at).len()), (vec![at], KEYS.len()), "{what}");
            assert!(world.backup_at(at).is_some() && world.copies_at(backup) <= KEYS.len(), "{what}");
            all_hear(&world, &clients, &["after"], &what);
        }
    }
}

#[test]
fn a_cell_that_began_and_ended_where_one_of_its_key_was_lost_takes_that_ones_copy_with_it() {
    let (mut world, edges, clients) = running(BackupForm::Log);
    let [at, backup, third] = edges;
    until_copied(&mut world, [at, third]);
    // The cells that move have something to replay, which does not end.
    world.dawdles(third);
    say(&mut world, &clients, "before");
    until_handed(&mut world);
    world.spares_new(third);
    loses_one(&mut world, third);
    world.runs(100);
    let here: Vec<String> =
        world.shard(third).owners().filter_map(|it| it.key().map(ToString::to_string)).collect();
    let lost = KEYS.into_iter().find(|key| !here.contains(&(*key).to_string())).expect("one is lost");
    world.comes_for(third, lost);
    world.runs(100);
    assert_eq!(
        (keys_at(&world, third), world.copies_at(backup)),
        (vec![lost.to_string()], 3),
        "{:?}",
        world.notes
    );
    world.kills_running(third);
    world.runs(50);
    assert_eq!((world.feeds.kept_on, world.copies_at(backup)), (0, 1), "{:?}", world.notes);
}
