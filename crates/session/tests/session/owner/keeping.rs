//! Hot standbys: their reports of replayed entries, and what happens to one that falls behind.

use crate::owner::bench::{Bench, CLIENT, SERVER, policy};
use marram_session::owner::{Feed, KeeperId, OwnerPolicy};
use marram_wire::{
    frame::{Credit, Frame, Protected, Replayed, Stored},
    limits::{REPLAY_LAG_MAX, REPLAYED_EVERY},
};

const KEEPER: KeeperId = KeeperId(7);
const CHANNEL: u32 = 3;

/// A session that has been kept since it began: its first entry was fed.
fn kept(hot: bool) -> Bench {
    kept_with(policy(), hot)
}

fn kept_with(policy: OwnerPolicy, hot: bool) -> Bench {
    let mut bench = Bench::new(policy);
    let feed = if hot { Feed::Replayed } else { Feed::Kept };
    bench.step(|owner, _, out| owner.add_replica(KEEPER, CHANNEL, feed, out));
    bench.begin();
    bench.look();
    bench
}

fn consume(bench: &mut Bench, entries: u64) {
    (0..entries).for_each(|_| bench.consume(CLIENT, "", 0));
}

fn says(bench: &mut Bench, frame: impl Into<Frame>) {
    bench.step(|owner, now, out| owner.from_keeper(now, KEEPER, frame.into(), out));
}

fn replays(bench: &mut Bench, entries: u64) {
    says(bench, Replayed { channel: CHANNEL, entries });
}

/// It acknowledges all that it was fed, so many entries.
fn receives(bench: &mut Bench, entries: u64) {
    let bytes = bench.owner.keepers().next().map_or(0, |keeper| keeper.behind);
    says(bench, Credit { channel: CHANNEL, received: entries, bytes });
}

/// How many entries the keeper has to replay; none if it was dropped.
fn unreplayed(bench: &Bench) -> Option<u64> {
    bench.owner.keepers().next().and_then(|fill| fill.unreplayed)
}

/// The lines about the keeper since the last look, without what it was fed.
fn lost(bench: &mut Bench) -> Vec<String> {
    bench.look().into_iter().filter(|line| line.starts_with("keeper")).collect()
}

#[test]
fn a_hot_standby_that_does_not_replay_what_it_receives_is_dropped() {
    let mut bench = kept(true);
    consume(&mut bench, REPLAY_LAG_MAX - 1);
    // It has received everything.
    receives(&mut bench, REPLAY_LAG_MAX);
    assert_eq!((unreplayed(&bench), lost(&mut bench)), (Some(REPLAY_LAG_MAX), Vec::new()));
    consume(&mut bench, 1);
    assert_eq!(lost(&mut bench), ["keeper 7 replays too slowly", "keeper 7 lost: Busy"]);
    assert_eq!(bench.owner.keepers().count(), 0);
    // Another keeper, or the same one when it is back, begins with a checkpoint of its own.
    bench.step(|owner, _, out| owner.add_replica(KeeperId(8), CHANNEL + 2, Feed::Replayed, out));
    assert!(bench.taken.is_some());
    assert_eq!(unreplayed(&bench), Some(0));
}

#[test]
fn one_that_keeps_up_stays() {
    let mut bench = kept(true);
    for _ in 0..2 * REPLAY_LAG_MAX / REPLAYED_EVERY {
        consume(&mut bench, REPLAYED_EVERY);
        replays(&mut bench, REPLAYED_EVERY);
        receives(&mut bench, REPLAYED_EVERY);
    }
    assert_eq!((unreplayed(&bench), lost(&mut bench)), (Some(1), Vec::new()));
}

#[test]
fn one_that_only_receives_is_not_asked_to_replay() {
    let mut bench = kept(false);
    consume(&mut bench, REPLAY_LAG_MAX + 1);
    assert_eq!((unreplayed(&bench), lost(&mut bench)), (None, Vec::new()));
    replays(&mut bench, 1);
    assert_eq!(lost(&mut bench), ["keeper 7 lost: Protocol"]);
}

#[test]
fn one_that_replayed_more_than_it_was_fed_is_dropped() {
    let mut bench = kept(true);
    consume(&mut bench, 9);
    replays(&mut bench, 10);
    assert_eq!(lost(&mut bench), [""; 0]);
    replays(&mut bench, 1);
    assert_eq!(lost(&mut bench), ["keeper 7 lost: Protocol"]);
}

#[test]
fn one_that_acknowledges_more_than_it_was_fed_is_dropped() {
    let mut bench = kept(false);
    consume(&mut bench, 1);
    receives(&mut bench, 2);
    assert_eq!(lost(&mut bench), [""; 0]);
    says(&mut bench, Credit { channel: CHANNEL, received: 0, bytes: 1 });
    assert_eq!(lost(&mut bench), ["keeper 7 lost: Protocol"]);
}

