//! Which claims a group asks for, and what it releases; no session and no wire is here.

use super::*;
use alloc::collections::BTreeMap;

const ALONE_AFTER: u64 = 3_000 * MS;
const KIND: GroupKind =
    GroupKind { pace: Pace { every_ns: MS, alone_after_ns: ALONE_AFTER, whole: false }, policy: None };

fn policy(name: &str, targets: &[&str], groups: u32) -> ReplicationPolicy {
    let targets = targets.iter().map(ToString::to_string).collect();
    ReplicationPolicy { name: name.into(), targets, groups, ..ReplicationPolicy::default() }
}

/// A group of one session, that has released something before or begins, with a target; and what it claims first.
fn begun(has_released: bool) -> (Groups, Option<Claimed>) {
    let name = [7; 16];
    let target = Target { wire: ShardWireId(1), edge: "b".into() };
    let mut groups = Groups::default();
    groups.begin(name, (KIND, Some(target), has_released), 0);
    groups.join(name, SessionId([1; 16]), 0);
    let claim = groups.next_claim(0, name, "a", || 1).expect("it is in no claim yet");
    groups.get_mut(name).expect("it has begun").won(claim.tag, None);
    (groups, claim.to)
}

#[test]
fn a_session_that_begins_waits_for_the_confirmations_of_its_target() {
    let (groups, first) = begun(false);
    assert_eq!(first.and_then(|claim| claim.backup).as_deref(), Some("b"));
    let group = groups.get([7; 16]).expect("it has begun");
    assert_eq!(group.release(2 * ALONE_AFTER), EpochRelease::Confirmed, "it has all that there is");
}

#[test]
fn cells_that_stand_still_wait_for_another_epoch_when_their_group_was_claimed_meanwhile() {
    let (mut groups, _) = begun(false);
    let (name, at) = ([7; 16], BTreeMap::from([(SessionId([1; 16]), 9)]));
    let group = groups.get_mut(name).expect("it has begun");
    group.begin_next(Target { wire: ShardWireId(2), edge: "c".into() }, SessionId([1; 16]));
    let (number, _) = group.end_epoch(MS);
    group.stands_at(at.clone());
    assert_eq!(group.stood_still(&at), Some(number));
    // That is announced behind the epoch.
    group.renew();
    let claim = groups.next_claim(MS, name, "a", || 2).expect("it is claimed again");
    let group = groups.get_mut(name).expect("it has begun");
    group.won(claim.tag, None);
    assert_eq!(group.stood_still(&at), None);
    group.end_epoch(2 * MS);
    group.stands_at(at.clone());
    assert_eq!(group.stood_still(&at), Some(number + 1));
}

#[test]
fn a_session_that_was_handed_over_waits_for_a_copy_no_longer_than_for_any_backup() {
    let (mut groups, first) = begun(true);
    assert_eq!(first.and_then(|claim| claim.backup), None, "the target has nothing yet");
    let group = groups.get_mut([7; 16]).expect("it has begun");
    assert_eq!(group.release(ALONE_AFTER - 1), EpochRelease::Held);
    assert_eq!(group.release(ALONE_AFTER), EpochRelease::Alone);
    assert!(group.looks(LOOK_NS), "whether the target has a copy by now");
    group.switch();
    let (number, _) = group.end_epoch(LOOK_NS);
    group.confirm(ShardWireId(1), number).expect("it is the target");
    let next = groups.next_claim(LOOK_NS, [7; 16], "a", || 2).expect("the backup is to be named");
    assert_eq!(next.to.and_then(|claim| claim.backup).as_deref(), Some("b"));
    let group = groups.get_mut([7; 16]).expect("it has begun");
    assert!(group.won(next.tag, None));
    assert_eq!(group.release(2 * ALONE_AFTER), EpochRelease::Confirmed);
}

