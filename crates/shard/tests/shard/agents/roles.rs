//! Agents that take roles that their credential does not allow, or ids of other agents.

use super::world::{World, app, client, greet, keeper, refusal, serving};
use marram_shard::api::NoteLevel;
use marram_shard::api::{ShardInput, ToShard};
use marram_wire::{
    frame::{Code, Frame},
    id::{HostId, SessionId},
    rights::Rights,
};

const NEW: SessionId = SessionId([77; 16]);

#[test]
fn a_client_that_announces_a_server_is_refused_and_gets_no_session() {
    let mut world = World::new();
    world.lose_server();
    let rogue = world.rogue(0, 9, client(), &["origin"]);
    let (_, reason) = refusal(&world.heard(rogue));
    for word in ["origin", "[[credential]]", "servers = [\"origin\"]"] {
        assert!(reason.contains(word), "{reason}");
    }
    assert_eq!(world.closed, [rogue]);
    let warned = |(level, text): &(NoteLevel, String)| {
        *level == NoteLevel::Warning
            && ["192.0.2.1:7", "0909", "its-own", "origin"].iter().all(|word| text.contains(word))
    };
    assert!(world.notes.iter().any(warned), "{:?}", world.notes);
    // The next client waits for a server's agent, and the rogue receives nothing of it.
    let honest = world.rogue(1, 8, client(), &[]);
    let hello = world.hello(NEW, "web");
    world.send(honest, hello);
    assert_eq!(refusal(&world.heard(honest)).0, Some(Code::NoServerAgent));
    assert_eq!(world.heard(rogue), []);
}

#[test]
fn an_agent_of_one_server_cannot_be_anothers() {
    let mut world = World::new();
    world.shard(ShardInput::Control(ToShard::Deploy(app("other", Some("bank")))));
    let announced: [&[&str]; 5] = [&["bank"], &["origin", "bank"], &["Origin"], &["origin "], &[""]];
    for (number, servers) in (0..).zip(announced) {
        let rogue = world.rogue(number, 9, serving("origin"), servers);
        let (_, reason) = refusal(&world.heard(rogue));
        assert!(reason.contains("may not be the agent of the server"), "{reason}");
        assert!(world.closed.contains(&rogue));
    }
    world.unharmed();
}

#[test]
fn an_end_is_offered_to_no_agent_that_may_not_hold_it() {
    let mut world = World::new();
    let (owner, victim) = (world.owner(), world.session);
    // By a hello that names the server: from a client without a right to the server, and from the agent of another server.
    let granted = [client(), serving("bank"), Rights { recorder: true, edge: true, ..Rights::default() }];
    for (number, rights) in (0..).zip(granted) {
        let announced: &[&str] = if rights.serves("bank") { &["bank"] } else { &[] };
        let invited = world.rogue(number, 20 + number as u8, rights, announced);
        let asking = world.rogue(10 + number, 9, client(), &[]);
        let mut hello = world.hello(SessionId([100 + number as u8; 16]), "web");
        hello.peer = Some(HostId([20 + number as u8; 16]));
        world.send(asking, hello);
        assert_eq!(refusal(&world.heard(asking)).0, Some(Code::Waiting));
        world
            .heard(invited)
            .iter()
            .for_each(|frame| assert!(matches!(frame, Frame::Welcome(_)), "{frame:?}"));
    }
    // Without an announcement: a granted name alone does not make it a server's agent.
    let silent = world.rogue(5, 30, serving("origin"), &[]);
    let asking = world.rogue(15, 9, client(), &[]);
    let mut hello = world.hello(NEW, "web");
    hello.peer = Some(HostId([30; 16]));
    world.send(asking, hello);
    assert_eq!(refusal(&world.heard(asking)).0, Some(Code::Waiting));
    world.heard(silent).iter().for_each(|frame| assert!(matches!(frame, Frame::Welcome(_)), "{frame:?}"));
    assert_eq!((world.owner(), world.session), (owner, victim));
    world.unharmed();
}

