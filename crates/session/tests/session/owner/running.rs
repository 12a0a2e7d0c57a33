//! The running phase: order of inputs, log sent with outputs, credit, and session time.

use crate::own_process;
use crate::owner::bench::{Bench, CLIENT, SERVER, charged, message, policy, set};
use bytes::Bytes;
use marram_session::cell::{CellOutput, CellStop, RunOutcome, TimerChange};
use marram_session::owner::{Now, OwnerPhase};
use marram_wire::id::Port;
use marram_wire::limits::{INPUT_WINDOW, MESSAGE_SIZE_MAX, charge};

#[test]
fn one_input_at_a_time_and_the_ports_in_turn() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    for (port, text) in [(CLIENT, "b"), (CLIENT, "c"), (SERVER, "1"), (SERVER, "2")] {
        bench.say(port, text);
    }
    bench.close(SERVER);
    assert_eq!(bench.look(), ["run a of client"]);
    let mut lines = Vec::new();
    for _ in 0..6 {
        bench.ran(&[]);
        lines.extend(bench.look());
    }
    let expected =
        ["run 1 of server", "run b of client", "run 2 of server", "run c of client", "run close server"];
    assert_eq!(lines, expected);
    let totals = bench.owner.totals();
    assert_eq!((totals.consumed, totals.produced), (7, 0));
}

#[test]
fn an_output_takes_along_the_log_that_its_end_lacks() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran(&[(CLIENT, "A"), (CLIENT, "AA")]);
    bench.say(CLIENT, "b");
    bench.ran(&[]);
    bench.say(SERVER, "1");
    bench.ran(&[(SERVER, "B"), (CLIENT, "BB")]);
    let expected = [
        "run a of client",
        "client: output A with log 0..43",
        "client: output AA",
        "run b of client",
        "run 1 of server",
        "client: output BB with log 43..45",
        "server: output B with log 0..45",
    ];
    assert_eq!(bench.look(), expected);
    assert_eq!(bench.kept[0].log, bench.kept[1].log);
    assert_eq!(bench.kept[0].tag, bench.kept[1].tag);
    // Kinds: a message of the client, another, one of the server.
    assert_eq!(bench.kept[0].log[42..], [0, 0, 1]);
    assert_eq!(bench.owner.totals().produced, 4);
    // "a", "A", "AA", "b" and "BB": what the server has sent and gets is not counted again.
    assert_eq!(bench.owner.totals().payload_bytes, 7);
}

#[test]
fn the_last_output_may_exceed_its_credit() {
    for (window, goes) in [(0, false), (1, true), (charge(5), true)] {
        let mut bench = Bench::new(policy());
        bench.kept[0].window = window;
        bench.begin();
        bench.look();
        bench.say(CLIENT, "a");
        bench.ran(&[(CLIENT, "hello"), (SERVER, "meanwhile")]);
        let lines = bench.look();
        assert_eq!(lines.contains(&"client: output hello with log 0..43".into()), goes, "{lines:?}");
        // The other end does not wait for it.
        assert_eq!(lines.last().map(String::as_str), Some("server: output meanwhile with log 0..43"));
        // What it exceeded the credit by counts.
        bench.credit(CLIENT, 0, charge(5) - window);
        assert_eq!(bench.look().len(), usize::from(!goes));
        bench.say(CLIENT, "b");
        bench.ran(&[(CLIENT, "")]);
        assert_eq!(bench.look(), ["run b of client"], "all of its credit is spent");
        bench.credit(CLIENT, 1, 1);
        assert_eq!(bench.look(), ["client: output  with log 43..44"]);
    }
}

#[test]
fn a_full_buffer_stops_reading() {
    const UNSENT_MAX: u64 = 256 << 10;
    for (unsent, rests) in [(UNSENT_MAX, false), (UNSENT_MAX + 1, true)] {
        let mut bench = Bench::new(policy());
        bench.kept[1].window = 0;
        bench.begin();
        bench.say(CLIENT, "a");
        bench.ran_with(|ran| {
            ran.outputs = vec![message(SERVER, charged(1_000)), message(SERVER, charged(unsent - 1_000))];
            ran.timers = vec![set(1, 0)];
        });
        bench.look();
        bench.say(CLIENT, "b");
        assert_eq!(bench.run.is_none(), rests, "{unsent}");
        if rests {
            assert_eq!(bench.owner.due_ns(), None, "not even timers fire");
            bench.credit(SERVER, 0, 1_000);
            assert_eq!(bench.look(), ["server: output 936 bytes with log 0..43", "run timer 1"]);
        }
    }
}

