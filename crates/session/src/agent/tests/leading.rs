//! When an end asks for a generation, and how long it waits for an answer.

use super::{
    super::{AgentInput, AgentOutput, WireId},
    Stage, chosen, promise,
    stage::{EDGE_WAIT, SERVED, TIMEOUT, asking, config, only},
};
use crate::end::EndPhase;
use alloc::vec::Vec;
use marram_wire::frame::{Code, Drain, Frame, Pong};

#[test]
fn a_connection_begins_a_session_at_once() {
    let mut stage = Stage::client(1);
    assert_eq!(stage.accept(1), ["w1 hello c2 s1 fresh"]);
    assert_eq!(stage.accept(2), ["w1 hello c4 s2 fresh"], "on a channel of its own");
    assert_eq!(stage.frame(1, promise(stage.session(1), 2, 1)), ["w1 promised c2 after g0"]);
    assert_eq!(stage.frame(1, chosen(2)), ["s1 of app owned by g1 at 0.0 after 0 ms"]);
    assert_eq!(stage.wait(60_000)[0], "5000 w1 hello c6 s2 fresh", "the first is content, the second is not");
}

#[test]
fn a_connection_waits_for_the_first_edge() {
    let mut stage = Stage::new(config(1, &[]), 1);
    assert_eq!(stage.accept(1), [""; 0]);
    assert_eq!(stage.wait(1_000), [""; 0]);
    assert_eq!(only(stage.edge(1, 0), "hello"), ["w1 hello c2 s1 fresh"]);
    stage.own(1, 2, 1);
    assert_eq!(stage.edge(2, 1), [""; 0], "another edge changes nothing for a session that has an owner");
}

#[test]
fn when_an_edge_says_nothing_to_a_hello_the_next_one_is_asked() {
    let mut stage = Stage::owned(3);
    stage.wire_down(1);
    let next = |wire, channel| alloc::format!("5000 w{wire} hello c{channel} s1 after g1");
    for (wire, channel) in [(3, 2), (2, 4), (3, 4), (2, 6)] {
        assert_eq!(stage.wait(5_000), [next(wire, channel)]);
    }
}

#[test]
fn the_only_edge_is_asked_again_when_it_says_nothing_to_a_hello() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    assert_eq!(stage.wait(9_999), ["5000 w1 hello c4 s1 fresh"]);
    assert_eq!(stage.reject(1, 2, Code::Guest), [""; 0], "an answer to the first question comes too late");
    assert_eq!(stage.frame(1, promise(stage.session(1), 4, 1)), ["w1 promised c4 after g0"]);
}

#[test]
fn a_promise_is_answer_enough_to_a_hello() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    stage.frame(1, promise(stage.session(1), 2, 1));
    assert_eq!(stage.wait(EDGE_WAIT - 1), [""; 0]);
}

#[test]
fn a_session_that_was_asked_for_over_a_wire_that_breaks_is_asked_for_elsewhere() {
    let mut stage = Stage::client(2);
    stage.accept(1);
    assert_eq!(stage.wire_down(1), ["w2 hello c2 s1 fresh"]);
    assert_eq!(stage.wire_down(2), [""; 0]);
    assert_eq!(stage.edge(3, 0), ["w3 hello c2 s1 fresh"]);
}

#[test]
fn a_wire_that_breaks_is_nothing_to_sessions_elsewhere() {
    let mut stage = Stage::client(2);
    stage.accept(1);
    assert_eq!(stage.wire_down(2), [""; 0], "asked for at edge 0");
    stage.own(1, 2, 1);
    stage.edge(3, 1);
    assert_eq!(stage.wire_down(3), [""; 0], "owned at edge 0");
}

#[test]
fn a_clients_session_without_an_owner_asks_another_edge_at_once() {
    let mut stage = Stage::owned(2);
    assert_eq!(stage.wire_down(1), ["s1 orphaned: it broke", "w2 hello c2 s1 after g1"]);
    assert_eq!(stage.agent.end(stage.session(1), false).unwrap().phase(), EndPhase::Detached);
    stage.wait(40);
    assert_eq!(stage.own(2, 2, 2), ["w2 promised c2 after g1", "s1 of app owned by g2 at 1.0 after 40 ms"]);
}

#[test]
fn a_clients_session_of_a_silent_owner_asks_another_edge_as_soon_as_it_is_suspected() {
    let mut stage = Stage::owned(2);
    stage.silence(1);
    let expected = ["2000 s1 orphaned: no frame from the edge for 2000 ms", "2000 w2 hello c2 s1 after g1"];
    assert_eq!(stage.wait(TIMEOUT), expected);
}

#[test]
fn a_clients_session_of_a_silent_owner_asks_it_again_after_its_next_frame() {
    let mut stage = Stage::owned(1);
    stage.silence(1);
    assert_eq!(stage.wait(TIMEOUT), ["2000 s1 orphaned: no frame from the edge for 2000 ms"]);
    assert_eq!(stage.frame(1, Pong { stamp: stage.now_ns, load: 0 }), ["w1 hello c4 s1 after g1"]);
    assert_eq!(stage.frame(1, Pong { stamp: stage.now_ns, load: 0 }), [""; 0], "once");
}