#[test]
fn only_a_group_that_no_other_edge_may_claim_takes_a_session_that_an_edge_does_not_keep() {
    let (name, alone_at, avoids_until) = ([7; 16], 5 * MS, 100 * MS);
    let target = Target { wire: ShardWireId(1), edge: "b".into() };
    let mut groups = Groups::default();
    groups.begin_refuge(name, (KIND, "b"), (0, avoids_until, alone_at));
    groups.join(name, SessionId([1; 16]), 0);
    let takes = |groups: &Groups, edge: &str, now_ns: u64, alone_at_ns: u64| {
        groups.refuge(&KIND, edge, (now_ns, alone_at_ns)) == Some(name)
    };
    assert!(takes(&groups, "b", 0, alone_at));
    assert!(!takes(&groups, "b", 0, alone_at - 1), "the session may run alone earlier");
    assert!(!takes(&groups, "b", avoids_until, alone_at), "it may ask that edge now");
    assert!(!takes(&groups, "c", 0, alone_at), "and this one");
    let claim = groups.next_claim(0, name, "a", || 1).expect("it is in no claim yet");
    assert_eq!(claim.to.as_ref().and_then(|to| to.backup.as_deref()), None);
    assert!(takes(&groups, "b", 0, alone_at));
    groups.get_mut(name).expect("it has begun").won(claim.tag, None);
    assert!(takes(&groups, "b", 0, alone_at));
    // The edge is asked again: neither such sessions nor those that begin join it until a claim names that one.
    let group = groups.get_mut(name).expect("it has begun");
    group.aim(target.clone());
    assert!(group.is_trying_target() && group.leaver_is_alone_at(7) == alone_at);
    assert!(!takes(&groups, "b", 0, alone_at));
    assert_eq!(groups.find(&KIND, Some(&target), 1), None);
    let group = groups.get_mut(name).expect("it has begun");
    group.switch();
    let (number, _) = group.end_epoch(LOOK_NS);
    group.confirm(ShardWireId(1), number).expect("it is the target");
    let claim = groups.next_claim(LOOK_NS, name, "a", || 2).expect("the backup is to be named");
    let group = groups.get_mut(name).expect("it has begun");
    assert!(!group.is_trying_target() && group.leaver_is_alone_at(7) == 7 + ALONE_AFTER);
    // That edge is lost before it is known whether the claim was written.
    group.lose_target(LOOK_NS);
    assert!(!takes(&groups, "b", LOOK_NS, u64::MAX));
    groups.get_mut(name).expect("it has begun").won(claim.tag, None);
    assert!(!takes(&groups, "b", LOOK_NS, u64::MAX));
    let claim = groups.next_claim(LOOK_NS, name, "a", || 3).expect("none is to be named");
    groups.get_mut(name).expect("it has begun").won(claim.tag, None);
    assert!(takes(&groups, "b", LOOK_NS, u64::MAX));
    assert_eq!(groups.invariants(), Ok(()));
}

#[test]
fn a_group_avoids_each_edge_for_its_time() {
    let mut group = Group::new(KIND, None, 0);
    let aims_at = |group: &Group, now_ns: u64| ["b", "c", "d"].map(|edge| group.may_aim_at(edge, now_ns));
    group.avoid("b", 5);
    group.avoid("c", 9);
    // A shorter time does not end a longer one.
    group.avoid("c", 1);
    assert_eq!(aims_at(&group, 4), [false, false, true]);
    assert!(!group.avoids_no_more(4));
    assert!(group.avoids_no_more(5) && !group.avoids_no_more(5));
    assert_eq!(aims_at(&group, 5), [true, false, true]);
    assert!(group.avoids_no_more(9));
    assert_eq!(aims_at(&group, 9), [true; 3]);
}

