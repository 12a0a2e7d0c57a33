//! Input and output of programs: order, acknowledgements, windows, half-closes, resets, and servers that do not answer.

use super::{
    super::AgentInput,
    Stage, chosen, promise,
    stage::{CONNECT, SERVED, TIMEOUT, asked, cut, only, output},
};
use crate::agent::ConnectionId;
use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use bytes::Bytes;
use marram_wire::{
    frame::{Code, Ended, Promise, Truncate},
    limits::RETAINED_MAX,
};

/// A server's agent with a session that g1 owns; its server does not answer yet.
fn connecting() -> Stage {
    let mut stage = Stage::server(1);
    stage.frame(1, Promise { server: "db".to_string(), ..promise(SERVED, 1, 1) });
    stage.frame(1, chosen(1));
    stage
}

fn truncate(sent: u64) -> Truncate {
    Truncate { channel: 2, log_offset: 0, tag: [0; 8], sent }
}

#[test]
fn an_output_is_acknowledged_after_five_milliseconds() {
    let mut stage = Stage::owned(1);
    assert_eq!(stage.output(1, 2, "abc"), ["p1 is given 'abc'"]);
    assert_eq!(stage.wait(100), ["5 w1 credit c2 received 1 taken 0"]);
    stage.output(1, 2, "def");
    assert_eq!(stage.wait(3), [""; 0]);
    stage.output(1, 2, "ghi");
    assert_eq!(stage.wait(100), ["2 w1 credit c2 received 2 taken 0"], "counted from the first");
}

#[test]
fn an_acknowledgement_travels_with_a_message_if_there_is_one() {
    let mut stage = Stage::owned(1);
    stage.output(1, 2, "abc");
    stage.wait(3);
    assert_eq!(stage.hear(1, "x"), ["w1 input c2 'x' ack 1"]);
    assert_eq!(stage.wait(100), [""; 0]);
}

#[test]
fn what_the_socket_took_is_granted_again_when_an_output_is_taken_whole() {
    // Outputs of 3 and 5 bytes are charged 64 more each.
    let cases: [(&[u64], &str); 6] = [
        (&[2], ""),
        (&[3], "5 w1 credit c2 received 0 taken 67"),
        (&[2, 1], "5 w1 credit c2 received 0 taken 67"),
        (&[4, 3], "5 w1 credit c2 received 0 taken 67"),
        (&[8], "5 w1 credit c2 received 0 taken 136"),
        (&[1, 1, 1, 5], "5 w1 credit c2 received 0 taken 136"),
    ];
    for (written, expected) in cases {
        let mut stage = Stage::owned(1);
        stage.output(1, 2, "abc");
        stage.output(1, 2, "defgh");
        stage.wait(100);
        for bytes in written {
            assert_eq!(stage.written(1, *bytes), [""; 0]);
        }
        let expected: Vec<_> =
            Some(expected.to_string()).filter(|line| !line.is_empty()).into_iter().collect();
        assert_eq!(stage.wait(100), expected, "{written:?}");
    }
}

#[test]
fn much_that_was_taken_is_granted_at_once() {
    let mut stage = Stage::owned(1);
    let large = output(2, Bytes::from(vec![0; 70_000]));
    assert_eq!(stage.frame(1, large), ["p1 is given 70000 bytes"]);
    assert_eq!(stage.written(1, 69_999), [""; 0]);
    assert_eq!(stage.written(1, 1), ["w1 credit c2 received 1 taken 70064"]);
    assert_eq!(stage.written(9, 1), [""; 0], "there is no such connection");
}

#[test]
fn an_empty_output_is_taken_without_a_write() {
    let mut stage = Stage::owned(1);
    assert_eq!(stage.output(1, 2, ""), [""; 0]);
    assert_eq!(stage.wait(100), ["5 w1 credit c2 received 1 taken 64"]);
}

#[test]
fn a_server_is_given_what_came_before_it_answered_in_order() {
    let mut stage = connecting();
    for text in ["one", "", "two"] {
        assert_eq!(stage.output(1, 1, text), [""; 0]);
    }
    stage.output_close(1, 1);
    let lines = stage.step(AgentInput::Connected { connection: asked(1) });
    assert_eq!(lines, ["q1 is given 'one'", "q1 is given 'two'", "q1 will be given no more"]);
    assert_eq!(
        stage.wait(5),
        ["5 w1 credit c1 received 4 taken 128"],
        "an empty one and the end cost 64 each"
    );
    assert_eq!(stage.wait(2 * CONNECT), [""; 0]);
}

#[test]
fn each_direction_is_closed_on_its_own() {
    let mut stage = Stage::owned(1);
    assert_eq!(stage.end_of_input(1), ["w1 input c2 close"]);
    assert_eq!(stage.end_of_input(1), [""; 0], "once");
    assert_eq!(stage.output(1, 2, "more"), ["p1 is given 'more'"]);
    assert_eq!(stage.output_close(1, 2)[0], "p1 will be given no more");
    assert_eq!(stage.broken(1), [""; 0], "it is done; it need not stay");
    let ended = Ended { channel: 2, code: Code::Finished, reason: "done".to_string() };
    assert_eq!(stage.frame(1, ended), ["s1 over, Finished: done"]);
}

