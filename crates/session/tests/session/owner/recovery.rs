//! Recovery: which log and checkpoint are chosen, how the cell reaches their end, and what is refused.

use crate::owner::bench::{Bench, CLIENT, SERVER, TAMPERED, message, policy, set};
use marram_session::cell::{CellStop, RunOutcome};
use marram_session::owner::OwnerPhase;
use marram_wire::limits::{PART_SIZE, charge};

/// Bytes of the first entry. Each of the next three entries has one byte.
const FIRST: u64 = 42;

/// The client has log up to 45 and `A`, the server up to 44 and `1`; the client's message `c` was consumed last.
pub(crate) fn interrupted() -> Bench {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran(&[(CLIENT, "A")]);
    bench.say(SERVER, "b");
    bench.ran(&[(SERVER, "B")]);
    bench.say(CLIENT, "c");
    bench.ran(&[(CLIENT, "C")]);
    assert_eq!((bench.kept[0].log_end(), bench.kept[1].log_end()), (FIRST + 3, FIRST + 2));
    bench.fail_over();
    bench
}

/// Replays the session of [`interrupted`]: each handler has the same outputs again.
fn replay(bench: &mut Bench) {
    bench.started();
    bench.ran(&[]);
    bench.ran(&[]);
    bench.ran(&[(CLIENT, "A")]);
    bench.ran(&[(SERVER, "B")]);
    bench.ran(&[(CLIENT, "C")]);
}

#[test]
fn another_edge_replays_the_longest_log_and_gives_each_end_what_it_lacks() {
    let mut bench = interrupted();
    bench.ask();
    assert_eq!(bench.look(), ["start"]);
    replay(&mut bench);
    let expected = [
        "run open client as Client",
        "run open server as Server",
        "run a of client",
        "run b of server",
        "run c of client",
        "client: chosen 45..45 credit 1114112",
        "server: chosen 44..45 credit 1114112",
    ];
    assert_eq!(bench.look(), expected);
    let totals = bench.owner.totals();
    assert_eq!((totals.replayed, totals.consumed, totals.produced, totals.generations), (4, 0, 0, 1));
    // The session continues from there.
    bench.say(SERVER, "d");
    bench.ran(&[(CLIENT, "D")]);
    assert_eq!(bench.look(), ["run d of server", "client: output D with log 45..46"]);
    assert_eq!(bench.owner.log_bytes(), (46, 46));
}

#[test]
fn the_server_s_log_may_be_the_longest() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran(&[(SERVER, "A")]);
    bench.fail_over();
    bench.ask();
    bench.started();
    bench.opened();
    bench.ran(&[(SERVER, "A")]);
    assert_eq!(
        bench.look()[4..],
        ["client: chosen 0..43 credit 1114112", "server: chosen 43..43 credit 1114112"]
    );
}

#[test]
fn outputs_that_an_end_lacks_are_sent_again_within_its_window() {
    let mut bench = interrupted();
    // The client's last output was lost in flight, with its log.
    bench.kept[0].received = 0;
    bench.kept[0].window = charge(1);
    bench.ask();
    replay(&mut bench);
    assert_eq!(bench.look().last().map(String::as_str), Some("client: output A"));
    bench.credit(CLIENT, 1, charge(1));
    assert_eq!(bench.look(), ["client: output C"]);
}

#[test]
fn an_end_cannot_have_received_what_the_chosen_log_does_not_produce() {
    for (received, fits) in [(2, true), (3, false)] {
        let mut bench = interrupted();
        bench.kept[0].received = received;
        bench.ask();
        replay(&mut bench);
        let lines = bench.look();
        assert_eq!(lines[lines.len() - 4..] == TAMPERED, !fits, "{lines:?}");
    }
}

#[test]
fn messages_that_no_log_has_consumed_are_ordered_again() {
    let mut bench = interrupted();
    bench.kept[0].log.truncate(44);
    bench.kept[0].tag = bench.kept[1].tag;
    bench.kept[0].received = 1;
    bench.ask();
    bench.started();
    bench.opened();
    bench.ran(&[(CLIENT, "A")]);
    bench.ran(&[(SERVER, "B")]);
    let lines = bench.look();
    assert_eq!(lines[lines.len() - 2..], ["server: chosen 44..44 credit 1114112", "run c of client"]);
}

