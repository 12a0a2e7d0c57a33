//! Elastic chords: slots with shared cells that move to an edge which joins, past their backup.

use super::{
    FORMS, heard, is_one_history,
    moves::number,
    rebalance::{EDGES, LATE, SETTLE_MS, moved, rebalance},
    world::{LONG_MS, World},
};
use marram_session::owner::{BackupForm, Owner};
use marram_shard::{
    api::{ReplicationPolicy, Tag, ToShard},
    ring::Ring,
};
use marram_wire::{frame::GroupId, id::SessionId};
use std::collections::{BTreeMap, BTreeSet};

const KEYS: usize = 32;
const SLOTS: u32 = 32;

/// The primary and the backup of each slot, by the name of its group.
pub(super) type Places = BTreeMap<GroupId, (String, Option<String>)>;

pub(super) fn places(world: &World) -> Places {
    let groups = world.store.groups.iter();
    groups.map(|(name, claim)| (*name, (claim.primary.clone(), claim.backup.clone()))).collect()
}

/// Three edges with cells in several slots, and a fourth one that has been away for long; the clients, one for each key.
pub(super) fn without_one(form: BackupForm, policy: ReplicationPolicy) -> (World, Vec<usize>) {
    let mut world = World::with_keys(EDGES, form, SLOTS);
    (0..EDGES).for_each(|edge| world.sets_policies(edge, core::slice::from_ref(&policy)));
    world.kills(LATE);
    world.runs(3 * SETTLE_MS);
    let clients = (0..KEYS).map(|key| world.joins_cell(key % LATE, &format!("key {key}"))).collect();
    world.runs(LONG_MS);
    (world, clients)
}

fn all_edges() -> Ring {
    Ring::new((0..EDGES).map(|edge| format!("e{edge}")))
}

/// The slots that belong at the edge that is away at first.
pub(super) fn belonging(places: &Places) -> BTreeSet<GroupId> {
    let (ring, late) = (all_edges(), format!("e{LATE}"));
    let belongs = |name: &&GroupId| ring.first_of(SessionId(**name)) == Some(late.as_str());
    places.keys().filter(belongs).copied().collect()
}

pub(super) fn is_at(places: &Places, name: &GroupId, edge: usize) -> bool {
    places[name].0 == format!("e{edge}")
}

/// All clients are answered, none has missed anything, and none was disconnected.
pub(super) fn all_talk(world: &mut World, clients: &[usize], text: &str) {
    clients.iter().for_each(|client| world.says(*client, text));
    world.runs(LONG_MS);
    for client in clients {
        assert!(heard(world, *client, text), "{client}: {text}: {:?}", world.notes);
        assert_eq!(world.ended(*client), None, "{client}: {text}");
        is_one_history(world, &[*client]);
    }
}

/// The keys of the cells that run on an edge.
fn keys_at(world: &World, edge: usize) -> BTreeSet<String> {
    world.cells_at(edge).into_iter().map(|(key, _)| key).collect()
}

/// The cells that run.
fn cells(world: &World) -> BTreeSet<SessionId> {
    let edges = (0..EDGES).filter(|edge| world.is_alive(*edge));
    edges.flat_map(|edge| world.shard(edge).owners().map(|owner| owner.session())).collect()
}

/// Each of these cells is at two edges, and each slot's record names a backup.
fn are_protected(world: &World, cells: &BTreeSet<SessionId>) -> bool {
    let edges = || (0..EDGES).filter(|edge| world.is_alive(*edge));
    let is_kept =
        |cell: &SessionId| edges().filter(|edge| world.shard(*edge).owner(*cell).is_some()).count() > 1;
    cells.iter().all(is_kept) && world.store.groups.values().all(|claim| claim.backup.is_some())
}

pub(super) fn until_a_pass_begins(world: &mut World) {
    for _ in 0..10_000 {
        if world.notes.iter().any(|note| note.contains("has joined")) {
            return;
        }
        world.steps(1);
    }
    panic!("no pass begins: {:?}", world.notes);
}

