//! How an owner ends, and what it leaves behind.

use crate::owner::bench::{Bench, CLIENT, SERVER, policy, set};
use marram_session::cell::{CellOutput, CellStop, RunOutcome};
use marram_session::owner::{OwnerPhase, OwnerPolicy};
use marram_wire::frame::{Code, Ended, Finished, Frame, Keeps, LogOnly, Superseded};
use marram_wire::id::Generation;
use marram_wire::limits::charge;

const OVER: [&str; 4] = ["client: ended Finished", "server: ended Finished", "remove 1", "over Finished"];

/// A session in which both peers and the cell have closed: the last outputs are in flight.
fn both_closed() -> Bench {
    let mut bench = Bench::begun(policy());
    bench.close(CLIENT);
    bench.close(SERVER);
    bench.look();
    bench.idle();
    let closes = ["run close server", "client: close with log 0..44", "server: close with log 0..44"];
    assert_eq!(bench.look(), closes);
    bench
}

fn unprotected() -> OwnerPolicy {
    OwnerPolicy { keeps: Keeps::Nothing, ..policy() }
}

#[test]
fn a_session_finishes_when_all_is_received_and_both_are_ready_to_forget() {
    let mut bench = both_closed();
    bench.credit(CLIENT, 1, 0);
    assert_eq!((bench.look().len(), bench.phase()), (0, OwnerPhase::Running));
    bench.credit(SERVER, 1, 0);
    assert_eq!(bench.look(), ["client: finish", "server: finish"]);
    assert_eq!(bench.phase(), OwnerPhase::Finishing);
    assert_eq!(bench.owner.held_bytes(), 44);
    bench.frame(SERVER, Finished { channel: 2 });
    assert_eq!(bench.look(), [""; 0]);
    bench.frame(CLIENT, Finished { channel: 1 });
    assert_eq!(bench.look(), OVER);
    assert_eq!(bench.owner.cell(), None);
}

#[test]
fn a_session_with_one_direction_open_goes_on() {
    let mut bench = Bench::begun(policy());
    bench.close(CLIENT);
    bench.ran_with(|ran| ran.outputs = vec![CellOutput::Close { port: CLIENT }]);
    bench.credit(CLIENT, 1, 0);
    assert_eq!(bench.phase(), OwnerPhase::Running);
    bench.look();
    bench.say(SERVER, "still here");
    bench.ran(&[(SERVER, "good")]);
    assert_eq!(bench.look(), ["run still here of server", "server: output good with log 0..44"]);
}

#[test]
fn a_cell_that_waits_for_a_timer_is_not_spent() {
    let mut bench = Bench::begun(policy());
    bench.close(CLIENT);
    bench.ran_with(|ran| ran.timers = vec![set(1, 10)]);
    bench.close(SERVER);
    bench.look();
    bench.idle();
    assert_eq!(bench.look(), [""; 0]);
    bench.now.mono_ns += 10;
    bench.step(|owner, now, out| owner.tick(now, out));
    bench.ran(&[(CLIENT, "late")]);
    let all = [
        "run timer 1",
        "client: output late with log 0..45",
        "client: close",
        "server: close with log 0..45",
    ];
    assert_eq!(bench.look(), all);
}

#[test]
fn without_protection_nothing_is_kept_or_acknowledged() {
    let mut bench = Bench::begun(unprotected());
    bench.say(CLIENT, "a");
    bench.ran(&[(CLIENT, "A"), (SERVER, "B")]);
    assert_eq!(bench.look(), ["run a of client", "client: output A", "server: output B"]);
    assert_eq!((bench.owner.log_bytes(), bench.owner.held_bytes()), ((0, 0), 0));
    assert_eq!(bench.owner.totals().consumed, 2);
    bench.consume(CLIENT, "dear", 1 << 40);
    assert_eq!(bench.look(), ["run dear of client"], "no checkpoint");
}

#[test]
fn without_protection_the_last_close_ends_the_session() {
    let mut bench = Bench::begun(unprotected());
    bench.close(CLIENT);
    bench.close(SERVER);
    bench.look();
    bench.idle();
    assert_eq!(bench.look()[1..], [&["client: close", "server: close"], &OVER[..]].concat());
}

#[test]
fn without_protection_acknowledgements_are_ignored() {
    let mut bench = Bench::begun(unprotected());
    bench.credit(CLIENT, 5, 0);
    assert_eq!((bench.look().len(), bench.phase()), (0, OwnerPhase::Running));
}

#[test]
fn without_protection_a_broken_connection_ends_the_session() {
    let mut bench = Bench::begun(unprotected());
    bench.unlinked(SERVER);
    assert_eq!(bench.look(), ["client: ended Lost", "remove 1", "over Lost"]);
}

