//! An edge that stops: its sessions move, and agents are asked to look after the rest.

use crate::{
    agents::{
        frames::promised,
        world::{World, app, client},
    },
    moves::{feed, feeds, over, stores, there},
};
use marram_shard::api::{App, Configure, FromShard, Protect, SessionRow, ShardInput, ToShard};
use marram_wire::{
    frame::{Code, Drain, Frame, Keep, Reject},
    id::{Generation, SessionId},
    rights::Rights,
};

/// The edge stops, and sessions have time to move.
pub(crate) fn drain(world: &mut World) {
    let configure = Configure { hand_over_ms: 10_000, ..Configure::default() };
    world.shard(ShardInput::Control(ToShard::Configure(configure)));
    world.shard(ShardInput::Control(ToShard::Drain));
}

fn is_drained(world: &World) -> bool {
    world.control.iter().any(|message| matches!(message, FromShard::Drained))
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
