//! The agent's behaviour when an edge, or the agent itself, drains.

use super::{
    super::AgentInput,
    Stage, chosen, promise,
    stage::{MS, SERVED, TIMEOUT, config, only, welcome},
};
use alloc::{string::String, vec::Vec};
use marram_wire::{
    frame::{Code, Drain, Keeps, Promise, Welcome},
    id::SessionId,
};

#[test]
fn an_agent_that_drains_takes_no_new_connections_and_serves_the_others() {
    let mut stage = Stage::owned(1);
    assert_eq!(stage.step(AgentInput::Drain), [""; 0]);
    assert_eq!(stage.accept(2), ["p2 is reset"]);
    assert_eq!(stage.agent.session_count(), 1);
    assert_eq!(stage.hear(1, "still here"), ["w1 input c2 'still here'"]);
    stage.wire_down(1);
    assert_eq!(stage.edge(2, 0), ["w2 hello c2 s1 after g1"]);
}

#[test]
fn the_agent_of_a_server_that_drains_is_no_end_of_new_sessions_and_stays_one_of_others() {
    let ask = |session, channel, count| Promise { server: "db".into(), ..promise(session, channel, count) };
    let mut stage = Stage::server(1);
    assert_eq!(stage.frame(1, ask(SERVED, 1, 1)), ["w1 promised c1 after g0"]);
    stage.step(AgentInput::Drain);
    let other = SessionId([9; 16]);
    let lines = stage.frame(1, ask(other, 3, 1));
    assert!(lines[0].starts_with("w1 ended c3 Busy: the agent is stopping"), "{lines:?}");
    // A recovery of the session that it has.
    let lines = stage.frame(1, ask(SERVED, 5, 2));
    assert!(lines.iter().any(|line| line == "w1 promised c5 after g1"), "{lines:?}");
    stage.step(AgentInput::CancelDrain);
    assert_eq!(stage.frame(1, ask(other, 7, 2)), ["w1 promised c7 after g0"]);
}

#[test]
fn a_session_leaves_an_edge_that_drains_and_stays_until_another_takes_it() {
    let mut stage = Stage::owned(2);
    assert_eq!(stage.frame(1, Drain { leave: true }), ["w2 hello c2 s1 after g1"]);
    assert_eq!(stage.frame(1, Drain { leave: true }), [""; 0], "it is on its way");
    assert_eq!(stage.output(1, 2, "meanwhile"), ["p1 is given 'meanwhile'"]);
    let lines = stage.frame(2, promise(stage.session(1), 2, 2));
    assert_eq!(lines, ["w1 superseded c2 by g2", "w2 promised c2 after g1"]);
    stage.wait(3);
    assert_eq!(stage.frame(2, chosen(2)), ["s1 of app owned by g2 at 1.0 after 3 ms"]);
    assert_eq!(stage.wire_down(1), [""; 0]);
}

#[test]
fn a_session_that_the_edge_may_hand_over_asks_no_other_edge_until_it_is_told_to() {
    let mut stage = Stage::owned(2);
    assert_eq!(stage.frame(1, Drain { leave: false }), [""; 0]);
    assert_eq!(stage.output(1, 2, "still here"), ["p1 is given 'still here'"]);
    assert_eq!(stage.accept(2), ["w2 hello c2 s2 fresh"], "new sessions begin elsewhere");
    assert_eq!(stage.frame(1, Drain { leave: true }), ["w2 hello c4 s1 after g1"]);
}

#[test]
fn a_session_asks_a_third_edge_when_the_second_one_breaks_or_falls_silent() {
    let mut stage = Stage::owned(3);
    stage.frame(1, Drain { leave: true });
    assert_eq!(stage.wire_down(2), ["w3 hello c2 s1 after g1"]);
    let mut stage = Stage::owned(3);
    stage.frame(1, Drain { leave: true });
    stage.silence(2);
    assert_eq!(stage.wait(TIMEOUT), ["2000 w3 hello c2 s1 after g1"]);
    assert_eq!(stage.output(1, 2, "on"), ["p1 is given 'on'"]);
}

#[test]
fn sessions_of_a_shard_leave_when_it_says_so_and_never_for_another_one_of_the_edge() {
    let mut stage = Stage::new(config(2, &[]), 1);
    for (wire, edge, shard) in [(1, 0, 0), (2, 0, 1)] {
        stage.shard(wire, edge, shard, 2);
    }
    let mut asked: Vec<String> = Vec::new();
    for connection in 1..=8 {
        asked.extend(stage.accept(connection));
    }
    assert!(
        asked.iter().any(|line| line.starts_with("w1")) && asked.iter().any(|line| line.starts_with("w2"))
    );
    for number in 1..=8 {
        let (wire, channel) = ask_of(&asked[number - 1]);
        stage.frame(wire, promise(stage.session(number), channel, 1));
        stage.frame(wire, chosen(channel));
    }
    stage.edge(3, 1);
    let of = |wire: u64| asked.iter().filter(|line| ask_of(line).0 == wire).count();
    for wire in [1, 2] {
        let hellos = stage.frame(wire, Drain { leave: true });
        assert_eq!(hellos.len(), of(wire));
        assert_eq!(only(hellos, "w3 hello").len(), of(wire));
    }
}

/// The wire and channel of a line like `w2 hello c4 ..`.
fn ask_of(line: &str) -> (u64, u32) {
    let mut words = line.split(' ');
    let mut number = |prefix| words.find_map(|word| word.strip_prefix(prefix)?.parse::<u32>().ok()).unwrap();
    (u64::from(number('w')), number('c'))
}

