//! Moves, as the edge that has the session sees them: the other edge is played by the test.

use crate::{
    agents::world::{World, client, keeper, refusal},
    recalls,
};
use marram_shard::{
    api::{
        Configure, FromShard, MoveAnswer, MoveOver, MoveSession, MoveStage, MoveWish, ShardInput,
        ShardWireId, Tagged, ToShard,
    },
    shard::MOVES_MAX,
};
use marram_wire::{
    frame::{Base, Channel, Code, Ended, Frame, HandOver, Keep, Reject, Stored},
    id::{Generation, SessionId},
    rights::Rights,
};

/// A wire to an edge that can take sessions.
pub(crate) fn there(world: &mut World, number: u64, name: &str) -> ShardWireId {
    let wire = world.rogue(number, 8, Rights { edge: true, ..Rights::default() }, &[]);
    let challenge = world.challenge(wire);
    world.send(wire, keeper(&challenge, name, 1));
    wire
}

/// An operator asks to move a session; returns why it is refused.
fn ask(world: &mut World, session: SessionId, to: &str) -> Result<(), String> {
    ask_for(world, session, MoveWish::to(to))
}

/// The same, also if it is being moved to another edge.
fn replace(world: &mut World, session: SessionId, to: &str) -> Result<(), String> {
    ask_for(world, session, MoveWish { replace: true, ..MoveWish::to(to) })
}

pub(crate) fn ask_for(world: &mut World, session: SessionId, wish: MoveWish) -> Result<(), String> {
    world.shard(ShardInput::Control(ToShard::Move(MoveSession { tag: 7, session, wish })));
    answer(world)
}

fn cancel(world: &mut World, session: SessionId) -> Result<(), String> {
    world.shard(ShardInput::Control(ToShard::CancelMove(Tagged { tag: 7, session })));
    answer(world)
}

fn answer(world: &mut World) -> Result<(), String> {
    let answer = world.control.iter().rev().find_map(|message| match message {
        FromShard::MoveAnswer(MoveAnswer { tag: 7, found, why }) => Some((*found, why.clone())),
        _ => None,
    });
    world.control.retain(|message| !matches!(message, FromShard::MoveAnswer(_)));
    match answer.expect("it is answered") {
        (false, why) => {
            assert_eq!(why, "");
            Err("not here".into())
        }
        (true, why) if why.is_empty() => Ok(()),
        (true, why) => Err(why),
    }
}

/// The results of moves since the last call.
fn over(world: &mut World) -> Vec<(SessionId, String, String)> {
    let over = world.control.drain(..).filter_map(|message| match message {
        FromShard::MoveOver(MoveOver { session, to, why, .. }) => Some((session, to, why)),
        _ => None,
    });
    over.collect()
}

/// What the other edge is sent: the beginning of a feed, its checkpoint, and the hand-over.
#[derive(Default, Debug)]
pub(crate) struct Feed {
    pub(crate) keep: Option<Keep>,
    pub(crate) base: Option<Base>,
    pub(crate) bytes: u64,
    handed_over: Option<HandOver>,
    ended: Option<Ended>,
}

fn feeds(world: &mut World, wire: ShardWireId) -> Vec<Feed> {
    let mut feeds: Vec<Feed> = Vec::new();
    for frame in world.heard(wire) {
        if let Frame::Keep(keep) = frame {
            feeds.push(Feed { keep: Some(keep), ..Feed::default() });
            continue;
        }
        if let Frame::Drain(drain) = frame {
            world.drains.push(drain.leave);
            continue;
        }
        let channel = frame.channel(marram_wire::frame::Sender::Edge).expect("a frame of a feed");
        let of = |feed: &&mut Feed| feed.keep.as_ref().is_none_or(|keep| keep.channel == channel);
        if feeds.is_empty() {
            feeds.push(Feed::default());
        }
        let feed = feeds.iter_mut().find(of).expect("it was opened");
        match frame {
            Frame::Base(base) => feed.base = Some(base),
            Frame::CheckpointPart(part) => feed.bytes += part.bytes.len() as u64,
            Frame::HandOver(hand_over) => feed.handed_over = Some(hand_over),
            Frame::Ended(ended) => feed.ended = Some(ended),
            _ => {}
        }
    }
    feeds
}

/// The only feed, once its checkpoint is on its way: that is sealed when the outputs before it are acknowledged.
pub(crate) fn feed(world: &mut World, wire: ShardWireId) -> Feed {
    let mut feed = feeds(world, wire).pop().expect("it is fed");
    for _ in 0..100 {
        if feed.base.is_some() {
            break;
        }
        world.unharmed();
        for more in feeds(world, wire) {
            (feed.base, feed.bytes) = (more.base, feed.bytes + more.bytes);
        }
    }
    feed
}

