//! What an end does when an edge rejects its session.

use super::{
    Stage, promise,
    stage::{EDGE_WAIT, MS, TIMEOUT, config, only},
};
use alloc::{collections::BTreeSet, vec::Vec};
use marram_wire::frame::Code;

/// Rejected at the only edge on channel 2, 4, ..: the waits in milliseconds are within these bounds.
fn assert_waits(stage: &mut Stage, first_channel: u32, bounds_ms: &[u64]) {
    for (channel, wait_ms) in (first_channel..).step_by(2).zip(bounds_ms) {
        assert_eq!(only(stage.reject(1, channel, Code::Busy), "hello"), [""; 0]);
        let waited_ns = stage.wait_for("hello", 5_000);
        let expected_ns = wait_ms * MS..=wait_ms * MS * 3 / 2;
        assert!(expected_ns.contains(&waited_ns), "{waited_ns} where {wait_ms} ms were to be waited for");
    }
}

#[test]
fn the_next_edge_is_asked_at_once() {
    let mut stage = Stage::client(3);
    stage.accept(1);
    assert_eq!(stage.reject(1, 2, Code::Busy), ["w2 hello c2 s1 fresh"]);
    assert_eq!(stage.reject(2, 2, Code::NoServerAgent), ["w3 hello c2 s1 fresh"]);
}

#[test]
fn when_all_edges_reject_they_are_asked_again_ever_later() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    assert_waits(&mut stage, 2, &[20, 40, 80, 160, 320, 500, 500]);
}

#[test]
fn the_round_begins_with_the_first_edge_again() {
    let mut stage = Stage::client(2);
    stage.accept(1);
    stage.reject(1, 2, Code::Busy);
    assert_eq!(stage.reject(2, 2, Code::Busy), [""; 0]);
    let waited_ns = stage.wait_for("w1 hello c4 s1 fresh", 30);
    assert!(waited_ns >= 20 * MS, "{waited_ns}");
    assert_eq!(stage.reject(1, 4, Code::Busy), ["w2 hello c4 s1 fresh"]);
}

#[test]
fn many_sessions_do_not_come_back_as_one() {
    let waits = (0..20).map(|entropy| {
        let mut stage = Stage::new(config(1, &[]), entropy);
        stage.edge(1, 0);
        stage.accept(1);
        stage.reject(1, 2, Code::Busy);
        stage.wait_for("hello", 30) / MS
    });
    assert!(waits.collect::<BTreeSet<_>>().len() > 5, "from 20 to 30 ms");
}

#[test]
fn waits_start_again_once_the_session_had_an_owner() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    assert_waits(&mut stage, 2, &[20, 40, 80]);
    stage.own(1, 8, 1);
    stage.wire_down(1);
    stage.edge(1, 0);
    assert_waits(&mut stage, 2, &[20, 40]);
}

#[test]
fn an_edge_that_rejected_before_may_be_the_next_owner() {
    let mut stage = Stage::client(3);
    stage.accept(1);
    stage.reject(1, 2, Code::Busy);
    stage.own(2, 2, 1);
    assert_eq!(only(stage.wire_down(2), "hello"), ["w1 hello c4 s1 after g1"]);
}

#[test]
fn an_edge_that_rejects_twice_is_one_edge() {
    let mut stage = Stage::client(2);
    stage.accept(1);
    stage.reject(1, 2, Code::Busy);
    assert_eq!(stage.wire_down(2), ["w1 hello c4 s1 fresh"], "there is no other");
    stage.edge(3, 1);
    assert_eq!(stage.reject(1, 4, Code::Busy), ["w3 hello c2 s1 fresh"], "now there is one");
}

#[test]
fn a_final_rejection_ends_the_session() {
    use Code::{Forgotten, Guest, Killed, Lost, Protocol, ServerDown, Tampered, WrongKey};
    for code in [WrongKey, ServerDown, Guest, Tampered, Forgotten, Killed, Lost, Protocol] {
        let mut stage = Stage::client(2);
        stage.accept(1);
        let over = alloc::format!("s1 over, {code:?}: no");
        assert_eq!(stage.reject(1, 2, code), ["p1 is reset", over.as_str()]);
        assert_eq!(stage.wait(60_000), [""; 0]);
        assert_eq!(stage.agent.session_count(), 0);
    }
}

