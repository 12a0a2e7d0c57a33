//! Programs that use datagrams: nothing is merged, split or lost once it has a number, and a silence timeout ends a
//! conversation, since no datagram does.

use super::{
    super::{AgentInput, ConnectionId, WireId},
    Stage, chosen, promise,
    stage::{SERVED, asked, config, only, output},
};
use alloc::{string::ToString, vec, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{Code, Ended, Promise},
    limits::{DATAGRAM_SIZE_MAX, DATAGRAMS_WAITING_MAX, RETAINED_MAX},
};

fn accept(stage: &mut Stage) -> Vec<alloc::string::String> {
    stage.step(AgentInput::Accepted {
        key: None,
        connection: ConnectionId(1),
        app: "app".to_string(),
        datagrams: true,
        messages: false,
        origin: None,
    })
}

/// A client's agent. Its program is connection 1, and its session is owned on channel 2 of wire 1.
fn owned() -> Stage {
    let mut stage = Stage::client(1);
    accept(&mut stage);
    stage.own(1, 2, 1);
    stage
}

/// A server's agent with a session on channel 1 of wire 1. Connection `q1` to its server is being opened.
fn connecting(server: &str) -> Stage {
    let mut stage = Stage::new(config(1, &[server]), 1);
    stage.edge(1, 0);
    stage.frame(1, Promise { server: server.to_string(), ..promise(SERVED, 1, 1) });
    stage.frame(1, chosen(1));
    stage
}

#[test]
fn an_empty_datagram_is_one() {
    let mut stage = owned();
    assert_eq!(stage.hear(1, ""), ["w1 input c2 ''"]);
    assert_eq!(stage.output(1, 2, ""), ["p1 is given ''"]);
    assert_eq!(stage.output(1, 2, "x"), ["p1 is given 'x'"]);
    stage.written(1, 0);
    stage.written(1, 1);
    assert_eq!(only(stage.wait(5), "taken"), ["5 w1 credit c2 received 2 taken 129"]);
}

#[test]
fn a_connection_that_keeps_messages_apart_is_given_empty_ones_too() {
    let mut stage = Stage::client(1);
    let app = "app".to_string();
    stage.step(AgentInput::Accepted {
        key: None,
        connection: ConnectionId(1),
        app,
        datagrams: false,
        messages: true,
        origin: None,
    });
    stage.own(1, 2, 1);
    assert_eq!(stage.hear(1, ""), ["w1 input c2 ''"]);
    assert_eq!(stage.output(1, 2, ""), ["p1 is given ''"]);
    stage.written(1, 0);
    assert_eq!(only(stage.wait(5), "taken"), ["5 w1 credit c2 received 1 taken 64"]);
    assert_eq!(stage.output_close(1, 2), ["p1 will be given no more"], "it can say that it is done");
}

#[test]
fn a_server_that_keeps_messages_apart_is_given_empty_ones_too() {
    let given = |server: &str| {
        let mut stage = connecting(server);
        assert_eq!(stage.output(1, 1, ""), [""; 0]);
        let mut lines = stage.step(AgentInput::Connected { connection: asked(1) });
        lines.extend(stage.output(1, 1, "x"));
        lines.extend(stage.output(1, 1, ""));
        lines
    };
    assert_eq!(only(given("web-db"), "given"), ["q1 is given ''", "q1 is given 'x'", "q1 is given ''"]);
    assert_eq!(only(given("db"), "given"), ["q1 is given 'x'"], "a stream has nothing to say it with");
}

#[test]
fn a_connection_that_speaks_in_datagrams_says_itself_when_it_is_done() {
    let mut stage = Stage::client(1);
    let app = "app".to_string();
    stage.step(AgentInput::Accepted {
        key: None,
        connection: ConnectionId(1),
        app,
        datagrams: true,
        messages: true,
        origin: None,
    });
    stage.own(1, 2, 1);
    assert_eq!(stage.output_close(1, 2), ["p1 will be given no more"]);
    assert_eq!(stage.hear(1, ""), ["w1 input c2 '' ack 1"], "it has not said its last");
    assert_eq!(stage.step(AgentInput::EndOfInput { connection: ConnectionId(1) }), ["w1 input c2 close"]);
    assert_eq!(stage.hear(1, "late"), [""; 0]);
    assert_eq!(stage.agent.datagrams_dropped(), 1);
}

#[test]
fn the_last_output_ends_the_conversation() {
    let mut stage = owned();
    assert_eq!(stage.output_close(1, 2)[..2], ["p1 will be given no more", "w1 input c2 close ack 1"]);
    assert_eq!(stage.hear(1, "late"), [""; 0], "it belongs to another conversation");
    assert_eq!(stage.agent.datagrams_dropped(), 1);
    let ended = Ended { channel: 2, code: Code::Finished, reason: "done".to_string() };
    assert_eq!(stage.frame(1, ended), ["p1 is closed", "s1 over, Finished: done"]);
}

#[test]
fn a_server_is_given_what_came_before_it_was_there_before_its_conversation_ends() {
    let mut stage = connecting("udp-db");
    for text in ["one", "", "two"] {
        assert_eq!(stage.output(1, 1, text), [""; 0]);
    }
    assert_eq!(only(stage.output_close(1, 1), "close"), [""; 0]);
    let lines = stage.step(AgentInput::Connected { connection: asked(1) });
    let given = ["q1 is given 'one'", "q1 is given ''", "q1 is given 'two'", "q1 will be given no more"];
    assert_eq!(lines[..4], given);
    assert_eq!(lines[4..], ["w1 input c1 close ack 4"]);
}

#[test]
fn what_has_no_place_is_dropped_before_it_has_a_number() {
    let datagram = Bytes::from(vec![7; 936]);
    let cost = datagram.len() as u64 + 64;
    let count = |stage: &mut Stage, most: u64| {
        let mut kept = 0;
        while kept < most && stage.agent.datagrams_dropped() == 0 {
            let received = AgentInput::Received { connection: ConnectionId(1), bytes: datagram.clone() };
            assert_eq!(only(stage.step(received), "read"), [""; 0], "no one is asked to wait");
            kept += 1;
        }
        kept - 1
    };
    let mut stage = Stage::client(1);
    accept(&mut stage);
    assert_eq!(count(&mut stage, u64::MAX), DATAGRAMS_WAITING_MAX / cost, "it has not begun");
    let mut stage = owned();
    // The last one exceeds the credit.
    assert_eq!(count(&mut stage, u64::MAX), (1_u64 << 20).div_ceil(cost), "its cell takes no more");
    let mut stage = owned();
    stage.step(AgentInput::WireDown { wire: WireId(1), reason: "cut".to_string() });
    assert_eq!(count(&mut stage, u64::MAX), RETAINED_MAX / cost, "it waits for its next owner");
}

#[test]
fn an_output_that_no_datagram_holds_ends_the_session_and_says_so() {
    let mut stage = owned();
    let fits = output(2, Bytes::from(vec![0; DATAGRAM_SIZE_MAX]));
    assert_eq!(stage.frame(1, fits), ["p1 is given 65507 bytes"]);
    let lines = stage.frame(1, output(2, Bytes::from(vec![0; DATAGRAM_SIZE_MAX + 1])));
    assert_eq!(lines[0], "p1 is reset");
    let why = "the cell sent a message of 65508 bytes to a peer that uses datagrams; the maximum is 65507";
    assert!(lines[1].starts_with("w1 ended c2") && lines[1].contains(why), "{lines:?}");
    assert_eq!(lines[2..], [alloc::format!("s1 over, Guest: {why}")]);
}