/// The other edge has stored the checkpoint with which its feed began.
fn stores(world: &mut World, wire: ShardWireId, feed: &Feed) -> Channel {
    let (keep, base) = (feed.keep.as_ref().expect("a feed"), feed.base.as_ref().expect("its base"));
    let stored = Stored { channel: keep.channel, bytes: feed.bytes, complete: Some(base.meta.number) };
    world.send(wire, stored);
    keep.channel
}

#[test]
fn a_session_is_handed_over_once_the_other_edge_has_its_base_and_runs_until_the_ends_promise() {
    let mut world = World::new();
    let (wire, session) = (there(&mut world, 0, "there"), world.session);
    assert_eq!(ask(&mut world, session, "there"), Ok(()));
    let feed = feed(&mut world, wire);
    let keep = feed.keep.as_ref().expect("a feed");
    assert!(keep.moves && keep.hot && keep.session == session, "{keep:?}");
    assert!(feed.bytes > 0 && feed.handed_over.is_none(), "{feed:?}");
    let stage = |world: &mut World| {
        let row = world.rows().into_iter().find(|row| row.session == session).expect("it is here");
        row.moving.map(|moving| moving.stage)
    };
    assert_eq!(stage(&mut world), Some(MoveStage::Copying));
    world.unharmed();
    stores(&mut world, wire, &feed);
    let feed = feeds(&mut world, wire).pop().expect("it goes on");
    assert!(feed.handed_over.is_some(), "{feed:?}");
    assert_eq!(stage(&mut world), Some(MoveStage::HandedOver));
    // The session goes on here, and the feed too.
    world.unharmed();
    assert_eq!(over(&mut world), []);
    assert!(cancel(&mut world, session).unwrap_err().contains("handed over"));
    // An end has promised the other edge.
    world.superseded(Generation { count: 50, opener: 1 });
    assert_eq!(over(&mut world), [(session, "there".into(), String::new())]);
    assert!(world.shard.owner(session).is_none());
}

/// The pause between the beginnings of two moves, at most.
const PAUSE_MS: u64 = 20;

#[test]
fn moves_wait_for_their_turn() {
    let mut world = World::new();
    let wire = there(&mut world, 0, "there");
    let sessions: Vec<SessionId> = (0..=MOVES_MAX as u64).map(|number| world.another(number + 2)).collect();
    for session in &sessions {
        assert_eq!(ask(&mut world, *session, "there"), Ok(()));
    }
    let mut fed = feeds(&mut world, wire);
    assert_eq!(fed.len(), 1, "the others do not begin at the same time");
    for _ in 0..MOVES_MAX {
        world.wait_ms(PAUSE_MS);
        fed.extend(feeds(&mut world, wire));
    }
    assert_eq!(fed.len(), MOVES_MAX, "one waits");
    let waiting = *sessions.last().expect("some");
    let rows = world.rows();
    let row = rows.iter().find(|row| row.session == waiting).expect("it is here");
    assert_eq!(row.moving.as_ref().map(|moving| moving.stage), Some(MoveStage::Waiting));
    // One that waits, and one that is fed, are cancelled: both stay, and their turns are free.
    let first = fed.remove(0);
    assert_eq!(cancel(&mut world, sessions[0]), Ok(()));
    assert_eq!(over(&mut world).len(), 1);
    world.wait_ms(PAUSE_MS);
    let told = feeds(&mut world, wire);
    assert!(
        told.iter().any(|feed| feed.keep.as_ref().is_some_and(|keep| keep.session == waiting)),
        "{told:?}"
    );
    assert!(first.keep.is_some_and(|keep| keep.session == sessions[0]));
    assert_eq!(ask(&mut world, sessions[0], "there"), Ok(()));
    world.wait_ms(PAUSE_MS);
    assert_eq!(feeds(&mut world, wire).len(), 0, "it waits now");
    assert_eq!(cancel(&mut world, sessions[0]), Ok(()));
    assert!(cancel(&mut world, sessions[0]).unwrap_err().contains("not being moved"));
    world.unharmed();
}

#[test]
fn a_second_move_replaces_the_first_if_it_is_asked_to() {
    let mut world = World::new();
    let (first, second) = (there(&mut world, 0, "a"), there(&mut world, 1, "b"));
    let session = world.session;
    assert_eq!(replace(&mut world, session, "a"), Ok(()), "there is none to replace");
    assert_eq!(feeds(&mut world, first).len(), 1);
    assert!(ask(&mut world, session, "b").unwrap_err().contains("--replace"));
    // One that is refused replaces none, and one to the same edge goes on.
    assert!(replace(&mut world, session, "c").unwrap_err().contains("not connected"));
    assert_eq!(replace(&mut world, session, "a"), Ok(()));
    world.unharmed();
    assert!(feeds(&mut world, first).iter().all(|feed| feed.keep.is_none() && feed.ended.is_none()));
    assert_eq!(replace(&mut world, session, "b"), Ok(()));
    assert!(feeds(&mut world, first).iter().any(|feed| feed.ended.is_some()), "the first edge is told");
    world.unharmed();
    world.wait_ms(PAUSE_MS);
    let feed = feed(&mut world, second);
    stores(&mut world, second, &feed);
    assert!(feeds(&mut world, second).pop().is_some_and(|feed| feed.handed_over.is_some()));
    assert!(replace(&mut world, session, "a").unwrap_err().contains("handed over to `b` already"));
    world.superseded(Generation { count: 50, opener: 1 });
    assert_eq!(over(&mut world), [(session, "b".into(), String::new())], "the first has no result");
}