#[test]
fn sessions_are_spread_over_as_many_groups_as_their_policy_says() {
    let policy = |name: &str, groups| Some(Arc::new(policy(name, &[], groups)));
    let kinds =
        [KIND, GroupKind { policy: policy("a", 4), ..KIND }, GroupKind { policy: policy("b", 1), ..KIND }];
    let targets = [None, Some(Target { wire: ShardWireId(1), edge: "b".into() })];
    let mut groups = Groups::default();
    let mut sizes = BTreeMap::new();
    for number in 0..60u8 {
        let (kind, target) = (&kinds[usize::from(number) % 3], targets[usize::from(number) % 2].clone());
        let name = groups.find(kind, target.as_ref(), kind.groups()).unwrap_or([number + 1; 16]);
        if groups.get(name).is_none() {
            groups.begin(name, (kind.clone(), target.clone(), false), 0);
        }
        groups.join(name, SessionId([number; 16]), 0);
        let group = groups.get(name).expect("it has begun");
        assert_eq!((&group.kind, &group.target), (kind, &target), "only those are together that may be");
        sizes.insert(name, group.members().count());
    }
    // 10 sessions of each kind with each target: one group, or four of which no two differ by more than one.
    let mut sizes: Vec<_> = sizes.into_values().collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [2, 2, 2, 2, 3, 3, 3, 3, 10, 10, 10, 10]);
    assert_eq!(groups.invariants(), Ok(()));
}

#[test]
fn fewer_groups_fill_when_a_policy_asks_for_fewer() {
    let kind = |groups| GroupKind { policy: Some(Arc::new(policy("a", &[], groups))), ..KIND };
    let mut groups = Groups::default();
    for number in 0..4u8 {
        groups.begin([number; 16], (kind(4), None, false), 0);
        groups.join([number; 16], SessionId([number; 16]), 0);
    }
    for number in 0..4u8 {
        let group = groups.get_mut([number; 16]).expect("it has begun");
        assert!(!group.is_placed_as_before());
        group.follow(kind(2), true);
        assert!(group.is_placed_as_before(), "its members would be in fewer groups");
    }
    for number in 4..8u8 {
        let name = groups.find(&kind(2), None, 2).expect("there are more groups than two");
        groups.join(name, SessionId([number; 16]), 0);
    }
    let count = |name| groups.get(name).map_or(0, Group::member_count);
    let sizes: Vec<usize> = groups.names().into_iter().map(count).collect();
    assert_eq!(sizes, [3, 3, 1, 1]);
}

#[test]
fn a_group_follows_another_interval_at_once_and_other_targets_when_it_has_lost_its_own() {
    let kind = |every_ms, targets: &[&str]| GroupKind {
        pace: Pace { every_ns: every_ms * MS, ..KIND.pace },
        policy: Some(Arc::new(policy("a", targets, 1))),
    };
    let name = [7; 16];
    let target = |edge: &str| Target { wire: ShardWireId(1), edge: edge.into() };
    let mut groups = Groups::default();
    groups.begin(name, (kind(100, &["b"]), Some(target("b")), false), 0);
    groups.join(name, SessionId([1; 16]), 0);
    let claim = groups.next_claim(0, name, "a", || 1).expect("it is in no claim yet");
    let group = groups.get_mut(name).expect("it has begun");
    group.won(claim.tag, None);
    group.due(SessionId([1; 16]));
    assert_eq!(group.epoch_ends_ns(), Some(100 * MS));
    group.follow(kind(10, &["b"]), false);
    assert_eq!((group.epoch_ends_ns(), group.is_placed_as_before()), (Some(10 * MS), false));
    group.follow(kind(1_000, &["c"]), false);
    assert_eq!((group.epoch_ends_ns(), group.is_placed_as_before()), (Some(1_000 * MS), true));
    assert_eq!(group.target, Some(target("b")), "it keeps its backup");
    assert_eq!(group.release(0), EpochRelease::Confirmed, "and waits for it");
    group.follow(kind(1_000, &["d", "b"]), true);
    assert!(!group.is_placed_as_before(), "the first of these that is there is its backup");
    group.follow(kind(1_000, &["c"]), false);
    group.lose_target(0);
    group.aim(target("c"));
    assert!(!group.is_placed_as_before());
}