#[test]
fn slots_that_belong_at_an_edge_that_joins_move_there_with_all_cells_and_nothing_else_does() {
    for form in FORMS {
        let (mut world, clients) = without_one(form, rebalance(100));
        let (before, keys) = (places(&world), (0..LATE).map(|edge| keys_at(&world, edge)));
        let (belong, keys) = (belonging(&before), keys.collect::<Vec<_>>());
        assert!(belong.len() > 1 && belong.len() < before.len(), "{} of {}", belong.len(), before.len());
        assert_eq!(keys.iter().map(BTreeSet::len).sum::<usize>(), KEYS);
        world.restarts(LATE);
        world.runs(SETTLE_MS - 500);
        assert_eq!(places(&world), before, "{form:?}: it has only just come");
        for turn in 0..20 {
            clients.iter().for_each(|client| world.says(*client, &format!("turn {turn}")));
            world.runs(100);
        }
        all_talk(&mut world, &clients, "moved");
        let after = places(&world);
        for (name, (primary, backup)) in &after {
            let (former, kept) = &before[name];
            match belong.contains(name) {
                true => assert_eq!((primary.as_str(), backup), ("e3", kept), "{form:?}: {:?}", world.notes),
                false => assert_eq!(primary, former, "{form:?}"),
            }
        }
        assert_eq!((moved(&world), world.feeds.handed), (belong.len(), belong.len()), "{:?}", world.moves);
        // All of them were where their backup goes on with what it has.
        let there = keys_at(&world, LATE);
        assert!(there.len() > belong.len(), "{form:?}: some slots have several cells");
        assert_eq!(world.feeds.kept_on, there.len(), "{form:?}");
        for (edge, keys) in keys.iter().enumerate() {
            assert_eq!(keys_at(&world, edge), keys - &there, "{form:?}");
        }
        let said = |part: &str| world.notes.iter().filter(|note| note.contains(part)).count();
        assert_eq!(
            (said("`e3` has joined"), said("rebalanced onto `e3`")),
            (LATE, LATE),
            "{:?}",
            world.notes
        );
        // Nothing goes back, however long they run.
        world.runs(4 * SETTLE_MS);
        all_talk(&mut world, &clients, "on");
        assert_eq!((places(&world), moved(&world)), (after, belong.len()), "{form:?}");
        // Its backups go on.
        world.kills(LATE);
        all_talk(&mut world, &clients, "later");
        let texts = (0..20).map(|turn| format!("turn {turn}"));
        let texts: Vec<String> = texts.chain(["moved", "on"].map(String::from)).collect();
        for (client, text) in clients.iter().flat_map(|client| texts.iter().map(move |text| (client, text))) {
            assert!(heard(&world, *client, text), "{form:?}: {client}: {text}");
        }
    }
}

#[test]
fn slots_are_protected_all_the_time_while_they_move() {
    for form in FORMS {
        let (mut world, clients) = without_one(form, rebalance(1_000));
        let (cells, belong) = (cells(&world), belonging(&places(&world)));
        let said = |world: &World| {
            let is_it =
                |note: &&String| note.contains("without a backup") || note.contains("lost their backup");
            world.notes.iter().filter(is_it).count()
        };
        let said_before = said(&world);
        assert!(are_protected(&world, &cells));
        world.restarts(LATE);
        world.runs(SETTLE_MS - 100);
        until_a_pass_begins(&mut world);
        let mut turn = 0;
        while moved(&world) < belong.len() || world.moves.len() < belong.len() + world.backups_moved {
            turn += 1;
            if turn % 100 == 0 {
                world.says(clients[turn / 100 % KEYS], &format!("turn {turn}"));
            }
            world.steps(1);
            assert!(are_protected(&world, &cells), "{form:?}: {turn}: {:?}", world.notes);
            assert!(turn < 100_000, "they do not move: {:?}", world.notes);
        }
        world.runs(SETTLE_MS);
        assert!(are_protected(&world, &cells), "{form:?}");
        assert_eq!(said(&world), said_before, "{form:?}: {:?}", world.notes);
        all_talk(&mut world, &clients, "moved");
    }
}