/// A server that answers before it continues to read takes nothing more until its answer is read. Otherwise there would be a
/// deadlock.
#[test]
fn a_full_end_stops_only_what_is_answered_to_it() {
    let mut bench = Bench::new(policy());
    bench.kept[1].window = 0;
    bench.begin();
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| ran.outputs = vec![message(SERVER, charged((256 << 10) + 1))]);
    bench.say(CLIENT, "b");
    bench.look();
    assert!(bench.run.is_none(), "what the client says goes to the server");
    bench.say(SERVER, "c");
    assert_eq!(bench.look(), ["run c of server"]);
    bench.ran_with(|ran| ran.outputs = vec![message(CLIENT, Bytes::from_static(b"C"))]);
    bench.say(SERVER, "d");
    assert!(bench.look().contains(&"run d of server".into()));
    bench.ran_with(|ran| ran.outputs = vec![message(SERVER, Bytes::from_static(b"D"))]);
    bench.say(SERVER, "e");
    bench.look();
    assert!(bench.run.is_none(), "what the server says goes to itself, too");
}

#[test]
fn credit_comes_back_in_pieces_of_the_window() {
    let piece = INPUT_WINDOW - charge(MESSAGE_SIZE_MAX);
    let mut bench = Bench::begun(policy());
    bench.consume(CLIENT, charged(piece - charge(0)), 0);
    assert!(!bench.look().iter().any(|line| line.contains("credit")));
    bench.consume(CLIENT, "", 0);
    assert_eq!(bench.look(), ["run  of client".to_string(), format!("client: credit {piece}")]);
    bench.consume(CLIENT, charged(piece + 1), 0);
    assert_eq!(bench.look().last(), Some(&format!("client: credit {}", piece + 1)));
    bench.consume(CLIENT, charged(piece - 1), 0);
    bench.consume(SERVER, charged(piece), 0);
    assert_eq!(bench.look()[2..], [format!("server: credit {piece}")], "each end for itself");
}

#[test]
fn after_all_its_messages_are_consumed_an_end_has_credit_for_the_largest() {
    let most = charge(MESSAGE_SIZE_MAX);
    for size in [charge(0), 1_000, 200_000, most - 1, most] {
        let mut bench = Bench::begun(policy());
        let mut room = INPUT_WINDOW;
        for _ in 0..INPUT_WINDOW / size.max(10_000) + 2 {
            room -= size;
            bench.consume(CLIENT, charged(size), 0);
            for line in bench.look() {
                let given =
                    line.strip_prefix("client: credit ").map(|bytes| bytes.parse::<u64>().expect("bytes"));
                room += given.unwrap_or(0);
            }
            assert!((most..=INPUT_WINDOW).contains(&room), "{room} after messages of {size}");
        }
    }
}

#[test]
fn what_an_end_sends_again_was_never_on_credit() {
    let quarter = INPUT_WINDOW / 4;
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, charged(quarter));
    bench.say(CLIENT, charged(quarter));
    bench.fail_over();
    bench.begin();
    bench.idle();
    assert!(!bench.look().iter().any(|line| line == &format!("client: credit {quarter}")));
    bench.consume(CLIENT, charged(quarter), 0);
    assert_eq!(bench.look().last(), Some(&format!("client: credit {quarter}")));
}

#[test]
fn acknowledged_outputs_are_forgotten() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran(&[(CLIENT, "A"), (CLIENT, "B"), (CLIENT, "C")]);
    let log = 43;
    assert_eq!(bench.owner.held_bytes(), log + 3 * charge(1));
    bench.credit(CLIENT, 1, 0);
    assert_eq!(bench.owner.held_bytes(), log + 2 * charge(1));
    bench.look();
    bench.input(CLIENT, Some(Bytes::from_static(b"b")), 2);
    assert_eq!(bench.owner.held_bytes(), log);
    assert_eq!(bench.look(), ["run b of client"]);
    bench.ran(&[(CLIENT, "D")]);
    // Only one output was sent since.
    bench.credit(CLIENT, 2, 0);
    assert_eq!(
        bench.look()[1..],
        ["client: ended Protocol", "server: ended Protocol", "remove 1", "over Protocol"]
    );
}

