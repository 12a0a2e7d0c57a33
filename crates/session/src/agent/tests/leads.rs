//! Sessions that edges lead to the one that has their cell.

use super::{
    super::{AgentInput, Target, WireId},
    Stage, chosen, promise,
    stage::{EDGE_WAIT, FAILBACK_DELAY, MS, config, only, welcome},
};
use alloc::{format, string::String, string::ToString, vec::Vec};
use marram_wire::frame::{Channel, Code, Drain, Lead, Standby, Welcome};

/// The names of edges 0, 1, ..
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// The edge with this number has one shard and is connected by wire `number + 1`.
fn connect(stage: &mut Stage, wire: u64, edge: u16) -> Vec<String> {
    stage.answering.insert(WireId(wire), MS);
    stage.step(AgentInput::WireUp { wire: WireId(wire), target: Target { edge, shard: 0 } });
    stage.frame(wire, Welcome { edge: NAMES[usize::from(edge)].to_string(), ..welcome(1) })
}

/// A client's agent with wires to so many edges, and a session that asks edge 0.
fn asking(edges: u16) -> Stage {
    let mut stage = Stage::new(config(edges, &[]), 1);
    for edge in 0..edges {
        connect(&mut stage, u64::from(edge) + 1, edge);
    }
    assert_eq!(stage.accept(1), ["w1 hello c2 s1 fresh"]);
    stage
}

/// As above, but edge 0 has the session.
fn owned(edges: u16) -> Stage {
    let mut stage = asking(edges);
    stage.own(1, 2, 1);
    stage
}

fn lead(channel: Channel, edge: &str, backup: &str) -> Lead {
    Lead { channel, edge: edge.to_string(), shard: 0, backup: backup.to_string(), backup_shard: 0 }
}

/// The wire and channel of the only hello.
fn hello(lines: &[String]) -> Option<(u64, Channel)> {
    let hellos: Vec<_> = lines.iter().filter_map(|line| line.split_once(" hello c")).collect();
    assert!(hellos.len() <= 1, "one edge at a time: {lines:?}");
    let (wire, rest) = hellos.first()?;
    let wire = wire.rsplit(['w', ' ']).next()?.parse().ok()?;
    Some((wire, rest.split(' ').next()?.parse().ok()?))
}

/// Lets each edge answer each hello until an edge with `promises` is asked. Returns the times between hellos in milliseconds.
fn answer_until_promised(
    stage: &mut Stage,
    promises: u64,
    mut answer: impl FnMut(u64, Channel) -> Lead,
) -> Vec<u64> {
    let (mut waits_ms, mut asked) = (Vec::new(), Some((1, 2)));
    loop {
        let (wire, channel) = asked.expect("an edge is asked");
        if wire == promises {
            let count = 1 + u64::try_from(waits_ms.len()).unwrap();
            assert_eq!(only(stage.own(wire, channel, count), "owned").len(), 1);
            return waits_ms;
        }
        let lines = stage.frame(wire, answer(wire, channel));
        asked = hello(&lines);
        let mut waited_ms = 0;
        if asked.is_none() {
            let (waited_ns, lines) = stage.wait_to(" hello c", 5_000);
            (waited_ms, asked) = (waited_ns / MS, hello(&lines));
        }
        waits_ms.push(waited_ms);
        assert!(waits_ms.len() < 100, "nothing is settled: {waits_ms:?}");
    }
}

#[test]
fn a_session_asks_where_it_is_led_at_once() {
    let mut stage = asking(3);
    assert_eq!(stage.frame(1, lead(2, "c", "b")), ["w3 hello c2 s1 fresh"]);
    assert_eq!(stage.own(3, 2, 1), ["w3 promised c2 after g0", "s1 of app owned by g1 at 2.0 after 0 ms"]);
}

#[test]
fn a_session_is_led_to_another_shard_of_the_edge() {
    let mut stage = Stage::new(config(1, &[]), 1);
    for shard in 0..3 {
        stage.shard(u64::from(shard) + 1, 0, shard, 3);
    }
    let (wire, channel) = hello(&stage.accept(1)).unwrap();
    for shard in (0..3).filter(|shard| u64::from(*shard) + 1 != wire) {
        let mut stage = Stage::new(config(1, &[]), 1);
        (0..3).for_each(|shard| drop(stage.shard(u64::from(shard) + 1, 0, shard, 3)));
        stage.accept(1);
        let lines = stage.frame(wire, Lead { shard, ..lead(channel, "north", "") });
        assert_eq!(lines, [format!("w{} hello c2 s1 fresh", shard + 1)]);
    }
}

#[test]
fn a_session_is_led_to_the_backup_if_the_owner_cannot_be_reached() {
    // Edge 3 is not connected.
    let mut stage = asking(3);
    assert_eq!(stage.frame(1, lead(2, "d", "c")), ["w3 hello c2 s1 fresh"]);
    // Neither is connected any more: the ordinary order.
    let mut stage = asking(3);
    stage.wire_down(3);
    assert_eq!(stage.frame(1, lead(2, "d", "c")), ["w2 hello c2 s1 fresh"]);
}