#[test]
fn each_role_is_refused_what_is_anothers() {
    let mut world = World::new();
    let victim = world.session;
    let roles = [
        (client(), [true, false, false, false]),
        (serving("origin"), [false, true, false, false]),
        (Rights { recorder: true, ..Rights::default() }, [false, false, true, false]),
        (Rights { edge: true, ..Rights::default() }, [false, false, false, true]),
        (Rights::default(), [false; 4]),
    ];
    for (number, (rights, may)) in (0..).zip(roles) {
        let mut at = number * 10;
        let mut rogue = |world: &mut World| {
            at += 1;
            let wire = world.rogue(at, 9, rights.clone(), &[]);
            let challenge = world.challenge(wire);
            (wire, challenge)
        };
        // A client.
        let (wire, _) = rogue(&mut world);
        let hello = world.hello(SessionId([number as u8 + 100; 16]), "alone");
        world.send(wire, hello);
        let heard = world.heard(wire);
        let promise = heard.iter().any(|frame| matches!(frame, Frame::Promise(_)));
        assert_eq!(promise, may[0], "{heard:?}");
        if !may[0] {
            let (code, reason) = refusal(&heard);
            assert!(code == Some(Code::Forbidden) && reason.contains("roles = [\"client\"]"), "{reason}");
        }
        // The server of a session, with the session's stolen key.
        let (wire, challenge) = rogue(&mut world);
        let mut hello = world.resume(victim, victim, &challenge);
        hello.server = true;
        world.send(wire, hello);
        assert_eq!(refusal(&world.heard(wire)).0, Some(Code::Forbidden), "it has announced no server");
        // A recorder and an edge, with the domain's secret.
        for (role, allowed) in [(0, may[2]), (1, may[3])] {
            let (wire, challenge) = rogue(&mut world);
            world.send(wire, keeper(&challenge, "k", role));
            assert_eq!(world.closed.contains(&wire), !allowed);
            // Later rounds do not need it.
            world.shard(ShardInput::WireDown { wire });
        }
        world.heard(wire);
        world.unharmed();
    }
}

#[test]
fn the_role_of_a_keeper_takes_the_secret_as_well_and_a_wire_without_sessions() {
    let mut world = World::new();
    let keepers = Rights { recorder: true, edge: true, ..client() };
    let all = Rights { any_server: true, ..keepers.clone() };
    let wire = world.rogue(0, 9, keepers.clone(), &[]);
    world.send(wire, keeper(&[0; 16], "k", 0));
    assert!(refusal(&world.heard(wire)).1.contains("does not match"), "a proof for another wire");
    let wire = world.rogue(1, 9, keepers.clone(), &[]);
    let challenge = world.challenge(wire);
    world.send(wire, keeper(&challenge, "k", 2));
    assert!(refusal(&world.heard(wire)).1.contains("does not know"), "a kind that there is not");
    let wire = world.rogue(2, 9, keepers, &[]);
    let challenge = world.challenge(wire);
    let hello = world.hello(NEW, "alone");
    world.send(wire, hello);
    world.heard(wire);
    world.send(wire, keeper(&challenge, "k", 0));
    assert!(refusal(&world.heard(wire)).1.contains("carries sessions"));
    let wire = world.rogue(3, 9, all, &["db"]);
    let challenge = world.challenge(wire);
    world.send(wire, keeper(&challenge, "k", 1));
    assert!(refusal(&world.heard(wire)).1.contains("carries sessions"));
    world.unharmed();
}

#[test]
fn a_greeting_that_is_replayed_is_its_senders_own() {
    let mut world = World::new();
    let owner = world.owner();
    // A greeting contains no id: a replayed greeting counts for the key that signed this wire.
    let rogue = world.rogue(0, 9, client(), &[]);
    world.send(rogue, greet(&[]));
    assert!(refusal(&world.heard(rogue)).1.contains("must not send such frames"), "it greets once");
    let rogue = world.rogue(1, 9, client(), &["origin"]);
    assert!(refusal(&world.heard(rogue)).1.contains("may not"));
    assert_eq!(world.owner(), owner);
    world.unharmed();
}

#[test]
fn before_its_greeting_an_agent_can_do_nothing() {
    let mut world = World::new();
    let owner = world.owner();
    let session = world.session;
    for number in 0..3 {
        let wire = world.silent_rogue(number, 2, serving("origin"));
        match number {
            0 => {
                let hello = world.hello(session, "web");
                world.send(wire, hello);
            }
            1 => world.send(wire, keeper(&[0; 16], "k", 0)),
            _ => world.send(wire, Frame::Finished(marram_wire::frame::Finished { channel: 1 })),
        }
        assert!(refusal(&world.heard(wire)).1.contains("must be a greeting"));
    }
    assert_eq!(world.owner(), owner);
    world.unharmed();
}