#[test]
fn what_was_not_sent_cannot_be_acknowledged() {
    let mut bench = Bench::new(policy());
    bench.kept[0].window = charge(1);
    bench.begin();
    bench.say(CLIENT, "a");
    bench.ran(&[(CLIENT, "A"), (CLIENT, "B")]);
    bench.credit(CLIENT, 1, 0);
    assert_eq!(bench.phase(), OwnerPhase::Running);
    bench.look();
    bench.credit(CLIENT, 1, 0);
    assert_eq!(bench.look().last().map(String::as_str), Some("over Protocol"));
}

#[test]
fn more_credit_than_can_be_counted_ends_the_session() {
    let mut bench = Bench::begun(policy());
    bench.credit(CLIENT, 0, 1);
    assert_eq!(bench.phase(), OwnerPhase::Running);
    bench.look();
    bench.credit(CLIENT, 0, u64::MAX);
    assert_eq!(bench.look().last().map(String::as_str), Some("over Protocol"));
}

/// As in production: in a process of its own, since bugs panic in all other tests.
#[test]
fn a_bug_ends_the_session_that_has_it_and_is_counted() {
    if !own_process::entered() {
        return;
    }
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    let run = bench.run.clone().expect("a handler runs");
    bench.ran(&[(CLIENT, "A")]);
    bench.look();
    let before = marram_session::bug::count();
    bench.run = Some(run);
    bench.ran(&[(CLIENT, "A")]);
    assert_eq!(bench.look().last().map(String::as_str), Some("over Protocol"));
    assert_eq!(marram_session::bug::count(), before + 1);
}

#[test]
fn messages_that_wait_are_held_and_counted() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "one");
    bench.say(CLIENT, "two");
    bench.say(SERVER, "three");
    assert_eq!(bench.owner.held_bytes(), 42 + charge(3) + charge(5));
    bench.ran(&[]);
    assert_eq!(bench.owner.held_bytes(), 43 + charge(3));
}

#[test]
fn outputs_to_unknown_ports_and_after_a_close_are_dropped() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| {
        ran.outputs = vec![
            message(Port(7), Bytes::new()),
            message(CLIENT, Bytes::from_static(b"bye")),
            CellOutput::Close { port: CLIENT },
            message(CLIENT, Bytes::from_static(b"no")),
            CellOutput::Close { port: CLIENT },
        ];
    });
    assert_eq!(bench.look()[1..], ["client: output bye with log 0..43", "client: close"]);
}

#[test]
fn a_timer_fires_when_it_is_due_and_before_messages() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| {
        ran.clock_read = true;
        ran.timers = vec![set(1, 500), set(2, 400)];
    });
    bench.look();
    let at = |mono_ns| Now { mono_ns, unix_ns: 0 };
    assert_eq!(bench.owner.due_ns(), Some(5_400));
    bench.now = at(5_399);
    bench.step(|owner, now, out| owner.tick(now, out));
    assert_eq!(bench.look(), [""; 0]);
    bench.now = at(5_400);
    bench.step(|owner, now, out| owner.tick(now, out));
    assert_eq!(bench.look(), ["run timer 2"]);
    assert_eq!(bench.owner.due_ns(), None, "a handler runs");
    bench.say(CLIENT, "b");
    bench.now = at(5_600);
    bench.ran(&[]);
    assert_eq!(bench.look(), ["run b of client"], "a message after a timer, though one is due");
    bench.ran(&[]);
    assert_eq!(bench.look(), ["run timer 1"]);
    bench.ran(&[]);
    assert_eq!((bench.look().len(), bench.owner.due_ns()), (0, None));
    assert_eq!(bench.owner.totals().consumed, 5);
}

#[test]
fn timers_that_are_always_due_and_messages_alternate() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| ran.timers = (1..=4).map(|token| set(token, -5)).collect());
    bench.ran(&[]);
    bench.look();
    bench.say(SERVER, "1");
    bench.say(SERVER, "2");
    let mut lines = Vec::new();
    for _ in 0..5 {
        bench.ran(&[]);
        lines.extend(bench.look());
    }
    assert_eq!(lines, ["run 1 of server", "run timer 3", "run 2 of server", "run timer 4"]);
}

