//! Recoveries that wait for a recorder's answer.

use crate::agents::world::{World, app, client, keeper, refusal};
use marram_session::agent::Target;
use marram_shard::api::{Configure, ShardInput, ShardWireId, ToShard};
use marram_wire::{
    frame::{Channel, Code, Ended, Frame, Keep, Promise, Recall, Welcome},
    id::{Generation, HostId, SessionId},
    limits::WIRE_VERSION,
    rights::Rights,
};

const SESSION: SessionId = SessionId([55; 16]);

/// The wire of a recorder.
fn recorder(world: &mut World) -> ShardWireId {
    let wire = world.rogue(0, 8, Rights { recorder: true, ..Rights::default() }, &[]);
    let challenge = world.challenge(wire);
    world.send(wire, keeper(&challenge, "recorder", 0));
    wire
}

/// A wire to another edge, for whose sessions this shard stands by.
pub(crate) fn peer(world: &mut World) -> ShardWireId {
    let wire = ShardWireId(40);
    let configure = Configure { edge: "here".into(), dials: vec!["peer:1".into()], ..Configure::default() };
    world.shard(ShardInput::Control(ToShard::Configure(configure)));
    world.shard(ShardInput::Dialled { wire, target: Target { edge: 0, shard: 0 } });
    let welcome = Welcome {
        version: WIRE_VERSION,
        edge: "there".into(),
        shard: 0,
        shards: 1,
        challenge: [0; 16],
        draining: false,
        domain: [0; 8],
    };
    world.send(wire, welcome);
    wire
}

pub(crate) fn keep(channel: Channel, count: u64) -> Keep {
    Keep {
        channel,
        session: SESSION,
        generation: Generation { count, opener: 2 },
        app: "alone".into(),
        image: app("alone", None).image,
        hosts: vec![HostId([9; 16])],
        hot: false,
        moves: false,
        log_offset: 0,
        head: [0; 32],
        last_ns: 0,
        took: vec![0],
        group: None,
        origin: None,
        key: Default::default(),
    }
}

/// An end asks for the recovery of the session; returns its wire.
fn resume(world: &mut World) -> ShardWireId {
    let wire = world.rogue(1, 9, client(), &[]);
    let challenge = world.challenge(wire);
    let mut hello = world.resume(SESSION, SESSION, &challenge);
    (hello.app, hello.image) = ("alone".into(), Some(app("alone", None).image));
    world.send(wire, hello);
    wire
}

fn recalled(heard: &[Frame]) -> Option<Recall> {
    heard.iter().find_map(|frame| match frame {
        Frame::Recall(recall) => Some(recall.clone()),
        _ => None,
    })
}

fn promise(heard: &[Frame]) -> Option<Promise> {
    heard.iter().find_map(|frame| match frame {
        Frame::Promise(promise) => Some(promise.clone()),
        _ => None,
    })
}

#[test]
fn while_a_recorder_is_asked_no_owner_feeds_the_session() {
    let mut world = World::new();
    let (recorder, peer) = (recorder(&mut world), peer(&mut world));
    let end = resume(&mut world);
    let recall = recalled(&world.heard(recorder)).expect("the recorder is asked first");
    assert_eq!(recall.session, SESSION);
    world.heard(peer);
    for (channel, count) in [(1, 1), (3, 200)] {
        world.send(peer, keep(channel, count));
        let (code, reason) = refusal(&world.heard(peer));
        assert!(code == Some(Code::Superseded) && reason.contains("being recovered here"), "{reason}");
    }
    // The recorder's answer is for the end that waits.
    assert_eq!(promise(&world.heard(end)), None);
    let reason = "the recorder keeps nothing of the session".into();
    world.send(recorder, Ended { channel: recall.channel, code: Code::Forgotten, reason });
    let promise = promise(&world.heard(end)).expect("the recovery goes on");
    assert_eq!((promise.session, promise.live), (SESSION, None));
    world.unharmed();
}

#[test]
fn a_late_answer_of_a_recorder_does_not_end_a_feed() {
    let mut world = World::new();
    let (recorder, peer) = (recorder(&mut world), peer(&mut world));
    let end = resume(&mut world);
    let recall = recalled(&world.heard(recorder)).expect("the recorder is asked first");
    // The end gives up, and the wait with it.
    world.shard(ShardInput::WireDown { wire: end });
    let ended = Ended { channel: recall.channel, code: Code::Forgotten, reason: String::new() };
    world.send(recorder, ended.clone());
    world.heard(peer);
    world.send(peer, keep(1, 200));
    assert_eq!(world.heard(peer), [], "it is accepted");
    world.send(recorder, ended);
    assert_eq!(world.heard(peer), []);
    assert_eq!(world.shard.owner(SESSION).map(|owner| owner.generation().count), Some(200));
    world.unharmed();
}
