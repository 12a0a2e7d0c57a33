//! An edge that stands by for another one, and is refused there: its operator is told why, once. And what it says itself of sessions that it
//! does not keep.

use crate::{
    agents::world::{World, refusal},
    recalls,
};
use marram_session::agent::Target;
use marram_shard::api::{Configure, NoteLevel, ShardInput, ShardWireId, ToShard};
use marram_wire::{
    frame::{Goodbye, Keep, Pong},
    id::ImageHash,
};

const TARGET: Target = Target { edge: 0, shard: 0 };

/// A shard that is to stand by for the edge at `peer:1`.
fn standby() -> World {
    let mut world = World::new();
    let configure = Configure { edge: "here".into(), dials: vec!["peer:1".into()], ..Configure::default() };
    world.shard(ShardInput::Control(ToShard::Configure(configure)));
    world.notes.clear();
    world
}

fn fails(world: &mut World, reason: &str) {
    world.shard(ShardInput::DialFailed { target: TARGET, reason: reason.into() });
}

/// The edge is reached over a wire with this number, and refuses.
fn refuses(world: &mut World, number: u64, reason: &str) {
    let wire = ShardWireId(number);
    world.shard(ShardInput::Dialled { wire, target: TARGET });
    world.send(wire, Goodbye { reason: reason.into() });
}

fn told(world: &mut World) -> Vec<(NoteLevel, String)> {
    let begins = "does not stand by for the edge at `peer:1`: ";
    let told = world.notes.drain(..);
    told.filter_map(|(level, text)| Some((level, text.strip_prefix(begins)?.to_owned()))).collect()
}

#[test]
fn an_edge_that_cannot_be_reached_is_named_with_each_reason_once_until_it_was() {
    let mut world = standby();
    for _ in 0..3 {
        fails(&mut world, "connection refused");
        fails(&mut world, "timed out");
    }
    let reasons = ["connection refused", "timed out"];
    assert_eq!(told(&mut world), reasons.map(|reason| (NoteLevel::Info, reason.to_owned())));
    // However often the reason is another one.
    (0..10).for_each(|number| fails(&mut world, &format!("port {number}")));
    assert_eq!(told(&mut world).len(), 2);
    let wire = ShardWireId(41);
    world.shard(ShardInput::Dialled { wire, target: TARGET });
    world.send(wire, Pong { stamp: 1, load: 0 });
    world.shard(ShardInput::WireDown { wire });
    fails(&mut world, "timed out");
    assert_eq!(told(&mut world), [(NoteLevel::Info, "timed out".into())]);
}

#[test]
fn an_edge_of_another_version_is_named_with_what_to_do() {
    let mut world = standby();
    let version =
        "this edge supports wire versions 3 to 4, the other side 1 to 2: update the older of the two";
    fails(&mut world, "connection refused");
    (41..44).for_each(|wire| refuses(&mut world, wire, version));
    fails(&mut world, "connection refused");
    let [away, refused] = &told(&mut world)[..] else { panic!("each is told once") };
    assert_eq!((away.0, refused.clone()), (NoteLevel::Info, (NoteLevel::Warning, version.into())));
    // Another mistake is told, too.
    refuses(&mut world, 44, "the keeper's proof does not match");
    assert_eq!(told(&mut world), [(NoteLevel::Warning, "the keeper's proof does not match".into())]);
}

#[test]
fn an_edge_that_does_not_keep_a_session_says_what_to_do() {
    let mut world = World::new();
    let peer = recalls::peer(&mut world);
    world.heard(peer);
    world.send(peer, Keep { image: ImageHash([7; 32]), ..recalls::keep(1, 3) });
    let (_, reason) = refusal(&world.heard(peer));
    let fix = "the edge `here` does not have: `marram deploy` that version there too";
    assert!(reason.contains(fix), "{reason}");
    let dials = vec!["peer:1".into()];
    let full = Configure { edge: "here".into(), dials, sessions_max: 1, ..Configure::default() };
    world.shard(ShardInput::Control(ToShard::Configure(full)));
    world.send(peer, recalls::keep(3, 3));
    let (_, reason) = refusal(&world.heard(peer));
    assert!(reason.contains("raise `limits.sessions` of its edge"), "{reason}");
}
