//! When an agent sends heartbeats, suspects an edge, hears from it again, or closes its wire.

use super::{
    super::AgentInput,
    Stage,
    stage::{INTERVAL, TIMEOUT, config, only},
};
use alloc::vec::Vec;
use marram_wire::frame::Pong;

/// One wire to one edge. Wire events are in the lines, and pings are not answered.
fn silent() -> Stage {
    let mut stage = Stage::new(config(1, &[]), 1);
    stage.edge(1, 0);
    stage.tells_wires = true;
    stage.silence(1);
    stage
}

#[test]
fn a_wire_is_asked_at_each_interval() {
    let mut stage = silent();
    // First after a quarter of the interval, since the edge has welcomed the agent and said nothing more.
    assert_eq!(only(stage.wait(1_600), "ping"), ["175 w1 ping", "875 w1 ping", "1575 w1 ping"]);
}

#[test]
fn an_edge_is_suspected_once_when_its_silence_is_as_long_as_the_timeout() {
    let mut stage = silent();
    let suspected = "2000 edge 0.0 suspected: no frame from the edge for 2000 ms";
    assert_eq!(only(stage.wait(10 * TIMEOUT), "edge"), [suspected]);
}

#[test]
fn any_word_counts() {
    let mut stage = silent();
    stage.wait(1_500);
    stage.frame(1, Pong { stamp: stage.now_ns, load: 0 });
    assert_eq!(only(stage.wait(1_999), "edge"), [""; 0]);
    let suspected = "1 edge 0.0 suspected: no frame from the edge for 2000 ms";
    assert_eq!(only(stage.wait(1), "edge"), [suspected]);
}

#[test]
fn an_edge_that_answers_is_never_suspected() {
    let mut stage = Stage::client(1);
    stage.tells_wires = true;
    assert_eq!(stage.wait(100 * TIMEOUT), [""; 0]);
}

#[test]
fn a_suspected_edge_is_up_after_its_next_frame() {
    let mut stage = silent();
    stage.wait(TIMEOUT);
    assert_eq!(stage.frame(1, Pong { stamp: stage.now_ns, load: 0 }), ["edge 0.0 is north"]);
    assert_eq!(stage.frame(1, Pong { stamp: stage.now_ns, load: 0 }), [""; 0]);
    assert_eq!(only(stage.wait(TIMEOUT), "edge").len(), 1, "and it can be suspected again");
}

#[test]
fn a_suspected_wire_is_kept_for_forty_timeouts_and_asked_all_the_while() {
    let mut stage = silent();
    stage.wait(TIMEOUT);
    let lines = stage.wait(39 * TIMEOUT - 1);
    assert_eq!(only(lines.clone(), "edge"), [""; 0]);
    assert_eq!(only(lines, "ping").len() as u64, 40 * TIMEOUT / INTERVAL - TIMEOUT / INTERVAL);
    let reason = "no frame from the edge for 80000 ms";
    let lines = stage.wait(1);
    let expected = ["1 w1 closes: ", "1 edge 0.0 down: "].map(|what| alloc::format!("{what}{reason}"));
    assert_eq!(lines[..2], expected);
    assert_eq!(lines[2..], ["1 dial 0.0"]);
}

#[test]
fn silence_of_one_edge_says_nothing_of_another() {
    let mut stage = Stage::client(2);
    stage.tells_wires = true;
    stage.silence(2);
    let edges: Vec<_> = only(stage.wait(5 * TIMEOUT), "edge");
    assert_eq!(edges, ["2000 edge 1.0 suspected: no frame from the edge for 2000 ms"]);
}

#[test]
fn an_agent_says_once_when_it_wants_to_be_woken() {
    let mut stage = silent();
    for _ in 0..3 {
        let mut out = Vec::new();
        stage.agent.step(stage.now_ns, AgentInput::Wake, &mut out);
        assert_eq!(out, []);
    }
}
