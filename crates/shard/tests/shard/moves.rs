//! Moves, as the edge that has the session sees them: the other edge is played by the test.

use crate::{
    agents::world::{World, app, client, keeper, refusal},
    recalls,
};
use marram_shard::{
    api::{
        Configure, Copied, FromShard, MoveAnswer, MoveOver, MoveSession, MoveStage, MoveWish, OWN_EDGE,
        ShardInput, ShardWireId, Tag, Tagged, Target, ToShard,
    },
    shard::MOVES_MAX,
};
use marram_wire::{
    frame::{
        Base, Channel, Code, Ended, ForgetCopy, Frame, HandOver, Keep, Keeper, Ping, Reject, Stored, Welcome,
    },
    id::{Generation, SessionId},
    limits::WIRE_VERSION,
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
pub(crate) fn ask(world: &mut World, session: SessionId, to: &str) -> Result<(), String> {
    ask_for(world, session, MoveWish::to(to.parse().expect("a destination")))
}

/// The same, also if it is being moved to another edge.
fn replace(world: &mut World, session: SessionId, to: &str) -> Result<(), String> {
    ask_for(world, session, MoveWish { replace: true, ..MoveWish::to(to.parse().expect("a destination")) })
}

pub(crate) fn ask_for(world: &mut World, session: SessionId, wish: MoveWish) -> Result<(), String> {
    world.shard(ShardInput::Control(ToShard::Move(MoveSession { tag: 7, session, wish })));
    answer(world)
}

pub(crate) fn cancel(world: &mut World, session: SessionId) -> Result<(), String> {
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
pub(crate) fn over(world: &mut World) -> Vec<(SessionId, String, String)> {
    let over = world.control.drain(..).filter_map(|message| match message {
        FromShard::MoveOver(MoveOver { session, to, why, .. }) => Some((session, to.to_string(), why)),
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
    pub(crate) handed_over: Option<HandOver>,
    pub(crate) ended: Option<Ended>,
}

pub(crate) fn feeds(world: &mut World, wire: ShardWireId) -> Vec<Feed> {
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
        let of = |feed: &Feed| feed.keep.as_ref().is_none_or(|keep| keep.channel == channel);
        let at = feeds.iter().position(of).unwrap_or_else(|| {
            // It was opened before the last look.
            feeds.push(Feed::default());
            feeds.len() - 1
        });
        let feed = &mut feeds[at];
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
pub(crate) fn stores(world: &mut World, wire: ShardWireId, feed: &Feed) -> Channel {
    let (keep, base) = (feed.keep.as_ref().expect("a feed"), feed.base.as_ref().expect("its base"));
    let stored = Stored { channel: keep.channel, bytes: feed.bytes, complete: Some(base.meta.number) };
    world.send(wire, stored);
    keep.channel
}

/// The session moves to this edge, which is told to take it over.
pub(crate) fn handed_over(world: &mut World, name: &str) -> ShardWireId {
    let (wire, session) = (there(world, 0, name), world.session);
    assert_eq!(ask(world, session, name), Ok(()));
    let feed = feed(world, wire);
    stores(world, wire, &feed);
    assert!(feeds(world, wire).pop().is_some_and(|feed| feed.handed_over.is_some()));
    wire
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
fn a_session_that_another_edge_says_it_has_did_not_move_to_the_one_asked_for() {
    for (has_it, why) in [("a", "the session left meanwhile: the session is kept where it went"), ("b", "")] {
        let mut world = World::new();
        let wires = [("a", there(&mut world, 0, "a")), ("b", there(&mut world, 1, "b"))];
        let (second, session) = (wires[1].1, world.session);
        assert_eq!(ask(&mut world, session, "b"), Ok(()));
        let feed = feed(&mut world, second);
        stores(&mut world, second, &feed);
        assert!(feeds(&mut world, second).pop().is_some_and(|feed| feed.handed_over.is_some()));
        // The session was handed over to it before, and that has arrived too late to be known.
        let (_, wire) = wires.into_iter().find(|(name, _)| *name == has_it).expect("one of both");
        world.send(wire, ForgetCopy { session, generation: Generation { count: 50, opener: 1 } });
        assert_eq!(over(&mut world), [(session, "b".into(), why.into())]);
        assert!(world.shard.owner(session).is_none());
    }
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

/// This edge has two shards, of which this is the first; the other one is connected.
fn with_sibling(world: &mut World) -> ShardWireId {
    let configure = Configure { edge: "here".into(), shards: 2, ..Configure::default() };
    world.shard(ShardInput::Control(ToShard::Configure(configure)));
    let wire = world.sibling(0);
    let challenge = world.challenge(wire);
    world.send(wire, Keeper { shard: 1, shards: 2, ..keeper(&challenge, "here", 1) });
    wire
}

#[test]
fn a_session_is_handed_over_to_another_shard_of_its_edge() {
    let mut world = World::new();
    let session = world.session;
    let wire = with_sibling(&mut world);
    for (to, why) in [
        ("here", "name that one too (`here/1`)"),
        ("here/0", "on `here/0` already"),
        ("here/2", "no shard 2: its shards are 0 to 1"),
        ("there/1", "`there/1` is not connected"),
    ] {
        assert!(ask(&mut world, session, to).unwrap_err().contains(why), "{to}");
    }
    assert!(world.rows().remove(0).drain.expect("it is owned").to.is_none(), "it would stop with this one");
    assert_eq!(ask(&mut world, session, "here/1"), Ok(()));
    let feed = feed(&mut world, wire);
    stores(&mut world, wire, &feed);
    assert!(feeds(&mut world, wire).pop().is_some_and(|feed| feed.handed_over.is_some()));
    world.unharmed();
    world.superseded(Generation { count: 50, opener: 1 });
    assert_eq!(over(&mut world), [(session, "here/1".into(), String::new())]);
}

#[test]
fn a_shard_named_at_another_edge_is_the_one_that_is_asked() {
    let mut world = World::new();
    let session = world.session;
    let wires = [0, 1].map(|shard: u8| {
        let wire = world.rogue(shard.into(), 8, Rights { edge: true, ..Rights::default() }, &[]);
        let challenge = world.challenge(wire);
        world.send(wire, Keeper { shard, shards: 2, ..keeper(&challenge, "there", 1) });
        wire
    });
    assert!(ask(&mut world, session, "there/2").unwrap_err().contains("it has 2, numbered from 0"));
    for shard in [1, 0] {
        assert_eq!(ask(&mut world, session, &format!("there/{shard}")), Ok(()));
        world.wait_ms(PAUSE_MS);
        assert_eq!(wires.map(|wire| feeds(&mut world, wire).len()), [1 - shard, shard]);
        assert_eq!(cancel(&mut world, session), Ok(()));
        // The checkpoint for that feed ends when the outputs before it are acknowledged.
        world.unharmed();
        wires.into_iter().for_each(|wire| drop(feeds(&mut world, wire)));
    }
}

#[test]
fn another_edge_of_the_same_name_does_not_stand_by() {
    let mut world = World::new();
    with_sibling(&mut world);
    let wire = world.rogue(3, 8, Rights { edge: true, ..Rights::default() }, &[]);
    let challenge = world.challenge(wire);
    world.send(wire, Keeper { shard: 1, shards: 2, ..keeper(&challenge, "here", 1) });
    let (_, reason) = refusal(&world.heard(wire));
    assert!(reason.contains("has this edge's own name"), "{reason}");
}

#[test]
fn a_shard_dials_the_others_of_its_edge_and_what_moves_to_it_does_not_fail_back() {
    let mut world = World::new();
    let end = world.rogue(1, 9, client(), &[]);
    let challenge = world.challenge(end);
    let configure = Configure { edge: "here".into(), shard: 1, shards: 3, ..Configure::default() };
    world.shard(ShardInput::Control(ToShard::Configure(configure)));
    let target = |shard| Target { edge: OWN_EDGE, shard };
    assert_eq!(world.dials, [target(0), target(2)]);
    let wire = ShardWireId(41);
    world.shard(ShardInput::Dialled { wire, target: target(0) });
    let welcome = Welcome {
        version: WIRE_VERSION,
        edge: "here".into(),
        shard: 0,
        shards: 3,
        challenge: [0; 16],
        draining: false,
        domain: [0; 8],
    };
    world.send(wire, welcome);
    let told = world.heard(wire);
    let is_keeper = |frame: &Frame| matches!(frame, Frame::Keeper(Keeper { shard: 1, shards: 3, .. }));
    assert!(told.iter().any(is_keeper), "{told:?}");
    let keep = Keep { hot: true, moves: true, ..recalls::keep(1, 3) };
    let session = keep.session;
    world.send(wire, keep);
    assert_eq!(world.heard(wire), []);
    // Its end asks here, as if its owner had died.
    let mut hello = world.resume(session, session, &challenge);
    (hello.app, hello.image) = ("alone".into(), Some(app("alone", None).image));
    world.send(end, hello);
    let promise = world.heard(end).into_iter().find_map(|frame| match frame {
        Frame::Promise(promise) => Some(promise),
        _ => None,
    });
    assert!(promise.is_some_and(|promise| promise.assigned));
}

/// Bytes in a second.
const LIMIT: u64 = 1 << 20;
const STATE: usize = 2 << 20;

fn limit(world: &mut World, move_bytes_per_s: u64) {
    let configure = Configure { move_bytes_per_s, hand_over_ms: 600_000, ..Configure::default() };
    world.shard(ShardInput::Control(ToShard::Configure(configure)));
}

/// The agents and the other edge are not silent.
fn pings(world: &mut World, wire: ShardWireId) {
    for wire in [ShardWireId(0), ShardWireId(1), wire] {
        world.send(wire, Ping { stamp: world.now_ms() * 1_000_000 });
    }
}

/// The other edge stores what it is sent at once, until it has all or so much time has passed. Returns the sessions that it is told to take over,
/// each with the time.
fn copy(world: &mut World, wire: ShardWireId, feeds: &mut [Feed], for_ms: u64) -> Vec<(SessionId, u64)> {
    let (until_ms, mut taken) = (world.now_ms() + for_ms, Vec::new());
    while world.now_ms() < until_ms && taken.len() < feeds.len() {
        world.wait_ms(5);
        pings(world, wire);
        for frame in world.heard(wire) {
            if matches!(frame, Frame::Pong(_)) {
                continue;
            }
            let channel = frame.channel(marram_wire::frame::Sender::Edge).expect("a frame of a feed");
            let is_its = |feed: &&mut Feed| feed.keep.as_ref().is_some_and(|keep| keep.channel == channel);
            let feed = feeds.iter_mut().find(is_its).expect("it was opened");
            match frame {
                Frame::Base(base) => feed.base = Some(base),
                Frame::CheckpointPart(part) => {
                    feed.bytes += part.bytes.len() as u64;
                    let meta = &feed.base.as_ref().expect("it is announced first").meta;
                    let complete = (feed.bytes == meta.size).then_some(meta.number);
                    world.send(wire, Stored { channel, bytes: part.bytes.len() as u64, complete });
                }
                Frame::HandOver(_) => {
                    taken.push((feed.keep.as_ref().expect("it was opened").session, world.now_ms()));
                }
                _ => {}
            }
        }
    }
    taken
}

fn counter(world: &mut World, name: &str) -> u64 {
    world.control.clear();
    world.rows();
    let counters = world.control.iter().filter_map(|message| match message {
        FromShard::Counted(counted) => Some(&counted.counters),
        _ => None,
    });
    counters
        .flatten()
        .find(|counter| counter.name == name)
        .map(|counter| counter.value)
        .expect("it is counted")
}

#[test]
fn copies_keep_to_the_bandwidth_of_moves_in_turn_and_traffic_does_not_wait_for_it() {
    let mut world = World::new();
    (world.checkpoint_size, world.received) = (STATE, Vec::new());
    limit(&mut world, LIMIT);
    let wire = there(&mut world, 0, "there");
    let (first, second) = (world.session, world.another(2));
    for session in [first, second] {
        assert_eq!(ask(&mut world, session, "there"), Ok(()));
    }
    world.wait_ms(PAUSE_MS);
    let begun_ms = world.now_ms();
    let mut fed: Vec<Feed> = feeds(&mut world, wire);
    assert_eq!(fed.len(), 2);
    let early: u64 = fed.iter().map(|feed| feed.bytes).sum();
    assert!(early <= 2 * (64 << 10), "{early}");
    for feed in &fed {
        let (keep, bytes) = (feed.keep.as_ref().expect("a feed"), feed.bytes);
        if bytes > 0 {
            world.send(wire, Stored { channel: keep.channel, bytes, complete: None });
        }
    }
    assert_eq!(copy(&mut world, wire, &mut fed, 2_000), [], "not yet");
    // What clients send goes on.
    world.unharmed();
    let sent: Vec<u64> = fed.iter().map(|feed| feed.bytes).collect();
    assert!(sent[0].abs_diff(sent[1]) <= 64 << 10, "they take turns: {sent:?}");
    assert!(sent.iter().sum::<u64>().abs_diff(2 * LIMIT) <= LIMIT / 8, "{sent:?}");
    let rows = world.rows();
    let row =
        rows.iter().find(|row| row.session == first).and_then(|row| row.moving.clone()).expect("it moves");
    assert!(row.limited, "{row:?}");
    assert!(matches!(row.copied, Some(Copied { sent, size }) if sent > 0 && size == STATE as u64), "{row:?}");
    assert_eq!(counter(&mut world, "moves_limited"), 2);
    let taken = copy(&mut world, wire, &mut fed, 3_000);
    assert_eq!(taken.len(), 2, "{taken:?}");
    let took_ms = world.now_ms() - begun_ms;
    assert!((3_800..4_200).contains(&took_ms), "{took_ms}");
    assert_eq!(counter(&mut world, "moves_limited"), 0);
    assert_eq!(counter(&mut world, "move_bytes_total"), 2 * STATE as u64);
    assert!(counter(&mut world, "moves_limited_us_total") > 5_000_000, "both waited most of the time");
    world.unharmed();
}

/// How long a move may take, without the time for which it waits for bandwidth.
const MOVE_MS: u64 = 120_000;

#[test]
fn a_move_with_little_bandwidth_takes_long_and_one_that_fails_says_that_it_waited() {
    let mut world = World::new();
    world.checkpoint_size = 16 << 20;
    limit(&mut world, LIMIT / 16);
    let (wire, session) = (there(&mut world, 0, "there"), world.session);
    assert_eq!(ask(&mut world, session, "there"), Ok(()));
    let mut fed = feeds(&mut world, wire);
    let store = |world: &mut World, fed: &[Feed]| {
        let keep = fed[0].keep.as_ref().expect("a feed");
        world.send(wire, Stored { channel: keep.channel, bytes: fed[0].bytes, complete: None });
    };
    if fed[0].bytes > 0 {
        store(&mut world, &fed);
    }
    assert_eq!(copy(&mut world, wire, &mut fed, 2 * MOVE_MS), []);
    assert_eq!(over(&mut world), [], "it goes on, for twice as long as it may take otherwise");
    assert_eq!(copy(&mut world, wire, &mut fed, MOVE_MS).len(), 1);
    // Another one: the other edge stops to store. That is not for lack of bandwidth, and it ends.
    assert_eq!(cancel(&mut world, session).unwrap_err(), "the session is handed over already");
    world.superseded(Generation { count: 50, opener: 1 });
    let session = world.another(2);
    assert_eq!(ask(&mut world, session, "there"), Ok(()));
    world.wait_ms(PAUSE_MS);
    over(&mut world);
    for _ in 0..MOVE_MS / 1_000 + 10 {
        world.wait_ms(1_000);
        pings(&mut world, wire);
    }
    let results = over(&mut world);
    assert!(
        matches!(&results[..], [(_, _, why)] if why.contains("did not come to an end in time")),
        "{results:?}"
    );
    // The edge is lost while a copy waits.
    let session = world.another(3);
    world.told.clear();
    assert_eq!(ask(&mut world, session, "there"), Ok(()));
    world.wait_ms(PAUSE_MS);
    let mut fed = feeds(&mut world, wire);
    if fed[0].bytes > 0 {
        store(&mut world, &fed);
    }
    assert_eq!(copy(&mut world, wire, &mut fed, 10_000), []);
    world.shard(ShardInput::WireDown { wire });
    let results = over(&mut world);
    let [(_, _, why)] = &results[..] else { panic!("{results:?}") };
    assert!(why.contains("connection") && why.contains("`limits.move_bandwidth`"), "{why}");
}

#[test]
fn an_edge_that_stops_does_not_limit_its_moves() {
    let mut world = World::new();
    world.checkpoint_size = STATE;
    limit(&mut world, 1);
    let (wire, session) = (there(&mut world, 0, "there"), world.session);
    assert_eq!(ask(&mut world, session, "there"), Ok(()));
    let mut fed = feeds(&mut world, wire);
    let keep = fed[0].keep.as_ref().expect("a feed").clone();
    if fed[0].bytes > 0 {
        world.send(wire, Stored { channel: keep.channel, bytes: fed[0].bytes, complete: None });
    }
    assert_eq!(copy(&mut world, wire, &mut fed, 10_000), []);
    world.shard(ShardInput::Control(ToShard::Drain(Tag { tag: 1 })));
    world.told.retain(|(_, frame)| !matches!(frame, Frame::Drain(_)));
    assert_eq!(copy(&mut world, wire, &mut fed, 1_000).len(), 1);
    world.unharmed();
}
