//! Sessions without a server, and clients that try to go back to an older state of theirs.

use crate::owner::bench::{Bench, CLIENT, policy};
use crate::owner::kept::Kept;
use marram_session::owner::{ClientProgress, OwnerPhase, OwnerPolicy, REPORT_NS, WitnessReply, Witnessing};
use marram_wire::id::Generation;

/// A session that has begun, with a witness.
fn begun(witness: Witnessing) -> Bench {
    let mut bench = Bench::begun(OwnerPolicy { server: None, witness: Some(witness), ..policy() });
    bench.fresh = false;
    bench
}

/// One message and its answer, which the client acknowledges.
fn speak(bench: &mut Bench, says: &'static str) {
    bench.say(CLIENT, says);
    bench.ran(&[(CLIENT, "answer")]);
    bench.credit(CLIENT, 1, 0);
}

/// As above, and late enough for the next report.
fn speak_later(bench: &mut Bench, says: &'static str) {
    bench.now.mono_ns += REPORT_NS;
    speak(bench, says);
}

/// A client with this state asks another edge for the session.
fn ask(bench: &mut Bench, kept: &Kept) {
    bench.kept[0] = kept.clone();
    bench.fail_over();
    bench.open();
    let count = bench.generation.count;
    assert_eq!(bench.look(), [format!("ask the witness for {count}"), format!("client: promise {count}")]);
}

fn testify(bench: &mut Bench, testimony: WitnessReply) {
    let generation = bench.generation;
    bench.step(|owner, now, out| owner.witnessed(now, generation, testimony, out));
}

/// What the witness has stored.
fn seen(bench: &Bench) -> WitnessReply {
    WitnessReply::Seen(bench.seen)
}

/// A session with reports to the witness; the client's state before the last reports, and its present state.
fn spoken(witness: Witnessing) -> (Bench, Kept, Kept) {
    let mut bench = begun(witness);
    for says in ["one", "two"] {
        speak_later(&mut bench, says);
    }
    let before = bench.kept[0].clone();
    for says in ["three", "four", "five"] {
        speak_later(&mut bench, says);
    }
    assert!(bench.seen.is_some_and(|seen| seen.log_end > before.log_end()));
    let after = bench.kept[0].clone();
    (bench, before, after)
}

#[test]
fn only_what_the_client_acknowledged_is_reported_and_not_all_the_time() {
    let mut bench = begun(Witnessing::Strict);
    bench.say(CLIENT, "one");
    bench.ran(&[(CLIENT, "answer")]);
    assert_eq!(bench.seen, None, "sent, and not acknowledged");
    let first = bench.log_end();
    bench.credit(CLIENT, 1, 0);
    let generation = bench.generation;
    assert!(bench.seen.is_some_and(|seen| (seen.log_end, seen.generation) == (first, generation)));
    for says in ["two", "three", "four"] {
        speak(&mut bench, says);
    }
    assert!(bench.seen.is_some_and(|seen| seen.log_end == first), "it was told a moment ago");
    // The last one is reported when a report is due, without further messages.
    let last = bench.log_end();
    let due_ns = bench.owner.due_ns().expect("a report is due");
    bench.say(CLIENT, "five");
    bench.ran(&[(CLIENT, "answer")]);
    bench.now.mono_ns = due_ns;
    bench.step(|owner, now, out| owner.tick(now, out));
    assert!(bench.seen.is_some_and(|seen| seen.log_end == last));
    assert_eq!(bench.owner.due_ns(), None);
}

#[test]
fn a_session_without_a_witness_is_not_reported() {
    let mut bench = Bench::begun(OwnerPolicy { server: None, ..policy() });
    (0..4).for_each(|_| speak_later(&mut bench, "word"));
    assert_eq!(bench.seen, None);
    bench.fresh = false;
    bench.fail_over();
    bench.open();
    assert_eq!(bench.look(), ["client: promise 2"]);
}

#[test]
fn a_client_that_has_what_was_seen_continues_whichever_answers_first() {
    for witness_first in [false, true] {
        let (mut bench, _, after) = spoken(Witnessing::Strict);
        let testimony = seen(&bench);
        ask(&mut bench, &after);
        if witness_first {
            testify(&mut bench, testimony);
            assert_eq!(bench.look(), [""; 0]);
            bench.hand_over();
        } else {
            bench.hand_over();
            assert_eq!(bench.look(), [""; 0], "no one has vouched for it");
            testify(&mut bench, testimony);
        }
        assert_eq!(bench.look(), ["start"]);
        bench.started();
        while bench.phase() == OwnerPhase::Replaying {
            bench.ran(&[(CLIENT, "answer")]);
        }
        assert_eq!(bench.phase(), OwnerPhase::Running);
    }
}

