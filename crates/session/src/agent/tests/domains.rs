//! Edges with different domain secrets.

use super::{
    super::{AgentInput, Target, WireId},
    Stage,
    stage::{config, only, welcome},
};
use alloc::{format, string::String, vec::Vec};
use marram_wire::frame::{Code, Welcome};

const NORTH: [u8; 8] = [4; 8];
const SOUTH: [u8; 8] = [5; 8];

/// An edge answers on a new wire; returns the reports about domains.
fn answers(stage: &mut Stage, wire: u64, edge: u16, domain: [u8; 8]) -> Vec<String> {
    stage.step(AgentInput::WireUp { wire: WireId(wire), target: Target { edge, shard: 0 } });
    let lines = stage.frame(wire, Welcome { edge: format!("e{edge}"), domain, ..welcome(1) });
    only(lines, "domain")
}

#[test]
fn an_edge_of_another_domain_is_reported_once() {
    let mut stage = Stage::new(config(3, &[]), 1);
    let none: [&str; 0] = [];
    assert_eq!(answers(&mut stage, 1, 0, NORTH), none);
    assert_eq!(answers(&mut stage, 2, 1, NORTH), none, "they agree");
    let told = ["edge 2.0 e2 is of another domain than e0"];
    assert_eq!(answers(&mut stage, 3, 2, SOUTH), told);
    stage.wire_down(3);
    assert_eq!(answers(&mut stage, 4, 2, SOUTH), none, "it was told");
    stage.wire_down(1);
    assert_eq!(answers(&mut stage, 5, 0, NORTH), none, "nor is the other one blamed");
    // The edge comes back with a third secret.
    stage.wire_down(4);
    assert_eq!(answers(&mut stage, 6, 2, [6; 8]).len(), 1);
}

#[test]
fn shards_of_one_edge_are_not_compared() {
    let mut stage = Stage::new(config(1, &[]), 1);
    answers(&mut stage, 1, 0, NORTH);
    stage.step(AgentInput::WireUp { wire: WireId(2), target: Target { edge: 0, shard: 1 } });
    let lines = stage.frame(2, Welcome { shard: 1, domain: SOUTH, ..welcome(2) });
    assert_eq!(only(lines, "domain"), [""; 0], "an edge that was started again with another");
}

#[test]
fn a_session_goes_to_edges_of_its_domain_first() {
    let mut stage = Stage::new(config(3, &[]), 1);
    for (wire, edge, domain) in [(1, 0, NORTH), (2, 1, SOUTH), (3, 2, NORTH)] {
        answers(&mut stage, wire, edge, domain);
    }
    stage.accept(1);
    stage.own(1, 2, 1);
    let asks = only(stage.wire_down(1), "hello");
    assert!(asks.len() == 1 && asks[0].starts_with("w3 "), "{asks:?}");
    // After a temporary refusal the session does not ask an edge that would refuse it permanently.
    assert_eq!(stage.reject(3, 2, Code::Busy), [""; 0]);
    stage.wait_for("w3 hello c4", 100);
    // Without any other edge, it asks that one: the answer contains the reason.
    let mut stage = Stage::new(config(2, &[]), 1);
    answers(&mut stage, 1, 0, NORTH);
    answers(&mut stage, 2, 1, SOUTH);
    stage.accept(1);
    stage.own(1, 2, 1);
    let asks = only(stage.wire_down(1), "hello");
    assert!(asks.len() == 1 && asks[0].starts_with("w2 "), "{asks:?}");
}