#[test]
fn without_protection_a_handler_that_is_stopped_is_not_tried_again() {
    let mut bench = Bench::begun(unprotected());
    bench.say(CLIENT, "poison");
    bench.look();
    bench.ran_with(|ran| ran.outcome = RunOutcome::Stopped(CellStop::Trap("unreachable".into())));
    assert_eq!(bench.look(), ["client: ended Guest", "server: ended Guest", "remove 1", "over Guest"]);
}

#[test]
fn a_cell_outlives_its_links() {
    let mut bench = Bench::begun(policy());
    assert!(!bench.owner.incomplete());
    bench.unlinked(CLIENT);
    assert_eq!(bench.phase(), OwnerPhase::Running);
    assert!(bench.owner.incomplete());
    bench.say(SERVER, "are you there");
    bench.ran(&[(CLIENT, "yes"), (SERVER, "yes")]);
    assert_eq!(bench.look(), ["run are you there of server", "server: output yes with log 0..43"]);
    bench.unlinked(SERVER);
    assert_eq!((bench.phase(), bench.owner.cell().is_some()), (OwnerPhase::Detached, true));
    assert!(bench.owner.incomplete());
    bench.unlinked(SERVER);
    assert_eq!(bench.look(), [""; 0]);
    assert_eq!(bench.owner.held_bytes(), 43 + 2 * charge(3), "what was on no wire is not lost");
}

#[test]
fn a_session_does_not_finish_while_an_end_is_away() {
    let mut bench = both_closed();
    bench.credit(CLIENT, 1, 0);
    bench.unlinked(CLIENT);
    bench.credit(SERVER, 1, 0);
    assert_eq!((bench.look().len(), bench.phase()), (0, OwnerPhase::Running));
}

#[test]
fn a_link_that_breaks_ends_an_attempt() {
    let mut bench = Bench::new(policy());
    bench.open();
    bench.look();
    bench.unlinked(SERVER);
    assert_eq!(bench.look(), ["client: reject Waiting", "over Waiting"]);
    let mut bench = Bench::begun(policy());
    bench.open();
    bench.look();
    bench.unlinked(CLIENT);
    assert_eq!(bench.look(), ["server: reject Waiting"]);
    assert_eq!((bench.phase(), bench.owner.cell().is_some()), (OwnerPhase::Detached, true));
}

#[test]
fn an_end_that_promised_itself_to_another() {
    let superseded = |by: u64| Superseded { channel: 1, promised: Generation { count: by, opener: 40 } };
    let mut older = Bench::begun(policy());
    older.frame(CLIENT, superseded(1));
    assert_eq!((older.look().len(), older.phase()), (0, OwnerPhase::Running), "as if its link had broken");
    assert!(older.owner.incomplete());
    let mut newer = Bench::begun(policy());
    newer.frame(CLIENT, superseded(2));
    let leaves = ["client: reject Superseded", "server: reject Superseded", "remove 1", "over Superseded"];
    assert_eq!(newer.look(), leaves);
    assert_eq!(newer.owner.cell(), None);
    let mut asking = Bench::new(policy());
    asking.open();
    asking.look();
    asking.frame(CLIENT, superseded(9));
    assert_eq!(asking.look(), ["again 9"]);
}

#[test]
fn an_end_that_ends_it() {
    for (code, lines) in [
        (Code::Reset, ["client: ended Reset", "server: ended Reset", "remove 1", "over Reset"]),
        (Code::Busy, ["client: reject Busy", "server: reject Busy", "remove 1", "over Busy"]),
    ] {
        let mut bench = Bench::begun(policy());
        bench.frame(SERVER, Ended { channel: 2, code, reason: "so".into() });
        assert_eq!(bench.look(), lines);
    }
}

#[test]
fn frames_out_of_turn_end_the_session() {
    let promised = |bench: &Bench| Frame::from(bench.kept[0].promised(1));
    let log_only = |_: &Bench| LogOnly { channel: 1, entries: "".into(), tag: [0; 8] }.into();
    let finished = |_: &Bench| Frame::from(Finished { channel: 1 });
    let part = |_: &Bench| Frame::from(marram_wire::frame::CheckpointPart { channel: 1, bytes: "a".into() });
    for frame in [promised as fn(&Bench) -> Frame, log_only, finished, part] {
        let mut bench = Bench::begun(policy());
        let frame = frame(&bench);
        bench.frame(CLIENT, frame);
        assert_eq!(bench.look().last().map(String::as_str), Some("over Protocol"));
    }
}
