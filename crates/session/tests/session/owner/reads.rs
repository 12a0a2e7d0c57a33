//! What handlers read from the edge's cache: it is logged with the input, once, and a replay finds it there.

use crate::owner::bench::{Bench, CLIENT, EXPENSIVE_NS, SERVER, message, policy};
use bytes::Bytes;
use marram_session::cell::{CellStop, Ran, RunOutcome};
use marram_session::owner::OwnerPhase;
use marram_wire::{
    limits::{CACHED_SIZE_MAX, COVER_READS, ENTRY_SIZE_MAX, LOG_AHEAD, LOG_SIZE_MAX},
    log::{Found, Read},
};

fn read(key: u8, size: usize) -> Read {
    Read { key: [key; 8], found: Found::Object(Bytes::from(vec![key; size])) }
}

fn reading(reads: &[Read]) -> impl FnOnce(&mut Ran) {
    |ran| ran.reads = reads.to_vec()
}

/// The client's message is handled, and its handler reads this.
fn consume(bench: &mut Bench, reads: &[Read]) -> u64 {
    let before = bench.log_end();
    bench.say(CLIENT, "m");
    assert_eq!(bench.run.as_ref().expect("a handler runs").logged, None);
    bench.ran_with(reading(reads));
    bench.log_end() - before
}

#[test]
fn what_the_opening_of_all_ports_reads_is_one_entry_and_has_its_bounds() {
    for (size, over) in [(CACHED_SIZE_MAX, false), (CACHED_SIZE_MAX + 1, true)] {
        let mut bench = Bench::new(policy());
        bench.ask();
        bench.started();
        bench.ran_with(reading(&[read(1, CACHED_SIZE_MAX)]));
        bench.look();
        bench.ran_with(reading(&[read(2, size)]));
        let ended = bench.look().iter().any(|line| line == "over Guest");
        assert_eq!(ended, over, "{size}");
        assert_eq!(bench.log_end() > 0, !over, "what no reader takes is not logged");
    }
}

#[test]
fn what_was_read_is_held_beside_the_log_until_the_log_forgets_it() {
    let mut bench = Bench::begun(policy());
    let before = bench.owner.held_bytes();
    let logged: u64 = (0..2).map(|_| consume(&mut bench, &[read(1, 1_000)])).sum();
    // The messages count as well: no checkpoint covers them.
    let messages = bench.owner.held_bytes() - before - logged - 1_000;
    assert!((1_000..1_100).contains(&logged) && messages < 200, "{logged} {messages}");
}

#[test]
fn a_replay_finds_what_was_read_and_another_read_is_found_out() {
    let reads = [read(1, 9), Read { key: [2; 8], found: Found::Nothing }, read(1, 9)];
    let interrupted = || {
        let mut bench = Bench::begun(policy());
        bench.say(CLIENT, "a");
        bench.ran_with(|ran| {
            ran.reads = reads.to_vec();
            ran.outputs = vec![message(CLIENT, "A")];
        });
        bench.say(CLIENT, "b");
        bench.ran_with(|ran| {
            ran.reads = reads[2..].to_vec();
            ran.outputs = vec![message(CLIENT, "B")];
        });
        bench.fail_over();
        bench.ask();
        bench.started();
        bench.opened();
        assert_eq!(bench.run.as_ref().expect("a handler runs").logged.as_deref(), Some(&reads[..]));
        bench
    };
    let mut bench = interrupted();
    let again = |reads: &[Read], text: &'static str| {
        let reads = reads.to_vec();
        move |ran: &mut Ran| {
            ran.reads = reads;
            ran.outputs = vec![message(CLIENT, text)];
        }
    };
    bench.ran_with(again(&reads, "A"));
    assert_eq!(bench.run.as_ref().expect("a handler runs").logged.as_deref(), Some(&reads[2..]));
    bench.ran_with(again(&reads[2..], "B"));
    assert_eq!(bench.phase(), OwnerPhase::Running);
    // What it reads from here on is not in any log yet.
    consume(&mut bench, &reads);
    for other in
        [&reads[..2], &[], &[read(1, 9), read(3, 1), read(1, 9)], &[&reads[..], &reads[..1]].concat()]
    {
        let mut bench = interrupted();
        bench.look();
        bench.ran_with(reading(other));
        let lines = bench.look();
        assert!(lines.iter().any(|line| line.starts_with("over")), "{other:?}: {lines:?}");
    }
}