#[test]
fn what_was_altered_is_refused_before_anything_runs() {
    type Alter = fn(&mut Bench);
    let cases: [(&str, Alter); 9] = [
        ("the digest", |bench| bench.kept[0].tag[0] ^= 1),
        ("a message", |bench| bench.kept[0].sent[0] = Some("x".into())),
        ("a message, by a close", |bench| bench.kept[0].sent[0] = None),
        ("the other end's message", |bench| bench.kept[1].sent[0] = Some("x".into())),
        ("a message is missing", |bench| bench.kept[0].sent.truncate(1)),
        ("the first message is missing", |bench| bench.kept[0].sent_start = 1),
        ("the order", |bench| bench.kept[0].log.swap(43, 44)),
        ("no such entry", |bench| bench.kept[0].log[43] = 7),
        ("a log that does not begin", |bench| {
            let kept = &mut bench.kept[0];
            kept.log = vec![0; kept.log.len()];
        }),
    ];
    for (what, alter) in cases {
        let mut bench = interrupted();
        alter(&mut bench);
        bench.ask();
        if bench.phase() == OwnerPhase::Restoring {
            bench.started();
        }
        let lines = bench.look();
        assert!(!lines.iter().any(|line| line.starts_with("run")), "{what}: {lines:?}");
        assert_eq!(lines.last().map(String::as_str), Some("over Tampered"), "{what}");
    }
}

#[test]
fn a_part_of_the_log_that_no_end_has_is_missing() {
    for (start, complete) in [(0, true), (1, false)] {
        let mut bench = Bench::begun(policy());
        bench.say(CLIENT, "a");
        bench.ran(&[(CLIENT, "A")]);
        bench.fail_over();
        bench.kept[0].log_start = start;
        bench.ask();
        assert_eq!(bench.phase() == OwnerPhase::Restoring, complete, "{:?}", bench.look());
    }
}

#[test]
fn what_a_spent_cell_closed_is_closed_in_replay() {
    let mut bench = Bench::begun(policy());
    bench.close(CLIENT);
    bench.close(SERVER);
    bench.idle();
    bench.fail_over();
    bench.kept.iter_mut().for_each(|kept| kept.received = 0);
    bench.ask();
    bench.started();
    bench.idle();
    let lines = bench.look();
    assert_eq!(lines[lines.len() - 2..], ["client: close", "server: close"]);
}

#[test]
fn a_session_goes_from_edge_to_edge() {
    let mut bench = interrupted();
    bench.ask();
    replay(&mut bench);
    bench.say(SERVER, "d");
    bench.ran(&[(CLIENT, "D")]);
    bench.fail_over();
    bench.ask();
    replay(&mut bench);
    bench.ran(&[(CLIENT, "D")]);
    assert_eq!(bench.phase(), OwnerPhase::Running, "{:?}", bench.look());
    assert_eq!((bench.log_end(), bench.owner.totals().replayed), (46, 5));
}

#[test]
fn a_replay_that_was_too_dear_is_followed_by_a_checkpoint() {
    for (cost_ns, due) in [(500, false), (501, true)] {
        let mut bench = Bench::begun(policy());
        bench.say(CLIENT, "a");
        bench.ran(&[(CLIENT, "A")]);
        bench.fail_over();
        bench.ask();
        bench.started();
        bench.ran(&[]);
        bench.ran_with(|ran| ran.cost_ns = 500);
        bench.ran_with(|ran| {
            ran.cost_ns = cost_ns;
            ran.outputs = vec![message(CLIENT, "A")];
        });
        assert_eq!(bench.copied.is_some(), due, "{cost_ns}");
    }
}

#[test]
fn timers_fire_in_replay_as_they_did() {
    let timers = || vec![set(5, 500), set(6, 5)];
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| (ran.timers, ran.clock_read) = (timers(), true));
    bench.now.mono_ns += 20;
    bench.step(|owner, now, out| owner.tick(now, out));
    bench.ran(&[(CLIENT, "fired")]);
    bench.fail_over();
    bench.ask();
    bench.started();
    bench.opened();
    bench.ran_with(|ran| (ran.timers, ran.clock_read) = (timers(), true));
    let run = bench.run.as_ref().expect("the timer");
    assert_eq!(run.now_ns, 1_000_000, "it did not read the clock: the last time that was");
    assert_eq!(bench.look().last().map(String::as_str), Some("run timer 6"));
    bench.ran(&[(CLIENT, "fired")]);
    assert_eq!(bench.phase(), OwnerPhase::Running);
    assert_eq!(bench.owner.due_ns(), Some(bench.now.mono_ns + 500));
}

#[test]
fn replay_that_reads_a_clock_that_was_not_logged_took_another_course() {
    let mut bench = interrupted();
    bench.ask();
    bench.started();
    bench.opened();
    bench.look();
    bench.ran_with(|ran| ran.clock_read = true);
    let failed = ["client: failed 4 at 45", "server: failed 4 at 45", "remove 1", "over Guest"];
    assert_eq!(bench.look(), failed);
}

