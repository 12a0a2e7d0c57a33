//! Sessions that are protected only while they move, and lose their owner meanwhile.

use super::{
    super::Target,
    Stage, chosen, promise,
    stage::{generation, only},
};
use crate::agent::AgentInput;
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::frame::{Chosen, Code, Keeps, Live, Promise, ProtectNow};

const LOST: &str = "s1 over, Lost: the session lost its edge while it moved, and no other edge has all of it";

/// A client's agent with so many edges. The session's owner at edge 0 moves it.
fn moving(edges: u16) -> Stage {
    let mut stage = Stage::client(edges);
    stage.accept(1);
    stage.frame(1, unprotected(&stage, 2, 1));
    stage.frame(1, chosen(2));
    let lines = stage.frame(1, ProtectNow { channel: 2, log_offset: 7, tag: [0; 8] });
    assert_eq!(lines.len(), 1, "{lines:?}");
    stage
}

fn unprotected(stage: &Stage, channel: u32, count: u64) -> Promise {
    Promise { keeps: Keeps::Nothing, ..promise(stage.session(1), channel, count) }
}

/// An edge asks that has nothing of the session, and rejects it after the refusal.
fn asks_in_vain(stage: &mut Stage, wire: u64, channel: u32, count: u64) -> Vec<String> {
    let mut lines = stage.frame(wire, unprotected(stage, channel, count));
    lines.extend(stage.reject(wire, channel, Code::Waiting));
    lines
}

fn dial_failed(stage: &mut Stage, edge: u16) -> Vec<String> {
    let (target, reason) = (Target { edge, shard: 0 }, "refused".to_string());
    stage.step(AgentInput::DialFailed { target, reason })
}

/// These lines contain it, or those of the next second do.
fn comes(stage: &mut Stage, lines: Vec<String>, what: &str) {
    if only(lines, what).is_empty() {
        stage.wait_for(what, 1_000);
    }
}

/// The owner's edge dies, and is not there when it is dialled again; the second edge is asked on channel 2.
fn owner_dies(stage: &mut Stage) {
    let lines = stage.wire_down(1);
    assert_eq!(only(lines.clone(), "over"), [""; 0]);
    comes(stage, lines, "w2 hello c2 s1");
    dial_failed(stage, 0);
}

#[test]
fn it_ends_once_no_edge_can_have_all_of_it() {
    let mut stage = moving(3);
    let lines = stage.wire_down(1);
    comes(&mut stage, lines, "w2 hello c2 s1");
    let lines = asks_in_vain(&mut stage, 2, 2, 2);
    assert_eq!(only(lines.clone(), "over"), [""; 0], "another edge may have it");
    comes(&mut stage, lines, "w3 hello c2 s1");
    let lines = asks_in_vain(&mut stage, 3, 2, 2);
    assert_eq!(only(lines, "over"), [""; 0], "its owner may live");
    let lines = dial_failed(&mut stage, 0);
    comes(&mut stage, lines, LOST);
}

#[test]
fn it_ends_at_once_if_its_edge_is_gone_before_the_last_one_asks() {
    let mut stage = moving(2);
    owner_dies(&mut stage);
    let lines = stage.frame(2, unprotected(&stage, 2, 2));
    let refused = "w2 ended c2 Waiting: the session moves, and this edge has not all of it";
    assert_eq!(lines, [refused, "p1 is reset", LOST]);
}

#[test]
fn it_goes_on_at_an_edge_that_has_all_of_it() {
    let mut stage = moving(3);
    owner_dies(&mut stage);
    let lines = asks_in_vain(&mut stage, 2, 2, 2);
    comes(&mut stage, lines, "w3 hello c2 s1");
    let live = Some(Live { generation: generation(1), took: 0, produced: 0, log_end: 7 });
    let lines = stage.frame(3, Promise { live, ..unprotected(&stage, 2, 2) });
    assert_eq!(only(lines, "over"), [""; 0]);
    let lines = stage.frame(3, Chosen { log_offset: 7, ..chosen(2) });
    assert_eq!(only(lines, "owned").len(), 1);
    // What was said of the second edge is over with that recovery.
    let lines = stage.wire_down(3);
    assert_eq!(only(lines, "over"), [""; 0]);
}

#[test]
fn it_waits_while_its_edge_is_silent() {
    let mut stage = moving(2);
    stage.silence(1);
    stage.wait_for("w2 hello c2 s1", 10_000);
    for channel in [2, 4, 6] {
        let lines = asks_in_vain(&mut stage, 2, channel, u64::from(channel));
        comes(&mut stage, lines, &alloc::format!("w2 hello c{} s1", channel + 2));
    }
}

#[test]
fn an_edge_that_has_not_all_of_it_may_get_the_rest_while_the_owner_lives() {
    let mut stage = moving(2);
    asks_in_vain(&mut stage, 2, 1, 2);
    owner_dies(&mut stage);
}

#[test]
fn an_edge_without_its_app_has_nothing_of_it() {
    let mut stage = moving(2);
    owner_dies(&mut stage);
    let lines = stage.reject(2, 2, Code::UnknownApp);
    comes(&mut stage, lines, LOST);
}
