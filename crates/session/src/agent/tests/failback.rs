//! When a session fails back to its home shard.

use super::{
    super::{AgentInput, Target, WireId},
    Stage, chosen, promise,
    stage::{FAILBACK_DELAY, INTERVAL, MS, TIMEOUT, asking, config, generation, only, welcome},
};
use alloc::{format, string::String, vec::Vec};
use marram_wire::frame::{Chosen, Code, Ended, Keeps, Live, Promise, ProtectNow, Welcome};

/// An agent with a wire to each shard of an edge with two: wire 1 to the home shard of the session of connection 1, wire 2 to
/// the other. The session is owned by g1 at its home.
fn at_home() -> Stage {
    let mut stage = Stage::new(config(1, &[]), 1);
    let home = (0..2).find(|turn| {
        stage = Stage::new(config(1, &[]), *turn);
        stage.shard(1, 0, 0, 2);
        stage.shard(2, 0, 1, 2);
        only(stage.accept(1), "hello")[0].starts_with("w1")
    });
    assert!(home.is_some());
    stage.own(1, 2, 1);
    stage
}

/// As above; but shard 0 broke, came back as wire 3, and the session is now owned by g2 at the other shard.
fn away() -> Stage {
    let mut stage = at_home();
    assert_eq!(only(stage.wire_down(1), "hello"), ["w2 hello c2 s1 after g1"]);
    stage.own(2, 2, 2);
    stage.shard(3, 0, 0, 2);
    stage
}

/// Two sessions begin over wire 1. Each of the two shards is the home of one.
fn two_begin(stage: &mut Stage) {
    for (connection, channel) in [(1, 2), (2, 4)] {
        stage.accept(connection);
        let id = stage.session(usize::try_from(connection).unwrap());
        stage.frame(1, promise(id, channel, 1));
        stage.frame(1, chosen(channel));
    }
}

/// The time in milliseconds until it fails back, and the lines then.
fn goes(stage: &mut Stage) -> (u64, Vec<String>) {
    let (waited_ns, lines) = stage.wait_to("goes home", 100 * FAILBACK_DELAY);
    (waited_ns / MS, lines)
}

#[test]
fn a_session_goes_home_when_its_shard_has_been_well_for_a_while() {
    let mut stage = away();
    let (waited_ms, lines) = goes(&mut stage);
    assert_eq!(lines, ["s1 goes home to 0.0", "w3 hello c2 s1 after g2"]);
    assert!((FAILBACK_DELAY..=FAILBACK_DELAY * 5 / 4 + INTERVAL).contains(&waited_ms), "{waited_ms}");
    assert_eq!(stage.output(2, 2, "meanwhile"), ["p1 is given 'meanwhile'"]);
    let lines = stage.frame(3, promise(stage.session(1), 2, 3));
    assert_eq!(only(lines, "superseded"), ["w2 superseded c2 by g3"]);
    assert_eq!(only(stage.frame(3, chosen(2)), "owned").len(), 1);
    assert_eq!(only(stage.wait(100 * FAILBACK_DELAY), "home"), [""; 0], "it is there");
}

#[test]
fn sessions_go_one_after_the_other() {
    let mut stage = at_home();
    for number in 2..=9 {
        let hello = only(stage.accept(number), "hello");
        let wire = if hello[0].starts_with("w1") { 1 } else { 2 };
        let channel = u32::try_from(2 * number.div_ceil(2)).unwrap();
        stage.frame(wire, promise(stage.session(usize::try_from(number).unwrap()), channel, 1));
        stage.frame(wire, chosen(channel));
    }
    let lost = asking(&stage.wire_down(1));
    for (number, channel) in &lost {
        stage.frame(2, promise(stage.session(*number), *channel, 2));
        stage.frame(2, chosen(*channel));
    }
    stage.shard(3, 0, 0, 2);
    let mut times = Vec::new();
    for _ in &lost {
        let (_, lines) = goes(&mut stage);
        assert_eq!(only(lines, "hello").len(), 1);
        times.push(stage.now_ns / MS);
    }
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= INTERVAL), "{times:?}");
    assert_eq!(times.len(), 5);
}