#[test]
fn bytes_enter_the_log_once_between_two_checkpoints() {
    let mut bench = Bench::begun(policy());
    let object = [read(1, 5_000)];
    assert!(consume(&mut bench, &object) > 5_000);
    assert_eq!(consume(&mut bench, &object), 3);
    bench.consume(CLIENT, "dear", EXPENSIVE_NS);
    let at = bench.taken.as_ref().expect("a checkpoint is due").log_offset;
    // A replay that begins there must find it again.
    assert!(consume(&mut bench, &object) > 5_000);
    assert_eq!(consume(&mut bench, &object), 3);
    bench.checkpointed("sealed");
    bench.stored(CLIENT, 6, Some(1));
    bench.say(CLIENT, "x");
    bench.ran(&[(CLIENT, "X")]);
    bench.fail_over();
    bench.ask();
    bench.restored(at);
    for _ in 0..2 {
        assert_eq!(bench.run.as_ref().expect("a handler runs").logged.as_deref(), Some(&object[..]));
        bench.ran_with(reading(&object));
    }
    bench.ran(&[(CLIENT, "X")]);
    assert_eq!(bench.phase(), OwnerPhase::Running);
}

#[test]
fn log_that_an_end_lacks_goes_ahead_of_outputs_that_it_does_not_fit_beside() {
    let mut bench = Bench::begun(policy());
    let large = usize::try_from(LOG_AHEAD).unwrap();
    bench.say(CLIENT, "a");
    bench.look();
    bench.ran_with(|ran| {
        ran.reads = vec![read(1, large)];
        ran.outputs = vec![message(CLIENT, "A")];
    });
    let lines = bench.look();
    let end = bench.log_end();
    assert_eq!(
        lines,
        [&format!("client: log 0..{end}"), "client: output A", &format!("server: log 0..{end}")]
    );
    bench.say(SERVER, "b");
    bench.ran(&[(SERVER, "B")]);
    assert_eq!(bench.look().last(), Some(&format!("server: output B with log {end}..{}", end + 1)));
}

#[test]
fn a_cell_rests_when_the_log_may_be_full_until_a_checkpoint_is_held() {
    let mut bench = Bench::begun(policy());
    let mut key = 0;
    let mut fill = |bench: &mut Bench| {
        key += 1;
        consume(bench, &[read(key, CACHED_SIZE_MAX)]);
    };
    while bench.copied.is_none() {
        fill(&mut bench);
    }
    assert!((COVER_READS..COVER_READS + CACHED_SIZE_MAX as u64 + 100).contains(&bench.log_end()));
    // The session continues while the checkpoint is in flight.
    while bench.log_end() + ENTRY_SIZE_MAX as u64 <= LOG_SIZE_MAX {
        fill(&mut bench);
    }
    bench.say(CLIENT, "waits");
    assert!(bench.run.is_none() && bench.log_end() <= LOG_SIZE_MAX);
    bench.checkpointed("sealed");
    assert!(bench.run.is_none());
    bench.stored(CLIENT, 6, Some(1));
    assert!(bench.run.is_some());
}

/// A session in which the log is cut, and then grows, while the server's end is disconnected. Returns what was read after the
/// cut.
fn cut_while_away(bench: &mut Bench) -> Vec<Read> {
    let mut keys = 0..;
    let mut fill = |bench: &mut Bench| {
        let object = read(keys.next().expect("a short history"), CACHED_SIZE_MAX);
        consume(bench, std::slice::from_ref(&object));
        object
    };
    while bench.copied.is_none() {
        fill(bench);
    }
    let mut behind = Vec::new();
    while bench.log_end() + ENTRY_SIZE_MAX as u64 <= LOG_SIZE_MAX {
        behind.push(fill(bench));
    }
    bench.unlinked(SERVER);
    bench.checkpointed("sealed");
    bench.stored(CLIENT, 6, Some(1));
    let (end, uncovered) = bench.owner.log_bytes();
    assert!((bench.kept[1].log_start, bench.kept[0].log_start) == (0, end - uncovered) && uncovered < end);
    while bench.log_end() <= LOG_SIZE_MAX {
        behind.push(fill(bench));
    }
    behind
}

