//! Sessions that a backup does not keep, while it keeps the others of their group: it lacks their version of the app, or is full.

use super::{heard, is_one_history};
use crate::cells::world::{LONG_MS, World};
use marram_shard::api::{ReplicationPolicy, Tag, ToShard};

/// Edges of which all sessions have the second one as their backup, if it keeps them; and so many clients of the first one.
fn begun(edges: usize, clients: usize) -> (World, Vec<usize>) {
    let to = ReplicationPolicy { targets: vec!["e1".into()], ..ReplicationPolicy::default() };
    let mut world = World::with_own_cells(edges, &[to]);
    let clients: Vec<usize> = (0..clients).map(|_| world.joins(0)).collect();
    world.runs(LONG_MS);
    assert!(clients.iter().all(|client| backup(&world, *client).as_deref() == Some("e1")));
    (world, clients)
}

/// The backup of a client's session at the first edge.
fn backup(world: &World, client: usize) -> Option<String> {
    world.shard(0).backup_of(world.session(client)?).map(ToString::to_string)
}

/// The clients are answered at once for so long, and their sessions have this backup at each moment.
fn are_served(world: &mut World, clients: &[usize], edge: &str, ms: u64) {
    for number in 0..ms / 50 {
        let text = format!("still here {number}");
        clients.iter().for_each(|client| world.says(*client, &text));
        world.runs(5);
        for client in clients {
            assert!(heard(world, *client, &text), "{client}, {number}: {:?}", world.heard(*client));
            assert_eq!(
                backup(world, *client).as_deref(),
                Some(edge),
                "{client}, {number}: {:?}",
                world.notes
            );
        }
        world.runs(45);
    }
}

/// The first edge dies, and all clients are answered by those that were their backups.
fn outlive_it(world: &mut World, clients: &[usize], edges: &[usize]) {
    world.kills(0);
    clients.iter().for_each(|client| world.says(*client, "after"));
    world.runs(LONG_MS);
    for client in clients {
        assert!(heard(world, *client, "after"), "{client}: {:?}", world.heard(*client));
        is_one_history(world, &[*client]);
    }
    assert_eq!(world.runs_at(), edges);
}

/// The first edge has told its operator with all of these words that the backup does not keep a session.
fn is_told(world: &World, words: &[&str]) {
    let is_it = |note: &&String| note.contains("`e1` no longer keeps the session");
    let says_all = |note: &String| words.iter().all(|word| note.contains(word));
    assert!(world.notes.iter().filter(is_it).any(says_all), "{words:?}: {:?}", world.notes);
}

#[test]
fn a_session_of_a_version_that_the_backup_lacks_harms_no_other() {
    let (mut world, old) = begun(2, 2);
    world.deploys_another(0);
    let mut new = vec![world.comes(0)];
    are_served(&mut world, &old, "e1", 2 * LONG_MS);
    is_told(&world, &["which the edge `e1` does not have yet", "it is requesting it from its peers"]);
    // It runs alone, and so do those that come later, which need not wait as long.
    assert!(heard(&world, new[0], "hi"), "{:?}", world.heard(new[0]));
    new.extend([world.joins(0), world.joins(0)]);
    assert!(new.iter().all(|client| heard(&world, *client, "hi") && backup(&world, *client).is_none()));
    are_served(&mut world, &old, "e1", LONG_MS);
    assert!(world.store.groups.len() <= 4, "{:?}", world.store.groups);
    // The backup gets the version.
    world.deploys_another(1);
    world.runs(32_000);
    assert!(new.iter().all(|client| backup(&world, *client).as_deref() == Some("e1")), "{:?}", world.notes);
    new.push(world.joins(0));
    outlive_it(&mut world, &[old, new].concat(), &[1]);
}

#[test]
fn a_session_that_the_backup_lacks_for_a_moment_waits_no_longer() {
    let (mut world, old) = begun(2, 1);
    world.deploys_another(0);
    let new = world.comes(0);
    world.runs(50);
    world.deploys_another(1);
    world.runs(100);
    assert!(heard(&world, new, "hi"), "{:?}", world.notes);
    assert_eq!(backup(&world, new).as_deref(), Some("e1"));
    outlive_it(&mut world, &[old[0], new], &[1]);
}

#[test]
fn a_session_that_its_backup_does_not_keep_has_another_edge_at_once() {
    let (mut world, old) = begun(3, 2);
    world.deploys_another(0);
    world.deploys_another(2);
    let new = [world.joins(0), world.joins(0)];
    are_served(&mut world, &new, "e2", 500);
    are_served(&mut world, &old, "e1", LONG_MS);
    // Both are in one group.
    assert_eq!(world.store.groups.len(), 2, "{:?}", world.store.groups);
    outlive_it(&mut world, &[old, new.to_vec()].concat(), &[1, 2]);
}

#[test]
fn a_backup_that_is_full_keeps_what_it_has() {
    let (mut world, kept) = begun(2, 2);
    world.limits_sessions(1, 2);
    let late = [world.joins(0), world.joins(0)];
    are_served(&mut world, &kept, "e1", 3 * LONG_MS);
    assert!(late.iter().all(|client| heard(&world, *client, "hi") && backup(&world, *client).is_none()));
    is_told(&world, &["maximum number of sessions", "raise `limits.sessions`"]);
    // One of them fits when another session ends.
    world.closes(kept[0]);
    for _ in 0..80 {
        are_served(&mut world, &kept[1..], "e1", 500);
    }
    let kept_now: Vec<usize> = late.into_iter().filter(|client| backup(&world, *client).is_some()).collect();
    assert_eq!(kept_now.len(), 1, "{:?}", world.notes);
    are_served(&mut world, &[kept[1], kept_now[0]], "e1", LONG_MS);
    outlive_it(&mut world, &[kept[1], kept_now[0]], &[1]);
}

#[test]
fn a_next_backup_that_lacks_one_session_is_the_backup_of_the_others() {
    let (mut world, old) = begun(3, 2);
    world.deploys_another(0);
    world.deploys_another(1);
    let new = [world.joins(0), world.joins(0)];
    are_served(&mut world, &new, "e1", 500);
    assert_eq!(world.store.groups.len(), 1, "all are in one group");
    world.kills(1);
    world.runs(LONG_MS);
    are_served(&mut world, &old, "e2", LONG_MS);
    // What runs alone goes on doing so, while the other edge is asked again.
    for number in 0..200 {
        let text = format!("alone {number}");
        new.iter().for_each(|client| world.says(*client, &text));
        world.runs(50);
        assert!(new.iter().all(|client| heard(&world, *client, &text)), "{number}: {:?}", world.notes);
    }
    assert!(world.store.groups.len() <= 4, "{:?}", world.store.groups);
    world.deploys_another(2);
    world.runs(32_000);
    are_served(&mut world, &[old.clone(), new.to_vec()].concat(), "e2", 500);
    outlive_it(&mut world, &[old, new.to_vec()].concat(), &[2]);
}

#[test]
fn a_backup_that_stops_is_replaced_for_all_of_a_group_at_once() {
    let (mut world, clients) = begun(3, 4);
    world.control(1, ToShard::Drain(Tag { tag: 1 }));
    world.runs(LONG_MS);
    assert!(world.store.groups.len() <= 2, "{:?}", world.store.groups);
    are_served(&mut world, &clients, "e2", 500);
    outlive_it(&mut world, &clients, &[2]);
}
