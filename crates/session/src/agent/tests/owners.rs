//! What an end accepts from its owner and refuses from all other senders.

use super::{
    Stage, chosen, promise,
    stage::{SERVED, TIMEOUT, asked, only, output},
};
use crate::agent::AgentInput;
use alloc::{string::ToString, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{
        CheckpointPart, Code, Credit, Drain, Ended, Failed, Failure, Finish, Frame, Keeps, LogOnly, LogPart,
        Promise, Reject, Truncate,
    },
    id::Generation,
};

fn ended(channel: u32, code: Code) -> Ended {
    Ended { channel, code, reason: "so it is".to_string() }
}

fn failed(channel: u32) -> Failed {
    let failure = Failure { log_offset: 0, input: 0, reason: "unreachable".to_string() };
    Failed { channel, failure }
}

fn log_part(channel: u32) -> LogPart {
    LogPart { channel, generation: Generation::NONE, offset: 0, bytes: Bytes::from_static(b"log") }
}

/// Every frame that an owner may send on a channel, except those that end it.
fn from_owners(channel: u32) -> [Frame; 8] {
    let (bytes, tag) = (Bytes::new(), [0; 8]);
    [
        output(channel, bytes.clone()).into(),
        LogOnly { channel, entries: bytes.clone(), tag }.into(),
        Credit { channel, received: 0, bytes: 0 }.into(),
        chosen(channel).into(),
        log_part(channel).into(),
        CheckpointPart { channel, bytes }.into(),
        Truncate { channel, log_offset: 0, tag, sent: 0 }.into(),
        Finish { channel }.into(),
    ]
}

fn final_frames(channel: u32) -> [Frame; 3] {
    let reject = Reject { channel, code: Code::Busy, reason: "no".to_string() };
    [ended(channel, Code::Killed).into(), reject.into(), failed(channel).into()]
}

#[test]
fn a_replaced_owner_is_reported_once_for_any_number_of_frames() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    let lines = stage.own(1, 2, 1);
    assert_eq!(lines, ["w1 promised c2 after g0", "s1 of app owned by g1 at 0.0 after 0 ms"]);
    assert_eq!(stage.output(1, 2, "one"), ["p1 is given 'one'"]);
    assert_eq!(stage.output(1, 2, "two"), ["p1 is given 'two'"]);
}

#[test]
fn an_older_owner_learns_of_its_successor_at_once_and_is_refused() {
    for frame in from_owners(2).into_iter().chain(final_frames(2)) {
        let mut stage = Stage::owned(2);
        let lines = stage.frame(2, promise(stage.session(1), 1, 2));
        assert_eq!(lines, ["w1 superseded c2 by g2", "w2 promised c1 after g1"]);
        let refused = stage.frame(1, frame.clone());
        assert_eq!(refused, ["w1 superseded c2 by g2", "s1 refused g1"], "{frame:?}");
        stage.frame(2, chosen(1));
        assert_eq!(stage.output(2, 1, "on"), ["p1 is given 'on'"], "after {frame:?}");
    }
}

#[test]
fn an_older_owner_is_refused_on_the_wire_of_the_newer_one_too() {
    let mut stage = Stage::owned(1);
    assert_eq!(stage.own(1, 1, 2)[0], "w1 superseded c2 by g2");
    assert_eq!(stage.output(1, 1, "new"), ["p1 is given 'new'"]);
    assert_eq!(stage.output(1, 2, "old"), ["w1 superseded c2 by g2", "s1 refused g1"]);
    assert_eq!(stage.output(1, 2, "old"), ["w1 superseded c2 by g0"], "its channel is closed");
}

#[test]
fn an_owner_behind_a_silence_learns_of_its_successor_at_once() {
    let mut stage = Stage::owned(2);
    stage.silence(1);
    stage.wait(TIMEOUT);
    let lines = stage.frame(2, promise(stage.session(1), 2, 2));
    assert_eq!(lines, ["w1 superseded c2 by g2", "w2 promised c2 after g1"]);
    assert_eq!(stage.output(1, 2, "old"), ["w1 superseded c2 by g2", "s1 refused g1"]);
}

#[test]
fn an_owner_behind_a_silence_is_refused_while_there_is_no_other() {
    let mut stage = Stage::owned(1);
    stage.silence(1);
    stage.wait(TIMEOUT);
    let lines = stage.output(1, 2, "old");
    assert_eq!(lines, ["w1 hello c4 s1 after g1", "w1 superseded c2 by g1", "s1 refused g1"]);
}