#[test]
fn an_end_that_was_away_while_the_log_was_cut_makes_room_for_what_it_lacks() {
    // The cell is live, or is rebuilt.
    for live in [true, false] {
        let mut bench = Bench::begun(policy());
        let behind = cut_while_away(&mut bench);
        let cut = bench.kept[0].log_start;
        if live {
            bench.unlinked(CLIENT);
            let took = bench.kept[0].sent_start + bench.kept[0].sent.len() as u64;
            bench.open();
            bench.kept[0].live_at(took);
            bench.kept[1].live_at(0);
            bench.look();
            bench.hand_over();
        } else {
            bench.fail_over();
            bench.ask();
            bench.restored(cut);
            for object in behind {
                bench.ran_with(reading(&[object]));
            }
        }
        assert_eq!(bench.phase(), OwnerPhase::Running);
        let forget = format!("server: forget log {cut} sent 0");
        let lines = bench.look();
        let told: Vec<&String> = lines.iter().filter(|line| line.starts_with("server: ")).collect();
        assert_eq!(
            (told[0], told.iter().filter(|line| ***line == *forget).count()),
            (&forget, 2),
            "{told:?}"
        );
        assert_eq!(bench.kept[1].log_end(), bench.log_end());
        let client = lines.iter().filter(|line| line.starts_with("client: forget"));
        assert_eq!(client.count(), 1, "who has room for it is told once");
    }
}

#[test]
fn a_session_with_a_full_log_and_without_checkpoint_ends_with_the_reason() {
    let mut bench = Bench::begun(policy());
    let mut key = 0;
    while bench.log_end() + ENTRY_SIZE_MAX as u64 <= LOG_SIZE_MAX {
        key += 1;
        consume(&mut bench, &[read(key, CACHED_SIZE_MAX)]);
    }
    let number = bench.taken.as_ref().expect("a checkpoint was asked for").number;
    bench.look();
    let cell = bench.owner.cell().expect("a cell");
    let why = bench.answer_checkpoint(cell, number, Err("the disk is on fire".into()));
    assert_eq!(why.as_deref(), Some("the disk is on fire"));
    assert_eq!(bench.look().last().map(String::as_str), Some("over Guest"));
}

#[test]
fn what_a_stopped_handler_had_read_is_in_the_recording_of_it() {
    let mut bench = Bench::begun(marram_session::owner::OwnerPolicy { record_stops: true, ..policy() });
    let object = [read(1, 50)];
    consume(&mut bench, &object);
    bench.say(CLIENT, "poison");
    bench.ran_with(|ran| {
        ran.reads = object.to_vec();
        ran.outcome = RunOutcome::Stopped(CellStop::Trap("unreachable".into()));
    });
    bench.show(CLIENT);
    bench.show(SERVER);
    let gathered = bench.gathered.take().expect("it is recorded");
    let recording = gathered.assemble("edge".into(), 0, None).expect("it fits together");
    let cell = marram_session::cell::CellId(9);
    let mut player = marram_session::replay::Player::new(&recording, cell).expect("it can be run");
    let mut seen = Vec::new();
    while let Some(next) = player.next_handler().expect("it can be followed") {
        let logged = next.run.logged.clone().expect("it is a replay");
        seen.push((next.stopped, logged.clone()));
        let (timers, tasks, outputs) = (Vec::new(), Vec::new(), Vec::new());
        let outcome = if next.stopped {
            RunOutcome::Stopped(CellStop::Trap("unreachable".into()))
        } else {
            RunOutcome::Idle
        };
        let ran = Ran { cell, outcome, clock_read: false, outputs, timers, tasks, reads: logged, cost_ns: 0 };
        player.ran(&ran).expect("it goes the same way");
        if next.stopped {
            break;
        }
    }
    let object = object.to_vec();
    assert_eq!(seen, [(false, vec![]), (false, vec![]), (false, object.clone()), (true, object)]);
}