#[test]
fn the_backup_is_next_if_the_owner_refuses_or_breaks() {
    let mut stage = asking(4);
    assert_eq!(stage.frame(1, lead(2, "d", "c")), ["w4 hello c2 s1 fresh"]);
    assert_eq!(stage.reject(4, 2, Code::Waiting), ["w3 hello c2 s1 fresh"]);
    assert_eq!(stage.reject(3, 2, Code::Waiting), ["w2 hello c2 s1 fresh"], "the ordinary order");
    let mut stage = asking(4);
    stage.frame(1, lead(2, "d", "c"));
    assert_eq!(stage.wire_down(4), ["w3 hello c2 s1 fresh"]);
    let mut stage = asking(4);
    stage.frame(1, lead(2, "d", "c"));
    assert_eq!(stage.wait(5_000), ["5000 w3 hello c2 s1 fresh"], "it has not answered");
}

/// It refused before it knew of the cell, or before it was promoted.
#[test]
fn a_session_is_led_to_an_edge_that_refused_it_before() {
    let mut stage = asking(3);
    assert_eq!(stage.reject(1, 2, Code::Waiting), ["w2 hello c2 s1 fresh"]);
    assert_eq!(stage.frame(2, lead(2, "a", "")), ["w1 hello c4 s1 fresh"]);
    stage.own(1, 4, 1);
}

#[test]
fn a_lead_is_better_than_what_the_last_owner_said() {
    let mut stage = owned(4);
    stage.frame(1, Standby { channel: 2, edge: "c".to_string(), shard: 0 });
    assert_eq!(only(stage.wire_down(1), "hello"), ["w3 hello c2 s1 after g1"]);
    assert_eq!(stage.frame(3, lead(2, "d", "b")), ["w4 hello c2 s1 after g1"]);
    // And it counts until there is a promise, also for an edge that is connected only now.
    assert_eq!(stage.reject(4, 2, Code::Waiting), ["w2 hello c2 s1 after g1"]);
    stage.frame(2, lead(2, "a", ""));
    stage.wait_for("w3 hello c4", 100);
    connect(&mut stage, 5, 0);
    assert_eq!(stage.reject(3, 4, Code::Waiting), ["w5 hello c2 s1 after g1"]);
    stage.own(5, 2, 2);
    // The standby is known to be the last owner's again.
    assert_eq!(only(stage.wire_down(5), "hello"), ["w3 hello c6 s1 after g2"]);
}

#[test]
fn leads_in_a_circle_are_left() {
    let mut stage = asking(3);
    let circle = |wire, channel| lead(channel, if wire == 1 { "b" } else { "a" }, "");
    let waits_ms = answer_until_promised(&mut stage, 3, circle);
    let [0, 0, 0, waited_ms] = waits_ms[..] else { panic!("{waits_ms:?}") };
    assert!((20..=30).contains(&waited_ms), "{waited_ms}");
}

#[test]
fn a_circle_of_many_edges_is_left() {
    let mut stage = asking(5);
    // Each one leads to the next one, the fourth to the first.
    let next = |wire: u64, channel| lead(channel, NAMES[usize::try_from(wire % 4).unwrap()], "");
    let waits_ms = answer_until_promised(&mut stage, 5, next);
    assert!(waits_ms.iter().filter(|waited_ms| **waited_ms > 0).count() <= 2, "{waits_ms:?}");
}

#[test]
fn leads_back_and_forth_do_not_spin() {
    let mut stage = asking(2);
    let mut asked = Some((1, 2));
    let mut hellos = 0;
    let since_ns = stage.now_ns;
    while stage.agent.session_count() > 0 {
        let lines = match asked {
            Some((wire, channel)) => stage.frame(wire, lead(channel, if wire == 1 { "b" } else { "a" }, "")),
            None => {
                let told = stage.wait(100);
                told.into_iter().filter(|line| line.contains("hello")).collect()
            }
        };
        asked = hello(&lines);
        hellos += u64::from(asked.is_some());
    }
    let waited_ms = (stage.now_ns - since_ns) / MS;
    assert!(waited_ms >= EDGE_WAIT && hellos < 200, "{hellos} hellos in {waited_ms} ms");
}

