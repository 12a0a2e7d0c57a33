//! What an end keeps of log and checkpoints: within bounds, and not longer than necessary.

use crate::end::bench::{Bench, CHANNEL, TAG, meta, promise};
use bytes::Bytes;
use marram_wire::{
    codec::Last,
    frame::{CheckpointKind, CheckpointMeta, Chosen, Fetch, LogOnly},
    limits::{CHECKPOINT_WINDOW, CHECKPOINTS_SIZE, DELTAS_MAX, LOG_SIZE_MAX, charge},
    seal::LOG_OFFSET_MAX,
};

const MISFIT: Result<(), &str> = Err("a checkpoint does not follow what this end has");

fn zeros(size: u64) -> Bytes {
    vec![0; usize::try_from(size).expect("it fits memory")].into()
}

#[test]
fn a_log_has_a_largest_size() {
    let log = |entries: Bytes| LogOnly { channel: CHANNEL, entries, tag: TAG };
    let mut bench = Bench::owned(0);
    bench.frame(log(zeros(100)));
    bench.frame(log(zeros(LOG_SIZE_MAX - 100)));
    assert_eq!(bench.end.kept_bytes(), LOG_SIZE_MAX);
    assert_eq!(bench.try_frame(log(zeros(1))), Err("the log exceeds what this end keeps"));
    bench.truncate(40, 0).expect("covered");
    assert_eq!(bench.end.kept_bytes(), LOG_SIZE_MAX - 40);
    assert_eq!(bench.try_frame(log(zeros(40))), Ok(()));
    assert_eq!(bench.try_frame(log(zeros(1))), Err("the log exceeds what this end keeps"));
}

#[test]
fn a_chosen_log_has_a_largest_size_and_a_last_offset() {
    let misfit = Err("the chosen log does not continue what this end has");
    let half = LOG_SIZE_MAX / 2;
    for (kept, part, last, offset, result) in [
        (0, half, half, 0, Ok(())),
        (0, half, half + 1, 0, misfit),
        (1, half, half - 1, 1, Ok(())),
        (1, half, half, 1, misfit),
        (0, 1, 1, LOG_OFFSET_MAX - 2, Ok(())),
        (0, 1, 1, LOG_OFFSET_MAX - 1, misfit),
    ] {
        let mut bench = Bench::owned(0);
        bench.log(zeros(kept));
        bench.promise(&promise(2)).expect("a newer one");
        let generation = promise(2).generation;
        bench.frame(marram_wire::frame::LogPart { channel: CHANNEL, generation, offset, bytes: zeros(part) });
        let chosen = Chosen {
            channel: CHANNEL,
            log_offset: offset + part,
            log: zeros(last),
            tag: TAG,
            credit: 0,
            session_ns: 0,
            runs_ahead: Last(None),
        };
        assert_eq!(bench.try_frame(chosen), result, "{kept} {part} {last} {offset}");
    }
    let mut bench = Bench::owned(0);
    bench.promise(&promise(2)).expect("a newer one");
    assert_eq!(bench.log_part(u64::MAX, b"a"), Err("a part of the chosen log does not continue the log"));
    let mut bench = Bench::owned(0);
    assert_eq!(
        bench.truncate(LOG_OFFSET_MAX, 0),
        Err("a checkpoint covers more than the maximum log offset")
    );
    assert_eq!(bench.truncate(LOG_OFFSET_MAX - 1, 0), Ok(()));
}

#[test]
fn an_end_makes_room_for_a_chosen_log_by_what_a_checkpoint_covers_and_it_has() {
    let mut bench = Bench::owned(0);
    bench.log(zeros(LOG_SIZE_MAX));
    bench.promise(&promise(2)).expect("a newer one");
    let more = Err("a checkpoint covers more than this end has of the log");
    assert_eq!(bench.truncate(LOG_SIZE_MAX + 1, 0), more);
    assert_eq!(bench.truncate(1_000, 0), Ok(()));
    assert_eq!(bench.end.kept_bytes(), LOG_SIZE_MAX - 1_000);
    let chosen = |log_offset, size| Chosen {
        channel: CHANNEL,
        log_offset,
        log: zeros(size),
        tag: TAG,
        credit: 0,
        session_ns: 0,
        runs_ahead: Last(None),
    };
    assert_eq!(bench.try_frame(chosen(LOG_SIZE_MAX, 1_000)), Ok(()));
    assert_eq!(bench.end.kept_bytes(), LOG_SIZE_MAX);
}

