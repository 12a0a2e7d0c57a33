//! Which of several equally near edges new sessions ask.

use super::{
    super::{AgentConfig, WireId},
    Stage,
    stage::{MS, config, only, promise},
};
use alloc::{string::String, vec::Vec};
use marram_wire::frame::{Code, Pong, Promise, Reject};

/// Edges at the same distance, one shard each, and a first session that was promised to the first of them.
fn edges(count: u16, shared: bool) -> Stage {
    let mut stage = Stage::new(config(count, &[]), 1);
    known(&mut stage, count, shared);
    stage
}

fn known(stage: &mut Stage, count: u16, shared: bool) {
    for edge in 0..count {
        stage.edge(u64::from(edge) + 1, edge);
    }
    assert_eq!(asks(stage), "w1", "nothing is known of the app");
    stage.frame(1, Promise { shared, ..promise(stage.session(1), 2, 1) });
}

/// The wire on which the next new session asks.
fn asks(stage: &mut Stage) -> String {
    let lines = stage.accept(stage.agent.session_count() as u64 + 1);
    only(lines, "hello").first().expect("an edge is asked").split(' ').next().unwrap().into()
}

/// A shard tells how many sessions it has.
fn load(stage: &mut Stage, wire: u64, load: u32) {
    stage.frame(wire, Pong { stamp: stage.now_ns, load });
}

#[test]
fn new_sessions_ask_the_edge_with_the_least_load() {
    let mut stage = edges(3, false);
    for (wire, sessions) in [(1, 7), (2, 9), (3, 8)] {
        load(&mut stage, wire, sessions);
    }
    let asked: Vec<_> = (0..6).map(|_| asks(&mut stage)).collect();
    // The order of the list decides between equal ones; what was asked counts at once.
    assert_eq!(asked, ["w1", "w1", "w3", "w1", "w2", "w3"]);
    load(&mut stage, 2, 0);
    assert_eq!(
        [asks(&mut stage), asks(&mut stage)],
        ["w2", "w2"],
        "what it tells replaces what was asked before"
    );
}

#[test]
fn an_edge_with_more_shards_takes_more() {
    let mut stage = Stage::new(config(2, &[]), 1);
    stage.edge(1, 0);
    for shard in 0..3 {
        stage.shard(u64::from(shard) + 2, 1, shard, 3);
    }
    assert_eq!(asks(&mut stage), "w1");
    stage.frame(1, promise(stage.session(1), 2, 1));
    load(&mut stage, 1, 0);
    let first = (0..40).filter(|_| asks(&mut stage) == "w1").count();
    assert_eq!(first, 10);
}

#[test]
fn sessions_that_share_a_cell_meet_at_the_first_edge() {
    let mut stage = edges(2, true);
    load(&mut stage, 1, 100);
    assert_eq!([asks(&mut stage), asks(&mut stage)], ["w1", "w1"]);
}

#[test]
fn sessions_are_not_spread_where_that_is_turned_off() {
    let mut stage = Stage::new(AgentConfig { spread: false, ..config(2, &[]) }, 1);
    known(&mut stage, 2, false);
    load(&mut stage, 1, 100);
    assert_eq!([asks(&mut stage), asks(&mut stage)], ["w1", "w1"]);
}

#[test]
fn a_near_edge_goes_before_one_with_little_load() {
    let mut stage = Stage::new(config(2, &[]), 1);
    stage.answering.insert(WireId(1), MS);
    stage.answering.insert(WireId(2), 10 * MS);
    for edge in 0..2 {
        stage.edge(u64::from(edge) + 1, edge);
    }
    stage.wait(100);
    assert_eq!(asks(&mut stage), "w1");
    stage.frame(1, promise(stage.session(1), 2, 1));
    assert_eq!([asks(&mut stage), asks(&mut stage)], ["w1", "w1"]);
}

#[test]
fn an_edge_that_refuses_an_app_is_asked_after_the_others_for_a_while() {
    let mut stage = edges(2, false);
    load(&mut stage, 1, 100);
    load(&mut stage, 2, 0);
    let lines = stage.accept(2);
    let [hello] = &only(lines, "hello")[..] else { panic!("one edge is asked") };
    assert!(hello.starts_with("w2 hello c2 "), "{hello}");
    let reject = Reject { channel: 2, code: Code::UnknownApp, reason: "it has no such app".into() };
    let next = only(stage.frame(2, reject), "hello");
    assert!(next[0].starts_with("w1 "), "{next:?}");
    assert_eq!(asks(&mut stage), "w1", "the next session as well");
    stage.wait(5_000);
    load(&mut stage, 2, 0);
    load(&mut stage, 1, 100);
    assert_eq!(asks(&mut stage), "w2");
}
