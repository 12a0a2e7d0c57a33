//! Edges that an agent's edges tell it of.

use super::{
    super::{AgentConfig, AgentInput, Target, WireId},
    Stage,
    stage::{MS, config, promise, welcome},
};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    frame::{EdgeEntry, Edges, Welcome},
    limits::EDGE_FORGET_NS,
};

/// `("b", "b:1")` and so on.
fn edges(all: &[(&str, &str)]) -> Edges {
    let entry = |(name, address): &(&str, &str)| EdgeEntry {
        name: name.to_string(),
        addresses: address.split(' ').map(ToString::to_string).collect(),
    };
    Edges { edges: all.iter().map(entry).collect() }
}

fn named(name: &str) -> Welcome {
    Welcome { edge: name.to_string(), ..welcome(1) }
}

/// A client's agent that lists `north`, which answers on wire 1; it writes down all that concerns wires.
fn listing_north(learn: bool) -> Stage {
    let mut stage = Stage::new(AgentConfig { learn, ..config(1, &[]) }, 1);
    stage.edge(1, 0);
    stage.tells_wires = true;
    stage
}

/// It has learned of `south`, edge 1, which is up on wire 2.
fn learned() -> Stage {
    let mut stage = listing_north(true);
    stage.frame(1, edges(&[("north", "n:1"), ("south", "s:1")]));
    stage.wait_for("dial 1.0", 5_000);
    stage.answering.insert(WireId(2), MS);
    up(&mut stage, 2);
    stage.frame(2, named("south"));
    stage
}

fn up(stage: &mut Stage, wire: u64) -> Vec<String> {
    stage.step(AgentInput::WireUp { wire: WireId(wire), target: Target { edge: 1, shard: 0 } })
}

#[test]
fn an_edge_that_is_told_of_is_dialled_after_the_configured_ones() {
    let mut stage = listing_north(true);
    assert_eq!(stage.frame(1, edges(&[("north", "n:1"), ("south", "s:1")])), [""; 0]);
    let (_, lines) = stage.wait_to("dial 1.0", 5_000);
    assert_eq!(lines, ["edge 1 is at s:1", "dial 1.0"]);
    up(&mut stage, 2);
    assert_eq!(stage.frame(2, named("south")), ["edge 1.0 is south"]);
}

#[test]
fn an_agent_that_is_not_to_learn_dials_no_other_edge() {
    let mut stage = listing_north(false);
    assert_eq!(stage.frame(1, edges(&[("north", "n:1"), ("south", "s:1")])), [""; 0]);
    assert!(!stage.wait(60_000).iter().any(|line| line.contains("dial")));
}

#[test]
fn a_learned_edge_gets_a_session_by_its_own_promise_and_new_ones_only_without_the_configured() {
    let mut stage = learned();
    stage.tells_wires = false;
    let lines = stage.accept(1);
    assert!(lines.iter().any(|line| line.starts_with("w1 hello")), "{lines:?}");
    stage.own(1, 2, 1);
    let session = stage.agent.session_ids().next().expect("it has begun");
    // It was moved there.
    let lines = stage.frame(2, promise(session, 1, 2));
    assert!(lines.iter().any(|line| line == "w2 promised c1 after g1"), "{lines:?}");
    stage.wire_down(1);
    let lines = stage.accept(2);
    assert!(lines.iter().any(|line| line.starts_with("w2 hello")), "{lines:?}");
}

#[test]
fn another_edge_at_the_address_is_refused_and_the_next_address_is_dialled() {
    let mut stage = listing_north(true);
    stage.frame(1, edges(&[("south", "x:1 s:1")]));
    let (_, lines) = stage.wait_to("dial 1.0", 5_000);
    assert_eq!(lines, ["edge 1 is at x:1", "dial 1.0"]);
    up(&mut stage, 2);
    let lines = stage.frame(2, named("west"));
    let reason = "the edge at this address is `west`, and another one had told that it is `south`";
    let goodbye = alloc::format!("w2 goodbye: {reason}");
    assert_eq!(
        lines,
        [goodbye, alloc::format!("w2 closes: {reason}"), alloc::format!("edge 1.0 not as told: {reason}")]
    );
    let (_, lines) = stage.wait_to("dial 1.0", 5_000);
    assert_eq!(lines, ["edge 1 is at s:1", "dial 1.0"]);
    up(&mut stage, 3);
    assert_eq!(stage.frame(3, named("south")), ["edge 1.0 is south"]);
}

#[test]
fn an_edge_of_another_domain_is_refused() {
    let mut stage = listing_north(true);
    stage.frame(1, edges(&[("south", "s:1")]));
    stage.wait_for("dial 1.0", 5_000);
    up(&mut stage, 2);
    let lines = stage.frame(2, Welcome { domain: [9; 8], ..named("south") });
    assert!(lines[0].contains("another domain secret"), "{lines:?}");
}

#[test]
fn a_dead_address_is_dialled_ever_later() {
    let mut stage = listing_north(true);
    stage.frame(1, edges(&[("south", "s:1")]));
    let mut waits_ns = Vec::new();
    for _ in 0..10 {
        waits_ns.push(stage.wait_for("dial 1.0", 60_000));
        let target = Target { edge: 1, shard: 0 };
        stage.step(AgentInput::DialFailed { target, reason: "refused".to_string() });
    }
    // Other edges are dialled every second.
    assert!(*waits_ns.last().expect("ten") >= 8_000 * MS, "{waits_ns:?}");
}