/// Whether the session says that its program is active, when its owner's wire breaks.
fn says_active(stage: &mut Stage) -> bool {
    says_active_after(stage, AgentInput::WireDown { wire: WireId(1), reason: "it broke".into() })
}

/// The same, when this makes it ask another edge.
fn says_active_after(stage: &mut Stage, input: AgentInput) -> bool {
    let mut out = Vec::new();
    stage.agent.step(stage.now_ns, input, &mut out);
    let hello = out.iter().find_map(|out| match out {
        AgentOutput::Send { frame: Frame::Hello(hello), .. } => Some(hello.active),
        _ => None,
    });
    hello.expect("another edge is asked")
}

#[test]
fn a_session_says_that_its_program_is_active_for_a_second_after_what_it_sent_or_received() {
    type Act = fn(&mut Stage);
    let acts: [Act; 2] = [|stage| drop(stage.hear(1, "ask")), |stage| drop(stage.output(1, 2, "answer"))];
    for act in acts {
        // A second, and the silence after which an owner counts as lost.
        for (waits_ms, active) in [(1_000 + TIMEOUT, true), (1_001 + TIMEOUT, false)] {
            let mut stage = Stage::owned(2);
            stage.wait(60_000);
            act(&mut stage);
            stage.wait(waits_ms);
            assert_eq!(says_active(&mut stage), active, "after {waits_ms} ms");
        }
    }
}

#[test]
fn sessions_that_lose_their_owner_together_ask_in_another_order_each_time() {
    let mut stage = Stage::client(2);
    let own = |stage: &mut Stage, wire: u64, asked: &[(usize, u32)], count: u64| {
        for (number, channel) in asked {
            stage.frame(wire, promise(stage.session(*number), *channel, count));
            stage.frame(wire, chosen(*channel));
        }
    };
    let begun: Vec<_> = (1..=20).flat_map(|number| asking(&stage.accept(number))).collect();
    own(&mut stage, 1, &begun, 1);
    let first = asking(&stage.wire_down(1));
    own(&mut stage, 2, &first, 2);
    stage.edge(3, 0);
    let second = asking(&stage.wire_down(2));
    let numbers = |asked: &[(usize, u32)]| asked.iter().map(|(number, _)| *number).collect::<Vec<_>>();
    let orders = [numbers(&begun), numbers(&first), numbers(&second)];
    assert!(orders.iter().all(|order| order.len() == 20), "{orders:?}");
    assert!(orders[0] != orders[1] && orders[1] != orders[2] && orders[0] != orders[2], "{orders:?}");
}

#[test]
fn a_session_that_has_had_no_owner_for_two_seconds_asks_as_if_its_program_were_active() {
    for (waits_ms, active) in [(1_999, false), (2_000, true)] {
        let mut stage = Stage::owned(2);
        stage.wait(60_000);
        // The second edge is asked, and dies too, with the session in its queue.
        assert!(!says_active(&mut stage));
        stage.edge(3, 0);
        stage.wait(waits_ms);
        let broke = AgentInput::WireDown { wire: WireId(2), reason: "it broke".into() };
        assert_eq!(says_active_after(&mut stage, broke), active, "after {waits_ms} ms");
    }
}

#[test]
fn a_servers_session_leaves_it_to_the_client_for_a_timeout() {
    let mut stage = Stage::serving(2);
    assert_eq!(stage.wire_down(1), ["s1 orphaned: it broke"]);
    assert_eq!(stage.wait(2 * TIMEOUT), ["2000 w2 hello c2 s1 by the server's end after g1"]);
}

#[test]
fn a_servers_session_without_an_edge_leaves_it_to_the_client_when_there_is_one() {
    let mut stage = Stage::serving(1);
    stage.wire_down(1);
    assert_eq!(stage.wait(2 * TIMEOUT), [""; 0]);
    assert_eq!(stage.edge(2, 0), [""; 0]);
    stage.wait(TIMEOUT / 2);
    assert_eq!(stage.edge(3, 1), [""; 0], "that begins no new wait");
    assert_eq!(stage.wait(TIMEOUT), ["1000 w2 hello c2 s1 by the server's end after g1"]);
}

#[test]
fn a_servers_session_does_not_ask_when_the_client_did() {
    let mut stage = Stage::serving(2);
    stage.wire_down(1);
    stage.wait(TIMEOUT / 2);
    let next = marram_wire::frame::Promise { server: "db".into(), ..promise(SERVED, 1, 2) };
    assert_eq!(stage.frame(2, next), ["w2 promised c1 after g1"]);
    assert_eq!(stage.frame(2, chosen(1)), ["s1 of app owned by g2 at 1.0 after 1000 ms"]);
    assert_eq!(stage.wait(5 * TIMEOUT), [""; 0]);
}

#[test]
fn an_edge_that_may_be_asked_again_is_asked_only_by_sessions_that_need_it() {
    let mut stage = Stage::owned(2);
    stage.frame(2, Drain { leave: true });
    stage.wire_down(2);
    stage.accept(2);
    // The first session has an owner, and the second is already asking an edge.
    assert_eq!(stage.edge(3, 1), [""; 0]);
}