#[test]
fn a_client_that_goes_back_is_refused() {
    let (mut bench, before, _) = spoken(Witnessing::Strict);
    let testimony = seen(&bench);
    ask(&mut bench, &before);
    bench.hand_over();
    testify(&mut bench, testimony);
    assert_eq!(bench.look(), ["client: ended Tampered", "over Tampered"]);
}

#[test]
fn a_client_with_another_past_of_the_same_length_is_refused() {
    let (mut bench, before, _) = spoken(Witnessing::Strict);
    let testimony = seen(&bench);
    // An edge that did not ask the witness continued from there, and this is the result.
    ask(&mut bench, &before);
    bench.hand_over();
    testify(&mut bench, WitnessReply::Seen(None));
    bench.started();
    while bench.phase() != OwnerPhase::Running {
        bench.ran(&[(CLIENT, "answer")]);
    }
    for says in ["drei", "vier", "fuenf", "sechs"] {
        speak(&mut bench, says);
    }
    let other = bench.kept[0].clone();
    ask(&mut bench, &other);
    bench.hand_over();
    testify(&mut bench, testimony);
    assert_eq!(bench.look(), ["start"]);
    bench.started();
    assert_eq!(bench.look(), ["client: ended Tampered", "remove 1", "over Tampered"]);
}

#[test]
fn a_client_that_claims_that_its_session_begins_is_refused() {
    let (mut bench, before, _) = spoken(Witnessing::Strict);
    let testimony = seen(&bench);
    bench.kept[0] = before;
    bench.fail_over();
    bench.fresh = true;
    bench.open();
    let count = bench.generation.count;
    assert_eq!(bench.look(), [format!("client: promise {count}")]);
    bench.hand_over();
    assert_eq!(bench.look(), [format!("ask the witness for {count}")], "it has a past");
    testify(&mut bench, testimony);
    assert_eq!(bench.look(), ["client: ended Tampered", "over Tampered"]);
}

#[test]
fn a_client_that_returns_to_an_edge_with_an_older_cell_is_refused() {
    let (mut bench, _, _) = spoken(Witnessing::Strict);
    // The session continued at another edge meanwhile, and the client denies it.
    let seen = bench.seen.expect("something was seen");
    let generation = Generation { count: bench.generation.count + 5, opener: 1 };
    let newer = WitnessReply::Seen(Some(ClientProgress { generation, log_end: seen.log_end + 3, ..seen }));
    bench.unlinked(CLIENT);
    let took = bench.kept[0].sent.len() as u64;
    bench.kept[0].live_at(took);
    bench.look();
    bench.open();
    bench.look();
    bench.hand_over();
    testify(&mut bench, newer);
    assert_eq!(bench.look()[..], ["remove 1".to_string(), format!("again {}", bench.generation.count)]);
}

#[test]
fn a_witness_that_is_away_is_waited_for_or_not_as_the_app_wants() {
    for witness in [Witnessing::Strict, Witnessing::Lenient] {
        let (mut bench, _, after) = spoken(witness);
        ask(&mut bench, &after);
        bench.hand_over();
        testify(&mut bench, WitnessReply::Away("no answer".into()));
        let expected = match witness {
            Witnessing::Strict => &["client: reject Waiting", "over Waiting"][..],
            Witnessing::Lenient => &["witness missing", "start"],
        };
        assert_eq!(bench.look(), expected);
    }
}

#[test]
fn an_answer_to_an_older_attempt_does_not_count() {
    let (mut bench, before, _) = spoken(Witnessing::Strict);
    let old =
        WitnessReply::Seen(Some(ClientProgress { log_end: 1, ..bench.seen.expect("something was seen") }));
    ask(&mut bench, &before);
    let former = bench.generation;
    bench.open();
    bench.look();
    bench.step(|owner, now, out| owner.witnessed(now, former, old.clone(), out));
    bench.step(|owner, now, out| owner.witnessed(now, Generation::NONE, old, out));
    bench.hand_over();
    assert_eq!(bench.look(), [""; 0], "it still waits");
    let testimony = seen(&bench);
    testify(&mut bench, testimony);
    assert_eq!(bench.look(), ["client: ended Tampered", "over Tampered"]);
}
