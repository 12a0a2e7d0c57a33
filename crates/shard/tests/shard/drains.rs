//! An edge that stops: its sessions move, and agents are asked to look after the rest.

use crate::{
    agents::{
        frames::promised,
        world::{World, app, client, refusal},
    },
    moves::{ask_for, feed, feeds, over, stores, there},
};
use marram_shard::api::{
    App, Configure, DrainCancelled, FromShard, MoveWish, Protect, SessionRow, ShardInput, Tag, ToShard,
};
use marram_wire::{
    frame::{Code, Drain, Frame, Keep, Reject},
    id::{Generation, SessionId},
    rights::Rights,
};

/// The edge stops, and sessions have time to move.
pub(crate) fn drain(world: &mut World) {
    let configure = Configure { hand_over_ms: 10_000, ..Configure::default() };
    world.shard(ShardInput::Control(ToShard::Configure(configure)));
    world.shard(ShardInput::Control(ToShard::Drain(Tag { tag: 1 })));
}

/// The edge stays after all: how many sessions stay, how many moves were stopped, and how many sessions are handed over.
fn cancel(world: &mut World) -> [u64; 3] {
    world.shard(ShardInput::Control(ToShard::CancelDrain(Tag { tag: 8 })));
    let answer = world.control.iter().rev().find_map(|message| match message {
        FromShard::DrainCancelled(DrainCancelled { tag: 8, stay, moves, handed_over }) => {
            Some([*stay, *moves, *handed_over])
        }
        _ => None,
    });
    world.control.retain(|message| !matches!(message, FromShard::DrainCancelled(_)));
    answer.expect("it is answered")
}

fn is_drained(world: &World) -> bool {
    world.control.iter().any(|message| matches!(message, FromShard::Drained(_)))
}

#[test]
fn an_edge_that_stops_moves_its_sessions_and_asks_agents_only_after_that() {
    let mut world = World::new();
    let (wire, session) = (there(&mut world, 0, "there"), world.session);
    let row = world.rows().remove(0).drain.expect("it is not a standby");
    assert_eq!((row.to.as_deref(), row.why.as_str(), row.unprotected), (Some("there"), "", false));
    drain(&mut world);
    let feed = feed(&mut world, wire);
    assert_eq!(feed.keep.as_ref().map(|keep| keep.session), Some(session));
    assert_eq!(world.drains, [false], "agents are not asked yet");
    stores(&mut world, wire, &feed);
    world.unharmed();
    assert!(!is_drained(&world));
    world.superseded(Generation { count: 50, opener: 1 });
    assert!(is_drained(&world));
    assert_eq!(over(&mut world), [(session, "there".into(), String::new())]);
    feeds(&mut world, wire);
    assert_eq!(world.drains, [false, true]);
}

#[test]
fn a_session_that_one_edge_does_not_take_moves_to_the_next_when_its_edge_stops() {
    let mut world = World::new();
    let (first, second) = (there(&mut world, 0, "a"), there(&mut world, 1, "b"));
    drain(&mut world);
    let mut asked = Vec::new();
    // Each edge is asked once, in the order of the ring.
    for _ in 0..200 {
        world.unharmed();
        world.wait_ms(1);
        for wire in [first, second] {
            for Keep { channel, .. } in feeds(&mut world, wire).into_iter().filter_map(|feed| feed.keep) {
                asked.push(wire);
                world.send(wire, Reject { channel, code: Code::Busy, reason: "no memory is left".into() });
            }
        }
    }
    asked.sort_unstable();
    assert_eq!(asked, [first, second]);
    let results = over(&mut world);
    assert!(matches!(&results[..], [(_, _, why)] if why == "no memory is left"), "one result: {results:?}");
    assert_eq!(world.notes.iter().filter(|(_, text)| text.contains("; next is `")).count(), 1);
    feeds(&mut world, first);
    feeds(&mut world, second);
    assert_eq!(world.drains, [false, false, true, true], "now the agents are asked");
    world.unharmed();
}

#[test]
fn a_session_that_cannot_move_is_left_to_its_agents_at_once() {
    let mut world = World::new();
    let row = world.rows().remove(0).drain.expect("it is not a standby");
    assert!(row.to.is_none() && row.why.contains("no other edge is connected"), "{row:?}");
    let wire = world.rogue(0, 8, Rights { client: true, ..Rights::default() }, &[]);
    world.heard(wire);
    drain(&mut world);
    let told = world.heard(wire);
    let leave: Vec<bool> = told
        .iter()
        .filter_map(|frame| if let Frame::Drain(drain) = frame { Some(drain.leave) } else { None })
        .collect();
    assert_eq!(leave, [false, true]);
    assert!(!is_drained(&world));
}