#[test]
fn no_more_slots_move_in_a_second_than_the_policy_says() {
    let (mut world, clients) = without_one(BackupForm::Log, rebalance(1));
    let before = places(&world);
    let belong = belonging(&before);
    let mut from: BTreeMap<&str, usize> = BTreeMap::new();
    belong.iter().for_each(|name| *from.entry(&before[name].0).or_default() += 1);
    let most = *from.values().max().expect("some belong there");
    assert!(most > 1, "{from:?}");
    world.restarts(LATE);
    world.runs(SETTLE_MS);
    for second in 0..most {
        let at_most: usize = from.values().map(|slots| (second + 1).min(*slots)).sum();
        assert!(moved(&world) <= at_most, "{second}: {}", moved(&world));
        world.runs(1_000);
    }
    // Backups move by the same limit.
    world.runs(1_000 * KEYS as u64);
    assert_eq!(moved(&world), belong.len());
    assert!(world.backups_moved > 0);
    all_talk(&mut world, &clients, "on");
}

#[test]
fn a_slot_stays_if_its_backup_is_the_edge_that_joins() {
    let mut world = World::with_policies(2, BackupForm::Log, &[rebalance(100)]);
    world.kills(1);
    world.runs(3 * SETTLE_MS);
    let client = world.joins(0);
    world.runs(LONG_MS);
    world.restarts(1);
    world.says(client, "on");
    world.runs(3 * SETTLE_MS);
    assert!(heard(&world, client, "on"));
    assert_eq!((world.runs_at(), world.backup_at(0), moved(&world)), (vec![0], Some("e1".into()), 0));
}

#[test]
fn the_backups_of_slots_that_stay_move_to_the_edge_that_joins_where_the_ring_says_so() {
    for form in FORMS {
        let (mut world, clients) = without_one(form, rebalance(100));
        let (before, ring) = (places(&world), all_edges());
        world.restarts(LATE);
        all_talk(&mut world, &clients, "on");
        let (after, belong) = (places(&world), belonging(&before));
        let mut count = 0;
        for (name, (primary, backup)) in after.iter().filter(|(name, _)| !belong.contains(*name)) {
            let is_there = ring.standby_of(SessionId(*name), primary) == Some("e3");
            let expected = if is_there { &Some("e3".into()) } else { &before[name].1 };
            assert_eq!((primary, backup), (&before[name].0, expected), "{form:?}: {:?}", world.notes);
            count += usize::from(is_there);
        }
        assert!(count > 0);
        assert_eq!(world.backups_moved, count, "{form:?}");
        // They go on where their backup is now.
        let former = (0..LATE).find(|edge| {
            let is_it = |(name, (primary, backup)): (&GroupId, &(String, Option<String>))| {
                !belong.contains(name) && *primary == format!("e{edge}") && *backup == Some("e3".into())
            };
            after.iter().any(is_it)
        });
        world.kills(former.expect("one has such a slot"));
        all_talk(&mut world, &clients, "later");
        assert!(clients.iter().all(|client| heard(&world, *client, "on")));
    }
}

#[test]
fn an_edge_that_dies_in_the_middle_gets_the_rest_when_it_is_back() {
    for form in FORMS {
        let (mut world, clients) = without_one(form, rebalance(1));
        let (before, belong) = (places(&world), belonging(&places(&world)));
        world.restarts(LATE);
        world.runs(SETTLE_MS + 100);
        let first = moved(&world);
        assert!(first > 0 && first < belong.len(), "{form:?}: {first} of {}", belong.len());
        world.kills(LATE);
        all_talk(&mut world, &clients, "lost");
        assert!(world.notes.iter().any(|note| note.contains("once it is back")), "{:?}", world.notes);
        let lost = places(&world);
        for name in &belong {
            // Those that had moved are at their backup now, and the others where they were.
            let (primary, backup) = &before[name];
            assert!(lost[name].0 == *primary || Some(&lost[name].0) == backup.as_ref(), "{form:?}");
        }
        world.restarts(LATE);
        world.runs(4 * SETTLE_MS);
        all_talk(&mut world, &clients, "back");
        let back = places(&world);
        for name in &belong {
            // A slot whose backup died with that edge may have it as its backup again: then it stays.
            let is_backup = back[name].1.as_deref() == Some("e3");
            assert!(is_at(&back, name, LATE) || is_backup, "{form:?}: {:?}: {:?}", back[name], world.notes);
        }
        assert!(belong.iter().filter(|name| is_at(&back, name, LATE)).count() >= belong.len() - first);
    }
}

