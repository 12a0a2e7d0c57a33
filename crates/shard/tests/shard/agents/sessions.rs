//! Agents that attack sessions of other agents.

use super::world::{World, client, refusal, secret};
use marram_shard::api::{Configure, ShardInput, ToShard};
use marram_wire::{
    frame::{Code, Frame},
    id::SessionId,
    seal::{self, SessionKeys},
};

const OWN: SessionId = SessionId([55; 16]);

#[test]
fn a_session_is_not_resumed_without_its_key() {
    let mut world = World::new();
    let (owner, victim) = (world.owner(), world.session);
    let rogue = world.rogue(0, 9, client(), &[]);
    let challenge = world.challenge(rogue);
    // Its own session; it knows the key of that one.
    let hello = world.hello(OWN, "alone");
    world.send(rogue, hello);
    let heard = world.heard(rogue);
    let key = heard.iter().find_map(|frame| match frame {
        Frame::Promise(promise) => Some(promise.key),
        _ => None,
    });
    let key = key.expect("it may open sessions");
    assert_eq!(key, SessionKeys::derive(&secret(), OWN).resume());
    let stolen = SessionKeys::derive(&secret(), victim).resume();
    let proofs = [
        ("none", None),
        ("zeros", Some([0; 16])),
        ("its own session's key", Some(seal::proof(&key, &challenge, victim))),
        ("its own session's proof", Some(seal::proof(&key, &challenge, OWN))),
        ("a proof for another wire", Some(seal::proof(&stolen, &[1; 16], victim))),
        ("a proof for another session", Some(seal::proof(&stolen, &challenge, OWN))),
    ];
    for (what, proof) in proofs {
        for server in [false, true] {
            let mut hello = world.resume(victim, OWN, &challenge);
            (hello.proof, hello.server) = (proof, server);
            world.send(rogue, hello);
            let (code, _) = refusal(&world.heard(rogue));
            let refused = if server { Code::Forbidden } else { Code::WrongKey };
            assert_eq!(code, Some(refused), "{what}");
        }
    }
    assert_eq!(world.owner(), owner);
    world.unharmed();
}

#[test]
fn a_session_stays_with_its_agents_even_for_one_that_has_its_key() {
    let mut world = World::new();
    let (owner, victim) = (world.owner(), world.session);
    let rogue = world.rogue(0, 9, client(), &[]);
    let challenge = world.challenge(rogue);
    let hello = world.resume(victim, victim, &challenge);
    world.send(rogue, hello);
    let (code, reason) = refusal(&world.heard(rogue));
    assert!(code == Some(Code::Superseded) && reason.contains("another agent"), "{reason}");
    assert_eq!(world.owner(), owner);
    world.unharmed();
}

#[test]
fn a_channel_belongs_to_one_session_until_it_is_over() {
    let mut world = World::new();
    let rogue = world.rogue(0, 9, client(), &[]);
    let first = world.hello(OWN, "alone");
    world.send(rogue, first.clone());
    let before = world.rows();
    for (what, channel) in [("in use", first.channel), ("the shard's own", 1)] {
        let mut second = world.hello(SessionId([56; 16]), "alone");
        second.channel = channel;
        world.heard(rogue);
        world.send(rogue, second);
        assert_eq!(refusal(&world.heard(rogue)).0, Some(Code::Protocol), "{what}");
    }
    assert_eq!(world.rows(), before);
    // Of two sessions on one channel, the first would not learn that its wire is gone, and would stay for ever.
    world.shard(ShardInput::WireDown { wire: rogue });
    let phases: Vec<_> = world.rows().into_iter().filter(|row| row.session == OWN).collect();
    assert!(phases.is_empty(), "{phases:?}");
    world.unharmed();
}

#[test]
fn a_session_does_not_begin_twice() {
    let mut world = World::new();
    let (owner, victim) = (world.owner(), world.session);
    for (number, app) in (0..).zip(["web", "alone"]) {
        let rogue = world.rogue(number, 9, client(), &[]);
        let hello = world.hello(victim, app);
        world.send(rogue, hello);
        let heard = world.heard(rogue);
        assert_eq!(refusal(&heard).0, Some(Code::Superseded));
        assert!(
            !heard.iter().any(|frame| matches!(frame, Frame::Promise(_))),
            "that would have had the key in it"
        );
    }
    assert_eq!(world.owner(), owner);
    world.unharmed();
}

#[test]
fn recoveries_wait_for_none_that_shows_no_key_and_lose_their_place_to_none() {
    let mut world = World::new();
    let victim = world.session;
    world.shard(ShardInput::Control(ToShard::Configure(Configure {
        recoveries_max: 1,
        ..Configure::default()
    })));
    // It occupies the only recovery slot with its own session, and never answers.
    let rogue = world.rogue(0, 9, client(), &[]);
    let challenge = world.challenge(rogue);
    let mut hello = world.resume(OWN, OWN, &challenge);
    (hello.app, hello.image) = ("alone".into(), Some(super::world::app("alone", None).image));
    world.send(rogue, hello);
    assert!(world.heard(rogue).iter().any(|frame| matches!(frame, Frame::Promise(_))));
    // An honest end waits.
    let honest = world.rogue(1, 8, client(), &[]);
    let challenge_of_honest = world.challenge(honest);
    let waiting = SessionId([56; 16]);
    let hello = world.resume(waiting, waiting, &challenge_of_honest);
    world.send(honest, hello);
    assert_eq!(world.heard(honest), [], "it waits for its turn");
    // A hello without the session's key is not queued, whatever session it names; nor does it replace the honest one.
    for session in (0..200).map(|number| SessionId([number; 16])).chain([waiting, victim]) {
        let mut hello = world.resume(session, OWN, &challenge);
        if session == OWN {
            continue;
        }
        hello.channel += 1_000;
        world.send(rogue, hello);
        assert_eq!(refusal(&world.heard(rogue)).0, Some(Code::WrongKey));
    }
    assert_eq!(world.heard(honest), []);
    world.shard(ShardInput::WireDown { wire: rogue });
    world.shard(ShardInput::Control(ToShard::Configure(Configure::default())));
    world.shard(ShardInput::Wake);
    assert!(!world.heard(honest).is_empty(), "its turn has come");
    world.unharmed();
}