#[test]
fn a_session_that_still_opens_when_its_edge_stops_moves_once_it_runs() {
    for protect in [Protect::None, Protect::Endpoints] {
        let mut world = World::new();
        let there = there(&mut world, 0, "there");
        world.shard(ShardInput::Control(ToShard::Deploy(App { protect, ..app("late", None) })));
        let wire = world.rogue(1, 8, client(), &[]);
        let hello = world.hello(SessionId([9; 16]), "late");
        let channel = hello.channel;
        world.send(wire, hello);
        drain(&mut world);
        // The session that runs already leaves; the other one has not promised yet.
        assert_eq!(feeds(&mut world, there).len(), 1);
        world.superseded(Generation { count: 50, opener: 1 });
        let waits =
            world.heard(wire).iter().all(|frame| !matches!(frame, Frame::Drain(Drain { leave: true })));
        assert_eq!(waits, protect == Protect::None, "what no edge could open again is waited for");
        world.send(wire, promised(channel));
        let moves = |row: &SessionRow| row.session == SessionId([9; 16]) && row.moving.is_some();
        assert_eq!(world.rows().iter().any(moves), waits, "{protect:?}");
        // Moves of a shard do not begin all at once.
        world.wait_ms(5_000);
        let asked = |frame: &Frame| matches!(frame, Frame::ProtectNow(_));
        assert_eq!(
            world.heard(wire).iter().any(asked),
            waits,
            "its end keeps from now on what is moved: {protect:?}"
        );
        assert!(!is_drained(&world));
    }
}

#[test]
fn an_edge_that_stays_keeps_its_sessions_takes_new_ones_and_may_stop_later() {
    let mut world = World::new();
    let (there, session) = (there(&mut world, 0, "there"), world.session);
    let wire = world.rogue(1, 8, client(), &[]);
    let challenge = world.challenge(wire);
    drain(&mut world);
    let hello = world.hello(SessionId([9; 16]), "alone");
    world.send(wire, hello);
    assert_eq!(refusal(&world.heard(wire)).0, Some(Code::Busy));
    assert!(feed(&mut world, there).keep.is_some());

    assert_eq!(cancel(&mut world), [1, 1, 0]);
    let told = world.heard(wire);
    let Some(Frame::Welcome(welcome)) = told.first() else {
        panic!("it is told that the edge stays: {told:?}")
    };
    assert!(!welcome.draining && welcome.challenge == challenge, "{welcome:?}");
    assert!(feed(&mut world, there).ended.is_some(), "the other edge forgets the session");
    let why = "the edge stays: its drain was cancelled".to_string();
    assert_eq!(over(&mut world), [(session, "there".to_string(), why)]);
    world.unharmed();
    let hello = world.hello(SessionId([9; 16]), "alone");
    let channel = hello.channel;
    world.send(wire, hello);
    let asked = world.heard(wire);
    assert!(
        asked.iter().any(|frame| matches!(frame, Frame::Promise(it) if it.channel == channel)),
        "{asked:?}"
    );
    world.wait_ms(12_000);
    assert!(!is_drained(&world) && world.drains == [false], "nothing of the drain is left");

    world.shard(ShardInput::Control(ToShard::Drain(Tag { tag: 2 })));
    assert!(feed(&mut world, there).keep.is_some(), "now it is moved");
}

#[test]
fn a_session_that_was_handed_over_leaves_although_its_edge_stays() {
    let mut world = World::new();
    let (wire, session) = (there(&mut world, 0, "there"), world.session);
    drain(&mut world);
    let feed = feed(&mut world, wire);
    stores(&mut world, wire, &feed);
    world.unharmed();
    assert_eq!(cancel(&mut world), [0, 0, 1]);
    world.superseded(Generation { count: 50, opener: 1 });
    assert!(!is_drained(&world), "the edge stays, though it has no session");
    assert_eq!(over(&mut world), [(session, "there".into(), String::new())]);
    assert_eq!(cancel(&mut world), [0, 0, 0]);
}

#[test]
fn a_move_that_an_operator_asked_for_goes_on_when_its_edge_stays() {
    let mut world = World::new();
    let (wire, session) = (there(&mut world, 0, "there"), world.session);
    assert_eq!(ask_for(&mut world, session, MoveWish::to("there".parse().unwrap())), Ok(()));
    drain(&mut world);
    assert_eq!(cancel(&mut world), [1, 0, 0]);
    let feed = feed(&mut world, wire);
    assert!(feed.ended.is_none());
    stores(&mut world, wire, &feed);
    world.unharmed();
    world.superseded(Generation { count: 50, opener: 1 });
    assert_eq!(over(&mut world), [(session, "there".into(), String::new())]);
}

#[test]
fn a_shard_that_is_done_takes_sessions_again_when_its_edge_stays() {
    let mut world = World::new();
    world.superseded(Generation { count: 50, opener: 1 });
    let wire = world.rogue(1, 8, client(), &[]);
    drain(&mut world);
    assert!(is_drained(&world));
    world.heard(wire);
    assert_eq!(cancel(&mut world), [0, 0, 0]);
    let hello = world.hello(SessionId([9; 16]), "alone");
    world.send(wire, hello);
    assert!(world.heard(wire).iter().any(|frame| matches!(frame, Frame::Promise(_))));
}

#[test]
fn an_edge_that_does_not_stop_tells_agents_nothing_when_it_is_to_stay() {
    let mut world = World::new();
    let wire = world.rogue(1, 8, client(), &[]);
    world.heard(wire);
    assert_eq!(cancel(&mut world), [1, 0, 0]);
    assert_eq!(world.heard(wire), []);
}