#[test]
fn whichever_edge_dies_in_the_middle_cells_go_on() {
    for run in 0..3 * EDGES {
        let (form, dying, steps) = (FORMS[run % FORMS.len()], run % EDGES, 61 * (run / EDGES) + 7 * run);
        let (mut world, clients) = without_one(form, rebalance(1_000));
        clients.iter().for_each(|client| world.says(*client, "before"));
        world.runs(100);
        world.restarts(LATE);
        world.runs(SETTLE_MS - 1);
        until_a_pass_begins(&mut world);
        clients.iter().for_each(|client| world.says(*client, "during"));
        world.steps(steps);
        world.kills(dying);
        world.runs(LONG_MS);
        all_talk(&mut world, &clients, "after");
        for client in &clients {
            let has_heard = heard(&world, *client, "before") && heard(&world, *client, "during");
            assert!(has_heard, "{form:?}: e{dying} dies {steps} steps later: {:?}", world.notes);
        }
    }
}

#[test]
fn a_slot_moves_with_another_cell_if_the_first_one_ends() {
    let (mut world, clients) = without_one(BackupForm::Log, rebalance(1));
    let before = places(&world);
    let belong = belonging(&before);
    world.restarts(LATE);
    world.runs(SETTLE_MS - 500);
    // All cells but one of each slot may be the first one: in each of the slots with several, those of all clients but one end in the middle.
    let keys: Vec<BTreeSet<String>> = (0..LATE).map(|edge| keys_at(&world, edge)).collect();
    world.runs(600);
    let ending: Vec<usize> = clients.iter().copied().filter(|client| client % 2 == 0).collect();
    ending.iter().for_each(|client| world.closes(*client));
    world.runs(1_000 * KEYS as u64);
    let after = places(&world);
    let there = belong.iter().filter(|name| after.contains_key(*name)).collect::<Vec<_>>();
    assert!(there.len() > 1, "{keys:?}");
    for name in there {
        assert!(is_at(&after, name, LATE), "{:?}: {:?}", after[name], world.notes);
    }
    let others: Vec<usize> = clients.iter().copied().filter(|client| client % 2 == 1).collect();
    all_talk(&mut world, &others, "on");
}

#[test]
fn slots_stay_if_the_edge_that_joins_does_not_know_how_cells_move_past_their_backup() {
    let (mut world, clients) = without_one(BackupForm::Log, rebalance(100));
    let before = places(&world);
    world.feeds.old.insert(LATE);
    world.restarts(LATE);
    all_talk(&mut world, &clients, "on");
    let after = places(&world);
    assert!(after.iter().all(|(name, (primary, _))| *primary == before[name].0), "{:?}", world.notes);
    assert_eq!(moved(&world), 0);
    // It can be their backup.
    assert!(belonging(&before).iter().all(|name| after[name].1.as_deref() == Some("e3")));
}

#[test]
fn a_slot_that_an_operator_moves_goes_where_the_operator_says() {
    let (mut world, clients) = without_one(BackupForm::Log, rebalance(100));
    world.restarts(LATE);
    all_talk(&mut world, &clients, "there");
    let (there, count) = (places(&world), moved(&world));
    let name = *belonging(&there).first().expect("some belong there");
    let backup = there[&name].1.as_deref().map(number).expect("it has a backup");
    let to = (0..LATE).find(|edge| *edge != backup).expect("there are three others");
    let is_in_it = |owner: &&Owner| owner.group() == Some(name);
    let session = world.shard(LATE).owners().find(is_in_it).expect("it has a cell").session();
    world.moves_session(session, LATE, &format!("e{to}"));
    world.runs(4 * SETTLE_MS);
    all_talk(&mut world, &clients, "elsewhere");
    let after = places(&world);
    assert!(is_at(&after, &name, to), "{:?}: {:?}", after[&name], world.notes);
    assert_eq!(moved(&world), count + 1);
    // Another edge that stops and comes back changes nothing of that.
    world.control(backup, ToShard::Drain(Tag { tag: 1 }));
    world.runs(2 * LONG_MS);
    world.kills(backup);
    world.runs(3 * SETTLE_MS);
    world.restarts(backup);
    all_talk(&mut world, &clients, "on");
    assert!(is_at(&places(&world), &name, to), "{:?}", world.notes);
}