#[test]
fn a_group_whose_record_was_put_back_is_claimed_from_that() {
    let (mut groups, first) = begun(false);
    let first = first.expect("it was claimed");
    let older = Claimed { generation: Generation { count: 0, opener: 3 }, backup: None, ..first.clone() };
    let other = Claimed { primary: "b".into(), ..older.clone() };
    groups.get_mut([7; 16]).expect("it has begun").renew();
    let again = groups.next_claim(0, [7; 16], "a", || 2).expect("it is claimed again");
    assert_eq!(
        (again.from.as_ref(), again.to.as_ref().map(|to| to.generation.count)),
        (Some(&first), Some(2))
    );
    let group = groups.get_mut([7; 16]).expect("it has begun");
    assert_eq!(group.release(0), EpochRelease::Confirmed, "its backup is the same");
    assert!(!group.put_back(again.tag, &first, "a") && !group.put_back(again.tag, &other, "a"));
    assert!(group.put_back(again.tag, &older, "a"));
    assert_eq!(group.release(2 * ALONE_AFTER), EpochRelease::Confirmed, "the target has all");
    let next = groups.next_claim(0, [7; 16], "a", || 3).expect("it is claimed from that");
    // No generation is that of a claim which may have been announced.
    assert_eq!((next.from.as_ref(), next.to.as_ref().map(|to| to.generation.count)), (Some(&older), Some(3)));
    let group = groups.get_mut([7; 16]).expect("it has begun");
    group.lose_target(0);
    assert!(!group.put_back(next.tag, &older, "a"), "that is what was claimed from");
    group.won(next.tag, None);
    assert_eq!(
        groups.next_claim(0, [7; 16], "a", || 4).map(|claim| claim.to.and_then(|to| to.backup)),
        Some(None)
    );
}

#[test]
fn a_group_whose_record_is_in_doubt_does_not_run_alone() {
    let (mut groups, _) = begun(true);
    let group = groups.get_mut([7; 16]).expect("it has begun");
    group.lose_target(0);
    assert_eq!(group.release(2 * ALONE_AFTER), EpochRelease::Alone);
    group.renew();
    assert_eq!(group.release(2 * ALONE_AFTER), EpochRelease::Held);
    let claim = groups.next_claim(0, [7; 16], "a", || 2).expect("it is claimed again");
    let group = groups.get_mut([7; 16]).expect("it has begun");
    assert_eq!(group.release(2 * ALONE_AFTER), EpochRelease::Held);
    assert!(group.won(claim.tag, None));
    assert_eq!(group.release(2 * ALONE_AFTER), EpochRelease::Alone);
}

#[test]
fn a_backup_that_was_started_again_resigns_and_its_primary_claims_from_that() {
    let (mut groups, first) = begun(false);
    let first = first.expect("it was claimed");
    let resigned = first.resigned();
    assert_eq!((resigned.generation.count, &resigned.primary[..], &resigned.backup), (2, "a", &None));
    let group = groups.get_mut([7; 16]).expect("it has begun");
    group.lose_target(0);
    let claim = groups.next_claim(0, [7; 16], "a", || 2).expect("it has no backup any more");
    // What the next life of this edge claims from that record is not for this one, nor what its own backup resigns from.
    let next_life = Claimed { generation: Generation { count: 3, opener: 8 }, ..first.clone() };
    let others = [next_life.clone(), Claimed { backup: None, ..next_life.clone() }, next_life.resigned()];
    let group = groups.get_mut([7; 16]).expect("it has begun");
    assert!(!others.iter().any(|other| group.was_resigned(claim.tag, other)));
    assert!(!group.was_resigned(claim.tag + 1, &resigned), "that answer is for another question");
    assert!(group.was_resigned(claim.tag, &resigned));
    assert_eq!(group.release(2 * ALONE_AFTER), EpochRelease::Held, "until it has claimed from that");
    let next = groups.next_claim(0, [7; 16], "a", || 3).expect("it is claimed from that");
    assert_eq!(next.from, Some(resigned));
    assert_eq!(next.to.map(|to| (to.generation.count, to.backup)), Some((3, None)));
    let group = groups.get_mut([7; 16]).expect("it has begun");
    assert!(group.won(next.tag, None));
    assert_eq!(group.release(2 * ALONE_AFTER), EpochRelease::Alone);
}