#[test]
fn an_owner_of_a_session_that_is_over_must_not_wait_for_it() {
    let mut stage = Stage::owned(1);
    stage.broken(1);
    for frame in from_owners(2) {
        assert_eq!(stage.frame(1, frame.clone()), ["w1 superseded c2 by g0"], "{frame:?}");
    }
    for frame in final_frames(2) {
        assert_eq!(stage.frame(1, frame.clone()), [""; 0], "{frame:?} needs no answer");
    }
}

#[test]
fn what_no_edge_sends_is_not_answered() {
    let mut stage = Stage::owned(1);
    stage.hear(1, "hello");
    let end = stage.agent.end(stage.session(1), false).unwrap();
    let hello: Frame = end.hello(2, &[0; 16]).into();
    assert_eq!(stage.frame(1, hello), [""; 0]);
    assert_eq!(stage.frame(7, chosen(2)), [""; 0], "there is no such wire");
    assert_eq!(stage.output(1, 2, "on"), ["p1 is given 'on'"]);
}

#[test]
fn what_comes_instead_of_an_answer_to_a_hello_is_ignored() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    for frame in from_owners(2) {
        assert_eq!(stage.frame(1, frame.clone()), [""; 0], "{frame:?}");
    }
    let lines = stage.frame(1, ended(2, Code::Killed));
    assert_eq!(lines, ["p1 is reset", "s1 over, Killed: so it is"]);
}

#[test]
fn an_owner_ends_the_session() {
    let mut stage = Stage::owned(1);
    let lines = stage.frame(1, ended(2, Code::Killed));
    assert_eq!(lines, ["p1 is reset", "s1 over, Killed: so it is"]);
    assert_eq!(stage.wait(60_000), [""; 0]);
    assert_eq!(stage.hear(1, "anybody?"), [""; 0]);
}

#[test]
fn an_owner_that_breaks_the_protocol_gets_the_reason_and_the_session_ends() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    stage.frame(1, promise(stage.session(1), 2, 1));
    let expected = [
        "w1 ended c2 Protocol: a frame is not allowed in this phase",
        "p1 is reset",
        "s1 over, Protocol: a frame is not allowed in this phase",
    ];
    assert_eq!(stage.output(1, 2, "too early"), expected);
}

#[test]
fn a_session_with_a_stopped_handler_is_tried_once_more() {
    let mut stage = Stage::owned(1);
    let expected = ["s1 orphaned: a handler was stopped", "w1 hello c4 s1 after g1"];
    assert_eq!(stage.frame(1, failed(2)), expected);
    assert_eq!(stage.output(1, 2, "late"), ["w1 superseded c2 by g0"], "its channel is closed");
}

#[test]
fn an_owner_that_gives_a_session_up_is_followed_by_another() {
    let mut stage = Stage::owned(2);
    stage.frame(1, Drain { leave: true });
    stage.reject(2, 2, Code::Busy);
    assert_eq!(stage.reject(1, 2, Code::Busy)[0], "s1 orphaned: no");
    stage.wait_for("w2 hello c4 s1 after g1", 50);
}

/// Both ends learn of a move at about the same time. The one that learns it from the former owner must not take the session back.
#[test]
fn an_owner_that_another_one_follows_is_not_asked_again() {
    let mut stage = Stage::owned(2);
    assert_eq!(stage.reject(1, 2, Code::Superseded), ["s1 orphaned: no"]);
    assert_eq!(stage.frame(2, promise(stage.session(1), 1, 2)), ["w2 promised c1 after g1"]);
    assert_eq!(stage.wait(TIMEOUT * 2), [""; 0], "it has been asked");
    let mut stage = Stage::owned(2);
    stage.reject(1, 2, Code::Superseded);
    assert_eq!(stage.wait(TIMEOUT - 1), [""; 0], "the other owner may still ask");
    stage.wait_for("hello c4 s1 after g1", 1);
    let mut stage = Stage::owned(2);
    stage.reject(1, 2, Code::Superseded);
    assert_eq!(stage.edge(3, 2), [""; 0], "nor may it ask an edge that comes meanwhile");
    stage.wait_for("hello c4 s1 after g1", TIMEOUT);
}

#[test]
fn an_unprotected_session_is_lost_with_its_owner() {
    let over = |reason: &str| alloc::format!("s1 over, Lost: {reason}");
    let none = || {
        let mut stage = Stage::client(2);
        stage.accept(1);
        stage.frame(1, Promise { keeps: Keeps::Nothing, ..promise(stage.session(1), 2, 1) });
        stage.frame(1, chosen(2));
        stage
    };
    let mut stage = none();
    stage.silence(1);
    assert_eq!(stage.wait(TIMEOUT), [""; 0], "a host that is only slow keeps its sessions");
    let lines: Vec<_> = stage.wait(TIMEOUT * 39);
    let [_, orphaned, reset, lost] = &lines[..] else { panic!("{lines:?}") };
    let reason = "no frame from the edge for 80000 ms";
    assert!(orphaned.ends_with(&alloc::format!("s1 orphaned: {reason}")), "{lines:?}");
    assert!(reset.ends_with("p1 is reset") && lost.ends_with(&over(reason)), "{lines:?}");
    let mut stage = none();
    assert_eq!(stage.wire_down(1), ["s1 orphaned: it broke", "p1 is reset", &over("it broke")]);
}