#[test]
fn a_checkpoint_arrives_in_parts_and_is_kept_when_it_is_whole() {
    let mut bench = Bench::owned(0);
    bench.log("log");
    bench.checkpoint(meta(1, 1, true, 3, 6)).expect("it fits");
    bench.part("sea").expect("it fits");
    assert_eq!((bench.look().len(), bench.end.kept_bytes()), (0, 3 + 3));
    assert_eq!(bench.end.kept_sealed().count(), 1, "only the log");
    bench.part("led").expect("it fits");
    assert_eq!(bench.look(), ["stored 6 complete 1"]);
    assert_eq!((bench.end.kept_bytes(), bench.end.kept_sealed().count()), (3 + 6, 2));
    // Then what it covers can be deleted.
    bench.truncate(3, 0).expect("covered");
    assert_eq!(bench.end.kept_bytes(), 6);
    assert_eq!(bench.part("more"), Err("a part does not belong to a checkpoint"));
}

#[test]
fn what_a_checkpoint_replaces_is_freed_by_the_shell_if_it_is_large() {
    let mut bench = Bench::owned(0);
    let large = 16 << 20;
    for (number, size, freed) in
        [(1, large, None), (2, large - 1, Some(large)), (3, large, None), (4, 1, Some(large))]
    {
        bench.checkpoint(meta(1, number, true, 0, size)).expect("it fits");
        bench.part(zeros(size)).expect("it fits");
        let freed = freed.map(|size| format!("free {size} bytes"));
        let stored = format!("stored {size} complete {number}");
        assert_eq!(bench.look(), [freed.into_iter().collect(), vec![stored]].concat());
    }
}

#[test]
fn parts_are_acknowledged_by_quarters_of_the_window() {
    let quarter = CHECKPOINT_WINDOW / 4;
    let mut bench = Bench::owned(0);
    bench.checkpoint(meta(1, 1, true, 0, 3 * quarter)).expect("it fits");
    bench.part(zeros(quarter - 1)).expect("it fits");
    assert_eq!(bench.look(), [""; 0]);
    bench.part(zeros(1)).expect("it fits");
    bench.part(zeros(quarter + 1)).expect("it fits");
    bench.part(zeros(quarter - 1)).expect("it fits");
    let stored = [quarter, quarter + 1].map(|bytes| format!("stored {bytes}"));
    assert_eq!(bench.look(), [&stored[..], &[format!("stored {} complete 1", quarter - 1)]].concat());
}

#[test]
fn a_checkpoint_is_as_long_as_it_said() {
    let mut bench = Bench::owned(0);
    assert_eq!(bench.part("a"), Err("a part does not belong to a checkpoint"));
    bench.checkpoint(meta(1, 1, true, 0, 3)).expect("it fits");
    assert_eq!(bench.part("long"), Err("a part does not belong to a checkpoint"));
}

#[test]
fn a_checkpoint_comes_behind_the_log_that_it_covers() {
    for (log_offset, result) in [(3, Ok(())), (4, Err("a checkpoint arrived before the log that it covers"))]
    {
        let mut bench = Bench::owned(0);
        bench.log("log");
        bench.checkpoint(meta(1, 1, true, log_offset, 1)).expect("it fits");
        assert_eq!(bench.part("a"), result, "{log_offset}");
    }
}

#[test]
fn a_checkpoint_is_of_this_owner_and_builds_on_what_is_there() {
    let mut bench = Bench::owned(0);
    assert_eq!(bench.checkpoint(meta(2, 1, true, 0, 1)), MISFIT, "another owner's");
    assert_eq!(bench.checkpoint(meta(1, 1, false, 0, 1)), MISFIT, "a delta on nothing");
    for number in 0..=u32::try_from(DELTAS_MAX).expect("few") {
        bench.checkpoint(meta(1, number, number == 0, 0, 1)).expect("within the longest chain");
        bench.part("a").expect("it fits");
    }
    assert_eq!(bench.end.kept_bytes(), DELTAS_MAX as u64 + 1);
    assert_eq!(bench.checkpoint(meta(1, 40, false, 0, 1)), MISFIT, "a longer chain");
    bench.checkpoint(meta(1, 41, true, 0, 1)).expect("a full one");
    bench.part("a").expect("it fits");
    assert_eq!(bench.end.kept_bytes(), 1, "it replaces the chain");
}

