//! A session with a backup goes to another edge, or gets another backup: what that edge must have of it.

use crate::owner::bench::{Bench, CLIENT, SERVER, policy};
use marram_session::owner::{BackupForm, EpochRelease, Feed, KeeperId, OwnerPhase, OwnerPolicy};
use marram_wire::frame::{Frame, Keeps, Stored};

const BACKUP: KeeperId = KeeperId(7);
const NEXT: KeeperId = KeeperId(8);
const CHANNEL: u32 = 5;

/// A session that runs, and whose outputs wait for a backup.
fn backed() -> Bench {
    let mut bench = Bench::new(OwnerPolicy { keeps: Keeps::Messages, form: BackupForm::Log, ..policy() });
    bench.step(|owner, now, out| owner.join_group(now, [5; 16], EpochRelease::Confirmed, out));
    bench.step(|owner, _, out| owner.add_replica(BACKUP, 3, Feed::Backup, out));
    bench.open();
    bench.hand_over();
    bench.started();
    bench.epoch(1);
    bench.opened();
    bench
}

/// One of which the next edge has the base.
fn moving() -> Bench {
    let mut bench = backed();
    bench.step(|owner, _, out| owner.add_replica(NEXT, CHANNEL, Feed::Moved, out));
    copied(&mut bench);
    bench
}

/// The next edge gets the base, and stores it.
fn copied(bench: &mut Bench) {
    let number = bench.taken.as_ref().expect("a base for the next edge").number;
    assert_eq!(bench.checkpointed(&b"sealed"[..]), None);
    bench.step(|owner, now, out| {
        owner.allow_copy(now, NEXT, u64::MAX, out);
    });
    let stored = Stored { channel: CHANNEL, bytes: 6, complete: Some(number) };
    bench.step(|owner, now, out| owner.from_keeper(now, NEXT, Frame::from(stored), out));
    bench.look();
}

#[test]
fn nothing_runs_behind_a_hand_over_to_another_edge_than_the_backup() {
    let mut bench = moving();
    bench.say(CLIENT, "a");
    assert!(!bench.hands_over(NEXT), "a handler runs");
    bench.say(CLIENT, "b");
    bench.ran(&[(SERVER, "a")]);
    assert!(bench.run.is_none(), "no other one begins");
    assert!(bench.hands_over(NEXT));
    let last = bench.look().into_iter().rfind(|line| line.starts_with("to keeper 8"));
    assert!(last.as_ref().is_some_and(|line| line.contains("HandOver")), "behind all entries: {last:?}");
    bench.epoch(2);
    assert!(bench.run.is_none(), "nor when the backup has confirmed");
    assert!(!bench.hands_over(BACKUP), "one edge takes it over");
    // The next edge is lost.
    bench.step(|owner, now, out| {
        owner.remove_replica(NEXT, out);
        owner.tick(now, out);
    });
    assert!(bench.run.is_some(), "it goes on here");
}

#[test]
fn a_move_that_is_given_up_while_a_handler_runs_holds_nothing_up() {
    let mut bench = moving();
    bench.say(CLIENT, "a");
    assert!(!bench.hands_over(NEXT));
    bench.say(CLIENT, "b");
    bench.step(|owner, _, out| owner.remove_replica(NEXT, out));
    bench.ran(&[(SERVER, "a")]);
    assert!(bench.run.is_some());
}

#[test]
fn the_next_backup_gets_a_copy_while_no_end_is_linked() {
    let mut bench = backed();
    bench.say(CLIENT, "a");
    bench.ran(&[(SERVER, "a")]);
    for port in [CLIENT, SERVER] {
        bench.step(|owner, _, out| owner.unlinked(port, out));
    }
    assert_eq!(bench.owner.phase(), OwnerPhase::Detached);
    bench.step(|owner, _, out| owner.remove_replica(BACKUP, out));
    bench.step(|owner, _, out| owner.add_replica(NEXT, CHANNEL, Feed::Backup, out));
    copied(&mut bench);
    assert!(bench.owner.keepers().any(|replica| replica.keeper == NEXT && replica.ready));
}