#[test]
fn a_program_that_says_more_than_is_kept_is_not_read_until_there_is_room() {
    let mut stage = Stage::owned(1);
    let hear = |stage: &mut Stage| {
        only(stage.step(AgentInput::Received { connection: ConnectionId(1), bytes: cut() }), "read")
    };
    let mut count = 1;
    while hear(&mut stage).is_empty() {
        count += 1;
    }
    let cost = cut().len() as u64 + 64;
    assert_eq!(count, RETAINED_MAX / cost, "the next one of the largest size would not fit");
    assert_eq!(hear(&mut stage), [""; 0], "what was on its way already is kept as well");
    assert_eq!(only(stage.frame(1, truncate(1)), "read"), [""; 0]);
    assert_eq!(only(stage.frame(1, truncate(2)), "read"), ["p1 is read"]);
    assert_eq!(only(stage.frame(1, truncate(2)), "read"), [""; 0]);
    assert_eq!(hear(&mut stage), ["p1 is not read"]);
    assert_eq!(only(stage.frame(1, truncate(9)), "read"), ["p1 is read"]);
}

const RESET: &str = "Reset: the program reset its connection";

#[test]
fn a_program_that_resets_its_connection_ends_the_session_at_the_other_end_too() {
    let mut stage = Stage::owned(1);
    stage.end_of_input(1);
    assert_eq!(stage.broken(1), [format!("w1 ended c2 {RESET}"), format!("s1 over, {RESET}")]);
    assert_eq!(stage.broken(1), [""; 0]);
}

#[test]
fn a_program_that_leaves_before_the_first_promise_leaves_nothing() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    assert_eq!(stage.broken(1), [format!("s1 over, {RESET}")]);
    assert_eq!(stage.agent.session_count(), 0);
    assert_eq!(stage.wait(60_000), [""; 0]);
}

#[test]
fn the_next_owner_learns_of_a_program_that_left_without_an_owner() {
    let mut stage = Stage::owned(2);
    stage.wire_down(1);
    assert_eq!(stage.broken(1), [""; 0]);
    let lines = stage.frame(2, promise(stage.session(1), 2, 2));
    let told = format!("w2 ended c2 {RESET}");
    assert_eq!(lines, ["w2 promised c2 after g1", &told, &format!("s1 over, {RESET}")]);
}

#[test]
fn a_program_that_went_is_forgotten_with_the_session_when_no_owner_comes() {
    let mut stage = Stage::owned(1);
    stage.wire_down(1);
    stage.wait(100);
    stage.broken(1);
    let lines = stage.wait(60_000);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("29900 s1 over, NoEdge: "), "{lines:?}");
}

#[test]
fn an_owner_learns_that_the_server_is_down() {
    let mut stage = connecting();
    let failed = AgentInput::ConnectFailed { connection: asked(1), reason: "refused".to_string() };
    assert_eq!(
        stage.step(failed.clone()),
        ["w1 ended c1 ServerDown: refused", "s1 over, ServerDown: refused"]
    );
    assert_eq!(stage.step(failed), [""; 0]);
}

const TOO_LATE: &str = "ServerDown: the server did not answer in time";

#[test]
fn a_server_that_does_not_answer_in_time_is_down() {
    let mut stage = connecting();
    let expected = [
        "3000 q1 is reset".to_string(),
        format!("3000 w1 ended c1 {TOO_LATE}"),
        format!("3000 s1 over, {TOO_LATE}"),
    ];
    assert_eq!(stage.wait(60_000), expected);
    assert_eq!(stage.step(AgentInput::Connected { connection: asked(1) }), ["q1 is reset"], "too late");
}

#[test]
fn a_server_that_answers_in_time_may_be_silent_for_ever() {
    let mut stage = connecting();
    stage.wait(CONNECT - 1);
    stage.step(AgentInput::Connected { connection: asked(1) });
    assert_eq!(stage.wait(60_000), [""; 0]);
}

#[test]
fn a_server_that_is_down_without_an_owner_is_reported_to_the_next_owner() {
    let mut stage = connecting();
    stage.wait(500);
    stage.wire_down(1);
    assert_eq!(stage.wait(CONNECT), ["2500 q1 is reset"]);
    stage.edge(2, 0);
    assert_eq!(stage.wait(TIMEOUT), ["2000 w2 hello c2 s1 by the server's end after g1"]);
    let lines = stage.frame(2, Promise { server: "db".to_string(), ..promise(SERVED, 2, 2) });
    let (told, over) = (format!("w2 ended c2 {TOO_LATE}"), format!("s1 over, {TOO_LATE}"));
    assert_eq!(lines, ["w2 promised c2 after g1", &told, &over]);
}

#[test]
fn a_session_with_its_server_down_is_forgotten_without_an_owner() {
    let mut stage = connecting();
    stage.wait(500);
    stage.wire_down(1);
    let lines: Vec<String> = stage.wait(60_000);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].starts_with("30000 s1 over, NoEdge: "), "{lines:?}");
}