#[test]
fn a_shard_that_fails_again_is_trusted_later() {
    let mut stage = away();
    let (first_ms, _) = goes(&mut stage);
    stage.own(3, 2, 3);
    let hello = only(stage.wire_down(3), "hello");
    assert_eq!(hello, ["w2 hello c4 s1 after g3"]);
    stage.own(2, 4, 4);
    stage.shard(4, 0, 0, 2);
    let (second_ms, _) = goes(&mut stage);
    assert!(second_ms >= 2 * FAILBACK_DELAY && second_ms > first_ms, "{first_ms}, {second_ms}");
}

#[test]
fn a_shard_that_is_suspected_again_has_to_be_well_from_then_on() {
    let mut stage = away();
    stage.wait(FAILBACK_DELAY / 2);
    stage.silence(3);
    stage.wait(TIMEOUT);
    stage.answering.insert(WireId(3), MS);
    let (waited_ms, _) = goes(&mut stage);
    assert!(waited_ms >= 2 * FAILBACK_DELAY, "{waited_ms}");
}

#[test]
fn a_session_that_home_will_not_have_stays_where_it_is() {
    let mut stage = away();
    goes(&mut stage);
    assert_eq!(stage.reject(3, 2, Code::Guest), [""; 0]);
    assert_eq!(only(stage.wait(100 * FAILBACK_DELAY), "hello"), [""; 0]);
    assert_eq!(stage.output(2, 2, "on"), ["p1 is given 'on'"]);
}

#[test]
fn a_session_that_home_cannot_have_now_asks_again_later() {
    let mut stage = away();
    goes(&mut stage);
    assert_eq!(stage.reject(3, 2, Code::Waiting), [""; 0]);
    let (waited_ms, lines) = goes(&mut stage);
    assert!(waited_ms >= FAILBACK_DELAY, "{waited_ms}");
    assert_eq!(only(lines, "hello"), ["w3 hello c4 s1 after g2"]);
}

#[test]
fn a_session_that_home_takes_long_to_restore_is_not_sent_there_again() {
    let mut stage = away();
    goes(&mut stage);
    stage.frame(3, promise(stage.session(1), 2, 3));
    assert_eq!(only(stage.wait(100 * FAILBACK_DELAY), "hello"), [""; 0]);
    // The same if it asked there because its owner failed.
    let mut stage = away();
    assert_eq!(only(stage.wire_down(2), "hello"), ["w3 hello c2 s1 after g2"]);
    stage.frame(3, promise(stage.session(1), 2, 3));
    assert_eq!(only(stage.wait(100 * FAILBACK_DELAY), "hello"), [""; 0]);
}

#[test]
fn a_session_that_an_operator_moved_stays_until_it_loses_its_owner() {
    let mut stage = at_home();
    stage.frame(2, Promise { assigned: true, ..promise(stage.session(1), 1, 2) });
    assert_eq!(only(stage.frame(2, chosen(1)), "owned").len(), 1);
    assert_eq!(only(stage.wait(100 * FAILBACK_DELAY), "hello"), [""; 0], "home is well");
    // Home has it after a failure, and loses it: now nothing keeps it away.
    assert_eq!(only(stage.wire_down(2), "hello"), ["w1 hello c4 s1 after g2"]);
    stage.own(1, 4, 3);
    stage.shard(3, 0, 1, 2);
    assert_eq!(only(stage.wire_down(1), "hello"), ["w3 hello c2 s1 after g3"]);
    stage.own(3, 2, 4);
    stage.shard(4, 0, 0, 2);
    let (_, lines) = goes(&mut stage);
    assert_eq!(only(lines, "hello"), ["w4 hello c2 s1 after g4"]);
}

#[test]
fn one_failure_that_is_seen_in_two_ways_counts_once() {
    let mut stage = at_home();
    stage.silence(1);
    assert_eq!(only(stage.wait(TIMEOUT), "hello").len(), 1);
    stage.own(2, 2, 2);
    stage.wire_down(1);
    stage.shard(3, 0, 0, 2);
    let (waited_ms, _) = goes(&mut stage);
    assert!(waited_ms < 2 * FAILBACK_DELAY, "{waited_ms}");
}