#[test]
fn a_move_that_waits_is_replaced_and_waits() {
    let mut world = World::new();
    let (first, second) = (there(&mut world, 0, "a"), there(&mut world, 1, "b"));
    let sessions: Vec<SessionId> = (0..=MOVES_MAX as u64).map(|number| world.another(number + 2)).collect();
    for session in &sessions {
        assert_eq!(ask(&mut world, *session, "a"), Ok(()));
    }
    (0..=MOVES_MAX).for_each(|_| world.wait_ms(PAUSE_MS));
    assert_eq!(feeds(&mut world, first).len(), MOVES_MAX);
    let waiting = *sessions.last().expect("some");
    assert_eq!(replace(&mut world, waiting, "b"), Ok(()));
    assert_eq!(feeds(&mut world, second).len(), 0, "it waits");
    // One that is fed gives its turn to the one that waits.
    assert_eq!(replace(&mut world, sessions[0], "b"), Ok(()));
    (0..2).for_each(|_| world.wait_ms(PAUSE_MS));
    let fed: Vec<SessionId> =
        feeds(&mut world, second).into_iter().filter_map(|feed| feed.keep).map(|keep| keep.session).collect();
    assert_eq!(fed, [waiting]);
    world.unharmed();
}

#[test]
fn a_move_that_cannot_be_is_refused_with_the_reason() {
    let mut world = World::new();
    let session = world.session;
    assert_eq!(ask(&mut world, SessionId([99; 16]), "there"), Err("not here".into()));
    let why = ask(&mut world, session, "there").unwrap_err();
    assert!(why.contains("`there` is not connected") && why.contains("connected: none"), "{why}");
    there(&mut world, 0, "there");
    let why = ask(&mut world, session, "ther").unwrap_err();
    assert!(why.contains("connected: `there`"), "{why}");
    assert!(ask(&mut world, session, "edge").unwrap_err().contains("on `edge` already"));
    assert_eq!(ask(&mut world, session, "there"), Ok(()));
    assert!(ask(&mut world, session, "there").unwrap_err().contains("moved to `there` already"));
    world.unharmed();
}

#[test]
fn a_session_stays_if_the_other_edge_refuses_or_is_lost() {
    let mut world = World::new();
    let (wire, session) = (there(&mut world, 0, "there"), world.session);
    assert_eq!(ask(&mut world, session, "there"), Ok(()));
    let feed = feed(&mut world, wire);
    let channel = stores(&mut world, wire, &feed);
    let reason = "the edge is shutting down".to_string();
    world.send(wire, Reject { channel, code: Code::Busy, reason: reason.clone() });
    assert_eq!(over(&mut world), [(session, "there".into(), reason)]);
    world.unharmed();
    assert_eq!(ask(&mut world, session, "there"), Ok(()));
    world.wait_ms(PAUSE_MS);
    world.shard(ShardInput::WireDown { wire });
    let results = over(&mut world);
    assert!(matches!(&results[..], [(_, _, why)] if why.contains("connection")), "{results:?}");
    world.unharmed();
}

#[test]
fn a_session_whose_ends_do_not_reach_this_edge_is_not_taken() {
    let mut world = World::new();
    let wire = recalls::peer(&mut world);
    world.heard(wire);
    let keep = |channel| Keep { hot: true, moves: true, ..recalls::keep(channel, 3) };
    world.send(wire, keep(1));
    let (code, reason) = refusal(&world.heard(wire));
    assert!(code == Some(Code::Waiting) && reason.contains("session's client is not connected"), "{reason}");
    // It was, when the feed began, and is not any more when the session is handed over.
    let end = world.rogue(1, 9, client(), &[]);
    world.send(wire, keep(3));
    assert_eq!(world.heard(wire), []);
    world.shard(ShardInput::WireDown { wire: end });
    world.send(wire, HandOver { channel: 3, session_ns: 0 });
    assert_eq!(world.heard(wire), [], "the session has not begun: nothing is replayed");
    world.unharmed();
}

/// The edge stops, and sessions have time to move.
fn drain(world: &mut World) {
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
