//! What agents are told of the edges of the domain.

use crate::agents::world::{World, client, keeper};
use marram_shard::api::{Configure, ShardInput, ToShard};
use marram_wire::{
    frame::{EdgeEntry, Edges, Frame},
    rights::Rights,
};

fn entry(name: &str, address: &str) -> EdgeEntry {
    EdgeEntry { name: name.into(), addresses: vec![address.into()] }
}

/// What was told last of each edge, as `name at address`.
fn told(heard: &[Frame]) -> Option<Vec<String>> {
    let edges = heard.iter().rev().find_map(|frame| match frame {
        Frame::Edges(edges) => Some(&edges.edges),
        _ => None,
    })?;
    Some(edges.iter().map(|edge| format!("{} at {}", edge.name, edge.addresses.join(", "))).collect())
}

fn configured() -> World {
    let mut world = World::new();
    let configure =
        Configure { edge: "here".into(), addresses: vec!["here:1".into()], ..Configure::default() };
    world.shard(ShardInput::Control(ToShard::Configure(configure)));
    world
}

#[test]
fn agents_are_told_of_the_edges_that_the_coordinator_knows() {
    let mut world = configured();
    let before = world.rogue(0, 9, client(), &[]);
    assert_eq!(told(&world.heard(before)).unwrap_or_default(), ["here at here:1"]);
    let edges = vec![entry("there", "there:1"), entry("here", "wrong:1")];
    world.shard(ShardInput::Control(ToShard::Edges(Edges { edges: edges.clone() })));
    let all = ["here at here:1", "there at there:1"];
    assert_eq!(told(&world.heard(before)).unwrap_or_default(), all, "it says itself where it is");
    let after = world.rogue(1, 8, client(), &[]);
    assert_eq!(told(&world.heard(after)).unwrap_or_default(), all);
    world.shard(ShardInput::Control(ToShard::Edges(Edges { edges })));
    assert_eq!(told(&world.heard(before)), None, "that is no news");
    world.shard(ShardInput::Control(ToShard::Edges(Edges { edges: Vec::new() })));
    assert_eq!(told(&world.heard(before)).unwrap_or_default(), ["here at here:1"]);
    world.unharmed();
}

#[test]
fn agents_are_told_only_of_what_an_edge_says_of_itself() {
    let mut world = configured();
    let agent = world.rogue(0, 9, client(), &[]);
    let edge = world.rogue(1, 8, Rights { edge: true, ..client() }, &[]);
    world.heard(agent);
    // An agent that names edges is not believed, and a peer not what it says of others.
    world.send(agent, Edges { edges: vec![entry("there", "wrong:1")] });
    assert_eq!(told(&world.heard(agent)), None);
    let challenge = world.challenge(edge);
    world.send(edge, keeper(&challenge, "there", 1));
    world.send(edge, Edges { edges: vec![entry("there", "there:1"), entry("third", "wrong:1")] });
    assert_eq!(told(&world.heard(agent)).unwrap_or_default(), ["here at here:1", "there at there:1"]);
    world.unharmed();
}