/// Its owner refuses it before a log is chosen, as when the server's agent has no room: nothing is lost yet.
#[test]
fn an_unprotected_session_that_is_refused_before_it_begins_is_asked_for_again() {
    let promised = |stage: &mut Stage, wire, channel, count| {
        stage.frame(wire, Promise { keeps: Keeps::Nothing, ..promise(stage.session(1), channel, count) })
    };
    let mut stage = Stage::client(2);
    stage.accept(1);
    stage.hear(1, "query");
    assert_eq!(promised(&mut stage, 1, 2, 1), ["w1 promised c2 after g0", "w1 input c2 'query'"]);
    assert_eq!(stage.reject(1, 2, Code::Busy), [""; 0], "nothing is over");
    stage.wait_for("w1 hello c4 s1 fresh", 50);
    stage.reject(1, 4, Code::Busy);
    assert_eq!(promised(&mut stage, 2, 2, 2), ["w2 promised c2 after g1", "w2 input c2 'query'"]);
    assert_eq!(stage.frame(2, chosen(2)), ["s1 of app owned by g2 at 1.0 after 0 ms"]);
    assert_eq!(only(stage.reject(2, 2, Code::Busy), "over"), ["s1 over, Lost: no"], "it has begun");
}

fn serve(stage: &mut Stage, wire: u64, channel: u32, count: u64) -> Vec<alloc::string::String> {
    stage.frame(wire, Promise { server: "db".to_string(), ..promise(SERVED, channel, count) })
}

#[test]
fn a_server_is_connected_to_when_the_log_is_chosen_and_once() {
    let mut stage = Stage::server(1);
    assert_eq!(serve(&mut stage, 1, 1, 1), ["w1 promised c1 after g0"]);
    assert_eq!(stage.frame(1, log_part(1)), [""; 0]);
    let chosen_log = marram_wire::frame::Chosen { log_offset: 3, ..chosen(1) };
    let owned = "s1 of app owned by g1 at 0.0 after 0 ms";
    assert_eq!(stage.frame(1, chosen_log), [owned, "q1 connects to db"]);
    assert_eq!(stage.step(AgentInput::Connected { connection: asked(1) }), [""; 0]);
    serve(&mut stage, 1, 3, 2);
    let chosen_log = marram_wire::frame::Chosen { log_offset: 3, ..chosen(3) };
    assert_eq!(stage.frame(1, chosen_log), ["s1 of app owned by g2 at 0.0 after 0 ms"]);
    assert_eq!(stage.output(1, 3, "query"), ["q1 is given 'query'"]);
}

#[test]
fn each_session_has_a_connection_of_its_own_to_the_server() {
    let mut stage = Stage::serving(1);
    let session = marram_wire::id::SessionId([9; 16]);
    stage.frame(1, Promise { server: "db".to_string(), ..promise(session, 3, 1) });
    assert_eq!(only(stage.frame(1, chosen(3)), "connects"), ["q2 connects to db"]);
    stage.step(AgentInput::Connected { connection: asked(2) });
    assert_eq!(stage.output(1, 1, "one"), ["q1 is given 'one'"]);
    assert_eq!(stage.output(1, 3, "two"), ["q2 is given 'two'"]);
}

#[test]
fn a_program_that_is_done_is_not_replaced_when_another_edge_takes_its_session() {
    let mut stage = Stage::serving(2);
    stage.step(AgentInput::EndOfInput { connection: asked(1) });
    stage.output_close(1, 1);
    assert_eq!(stage.step(AgentInput::Broken { connection: asked(1) }), [""; 0]);
    stage.wire_down(1);
    serve(&mut stage, 2, 1, 2);
    assert_eq!(stage.frame(2, chosen(1))[0], "s1 of app owned by g2 at 1.0 after 0 ms");
    let mut stage = Stage::owned(2);
    stage.end_of_input(1);
    stage.output_close(1, 2);
    assert_eq!(stage.broken(1), [""; 0]);
    stage.wire_down(1);
    let expected =
        ["w2 promised c2 after g1", "w2 input c2 close", "s1 of app owned by g2 at 1.0 after 0 ms"];
    assert_eq!(stage.own(2, 2, 2), expected);
}