#[test]
fn what_came_while_its_checkpoint_was_on_its_way_is_not_held_against_it() {
    let mut bench = Bench::begun(policy());
    consume(&mut bench, 1);
    bench.step(|owner, _, out| owner.add_replica(KEEPER, CHANNEL, Feed::Replayed, out));
    consume(&mut bench, REPLAY_LAG_MAX + 9);
    assert_eq!(lost(&mut bench), [""; 0]);
    let number = bench.taken.as_ref().expect("it begins with a checkpoint").number;
    assert_eq!(bench.checkpointed(&b"sealed"[..]), None);
    says(&mut bench, Stored { channel: CHANNEL, bytes: 6, complete: Some(number) });
    let began_with = REPLAY_LAG_MAX + 9;
    assert_eq!((unreplayed(&bench), lost(&mut bench)), (Some(began_with), Vec::new()));
    // It catches up, and from then on its lag counts from there.
    replays(&mut bench, began_with);
    consume(&mut bench, REPLAY_LAG_MAX);
    assert_eq!((unreplayed(&bench), lost(&mut bench)), (Some(REPLAY_LAG_MAX), Vec::new()));
    consume(&mut bench, 1);
    assert_eq!(lost(&mut bench), ["keeper 7 replays too slowly", "keeper 7 lost: Busy"]);
}

#[test]
fn one_that_stored_what_it_was_not_sent_is_dropped() {
    // Stored bytes, the number of the complete checkpoint, and whether its parts were sent before.
    for (bytes, complete, sent) in
        [(0, Some(1), false), (1, None, false), (7, Some(1), true), (6, Some(2), true), (5, Some(1), true)]
    {
        let mut bench = Bench::begun(policy());
        consume(&mut bench, 1);
        bench.step(|owner, _, out| owner.add_replica(KEEPER, CHANNEL, Feed::Kept, out));
        assert_eq!(bench.taken.as_ref().map(|taken| taken.number), Some(1));
        if sent {
            assert_eq!(bench.checkpointed(&b"sealed"[..]), None);
        }
        bench.look();
        says(&mut bench, Stored { channel: CHANNEL, bytes, complete });
        assert_eq!(lost(&mut bench), ["keeper 7 lost: Protocol"], "{bytes} {complete:?} {sent}");
    }
}

#[test]
fn one_that_was_told_to_take_the_session_over_gets_to_the_end_of_what_it_is_fed() {
    let mut bench = kept(true);
    assert!(bench.hands_over(KEEPER));
    // As many entries as it replays: alone by that, it would never have replayed everything.
    for _ in 0..REPLAY_LAG_MAX / REPLAYED_EVERY {
        consume(&mut bench, REPLAYED_EVERY);
        replays(&mut bench, REPLAYED_EVERY);
    }
    bench.say(CLIENT, "waits");
    assert!(bench.run.is_none(), "the cell waits");
    assert_eq!((unreplayed(&bench), lost(&mut bench)), (Some(1), Vec::new()));
    replays(&mut bench, 1);
    assert!(bench.run.is_none(), "until the ends promise the other edge");
    // It is given up.
    bench.step(|owner, now, out| {
        owner.remove_replica(KEEPER, out);
        owner.tick(now, out);
    });
    assert!(bench.run.is_some(), "nothing is waited for");
}

#[test]
fn a_session_is_handed_over_when_little_is_left_to_replay() {
    let mut bench = Bench::begun(policy());
    consume(&mut bench, 1);
    bench.step(|owner, _, out| owner.add_replica(KEEPER, CHANNEL, Feed::Replayed, out));
    consume(&mut bench, REPLAY_LAG_MAX + 2 * REPLAYED_EVERY);
    let number = bench.taken.as_ref().expect("it begins with a checkpoint").number;
    assert_eq!(bench.checkpointed(&b"sealed"[..]), None);
    says(&mut bench, Stored { channel: CHANNEL, bytes: 6, complete: Some(number) });
    assert!(!bench.hands_over(KEEPER), "the ends are asked whether they have the log up to there");
    for port in [CLIENT, SERVER] {
        bench.frame(port, Protected { channel: port.0 + 1, sent_start: 0, received: 0 });
    }
    assert!(!bench.hands_over(KEEPER), "too much is left");
    replays(&mut bench, REPLAYED_EVERY);
    assert!(!bench.hands_over(KEEPER));
    replays(&mut bench, REPLAYED_EVERY);
    assert!(bench.hands_over(KEEPER));
    assert_eq!((unreplayed(&bench), lost(&mut bench)), (Some(REPLAY_LAG_MAX), Vec::new()));
}

/// It stores the checkpoint that is being sent to it, of six bytes.
fn stores(bench: &mut Bench, number: u32) {
    says(bench, Stored { channel: CHANNEL, bytes: 6, complete: Some(number) });
}