#[test]
fn sessions_of_other_edges_stay() {
    let mut stage = Stage::owned(3);
    assert_eq!(stage.frame(2, Drain { leave: true }), [""; 0]);
    assert_eq!(only(stage.accept(2), "hello"), ["w3 hello c2 s2 fresh"]);
    // A session that has moved to another edge does not move again, though its old owner may still send.
    let mut stage = Stage::owned(3);
    stage.own(2, 1, 2);
    assert_eq!(stage.frame(1, Drain { leave: true }), [""; 0]);
}

#[test]
fn a_session_with_nowhere_to_go_stays() {
    let mut stage = Stage::owned(1);
    assert_eq!(stage.frame(1, Drain { leave: true }), [""; 0]);
    assert_eq!(stage.output(1, 2, "on"), ["p1 is given 'on'"]);
    assert_eq!(stage.wait(60_000), ["5 w1 credit c2 received 1 taken 0"]);
}

#[test]
fn a_servers_session_leaves_it_to_the_client() {
    let mut stage = Stage::serving(2);
    assert_eq!(stage.frame(1, Drain { leave: true }), [""; 0]);
}

#[test]
fn an_unprotected_session_stays() {
    let mut stage = Stage::client(2);
    stage.accept(1);
    stage.frame(1, Promise { keeps: Keeps::Nothing, ..promise(stage.session(1), 2, 1) });
    stage.frame(1, chosen(2));
    assert_eq!(stage.frame(1, Drain { leave: true }), [""; 0]);
}

#[test]
fn a_session_that_is_rejected_elsewhere_stays_and_asks_again_ever_later() {
    let mut stage = Stage::owned(2);
    stage.frame(1, Drain { leave: true });
    for (channel, waited_ms) in (2..).step_by(2).zip([20, 40, 80, 160, 320, 500, 500]) {
        assert_eq!(stage.reject(2, channel, Code::Guest), [""; 0]);
        let next = alloc::format!("w2 hello c{} s1 after g1", channel + 2);
        assert_eq!(stage.wait_for(&next, 1_000), waited_ms * MS);
    }
    assert_eq!(stage.output(1, 2, "on"), ["p1 is given 'on'"]);
}

#[test]
fn an_agent_that_stays_takes_new_connections_again() {
    let mut stage = Stage::owned(1);
    stage.step(AgentInput::Drain);
    assert_eq!(stage.accept(2), ["p2 is reset"]);
    assert_eq!(stage.step(AgentInput::CancelDrain), [""; 0]);
    assert_eq!(stage.accept(3), ["w1 hello c4 s2 fresh"]);
}

#[test]
fn an_edge_that_stays_keeps_its_sessions_and_gets_new_ones() {
    let mut stage = Stage::owned(2);
    assert_eq!(stage.frame(1, Drain { leave: false }), [""; 0]);
    assert_eq!(stage.accept(2), ["w2 hello c2 s2 fresh"]);
    assert_eq!(stage.frame(1, welcome(1)), [""; 0]);
    assert_eq!(stage.output(1, 2, "still here"), ["p1 is given 'still here'"]);
    assert_eq!(stage.accept(3), ["w1 hello c4 s3 fresh"]);
    // It may drain again.
    assert_eq!(stage.frame(1, Drain { leave: true }), ["w2 hello c4 s1 after g1"]);
}

#[test]
fn a_new_session_that_waits_begins_at_an_edge_that_stays() {
    let mut stage = Stage::owned(1);
    stage.frame(1, Drain { leave: true });
    assert_eq!(stage.accept(2), [""; 0]);
    assert_eq!(stage.frame(1, Welcome { draining: true, ..welcome(1) }), [""; 0], "it says nothing new");
    assert_eq!(stage.frame(1, welcome(1)), ["w1 hello c4 s2 fresh"]);
}

#[test]
fn a_session_asks_no_other_edge_any_more_when_its_edge_stays_and_a_promise_that_comes_is_kept() {
    let mut stage = Stage::owned(2);
    assert_eq!(stage.frame(1, Drain { leave: true }), ["w2 hello c2 s1 after g1"]);
    stage.frame(1, welcome(1));
    assert_eq!(stage.reject(2, 2, Code::Guest), [""; 0]);
    let asked = only(stage.wait(60_000), "hello");
    assert_eq!(asked, [""; 0], "it stays where it is");
    assert_eq!(stage.output(1, 2, "on"), ["p1 is given 'on'"]);

    let mut stage = Stage::owned(2);
    stage.frame(1, Drain { leave: true });
    stage.frame(1, welcome(1));
    // What the other edge asks for goes on: the former owner learns of it.
    let lines = stage.frame(2, promise(stage.session(1), 2, 2));
    assert_eq!(lines, ["w1 superseded c2 by g2", "w2 promised c2 after g1"]);
}

/// The shards of an edge are told one after the other, so what two of them say may cross.
#[test]
fn the_last_shard_of_an_edge_decides_whether_it_drains() {
    let mut stage = Stage::new(config(2, &[]), 1);
    for (wire, edge, shard) in [(1, 0, 0), (2, 0, 1)] {
        stage.shard(wire, edge, shard, 2);
    }
    stage.edge(3, 1);
    let again = |shard| Welcome { shard, shards: 2, ..welcome(1) };
    stage.frame(1, Drain { leave: false });
    stage.frame(1, again(0));
    // The second one has not been told yet.
    stage.frame(2, Drain { leave: true });
    assert_eq!(only(stage.accept(1), "hello"), ["w3 hello c2 s1 fresh"]);
    stage.frame(2, again(1));
    let asked: Vec<String> = (2..=5).flat_map(|connection| only(stage.accept(connection), "hello")).collect();
    for wire in ["w1", "w2"] {
        assert!(asked.iter().any(|line| line.starts_with(wire)), "{asked:?}");
    }
}