#[test]
fn a_merged_delta_takes_the_place_of_the_deltas() {
    let merged = |number, log_offset, size| CheckpointMeta {
        kind: CheckpointKind::Merged,
        ..meta(1, number, false, log_offset, size)
    };
    let mut bench = Bench::owned(0);
    bench.log("log");
    assert_eq!(bench.checkpoint(merged(1, 0, 1)), MISFIT, "on nothing");
    for number in 0..=u32::try_from(DELTAS_MAX).expect("few") {
        bench.checkpoint(meta(1, number, number == 0, 2, 1)).expect("within the longest chain");
        bench.part("a").expect("it fits");
    }
    assert_eq!(bench.checkpoint(merged(40, 1, 2)), MISFIT, "the last delta covers more");
    bench.checkpoint(merged(41, 2, 2)).expect("it replaces the deltas");
    bench.part("b").expect("it fits");
    assert_eq!(bench.end.kept_bytes(), 3 + DELTAS_MAX as u64 + 2, "only when it is whole");
    bench.part("c").expect("it fits");
    assert_eq!(bench.end.kept_bytes(), 3 + 3, "log, full and merged");
    bench.checkpoint(meta(1, 42, false, 2, 1)).expect("a delta on the merged one");
}

#[test]
fn checkpoints_have_a_largest_size() {
    for (kept, size, result) in [
        (0, CHECKPOINTS_SIZE, Ok(())),
        (0, CHECKPOINTS_SIZE + 1, MISFIT),
        (5, CHECKPOINTS_SIZE - 5, Ok(())),
        (5, CHECKPOINTS_SIZE - 4, MISFIT),
        (5, u64::MAX, MISFIT),
    ] {
        let mut bench = Bench::owned(0);
        if kept > 0 {
            bench.checkpoint(meta(1, 1, true, 0, kept)).expect("it fits");
            bench.part(zeros(kept)).expect("it fits");
        }
        assert_eq!(bench.checkpoint(meta(1, 2, true, 0, size)), result, "{kept} {size}");
    }
}

#[test]
fn all_that_is_kept_is_counted() {
    let mut bench = Bench::owned(1_000);
    bench.say("message");
    bench.log("log");
    bench.checkpoint(meta(1, 1, true, 3, 4)).expect("it fits");
    bench.part("full").expect("it fits");
    bench.checkpoint(meta(1, 2, false, 3, 9)).expect("it fits");
    bench.part("de").expect("it fits");
    assert_eq!(bench.end.kept_bytes(), charge(7) + 3 + 4 + 2);
}

#[test]
fn an_end_shows_what_it_keeps_and_goes_on() {
    let mut bench = Bench::owned(3 * 65);
    bench.say("a");
    bench.say("b");
    bench.say("c");
    bench.say("waits");
    bench.log("12345");
    bench.checkpoint(meta(1, 1, true, 3, 4)).expect("it fits");
    bench.part("full").expect("it fits");
    bench.truncate(3, 1).expect("it fits");
    bench.look();
    bench.frame(Fetch { channel: CHANNEL });
    // What was not sent on this channel is not shown.
    let shown = ["kept sent 1..3 checkpoint 1", "checkpoint 1 of 4", "part full", "kept b", "kept c"];
    assert_eq!(bench.look(), shown);
    // The end is unchanged: it still has its owner, and sends the waiting message next.
    bench.credit(100);
    assert_eq!(bench.look(), ["input waits"]);
    bench.frame(Fetch { channel: CHANNEL });
    assert_eq!(bench.look().last().map(String::as_str), Some("kept waits"));
    bench.close();
    bench.credit(100);
    bench.look();
    bench.frame(Fetch { channel: CHANNEL });
    assert_eq!(bench.look().last().map(String::as_str), Some("kept close"));
}

#[test]
fn an_end_shows_nothing_to_an_owner_that_has_not_chosen() {
    let mut bench = Bench::new();
    bench.promise(&promise(1)).expect("the first promise");
    assert_eq!(bench.try_frame(Fetch { channel: CHANNEL }), Err("a frame is not allowed in this phase"));
}