#[test]
fn a_session_that_begins_before_its_home_is_there_goes_there_after_a_while() {
    let mut stage = Stage::new(config(1, &[]), 1);
    stage.shard(1, 0, 0, 2);
    two_begin(&mut stage);
    stage.shard(2, 0, 1, 2);
    let (waited_ms, lines) = goes(&mut stage);
    assert!(waited_ms >= FAILBACK_DELAY && only(lines, "w2 hello").len() == 1, "{waited_ms}");
}

#[test]
fn an_edge_that_has_fewer_shards_now_has_its_sessions_where_they_are() {
    let mut stage = Stage::new(config(1, &[]), 1);
    // The wire that led to the third shard now leads to the first.
    stage.step(AgentInput::WireUp { wire: WireId(1), target: Target { edge: 0, shard: 2 } });
    stage.answering.insert(WireId(1), MS);
    stage.frame(1, Welcome { shard: 0, ..welcome(2) });
    two_begin(&mut stage);
    stage.shard(2, 0, 0, 2);
    assert_eq!(only(stage.wait(100 * FAILBACK_DELAY), "hello"), [""; 0]);
}

#[test]
fn a_home_that_does_not_answer_is_asked_again_later() {
    let mut stage = away();
    goes(&mut stage);
    let (waited_ms, lines) = goes(&mut stage);
    assert!(waited_ms >= FAILBACK_DELAY, "{waited_ms}");
    assert_eq!(only(lines, "hello"), ["w3 hello c4 s1 after g2"]);
}

#[test]
fn a_session_continues_if_its_owner_dies_during_the_failback() {
    let mut stage = away();
    goes(&mut stage);
    stage.wire_down(2);
    let lines = stage.own(3, 2, 3);
    assert_eq!(only(lines, "owned").len(), 1);
}

#[test]
fn an_unprotected_session_or_one_of_a_draining_agent_stays() {
    let mut stage = at_home();
    stage.wire_down(1);
    stage.frame(2, Promise { keeps: Keeps::Nothing, ..promise(stage.session(1), 2, 2) });
    stage.frame(2, chosen(2));
    stage.shard(3, 0, 0, 2);
    assert_eq!(only(stage.wait(100 * FAILBACK_DELAY), "hello"), [""; 0]);
    let mut stage = away();
    stage.step(AgentInput::Drain);
    assert_eq!(only(stage.wait(100 * FAILBACK_DELAY), "hello"), [""; 0]);
}

/// Its ends keep it only until the move is over, and refuse any other owner from then on.
#[test]
fn an_unprotected_session_that_moves_stays() {
    let mut stage = at_home();
    let session = stage.session(1);
    let unprotected = |count| Promise { keeps: Keeps::Nothing, ..promise(session, 1, count) };
    stage.frame(1, unprotected(2));
    stage.frame(1, chosen(1));
    stage.frame(1, ProtectNow { channel: 1, log_offset: 7, tag: [0; 8] });
    stage.wire_down(1);
    let live = Some(Live { generation: generation(2), took: 0, produced: 0, log_end: 7 });
    stage.frame(2, Promise { live, ..unprotected(3) });
    assert_eq!(only(stage.frame(2, Chosen { log_offset: 7, ..chosen(1) }), "owned").len(), 1);
    stage.shard(3, 0, 0, 2);
    assert_eq!(only(stage.wait(100 * FAILBACK_DELAY), "hello"), [""; 0]);
}

/// What the home shard says of the session must reach the other end, which only the owner can tell.
#[test]
fn an_owner_learns_that_the_home_shard_has_ended_the_session() {
    let mut stage = away();
    goes(&mut stage);
    let lines = stage.frame(3, Ended { channel: 2, code: Code::Lost, reason: "no".into() });
    assert_eq!(lines, ["w2 ended c2 Lost: no", "p1 is reset", "s1 over, Lost: no"]);
}

#[test]
fn a_session_is_at_home_at_any_shard_of_an_edge_with_one() {
    let mut stage = Stage::owned(2);
    stage.wire_down(1);
    stage.own(2, 2, 2);
    stage.edge(3, 0);
    let other = Target { edge: 0, shard: 0 };
    let home = format!("home to {}.{}", other.edge, other.shard);
    assert_eq!(only(stage.wait(100 * FAILBACK_DELAY), &home), [""; 0]);
}