#[test]
fn an_app_that_no_edge_knows_is_given_up_and_only_then() {
    use Code::{Busy, UnknownApp};
    let over: &[&str] = &["p1 is reset", "s1 over, UnknownApp: no"];
    let cases: [(&[Code], &[&str]); 5] = [
        (&[UnknownApp], &["w2 hello c2 s1 fresh"]),
        (&[UnknownApp, UnknownApp], over),
        (&[UnknownApp, Busy], &[]),
        (&[Busy, UnknownApp], &["s1 waits at 1.0, UnknownApp: no, 10000 ms left"]),
        (&[Busy, Busy], &[]),
    ];
    for (codes, expected) in cases {
        let mut stage = Stage::client(2);
        stage.accept(1);
        let mut lines = Vec::new();
        for (wire, code) in (1..).zip(codes) {
            lines = stage.reject(wire, 2, *code);
        }
        assert_eq!(lines, expected, "{codes:?}");
    }
}

#[test]
fn an_app_that_was_known_is_waited_for() {
    let mut stage = Stage::owned(2);
    stage.wire_down(1);
    let waits = "s1 waits at 1.0, UnknownApp: no, 30000 ms left";
    assert_eq!(stage.reject(2, 2, Code::UnknownApp), [waits]);
    stage.wait_for("w2 hello c4 s1 after g1", 30);
}

#[test]
fn what_a_session_waits_for_is_reported_once_an_edge_until_it_has_an_owner() {
    let mut stage = Stage::owned(2);
    stage.wire_down(1);
    let image = Code::UnknownImage;
    assert_eq!(stage.reject(2, 2, image), ["s1 waits at 1.0, UnknownImage: no, 30000 ms left"]);
    for channel in [4, 6] {
        stage.wait_for("hello", 1_000);
        assert_eq!(stage.reject(2, channel, image), [""; 0]);
    }
    stage.edge(3, 0);
    assert_eq!(only(stage.reject(3, 2, image), "waits").len(), 1, "another edge lacks it");
    stage.own(2, 8, 2);
    stage.wire_down(3);
    stage.wire_down(2);
    stage.edge(4, 1);
    assert_eq!(only(stage.reject(4, 2, image), "waits").len(), 1, "it had an owner since");
}

#[test]
fn a_refusal_that_another_edge_may_not_give_is_reported_when_all_were_asked() {
    let mut stage = Stage::client(2);
    stage.accept(1);
    assert_eq!(stage.reject(1, 2, Code::NoServerAgent), ["w2 hello c2 s1 fresh"]);
    let waits = "s1 waits at 1.0, NoServerAgent: no, 10000 ms left";
    assert_eq!(stage.reject(2, 2, Code::NoServerAgent), [waits]);
}

#[test]
fn an_edge_that_let_a_promise_down_is_asked_again_ever_later() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    let mut channel = 2;
    for (count, waited_ms) in (1..).zip([10, 30, 70, 150, 310, 490, 490]) {
        stage.frame(1, promise(stage.session(1), channel, count));
        assert_eq!(stage.reject(1, channel, Code::Busy), [""; 0]);
        channel += 2;
        assert_eq!(stage.wait_for("hello", 1_000), waited_ms * MS, "after promise {count}");
    }
}

#[test]
fn an_edge_that_was_there_lately_may_have_the_app() {
    let over: &[&str] = &["p2 is reset", "s2 over, UnknownApp: no"];
    // It broke, it fell silent, or it was not connected since the start.
    let lost: [fn() -> Stage; 3] = [
        || {
            let mut stage = Stage::client(2);
            stage.wire_down(2);
            stage
        },
        || {
            let mut stage = Stage::client(2);
            stage.silence(2);
            stage.wait(TIMEOUT);
            stage
        },
        || {
            let mut stage = Stage::new(config(2, &[]), 1);
            stage.edge(1, 0);
            stage
        },
    ];
    for (case, lost) in lost.into_iter().enumerate() {
        let mut stage = lost();
        stage.accept(1);
        let lines = stage.reject(1, 2, Code::UnknownApp);
        assert_eq!(lines, ["s1 waits at 0.0, UnknownApp: no, 10000 ms left"], "case {case}");
        // It is back, and may get its apps soon.
        if case < 2 {
            let mut stage = lost();
            stage.wire_down(2);
            stage.edge(3, 1);
            stage.accept(1);
            stage.reject(1, 2, Code::UnknownApp);
            let waits = ["s1 waits at 1.0, UnknownApp: no, 10000 ms left"];
            assert_eq!(stage.reject(3, 2, Code::UnknownApp), waits, "case {case}");
        }
        // The agent does not wait for it forever.
        stage.wait(EDGE_WAIT);
        let asks = stage.accept(2).concat();
        let channel = asks.split(['c', ' ']).nth(3).unwrap().parse().unwrap();
        assert_eq!(stage.reject(1, channel, Code::UnknownApp), over, "case {case}: {asks}");
    }
}
