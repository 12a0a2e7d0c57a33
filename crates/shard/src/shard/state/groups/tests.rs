//! When a group without a backup runs alone.

use super::{Group, MS, Pace, Target};
use crate::api::ShardWireId;
use alloc::string::ToString;
use marram_session::owner::EpochRelease;

const ALONE_AFTER_NS: u64 = 3_000 * MS;

fn target(edge: &str) -> Target {
    Target { wire: ShardWireId(1), edge: edge.to_string() }
}

/// Asks for the claim that the group needs, which wins.
fn claim(group: &mut Group, now_ns: u64, tag: u64) {
    assert!(group.next_claim(now_ns, "a", || (tag, tag)).is_some(), "{group:?}");
    assert!(group.won(tag));
}

/// A group with a backup, which is lost at `now_ns`.
fn bereft(now_ns: u64) -> Group {
    let pace = Pace { every_ns: MS, alone_after_ns: ALONE_AFTER_NS };
    let mut group = Group::new(pace, Some(target("b")), 0);
    claim(&mut group, 0, 1);
    assert_eq!(group.release(now_ns), EpochRelease::Confirmed);
    group.lose_target(now_ns);
    claim(&mut group, now_ns, 2);
    group
}

#[test]
fn outputs_wait_for_a_backup_from_its_loss_on() {
    let lost_ns = 60_000 * MS;
    let group = bereft(lost_ns);
    assert_eq!(group.release(lost_ns + ALONE_AFTER_NS - 1), EpochRelease::Held);
    assert_eq!(group.release(lost_ns + ALONE_AFTER_NS), EpochRelease::Alone);
}

#[test]
fn an_edge_that_is_lost_before_a_claim_names_it_does_not_make_outputs_wait_again() {
    let lost_ns = 60_000 * MS;
    let alone_ns = lost_ns + ALONE_AFTER_NS;
    for is_switched in [false, true] {
        let mut group = bereft(lost_ns);
        group.aim(target("c"));
        if is_switched {
            group.switch();
        }
        group.lose_target(alone_ns);
        assert_eq!(group.release(alone_ns), EpochRelease::Alone, "switched: {is_switched}");
        // The wait that is under way does not begin again, either.
        let mut group = bereft(lost_ns);
        group.aim(target("c"));
        group.lose_target(alone_ns - 1);
        assert_eq!(group.release(alone_ns - 1), EpochRelease::Held);
        assert_eq!(group.release(alone_ns), EpochRelease::Alone);
    }
}

#[test]
fn an_edge_that_is_lost_while_it_is_claimed_counts_as_a_backup() {
    let lost_ns = 60_000 * MS;
    let alone_ns = lost_ns + ALONE_AFTER_NS;
    let mut group = bereft(lost_ns);
    group.aim(target("c"));
    group.switch();
    let (number, _) = group.end_epoch(alone_ns);
    group.epoch_sent(alone_ns, alloc::vec::Vec::new());
    group.confirm(ShardWireId(1), number).unwrap();
    assert!(group.next_claim(alone_ns, "a", || (3, 3)).is_some());
    group.lose_target(alone_ns);
    // Whether that edge may claim the group is not known.
    assert_eq!(group.release(alone_ns + ALONE_AFTER_NS), EpochRelease::Held);
    assert!(group.won(3));
    claim(&mut group, alone_ns, 4);
    assert_eq!(group.release(alone_ns), EpochRelease::Held);
    assert_eq!(group.release(alone_ns + ALONE_AFTER_NS), EpochRelease::Alone);
}