#[test]
fn edges_are_told_of_one_another_under_the_addresses_that_they_name() {
    let mut stage = learned();
    let lines = stage.frame(2, edges(&[("south", "s:1 s:2"), ("north", "wrong:1")]));
    assert_eq!(lines, ["w1 edges north at n:1 south at s:1, s:2", "w2 edges north at n:1 south at s:1, s:2"]);
    assert_eq!(stage.frame(2, edges(&[("south", "s:1 s:2")])), [""; 0], "that is no news");
    let lines = stage.wire_down(2);
    assert!(lines.contains(&"w1 edges north at n:1".to_string()), "{lines:?}");
}

#[test]
fn an_edge_that_nothing_names_any_more_is_forgotten() {
    let mut stage = learned();
    stage.frame(1, edges(&[("north", "n:1")]));
    let (waited_ns, lines) = stage.wait_to("edge 1 is forgotten", 2 * EDGE_FORGET_NS / MS);
    assert_eq!(waited_ns / 1_000_000_000, EDGE_FORGET_NS / 1_000_000_000);
    assert!(lines[0].starts_with("w2 closes: no edge names this edge"), "{lines:?}");
}

#[test]
fn an_edge_that_answers_under_a_configured_place_is_not_kept_twice() {
    let mut stage = Stage::new(config(2, &[]), 1);
    stage.edge(1, 0);
    stage.tells_wires = true;
    stage.frame(1, edges(&[("south", "s:1")]));
    stage.answering.insert(WireId(2), MS);
    stage.step(AgentInput::WireUp { wire: WireId(2), target: Target { edge: 1, shard: 0 } });
    assert_eq!(
        stage.frame(2, named("south")),
        ["edge 1.0 is south", "edge 2.0 is not used any more", "edge 2 is forgotten"]
    );
}

/// An agent that lists two edges. The second one has restarted as `south-2`, and others still tell of `south`.
fn restarted(addresses: &[&str]) -> Stage {
    let addresses = addresses.iter().map(ToString::to_string).collect();
    let mut stage = Stage::new(AgentConfig { addresses, ..config(2, &[]) }, 1);
    stage.edge(1, 0);
    stage.tells_wires = true;
    for (wire, name) in [(2, "south"), (3, "south-2")] {
        stage.answering.insert(WireId(wire), MS);
        stage.step(AgentInput::WireUp { wire: WireId(wire), target: Target { edge: 1, shard: 0 } });
        assert_eq!(stage.frame(wire, named(name)), [alloc::format!("edge 1.0 is {name}")]);
        if wire == 2 {
            stage.wire_down(2);
        }
    }
    stage.frame(1, edges(&[("north", "n:1"), ("south", "s:1"), ("south-2", "s:1")]));
    stage
}

#[test]
fn an_edge_that_has_restarted_under_another_name_is_not_dialled_twice() {
    let mut stage = restarted(&["n:1", "s:1"]);
    assert!(!stage.wait(60_000).iter().any(|line| line.contains("dial")));
}

#[test]
fn an_edge_that_is_listed_at_another_address_is_not_down_because_it_has_another_name_now() {
    let mut stage = restarted(&["north.example.org:1", "south.example.org:1"]);
    let (_, lines) = stage.wait_to("dial 2.0", 5_000);
    assert_eq!(lines, ["edge 2 is at s:1", "dial 2.0"]);
    stage.step(AgentInput::WireUp { wire: WireId(4), target: Target { edge: 2, shard: 0 } });
    let lines = stage.frame(4, named("south-2"));
    assert!(lines.iter().any(|line| line.starts_with("edge 2.0 not as told, known: ")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("down")), "{lines:?}");
    // It is not dialled often.
    let waited_ns = stage.wait_for("dial 2.0", 60_000);
    stage
        .step(AgentInput::DialFailed { target: Target { edge: 2, shard: 0 }, reason: "refused".to_string() });
    assert!(waited_ns > 0);
}

#[test]
fn a_learned_edge_that_never_answered_is_not_down() {
    let mut stage = listing_north(true);
    stage.frame(1, edges(&[("south", "s:1")]));
    stage.wait_for("dial 1.0", 60_000);
    let target = Target { edge: 1, shard: 0 };
    let lines = stage.step(AgentInput::DialFailed { target, reason: "refused".to_string() });
    assert_eq!(lines, ["edge 1.0 not found: refused"]);
    stage.wait_for("dial 1.0", 60_000);
    up(&mut stage, 2);
    stage.frame(2, named("south"));
    assert!(stage.wire_down(2).iter().any(|line| line.starts_with("edge 1.0 down: ")));
}

#[test]
fn edges_that_do_not_exist_make_room_for_one_that_does() {
    let mut stage = Stage::new(config(3, &[]), 1);
    for (wire, edge) in [(1, 0), (2, 1), (3, 2)] {
        stage.edge(wire, edge);
    }
    stage.tells_wires = true;
    let dead = |who: &str| {
        let entry =
            |nth| EdgeEntry { name: alloc::format!("{who}{nth}"), addresses: Vec::from(["dead:1".into()]) };
        Edges { edges: (0..32).map(entry).collect() }
    };
    stage.frame(1, dead("a"));
    stage.frame(2, dead("b"));
    let lines = stage.frame(3, edges(&[("south", "s:1")]));
    let [forgotten] = &lines[..] else { panic!("{lines:?}") };
    let place = forgotten.strip_prefix("edge ").and_then(|line| line.strip_suffix(" is forgotten"));
    let place = place.expect("one has made room");
    stage.wait_for(&alloc::format!("edge {place} is at s:1"), 5_000);
}
