//! A shared cell that has a backup: an owner without ends of its own. Its group's claim decides which edge runs it.

use crate::owner::bench::{Bench, IMAGE, SEED, SESSION, keys, policy};
use marram_session::{
    cell::CellId,
    owner::{Attempt, EpochRelease, Feed, KeeperId, Now, Owner, OwnerEffect, OwnerPhase, OwnerPolicy},
};
use marram_wire::{
    frame::{Frame, Keeps},
    id::Generation,
};

const BACKUP: KeeperId = KeeperId(7);
const CHANNEL: u32 = 3;

fn shared() -> OwnerPolicy {
    OwnerPolicy { server: None, keeps: Keeps::Messages, shared: true, ..policy() }
}

/// A cell that begins, in a group whose backup is fed.
fn begins() -> Bench {
    let mut bench = Bench::new(shared());
    bench.step(|owner, now, out| owner.join_group(now, [5; 16], EpochRelease::Confirmed, out));
    bench
}

type Step<'a> = &'a dyn Fn(&mut Owner, Now, &mut Vec<OwnerEffect>);

/// What the backup is sent by these steps.
fn fed(bench: &mut Bench, steps: &[Step<'_>]) -> Vec<Frame> {
    let mut fed = Vec::new();
    for does in steps {
        let mut out = Vec::new();
        does(&mut bench.owner, bench.now, &mut out);
        for effect in out {
            match effect {
                OwnerEffect::ToKeeper(BACKUP, frame) => fed.push(frame),
                OwnerEffect::Start(..) => bench.owner.name_cell(CellId(1)),
                _ => {}
            }
        }
    }
    fed
}

fn attempt(count: u64) -> Attempt<'static> {
    Attempt {
        generation: Generation { count, opener: 40 },
        channels: &[],
        hosts: &[],
        fresh: count == 1,
        proven: true,
        assigned: false,
        client_identity: None,
    }
}

#[test]
fn it_begins_without_ends_and_waits_for_clients() {
    let mut bench = begins();
    bench.step(|owner, _, out| owner.add_replica(BACKUP, CHANNEL, Feed::Backup, out));
    bench.open();
    assert_eq!(bench.owner.phase(), OwnerPhase::Restoring);
    bench.started();
    assert_eq!(bench.owner.phase(), OwnerPhase::Confirming, "its backup has to know the generation");
    bench.epoch(1);
    assert_eq!(bench.owner.phase(), OwnerPhase::Running);
    assert!(bench.owner.log_bytes().0 > 0, "its start is logged, though no handler runs");
    assert!(bench.run.is_none());
    let number = 2;
    bench.epoch(number);
    bench.step(|owner, now, out| owner.tick(now, out));
    assert_eq!(bench.owner.phase(), OwnerPhase::Running, "it waits for its first client, and is not over");
    assert!(!bench.owner.incomplete(), "no end is missing");
}

/// The primary's cell has begun; all that its backup was fed until then.
fn begun() -> Vec<Frame> {
    let mut bench = begins();
    let fed = fed(
        &mut bench,
        &[
            &|owner, _, out| owner.add_replica(BACKUP, CHANNEL, Feed::Backup, out),
            &|owner, now, out| owner.open(now, &attempt(1), out),
            &|owner, now, out| owner.started(now, CellId(1), Ok(()), out),
            &|owner, now, out| {
                assert!(owner.end_epoch(1, out));
                owner.epoch_confirmed(now, 1, out);
            },
        ],
    );
    assert_eq!(bench.owner.phase(), OwnerPhase::Running);
    fed
}

/// A backup that was fed this.
fn backup(fed: &[Frame]) -> Bench {
    let Some(Frame::Keep(keep)) = fed.first() else { panic!("a feed begins with its position: {fed:?}") };
    let mut bench = Bench::new(shared());
    bench.owner = Owner::standby(keys(), shared(), keep, SEED).expect("it can stand by");
    for frame in &fed[1..] {
        let starts = matches!(frame, Frame::Fed(_));
        let frame = frame.clone();
        bench.step(|owner, now, out| owner.fed(now, frame, out));
        if starts {
            bench.started();
        }
    }
    bench
}

/// The backup's edge has claimed the group: nothing else can decide.
fn promoted(bench: &mut Bench) {
    bench.step(|owner, _, out| owner.feed_lost(out));
    bench.step(|owner, now, out| owner.join_group(now, [6; 16], EpochRelease::Alone, out));
    bench.step(|owner, now, out| owner.open(now, &attempt(2), out));
}

#[test]
fn its_backup_goes_on_with_what_it_was_fed() {
    let mut bench = backup(&begun());
    assert_eq!(bench.owner.phase(), OwnerPhase::Following);
    let (log, _) = bench.owner.log_bytes();
    promoted(&mut bench);
    assert_eq!(bench.owner.phase(), OwnerPhase::Running);
    assert_eq!(bench.owner.log_bytes().0, log, "nothing is logged again");
    let lines = bench.look();
    assert!(lines.iter().filter(|line| line.starts_with("start")).count() == 1, "one cell: {lines:?}");
}

#[test]
fn a_backup_that_was_fed_no_entry_begins_the_cell_again() {
    let fed: Vec<Frame> = begun().into_iter().filter(|frame| !matches!(frame, Frame::Fed(_))).collect();
    let mut bench = backup(&fed);
    promoted(&mut bench);
    bench.started();
    assert_eq!(bench.owner.phase(), OwnerPhase::Running);
    assert!(bench.owner.log_bytes().0 > 0);
    assert_eq!((bench.owner.session(), bench.owner.image()), (SESSION, IMAGE));
}