#[test]
fn a_primary_knows_that_its_backup_resigned_from_a_claim_that_was_not_answered() {
    let mut groups = Groups::default();
    let target = Target { wire: ShardWireId(1), edge: "b".into() };
    groups.begin([7; 16], (KIND, Some(target), false), 0);
    groups.join([7; 16], SessionId([1; 16]), 0);
    let claim = groups.next_claim(0, [7; 16], "a", || 1).expect("it is in no claim yet");
    let resigned = claim.to.expect("it names the backup").resigned();
    let group = groups.get_mut([7; 16]).expect("it has begun");
    group.lose_target(0);
    assert!(group.was_resigned(claim.tag, &resigned));
    let next = groups.next_claim(0, [7; 16], "a", || 2).expect("it is claimed from that");
    assert_eq!((next.from, next.to.and_then(|to| to.backup)), (Some(resigned), None));
}

#[test]
fn a_group_with_a_backup_that_it_has_kept_is_claimed_again_when_that_knows_of_its_first_claim() {
    let [one, two] = [1, 2].map(|number| SessionId([number; 16]));
    let (name, target) = ([7; 16], Target { wire: ShardWireId(1), edge: "b".into() });
    let first = Claimed {
        generation: Generation { count: 5, opener: 1 },
        primary: "c".into(),
        backup: Some("b".into()),
    };
    let mut groups = Groups::default();
    groups.promoted(name, (KIND, "a".into(), true), first.clone(), 0);
    groups.get_mut(name).expect("it has begun").keeps_backup(target, [one, two].into());
    [one, two].into_iter().for_each(|member| groups.join(name, member, 0));
    let claims = |groups: &mut Groups| groups.next_claim(0, name, "c", || 2);
    let group = groups.get_mut(name).expect("it has begun");
    assert!(group.continues(one) && !group.asks_kept_backup());
    let (number, _) = group.end_epoch(0);
    group.confirm(ShardWireId(1), number).expect("it is the target");
    assert_eq!(claims(&mut groups), None, "it is not told of all");
    // The other one ends before that.
    groups.leave(two, 0);
    let again = claims(&mut groups).expect("the backup is to drop its copy");
    let to = again.to.expect("it has members");
    assert_eq!((again.from, to.generation.count, to.backup.as_deref()), (Some(first.clone()), 6, Some("b")));
    let group = groups.get_mut(name).expect("it has begun");
    assert_eq!(group.release(2 * ALONE_AFTER), EpochRelease::Confirmed);
    assert!(group.won(again.tag, None));
    assert_eq!(claims(&mut groups), None, "once");

    let target = Target { wire: ShardWireId(1), edge: "b".into() };
    groups.promoted(name, (KIND, "a".into(), true), first, 0);
    groups.join(name, one, 0);
    let group = groups.get_mut(name).expect("it has begun");
    group.keeps_backup(target, [one].into());
    assert!(!group.asks_kept_backup() && group.continues(one) && group.asks_kept_backup());
    let (number, _) = group.end_epoch(0);
    group.epoch_sent(0, Vec::new());
    assert!(!group.asks_kept_backup());
    assert_eq!(claims(&mut groups), None, "the store may tell the backup of the next claim only");
    let group = groups.get_mut(name).expect("it has begun");
    group.confirm(ShardWireId(1), number).expect("it is the target");
    assert!(claims(&mut groups).is_some());
}