/// What a keeper was sent since the last look, by the names of the frames.
fn sent(bench: &mut Bench) -> Vec<String> {
    let lines =
        bench.look().into_iter().filter_map(|line| line.strip_prefix("to keeper 7: ").map(String::from));
    lines.collect()
}

#[test]
fn a_warm_standby_with_much_to_replay_gets_another_checkpoint_before_it_takes_over() {
    let mut bench = kept(false);
    consume(&mut bench, REPLAY_LAG_MAX);
    assert!(!bench.hands_over(KEEPER), "with the first entry of the session, that is one too many");
    let number = bench.taken.as_ref().expect("another checkpoint").number;
    consume(&mut bench, 7);
    assert_eq!(bench.checkpointed(&b"sealed"[..]), None);
    assert!(!bench.hands_over(KEEPER), "it is on its way");
    stores(&mut bench, number);
    assert!(bench.hands_over(KEEPER));
    // It runs on for as many entries as the other edge may have to replay.
    consume(&mut bench, REPLAY_LAG_MAX);
    bench.say(CLIENT, "waits");
    assert!(bench.run.is_none());
}

#[test]
fn clients_wait_for_no_long_replay_at_a_warm_standby() {
    const COST_NS: u64 = 100_000;
    let costly =
        |bench: &mut Bench, count: usize| (0..count).for_each(|_| bench.consume(CLIENT, "m", COST_NS));
    for (left, may_go) in [(4, true), (8, false)] {
        let mut bench = kept(false);
        costly(&mut bench, 200);
        // The first one was due before all of that.
        for _ in 0..2 {
            bench.step(|owner, _, out| owner.require_checkpoint(out));
            let number = bench.taken.as_ref().expect("a checkpoint").number;
            assert_eq!(bench.checkpointed(&b"sealed"[..]), None);
            bench.taken = None;
            stores(&mut bench, number);
            bench.stored(CLIENT, 6, Some(number));
            bench.stored(SERVER, 6, Some(number));
        }
        costly(&mut bench, left);
        assert_eq!(bench.hands_over(KEEPER), may_go, "{left} messages that take 0.1 ms each");
        assert!(may_go || bench.taken.is_some(), "another checkpoint comes first");
    }
}

#[test]
fn what_was_consumed_behind_a_copy_counts_as_to_be_replayed() {
    let mut bench = kept(false);
    bench.step(|owner, _, out| owner.require_checkpoint(out));
    let number = bench.taken.as_ref().expect("a checkpoint").number;
    consume(&mut bench, REPLAY_LAG_MAX + 1);
    assert_eq!(bench.checkpointed(&b"sealed"[..]), None);
    stores(&mut bench, number);
    assert!(!bench.hands_over(KEEPER));
    assert!(bench.taken.is_none(), "the ends still store this one");
    bench.stored(CLIENT, 6, Some(number));
    bench.stored(SERVER, 6, Some(number));
    assert!(!bench.hands_over(KEEPER));
    let next = bench.taken.as_ref().map_or(0, |taken| taken.number);
    assert!(next > number, "now there is room for the next one");
    assert_eq!(bench.checkpointed(&b"sealed"[..]), None);
    stores(&mut bench, next);
    assert!(bench.hands_over(KEEPER));
}

#[test]
fn a_warm_standby_that_takes_over_gets_no_more_checkpoints() {
    let mut bench = kept(false);
    consume(&mut bench, 3);
    bench.step(|owner, _, out| owner.require_checkpoint(out));
    sent(&mut bench);
    assert!(bench.hands_over(KEEPER), "it can replay what it holds");
    assert_eq!(bench.checkpointed(&b"sealed"[..]), None);
    let sent = sent(&mut bench);
    assert!(
        matches!(&sent[..], [acknowledged, hand_over] if acknowledged.contains("Acknowledged") && hand_over.contains("HandOver")),
        "{sent:?}"
    );
}

#[test]
fn less_may_be_left_of_what_takes_longer_to_replay() {
    const MS: u64 = 1_000_000;
    let mut bench = kept_with(OwnerPolicy { recovery_target_ns: 1 << 50, ..policy() }, true);
    (0..400).for_each(|_| bench.consume(CLIENT, "", 10 * MS));
    assert!(!bench.hands_over(KEEPER), "4 s are left");
    replays(&mut bench, 200 - REPLAYED_EVERY);
    assert!(!bench.hands_over(KEEPER));
    replays(&mut bench, REPLAYED_EVERY + 8);
    assert!(bench.hands_over(KEEPER));
    // As much again may follow.
    let before = unreplayed(&bench).expect("it is there");
    for _ in 0..REPLAY_LAG_MAX {
        bench.say(CLIENT, "");
        if bench.run.is_none() {
            break;
        }
        bench.ran_with(|ran| ran.cost_ns = 10 * MS);
    }
    let more = unreplayed(&bench).expect("it is there") - before;
    assert!((190..=210).contains(&before) && (190..=210).contains(&more), "{before}, {more}");
}
