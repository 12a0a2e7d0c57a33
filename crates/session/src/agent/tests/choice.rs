//! The edge and the shard that a new session asks.

use super::{
    super::{AgentInput, WireId},
    Stage,
    stage::{MS, TIMEOUT, config, only, welcome},
};
use alloc::{format, string::String, vec::Vec};
use marram_wire::frame::{Drain, Pong, Welcome};

/// Edges with these round trips, each measured once.
fn edges(round_trips_ms: &[u64]) -> Stage {
    let mut stage = Stage::new(config(u16::try_from(round_trips_ms.len()).unwrap(), &[]), 1);
    for (edge, ms) in (0..).zip(round_trips_ms) {
        let wire = u64::from(edge) + 1;
        stage.answering.insert(WireId(wire), ms * MS);
        stage.edge(wire, edge);
    }
    stage.wait(100);
    stage
}

/// The wire on which a new session asks.
fn asks(stage: &mut Stage) -> String {
    let lines = stage.accept(stage.agent.session_count() as u64 + 1);
    let wire = lines.first().expect("an edge is asked").split(' ').next().unwrap();
    String::from(wire)
}

#[test]
fn the_nearest_edge_is_asked() {
    let cases: [(&[u64], &str); 6] = [
        (&[1, 10], "w1"),
        (&[10, 1], "w2"),
        (&[10, 5, 30], "w2"),
        // If they differ by less than two milliseconds, the order of the list counts.
        (&[1, 0], "w1"),
        (&[3, 2], "w1"),
        (&[4, 3], "w2"),
    ];
    for (round_trips_ms, expected) in cases {
        assert_eq!(asks(&mut edges(round_trips_ms)), expected, "{round_trips_ms:?}");
    }
}

#[test]
fn one_slow_answer_does_not_make_an_edge_far_but_many_do() {
    let mut stage = edges(&[1, 5]);
    let mut answer = || {
        let stamp = stage.now_ns - 17 * MS;
        stage.frame(1, Pong { stamp, load: 0 });
        asks(&mut stage)
    };
    // A moving average, 7/8 old and 1/8 new: 3 ms, 4.75 ms, 6.3 ms.
    assert_eq!([answer(), answer(), answer()], ["w1", "w1", "w2"]);
}

#[test]
fn an_edge_is_as_near_as_the_best_of_its_shards() {
    let mut stage = Stage::new(config(2, &[]), 1);
    for (wire, edge, shard, ms) in [(1, 0, 0, 10), (2, 1, 0, 20), (3, 1, 1, 1)] {
        stage.answering.insert(WireId(wire), ms * MS);
        stage.shard(wire, edge, shard, 2);
    }
    stage.wait(100);
    for _ in 0..10 {
        assert_ne!(asks(&mut stage), "w1");
    }
}

#[test]
fn sessions_are_spread_over_shards_by_their_id() {
    let mut stage = Stage::new(config(1, &[]), 1);
    // The later wire leads to the earlier shard.
    for (wire, shard) in [(1, 2), (2, 1), (3, 0)] {
        stage.shard(wire, 0, shard, 3);
    }
    for number in 1..=30 {
        let asked = asks(&mut stage);
        let shard = stage.session(number).0[0] % 3;
        assert_eq!(asked, format!("w{}", 3 - shard), "session {number}");
    }
}

#[test]
fn shards_have_their_turns() {
    let mut stage = Stage::new(config(1, &[]), 1);
    for (wire, shard) in [(1, 0), (2, 1), (3, 2)] {
        stage.shard(wire, 0, shard, 3);
    }
    let asked: Vec<String> = (0..30).map(|_| asks(&mut stage)).collect();
    for three in asked.chunks(3) {
        for wire in ["w1", "w2", "w3"] {
            assert!(three.iter().any(|asked| asked == wire), "{asked:?}");
        }
    }
}

#[test]
fn the_next_shards_stand_in_for_one_that_is_missing() {
    let mut stage = Stage::new(config(1, &[]), 1);
    for (wire, shard) in [(1, 3), (2, 0)] {
        stage.shard(wire, 0, shard, 4);
    }
    for number in 1..=30 {
        let asked = asks(&mut stage);
        let expected = if stage.session(number).0[0].is_multiple_of(4) { "w2" } else { "w1" };
        assert_eq!(asked, expected, "session {number}");
    }
}

/// A change that makes edge 0, the first in the list, unusable.
type Spoil = (&'static str, fn(&mut Stage));

#[test]
fn only_an_edge_that_answered_and_is_not_suspected_and_does_not_drain_is_asked() {
    let spoils: [Spoil; 4] = [
        ("drains", |stage| drop(stage.frame(1, Drain { leave: true }))),
        ("drained when it answered", |stage| drop(stage.frame(1, Welcome { draining: true, ..welcome(1) }))),
        ("is silent", |stage| {
            stage.silence(1);
            stage.wait(TIMEOUT);
        }),
        ("broke", |stage| drop(stage.wire_down(1))),
    ];
    for (what, spoil) in spoils {
        let mut stage = Stage::client(2);
        spoil(&mut stage);
        assert_eq!(asks(&mut stage), "w2", "an edge that {what}");
    }
    let mut stage = Stage::new(config(2, &[]), 1);
    stage.step(AgentInput::WireUp { wire: WireId(1), target: super::super::Target { edge: 0, shard: 0 } });
    stage.edge(2, 1);
    assert_eq!(asks(&mut stage), "w2", "an edge that did not answer yet");
}

#[test]
fn a_drained_edge_is_not_asked_though_it_is_the_only_one() {
    let mut stage = Stage::client(1);
    stage.frame(1, Drain { leave: true });
    assert_eq!(stage.accept(1), [""; 0]);
    let next = only(stage.edge(2, 1), "hello");
    assert_eq!(next, ["w2 hello c2 s1 fresh"]);
}
