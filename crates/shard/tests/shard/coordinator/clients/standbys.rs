//! The list of standbys, which edges keep in the store.

use super::*;

#[test]
fn a_standby_is_listed_until_the_session_or_the_edge_ends() {
    let mut world = World::new(3, 3);
    let (mut zero, mut one) = (Lists::default(), Lists::default());
    world.run(2);
    let (first, second) = (session(9), session(9 + u32::from(PARTS)));
    assert_eq!(world.standby(1, first), None);
    for standby in ["edge-1", "edge-7"] {
        zero.place(first, Some(stands(1, standby)));
        zero.place(second, Some(stands(4, "edge-2")));
        zero.tell(&mut world, 0);
        world.run(1);
        let found = Some(("edge-0".into(), 1, standby.into()));
        assert_eq!((world.standby(1, first), world.standby(2, first)), (found.clone(), found));
    }
    // The store comes back without keys under short leases; the edge writes its list again.
    world.there = false;
    world.run(10);
    world.there = true;
    world.restart();
    world.run(10);
    assert_eq!(world.standby(1, first), Some(("edge-0".into(), 1, "edge-7".into())));
    // The newest owner's entry counts, also if other edges have one.
    one.place(first, Some(stands(2, "edge-2")));
    one.tell(&mut world, 1);
    world.run(1);
    assert_eq!(world.standby(0, first), Some(("edge-1".into(), 2, "edge-2".into())));
    one.place(first, None);
    one.tell(&mut world, 1);
    world.run(1);
    assert_eq!(world.standby(0, first), Some(("edge-0".into(), 1, "edge-7".into())));
    zero.place(first, None);
    zero.tell(&mut world, 0);
    world.run(1);
    assert_eq!(world.standby(1, first), None);
    // A part is removed with its last session, and all parts with their edge's lease.
    assert_eq!(world.standby(1, second), Some(("edge-0".into(), 4, "edge-2".into())));
    let keys = world.store.figures().keys;
    zero.place(second, None);
    zero.tell(&mut world, 0);
    world.run(1);
    assert_eq!((world.standby(1, second), world.store.figures().keys), (None, keys - 1));
    zero.place(second, Some(stands(5, "edge-1")));
    zero.tell(&mut world, 0);
    world.run(1);
    world.edges[0].alive = false;
    assert_eq!(world.standby(1, second), Some(("edge-0".into(), 5, "edge-1".into())));
    world.run(u64::from(LEASE_S) + 1);
    assert_eq!(world.standby(1, second), None);
}

#[test]
fn a_thousand_sessions_at_once_are_a_few_writes_between_which_others_have_their_turn() {
    let mut world = World::new(2, 4);
    world.run(2);
    let mut lists = Lists::default();
    let before = world.edges[0].client.figures();
    for number in 0..1_000 {
        lists.place(session(number), Some(stands(1, "edge-1")));
    }
    lists.tell(&mut world, 0);
    let seconds = u64::from(PARTS) * LISTING_NS / SECOND;
    for _ in 0..seconds {
        // Questions in the meantime do not wait for it.
        assert_eq!(
            world.asked(0, Ask::Holder { subject: Subject::Group("g".into()) }),
            AskAnswer::Holder(None)
        );
        assert_eq!(*world.edges[0].client.state(), CoordinatorState::There);
    }
    world.run(2 * seconds + 2);
    let after = world.edges[0].client.figures();
    assert_eq!(after.parts_written - before.parts_written, u64::from(PARTS));
    assert_eq!(world.standby(1, session(999)), Some(("edge-0".into(), 1, "edge-1".into())));
    // However fast they change, writes keep their minimum interval.
    let start = world.now;
    while world.now < start + 20 * SECOND {
        for number in 0..1_000 {
            lists.place(session(number), Some(stands(world.now, "edge-1")));
        }
        lists.tell(&mut world, 0);
        world.tick();
    }
    let written = world.edges[0].client.figures().parts_written - after.parts_written;
    assert!((30..=20 * SECOND / LISTING_NS + 1).contains(&written), "{written}");
    // And every part is written in its turn.
    for number in 0..u32::from(PARTS) {
        let (_, count, _) = world.standby(1, session(number)).unwrap();
        assert!(count >= start, "{number}: {count}");
    }
}

#[test]
fn a_list_has_a_largest_size_and_its_dead_shards_are_gone() {
    let mut placements = Placements::default();
    let name = "n".repeat(NAME_BYTES_MAX);
    let mut place = |shard, number: u32, name: &str| {
        let generation = Generation { count: u64::MAX, opener: u64::MAX };
        let at = Some(Stands { generation, standby: name.into(), hot: true });
        placements.placed(shard, session(number * u32::from(PARTS)), at);
    };
    // All in one part.
    let most = u32::try_from(PART_SESSIONS_MAX).unwrap();
    (0..most + 10).for_each(|number| place((number % 2) as u8, number, &name));
    place(0, 0, &name.repeat(2));
    assert_eq!((placements.count(), placements.dropped()), (PART_SESSIONS_MAX, 11));
    let (version, parts) = placements.since(0);
    assert!(parts.len() == 1 && parts[0].1.len() < VALUE_BYTES_MAX, "{}", parts[0].1.len());
    assert!(PARTS as usize * parts[0].1.len() < STORE_BYTES_MAX / 16);
    assert_eq!(placements.since(version), (version, Vec::new()));
    // A report of another shard does not remove a session that a shard has now.
    placements.placed(0, session(u32::from(PARTS)), None);
    assert_eq!(placements.count(), PART_SESSIONS_MAX);
    placements.shard_gone(0);
    assert_eq!(placements.count(), PART_SESSIONS_MAX / 2);
    placements.shard_gone(1);
    let (_, parts) = placements.since(version);
    assert!(parts.len() == 1 && parts[0].1.is_empty());
}
