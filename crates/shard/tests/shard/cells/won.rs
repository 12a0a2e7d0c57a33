//! A backup that claims a group whose last session leaves it meanwhile.

use super::heard;
use crate::cells::world::{LONG_MS, World};
use marram_wire::{
    frame::{Backup, Epoch, GroupId, JoinGroup},
    id::Generation,
};

/// The second edge, which backs a client's session, has claimed its group. Before the claim was won its primary, which is frozen now, has
/// told it that the session is in another group, and has heard nothing of the claim.
fn claimed_in_vain() -> (World, usize, GroupId) {
    let mut world = World::with_own_cells(2, &[]);
    let client = world.joins(0);
    world.runs(LONG_MS);
    assert_eq!((world.runs_at(), world.backup_at(0)), (vec![0], Some("e1".into())));
    let group = *world.store.groups.keys().next().expect("the session has a group");
    world.hears_primary(1, |_| Epoch { group, number: 1_000 }.into());
    assert!(world.confirmed.contains(&(group, 1_000)));
    world.store.away = true;
    world.freezes(0);
    // Its agent asks the other edge, which has heard nothing of the primary.
    world.says(client, "are you there?");
    world.runs(600);
    assert!(world.is_claiming(1, client), "{:?}", world.notes);
    world.cuts_off(client, true);
    world.hears_primary(1, |channel| JoinGroup { channel, group: [9; 16] }.into());
    world.store.away = false;
    for _ in 0..100 {
        world.runs(10);
        if is_claimed(&world, group) {
            return (world, client, group);
        }
    }
    panic!("the claim is not won: {:?}", world.store.groups);
}

/// Whether the second edge has this group.
fn is_claimed(world: &World, group: GroupId) -> bool {
    world.store.groups.get(&group).is_some_and(|claim| claim.primary == "e1")
}

#[test]
fn a_backup_that_has_won_an_empty_group_confirms_nothing_of_it() {
    let (mut world, client, group) = claimed_in_vain();
    for number in 1_001..1_004 {
        world.hears_primary(1, |_| Epoch { group, number }.into());
    }
    world.runs(50);
    assert!(!is_claimed(&world, group), "the primary goes on with it: {:?}", world.store.groups);
    world.hears_primary(1, |_| Epoch { group, number: 1_004 }.into());
    assert_eq!(world.confirmed.range((group, 1_001)..=(group, 1_004)).count(), 0);
    // What it feeds under its former claim is refused, and it claims the group again.
    let generation = Generation { count: 2, opener: 7 };
    world.hears_primary(1, |_| Backup { group, generation }.into());
    world.hears_primary(1, |channel| JoinGroup { channel, group }.into());
    world.hears_primary(1, |_| Epoch { group, number: 1_005 }.into());
    assert!(!world.confirmed.contains(&(group, 1_005)));
    world.thaws(0);
    world.cuts_off(client, false);
    world.runs(3 * LONG_MS);
    world.says(client, "after");
    world.runs(100);
    assert!(heard(&world, client, "after"), "{:?}", world.notes);
    assert_eq!((world.runs_at(), world.backup_at(0)), (vec![0], Some("e1".into())));
}

#[test]
fn the_record_of_an_empty_group_that_a_backup_has_won_is_removed() {
    let (mut world, _, group) = claimed_in_vain();
    world.kills(0);
    world.runs(LONG_MS);
    assert!(!world.store.groups.contains_key(&group), "{:?}", world.store.groups);
}
