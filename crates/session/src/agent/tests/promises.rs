//! The requests for a promise that an agent accepts, and its answers to the others.

use super::{
    super::Agent,
    Stage, chosen, promise,
    stage::{SERVED, output},
};
use crate::budget::SESSION_BYTES;
use alloc::string::ToString;
use bytes::Bytes;
use marram_wire::{
    frame::{Code, Keeps, Promise},
    id::{HostId, ImageHash, SessionId},
};

#[test]
fn a_promise_is_refused_with_its_reason_and_the_owner_stays() {
    let asked = || promise(Stage::owned(1).session(1), 1, 2);
    let cases = [
        (Promise { generation: super::stage::generation(1), ..asked() }, "superseded c1 by g1"),
        (
            Promise { proven: false, ..asked() },
            "ended c1 Superseded: the session is known here, and its key was not proved",
        ),
        (
            Promise { image: ImageHash([7; 32]), ..asked() },
            "ended c1 Protocol: the session runs another image",
        ),
        (
            Promise { peer: Some(HostId([7; 16])), ..asked() },
            "ended c1 Superseded: the session's other end is at another agent",
        ),
    ];
    for (ask, refusal) in cases {
        let mut stage = Stage::owned(2);
        assert_eq!(stage.frame(2, ask), [alloc::format!("w2 {refusal}")]);
        assert_eq!(stage.output(1, 2, "on"), ["p1 is given 'on'"], "after {refusal}");
    }
}

#[test]
fn an_unprotected_session_has_one_owner() {
    let mut stage = Stage::client(2);
    stage.accept(1);
    stage.frame(1, Promise { keeps: Keeps::Nothing, ..promise(stage.session(1), 2, 1) });
    stage.frame(1, chosen(2));
    let lines = stage.frame(2, promise(stage.session(1), 1, 2));
    assert_eq!(lines, ["w2 ended c1 Lost: the session began at another owner, and the app keeps nothing"]);
}

#[test]
fn an_agent_takes_up_sessions_that_begin_for_servers_that_it_has() {
    let forgotten = "w1 ended c1 Forgotten: this end does not know the session, or no longer knows it";
    let cases = [
        ("db", true, "w1 promised c1 after g0"),
        ("db", false, forgotten),
        ("mail", true, forgotten),
        // A client's end, which only its own connection creates.
        ("", true, forgotten),
    ];
    for (server, fresh, expected) in cases {
        let mut stage = Stage::server(1);
        let ask = Promise { server: server.to_string(), fresh, ..promise(SERVED, 1, 1) };
        assert_eq!(stage.frame(1, ask), [expected], "{server:?} {fresh}");
        assert_eq!(stage.agent.session_count(), usize::from(expected != forgotten));
    }
}

#[test]
fn a_session_that_is_known_need_not_be_fresh() {
    let mut stage = Stage::serving(2);
    let ask = Promise { server: "db".to_string(), fresh: false, ..promise(SERVED, 1, 2) };
    assert_eq!(stage.frame(2, ask), ["w1 superseded c1 by g2", "w2 promised c1 after g1"]);
}

#[test]
fn an_agent_may_have_both_ends_of_a_session() {
    let mut stage = Stage::server(1);
    stage.accept(1);
    let session = stage.session(1);
    assert_eq!(stage.frame(1, promise(session, 2, 1)), ["w1 promised c2 after g0"]);
    let server = Promise { server: "db".to_string(), ..promise(session, 1, 1) };
    assert_eq!(stage.frame(1, server), ["w1 promised c1 after g0"]);
    assert_eq!(stage.agent.session_ids().collect::<alloc::vec::Vec<_>>(), [session, session]);
    stage.frame(1, chosen(1));
    stage.frame(1, chosen(2));
    assert_eq!(stage.output(1, 2, "down"), ["p1 is given 'down'"]);
    let owes = |server| stage.agent.end(session, server).unwrap().owes();
    assert_eq!([owes(false), owes(true)], [true, false], "the client's end received something");
    assert!(stage.agent.end(SessionId([0; 16]), false).is_none());
}

#[test]
fn a_promise_by_another_way_answers_the_hello_as_well() {
    for (wire, channel) in [(1, 1), (2, 1), (2, 2)] {
        let mut stage = Stage::client(2);
        stage.accept(1);
        let expected = [alloc::format!("w{wire} promised c{channel} after g0")];
        assert_eq!(stage.frame(wire, promise(stage.session(1), channel, 1)), expected);
        assert_eq!(stage.reject(1, 2, Code::Guest), [""; 0], "the question is closed");
        stage.frame(wire, chosen(channel));
        assert_eq!(stage.wait(60_000), [""; 0], "no other code is asked");
    }
}

#[test]
fn what_an_end_keeps_is_counted() {
    let kept_bytes = |agent: &Agent| agent.memory().kept - agent.session_count() as u64 * SESSION_BYTES;
    let mut stage = Stage::owned(1);
    assert_eq!(kept_bytes(&stage.agent), 0);
    stage.hear(1, "12345");
    assert_eq!(kept_bytes(&stage.agent), 64 + 5);
    stage.accept(2);
    stage.hear(2, "123");
    assert_eq!((kept_bytes(&stage.agent), stage.agent.session_count()), (64 + 5 + 64 + 3, 2));
    let increment = marram_wire::frame::Increment { entries: Bytes::from_static(b"log"), tag: [1; 8] };
    let with_log = marram_wire::frame::Output { increment: Some(increment), ..output(2, Bytes::new()) };
    stage.frame(1, with_log);
    assert_eq!(kept_bytes(&stage.agent), 64 + 5 + 64 + 3 + 3);
}

#[test]
fn messages_of_before_the_promise_follow_it() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    assert_eq!(stage.hear(1, "early"), [""; 0]);
    let lines = stage.frame(1, promise(stage.session(1), 2, 1));
    assert_eq!(lines, ["w1 promised c2 after g0", "w1 input c2 'early'"]);
    stage.frame(1, chosen(2));
    assert_eq!(stage.hear(1, "later"), ["w1 input c2 'later'"]);
}