#[test]
fn a_handler_that_is_stopped_in_replay_is_tried_once_more() {
    let mut bench = interrupted();
    for again in [false, true] {
        bench.ask();
        bench.started();
        bench.opened();
        bench.look();
        bench.ran_with(|ran| ran.outcome = RunOutcome::Stopped(CellStop::Trap("unreachable".into())));
        let lines = bench.look();
        let first = if again { "client: ended Guest" } else { "client: failed 4 at 45" };
        assert_eq!(lines[0], first);
        bench.fail_over();
    }
}

#[test]
fn a_poison_message_does_not_walk_from_edge_to_edge() {
    // The stop that an end reported before, and whether the second stop counts as the same.
    for (before, same) in
        [(None, true), (Some((44, 0)), true), (Some((43, 0)), false), (Some((44, 1)), false)]
    {
        let mut bench = Bench::begun(policy());
        bench.say(CLIENT, "good");
        bench.ran(&[(CLIENT, "fine")]);
        bench.say(CLIENT, "fine too");
        bench.ran(&[(CLIENT, "fine")]);
        bench.say(CLIENT, "poison");
        bench.look();
        bench.ran_with(|ran| ran.outcome = RunOutcome::Stopped(CellStop::Trap("unreachable".into())));
        assert_eq!(
            bench.look(),
            ["client: failed 0 at 44", "server: failed 0 at 44", "remove 1", "over Guest"]
        );
        bench.fail_over();
        // The report of one end is enough.
        bench.kept[0].failed = None;
        if let (Some((log_offset, input)), Some(failed)) = (before, &mut bench.kept[1].failed) {
            (failed.log_offset, failed.input) = (log_offset, input);
        }
        bench.ask();
        bench.started();
        bench.opened();
        bench.ran(&[(CLIENT, "fine")]);
        bench.ran(&[(CLIENT, "fine")]);
        bench.look();
        bench.ran_with(|ran| ran.outcome = RunOutcome::Stopped(CellStop::Trap("unreachable".into())));
        let first = if same { "client: ended Guest" } else { "client: failed 0 at 44" };
        assert_eq!(bench.look()[0], first, "{before:?}");
    }
}

#[test]
fn a_long_log_reaches_an_end_in_parts() {
    let mut bench = Bench::begun(policy());
    bench.fill_log(2 * PART_SIZE as u64 + 1);
    bench.say(CLIENT, "last");
    bench.ran(&[(CLIENT, "A")]);
    let end = bench.log_end();
    bench.fail_over();
    // What was sent to the server's end before the next output was lost in flight.
    bench.kept[1] = crate::owner::kept::Kept::default();
    bench.ask();
    bench.started();
    while bench.phase() == OwnerPhase::Replaying {
        let last = matches!(&bench.run.as_ref().expect("replay").input,
            marram_session::cell::CellInput::Message { payload, .. } if payload == "last");
        if last {
            bench.ran(&[(CLIENT, "A")]);
        } else {
            bench.ran_with(|ran| ran.clock_read = true);
        }
    }
    let lines = bench.look();
    let parts: Vec<&String> = lines.iter().filter(|line| line.starts_with("server")).collect();
    let expected = [
        "server: log part 0..65536".to_string(),
        "server: log part 65536..131072".to_string(),
        format!("server: chosen 131072..{end} credit 1114112"),
    ];
    assert_eq!(parts, expected.iter().collect::<Vec<_>>());
    assert_eq!(bench.kept[0].log, bench.kept[1].log);
}

/// A client's end that lies can have authentic log of two histories: it hides what it was sent by one owner, so that the next
/// one goes on without it, and shows it to the one after that.
#[test]
fn a_longer_log_of_another_history_than_an_end_received_is_refused() {
    let mut bench = Bench::begun(policy());
    bench.say(SERVER, "x");
    bench.ran(&[(CLIENT, "X"), (SERVER, "1")]);
    bench.say(CLIENT, "a");
    bench.say(SERVER, "y");
    let before = bench.kept.clone();
    bench.ran(&[(CLIENT, "A")]);
    // The server's end does not receive this output, nor the log that came with it.
    bench.ran(&[(CLIENT, "Y"), (SERVER, "2 after a")]);
    let hidden = core::mem::replace(&mut bench.kept, before).swap_remove(0);
    bench.kept[0].sent.clear();
    bench.fail_over();
    bench.ask();
    bench.started();
    bench.opened();
    bench.ran(&[(CLIENT, "X"), (SERVER, "1")]);
    bench.ran(&[(SERVER, "2 without a")]);
    assert_eq!(bench.look().last().map(String::as_str), Some("server: output 2 without a with log 43..44"));
    bench.fail_over();
    assert!(hidden.log_end() > bench.kept[1].log_end());
    bench.kept[0] = hidden;
    bench.ask();
    bench.started();
    let lines = bench.look();
    assert_eq!(lines[lines.len() - 4..], TAMPERED, "{lines:?}");
    assert!(!lines.iter().any(|line| line.starts_with("run")), "{lines:?}");
}
