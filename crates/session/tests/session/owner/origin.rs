//! Where a session's client connected: what policies may ask for, wherever the session goes on.

use crate::owner::bench::{Bench, SEED, keys, policy};
use marram_session::owner::{EpochRelease, Feed, KeeperId, Owner, OwnerEffect, OwnerPolicy};
use marram_wire::{
    frame::{Frame, Keep, Keeps},
    peer::Origin,
};

/// What a keeper is told first of a session whose client came from there.
fn announced(policy: OwnerPolicy, feed: Feed, origin: &Origin) -> Keep {
    let mut bench = Bench::new(policy);
    bench.owner.came_from(Some(Box::new(origin.clone())));
    bench.step(|owner, now, out| owner.join_group(now, [5; 16], EpochRelease::Confirmed, out));
    bench.open();
    let mut out = Vec::new();
    bench.owner.add_replica(KeeperId(7), 3, feed, &mut out);
    let keep = out.into_iter().find_map(|effect| match effect {
        OwnerEffect::ToKeeper(_, Frame::Keep(keep)) => Some(keep),
        _ => None,
    });
    keep.expect("a feed begins with its position")
}

#[test]
fn a_backup_knows_where_the_client_connected() {
    let origin = Origin { client: Some(([192, 0, 2, 7], 5060).into()), local: None, listener: "sip".into() };
    let epoch = OwnerPolicy { keeps: Keeps::Messages, ..policy() };
    let keep = announced(epoch.clone(), Feed::Backup, &origin);
    let backup = Owner::standby(keys(), epoch, &keep, SEED).expect("it can stand by");
    assert_eq!(backup.origin(), Some(&origin));
    // No policy is for a session that has no backup.
    assert_eq!(announced(policy(), Feed::Kept, &origin).origin, None);
}

#[test]
fn an_end_that_does_not_say_where_the_client_connected_takes_nothing_back() {
    let mut bench = Bench::new(policy());
    let origin = Origin { listener: "sip".into(), ..Origin::default() };
    bench.owner.came_from(Some(Box::new(origin.clone())));
    bench.owner.came_from(None);
    assert_eq!(bench.owner.origin(), Some(&origin));
}
