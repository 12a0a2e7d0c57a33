//! Edges that do not share a domain secret.

use super::{
    super::{In, Target, WireId},
    Stage,
    stage::{config, only, welcome},
};
use alloc::{format, string::String, vec::Vec};
use marram_wire::frame::Welcome;

const NORTH: [u8; 8] = [4; 8];
const SOUTH: [u8; 8] = [5; 8];

/// An edge answers on a new wire; what is reported of domains.
fn answers(stage: &mut Stage, wire: u64, edge: u16, domain: [u8; 8]) -> Vec<String> {
    stage.step(In::WireUp { wire: WireId(wire), target: Target { edge, shard: 0 } });
    let lines = stage.frame(wire, Welcome { edge: format!("e{edge}"), domain, ..welcome(1) });
    only(lines, "domain")
}

#[test]
fn an_edge_of_another_domain_is_told_of_once() {
    let mut stage = Stage::new(config(3, &[]), 1);
    let none: [&str; 0] = [];
    assert_eq!(answers(&mut stage, 1, 0, NORTH), none);
    assert_eq!(answers(&mut stage, 2, 1, NORTH), none, "they agree");
    let told = ["edge 2.0 e2 is of another domain than e0"];
    assert_eq!(answers(&mut stage, 3, 2, SOUTH), told);
    stage.wire_down(3);
    assert_eq!(answers(&mut stage, 4, 2, SOUTH), none, "it was told");
    // It is given the secret of the others, and then not.
    stage.wire_down(4);
    assert_eq!(answers(&mut stage, 5, 2, NORTH), none);
    stage.wire_down(5);
    assert_eq!(answers(&mut stage, 6, 2, SOUTH), told);
}

#[test]
fn shards_of_one_edge_are_not_compared() {
    let mut stage = Stage::new(config(1, &[]), 1);
    answers(&mut stage, 1, 0, NORTH);
    stage.wire_down(1);
    assert_eq!(
        answers(&mut stage, 2, 0, SOUTH),
        [""; 0],
        "a new secret is no matter while there is no other edge"
    );
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
    // Where there is no other, that one says why it cannot.
    let mut stage = Stage::new(config(2, &[]), 1);
    answers(&mut stage, 1, 0, NORTH);
    answers(&mut stage, 2, 1, SOUTH);
    stage.accept(1);
    stage.own(1, 2, 1);
    let asks = only(stage.wire_down(1), "hello");
    assert!(asks.len() == 1 && asks[0].starts_with("w2 "), "{asks:?}");
}