#[test]
fn a_lead_to_itself_or_to_no_known_edge_is_a_rejection() {
    for (edge, backup) in [("a", ""), ("", ""), ("", "a"), ("a", "a"), ("z", "y")] {
        let mut stage = asking(2);
        assert_eq!(stage.frame(1, lead(2, edge, backup)), ["w2 hello c2 s1 fresh"], "{edge}, {backup}");
        let mut stage = asking(1);
        assert_eq!(stage.frame(1, lead(2, edge, backup)), [""; 0], "{edge}, {backup}");
        let (waited_ns, lines) = stage.wait_to("hello", 100);
        assert!((20..=30).contains(&(waited_ns / MS)), "{waited_ns}");
        assert_eq!(lines, ["w1 hello c4 s1 fresh"]);
    }
    // The shard counts too.
    let mut stage = asking(2);
    let lines = stage.frame(1, Lead { shard: 1, ..lead(2, "b", "") });
    assert_eq!(lines, ["w2 hello c2 s1 fresh"], "in the ordinary order");
    let mut stage = asking(3);
    assert_eq!(stage.frame(1, Lead { shard: 1, ..lead(2, "c", "") }), ["w2 hello c2 s1 fresh"]);
}

#[test]
fn a_session_that_is_only_led_ends_with_the_reason() {
    let mut stage = asking(1);
    let mut channel = 2;
    let end = loop {
        stage.frame(1, lead(channel, "z", "y"));
        channel += 2;
        let (_, lines) = stage.wait_to("s1 ", EDGE_WAIT);
        if hello(&lines).is_none() && stage.agent.session_count() == 0 {
            break lines;
        }
        assert!(channel < 100, "{lines:?}");
    };
    let last = "the cell of the session is at shard 0 of edge z";
    let text = format!(
        "s1 over, Elsewhere: no edge accepted the session in time; the last refusal: {last} (lingered)"
    );
    assert_eq!(only(end, "over"), [text]);
}

#[test]
fn a_lead_counts_only_as_an_answer() {
    // On a channel that does not exist; its sender need not know.
    let mut stage = owned(2);
    assert_eq!(stage.frame(1, lead(8, "b", "")), [""; 0]);
    // From the owner of a session.
    let broken = "w1 ended c2 Protocol: a frame is not allowed in this phase";
    let over = "s1 over, Protocol: a frame is not allowed in this phase";
    assert_eq!(stage.frame(1, lead(2, "b", "")), [broken, "p1 is reset", over]);
    // From one that was promised.
    let mut stage = asking(2);
    stage.frame(1, promise(stage.session(1), 2, 1));
    assert_eq!(stage.frame(1, lead(2, "b", "")), [broken, "p1 is reset", over]);
    // From a former owner.
    let mut stage = owned(2);
    stage.silence(1);
    stage.wait_for("w2 hello", 5_000);
    stage.own(2, 2, 2);
    assert_eq!(only(stage.frame(1, lead(2, "b", "")), "superseded"), ["w1 superseded c2 by g2"]);
    // It was asked, and another edge was quicker.
    let mut stage = asking(2);
    stage.frame(2, promise(stage.session(1), 1, 1));
    assert_eq!(stage.frame(1, lead(2, "b", "")), [""; 0]);
    assert_eq!(stage.agent.session_count(), 1);
}

#[test]
fn a_session_that_was_on_its_way_home_stays_where_it_is() {
    let home = (0..2).find_map(|turn| {
        let mut stage = Stage::new(config(1, &[]), turn);
        stage.shard(1, 0, 0, 2);
        stage.shard(2, 0, 1, 2);
        hello(&stage.accept(1)).is_some_and(|(wire, _)| wire == 1).then_some(stage)
    });
    let mut stage = home.expect("one of two turns");
    stage.own(1, 2, 1);
    stage.wire_down(1);
    stage.own(2, 2, 2);
    stage.shard(3, 0, 0, 2);
    stage.wait_for("w3 hello c2", 100 * FAILBACK_DELAY);
    assert_eq!(stage.frame(3, Lead { shard: 1, ..lead(2, "north", "") }), [""; 0]);
    assert_eq!(only(stage.wait(100 * FAILBACK_DELAY), "hello"), [""; 0]);
    assert_eq!(stage.output(2, 2, "on"), ["p1 is given 'on'"]);
}

/// Its edge drains, and keeps it until another one has it.
#[test]
fn a_session_that_has_an_owner_follows_leads_slowly() {
    let mut stage = owned(3);
    let lines = stage.frame(1, Drain { leave: true });
    assert_eq!(only(lines, "hello"), ["w2 hello c2 s1 after g1"]);
    assert_eq!(stage.frame(2, lead(2, "c", "a")), [""; 0]);
    let waited_ns = stage.wait_for("w3 hello c2 s1 after g1", 100);
    assert!(waited_ns >= 20 * MS, "{waited_ns}");
    assert_eq!(stage.output(1, 2, "on"), ["p1 is given 'on'"]);
    stage.frame(3, promise(stage.session(1), 2, 2));
    let lines = stage.frame(3, chosen(2));
    assert_eq!(only(lines, "owned").len(), 1);
}

#[test]
fn each_session_has_its_own_leads() {
    let mut stage = asking(3);
    stage.frame(1, lead(2, "c", ""));
    assert_eq!(stage.accept(2), ["w1 hello c4 s2 fresh"]);
    assert_eq!(stage.reject(1, 4, Code::Busy), ["w2 hello c2 s2 fresh"]);
}
