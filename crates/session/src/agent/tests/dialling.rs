//! The wires that an agent requests, and its retries.

use super::{
    super::{AgentConfig, AgentInput, Target, WireId},
    Stage,
    stage::{MS, config, only, welcome},
};
use alloc::{
    collections::BTreeSet,
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    frame::{Goodbye, Ping, Welcome},
    limits::WIRE_VERSION,
};

const EDGE_0: Target = Target { edge: 0, shard: 0 };

fn started(edges: u16) -> Stage {
    let mut stage = Stage::new(config(edges, &["db"]), 1);
    stage.tells_wires = true;
    stage.step(AgentInput::Wake);
    stage
}

fn dial_failed(stage: &mut Stage) -> Vec<String> {
    stage.step(AgentInput::DialFailed { target: EDGE_0, reason: "refused".to_string() })
}

fn up(stage: &mut Stage, wire: u64) -> Vec<String> {
    stage.step(AgentInput::WireUp { wire: WireId(wire), target: EDGE_0 })
}

#[test]
fn every_edge_is_dialled_once_at_the_start() {
    let mut stage = Stage::new(config(2, &[]), 1);
    stage.tells_wires = true;
    assert_eq!(stage.step(AgentInput::Wake), ["dial 0.0", "dial 1.0"]);
    assert_eq!(stage.wait(60_000), [""; 0]);
}

#[test]
fn an_edge_is_greeted_and_then_its_other_shards_are_dialled() {
    let mut stage = started(1);
    assert_eq!(up(&mut stage, 1), [r#"w1 greet versions 1 to 2, servers ["db"]"#, "w1 ping"]);
    assert_eq!(stage.frame(1, welcome(3)), ["edge 0.0 is north", "dial 0.1", "dial 0.2"]);
    let second = AgentInput::WireUp { wire: WireId(2), target: Target { edge: 0, shard: 1 } };
    stage.step(second);
    assert_eq!(stage.frame(2, welcome(3)), ["edge 0.1 is north"]);
}

#[test]
fn an_edge_that_cannot_be_reached_is_dialled_ever_later() {
    let mut stage = started(1);
    for wait_ms in [100, 200, 400, 800, 1_000, 1_000] {
        assert_eq!(dial_failed(&mut stage), ["edge 0.0 down: refused"]);
        let waited_ns = stage.wait_for("dial 0.0", 5_000);
        assert!((wait_ms * MS / 2..=wait_ms * MS).contains(&waited_ns), "{waited_ns} of {wait_ms} ms");
    }
}

#[test]
fn a_wire_that_breaks_is_dialled_again_at_once_and_then_as_if_it_were_the_first_time() {
    let mut stage = started(1);
    for _ in 0..4 {
        dial_failed(&mut stage);
        stage.wait_for("dial 0.0", 5_000);
    }
    up(&mut stage, 1);
    stage.frame(1, welcome(1));
    assert_eq!(stage.wire_down(1), ["edge 0.0 down: it broke", "dial 0.0"]);
    assert_eq!(stage.wire_down(1), [""; 0], "it is known already");
    dial_failed(&mut stage);
    let waited_ns = stage.wait_for("dial 0.0", 5_000);
    assert!((50 * MS..=100 * MS).contains(&waited_ns), "{waited_ns}");
}

#[test]
fn an_edge_that_closes_wires_before_it_answers_is_dialled_ever_later() {
    let mut stage = started(1);
    for wait_ms in [100, 200, 400, 800, 1_000, 1_000] {
        up(&mut stage, 1);
        assert_eq!(stage.wire_down(1), ["edge 0.0 down: it broke"]);
        let waited_ns = stage.wait_for("dial 0.0", 5_000);
        assert!((wait_ms * MS / 2..=wait_ms * MS).contains(&waited_ns), "{waited_ns} of {wait_ms} ms");
    }
}

#[test]
fn a_wire_that_was_replaced_is_not_dialled_again() {
    let mut stage = started(1);
    up(&mut stage, 1);
    up(&mut stage, 2);
    stage.wire_down(1);
    assert_eq!(only(stage.wait(1_500), "dial"), [""; 0]);
    stage.wire_down(2);
    assert_eq!(only(stage.wait(1_500), "dial").len(), 1);
}

#[test]
fn many_agents_do_not_come_back_as_one() {
    let four = AgentConfig { backoff_min_ns: 4, backoff_max_ns: 4, ..config(1, &[]) };
    let waits = (0..64).map(|entropy| {
        let mut stage = Stage::new(four.clone(), entropy);
        stage.tells_wires = true;
        stage.step(AgentInput::Wake);
        dial_failed(&mut stage);
        stage.wait_for("dial", 1)
    });
    assert_eq!(
        waits.collect::<BTreeSet<u64>>(),
        BTreeSet::from([2, 3, 4]),
        "from half the wait to all of it"
    );
}

#[test]
fn an_edge_of_another_version_is_left_and_tried_again_later() {
    let reason = "the edge supports another version only; update the older of the two";
    let edges = [
        Welcome { version: 0, ..welcome(1) },
        Welcome { version: WIRE_VERSION + 1, ..welcome(1) },
        // An edge without a shard is useless.
        welcome(0),
    ];
    for edge in edges {
        let mut stage = started(1);
        up(&mut stage, 1);
        let expected =
            ["w1 goodbye: ", "w1 closes: ", "edge 0.0 down: "].map(|what| what.to_string() + reason);
        assert_eq!(stage.frame(1, edge), expected);
        assert!(stage.wait_for("dial 0.0", 100) >= 50 * MS);
    }
}

#[test]
fn an_edge_says_goodbye_and_is_dialled_again() {
    let mut stage = started(1);
    up(&mut stage, 1);
    stage.frame(1, welcome(1));
    let goodbye = Goodbye { reason: "updating".to_string() };
    let expected = ["w1 closes: updating", "edge 0.0 down: updating", "dial 0.0"];
    assert_eq!(stage.frame(1, goodbye), expected);
}

#[test]
fn an_edge_is_answered_when_it_asks_whether_the_agent_lives() {
    let mut stage = started(1);
    up(&mut stage, 1);
    assert_eq!(stage.frame(1, Ping { stamp: 77 }), ["w1 pong 77"]);
    assert_eq!(stage.frame(9, Ping { stamp: 77 }), [""; 0], "there is no such wire");
}