#[test]
fn a_cell_is_asked_for_nothing_while_an_owner_is_not_running() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| ran.timers = vec![set(1, 10)]);
    bench.open();
    bench.look();
    assert_eq!(bench.owner.due_ns(), None);
    bench.now.mono_ns += 100;
    bench.step(|owner, now, out| owner.tick(now, out));
    assert_eq!(bench.look(), [""; 0]);
}

#[test]
fn timers_are_distinguished_by_token() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    let changes = vec![
        set(1, 10),
        set(2, 20),
        set(1, 30),
        set(3, 20),
        set(4, 5),
        TimerChange::Cancel { stage: 0, token: 4 },
    ];
    bench.ran_with(|ran| ran.timers = changes);
    bench.look();
    bench.now.mono_ns += 1_000;
    bench.step(|owner, now, out| owner.tick(now, out));
    bench.idle();
    assert_eq!(bench.look(), ["run timer 2", "run timer 3", "run timer 1"]);
}

#[test]
fn a_stopped_handler_reports_its_position() {
    let stopped = |bench: &mut Bench, stop| bench.ran_with(|ran| ran.outcome = RunOutcome::Stopped(stop));
    let trap = || CellStop::Trap("unreachable".into());
    let mut start = Bench::new(policy());
    start.open();
    start.hand_over();
    start.started();
    start.look();
    stopped(&mut start, trap());
    assert_eq!(start.look(), ["client: failed 3 at 0", "server: failed 3 at 0", "remove 1", "over Guest"]);
    for (port, input) in [(CLIENT, 0), (SERVER, 1)] {
        let mut bench = Bench::begun(policy());
        bench.say(port, "poison");
        bench.look();
        stopped(&mut bench, CellStop::Kill("took too long".into()));
        let failed = [format!("client: failed {input} at 42"), format!("server: failed {input} at 42")];
        assert_eq!(bench.look(), [&failed[0], &failed[1], "remove 1", "over Guest"]);
    }
    let mut timer = Bench::begun(policy());
    timer.say(CLIENT, "a");
    timer.ran_with(|ran| ran.timers = vec![set(1, 0)]);
    timer.look();
    stopped(&mut timer, trap());
    assert_eq!(timer.look(), ["client: failed 2 at 43", "server: failed 2 at 43", "remove 1", "over Guest"]);
}

#[test]
fn a_time_is_logged_if_the_handler_read_it() {
    let mut bench = Bench::begun(policy());
    bench.now.mono_ns += 7;
    bench.consume(CLIENT, "a", 0);
    bench.say(CLIENT, "b");
    assert_eq!(bench.run.as_ref().map(|run| run.now_ns), Some(1_000_007));
    bench.ran_with(|ran| ran.clock_read = true);
    bench.say(CLIENT, "c");
    bench.ran(&[(CLIENT, "C")]);
    // Absolute in the first entry, then since the last one.
    assert_eq!(bench.kept[0].log[34..], [0x40, 0x42, 0x0f, 0, 0, 0, 0, 0, 0, 8, 7, 0]);
}

#[test]
fn both_handlers_of_the_first_entry_have_one_time() {
    let mut bench = Bench::new(policy());
    bench.open();
    bench.hand_over();
    bench.started();
    assert_eq!(bench.run.as_ref().map(|run| run.now_ns), Some(1_000_000));
    bench.now.mono_ns += 50;
    bench.ran(&[(CLIENT, "hello")]);
    assert_eq!(bench.run.as_ref().map(|run| run.now_ns), Some(1_000_000));
    bench.look();
    bench.ran(&[(CLIENT, "again")]);
    assert_eq!(bench.look(), ["client: output hello with log 0..42", "client: output again"]);
    assert_eq!(bench.owner.totals().consumed, 1);
    assert_eq!(bench.owner.totals().produced, 2);
}

#[test]
fn answers_for_another_cell_are_ignored() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.look();
    bench.ran_with(|ran| {
        ran.cell.0 += 1;
        ran.outcome = RunOutcome::Stopped(CellStop::Trap("another's".into()));
    });
    assert_eq!(bench.look(), [""; 0]);
}
