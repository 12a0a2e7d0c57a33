//! Ports that come and go: no owner has them yet. And entries that run nothing.

use super::*;
use crate::owner::{ends::Ends, phase::replay_of};
use marram_wire::{
    header::ClientState,
    log::{Client, Joined, PortEvent},
};

fn client() -> Client {
    Client { session: SessionId([8; 16]), host: HOSTS[0], generation: OLD }
}

/// One of each kind.
fn port_events() -> [PortEvent; 4] {
    let port = Port(2);
    let joined = Joined { port, client: client(), datagrams: false, peer: None };
    [
        PortEvent::Joined(Box::new(joined)),
        PortEvent::Resumed { port, generation: NEW },
        PortEvent::Expelled { port },
        PortEvent::Left { port, quietly: false },
    ]
}

/// The standby gave up for this reason, which its feeder is told.
fn gave_up(standby: &Standby, code: Code, why: &str) -> bool {
    let told = |effect: &OwnerEffect| match effect {
        OwnerEffect::ToFeeder(Frame::Reject(it)) => it.code == code && it.reason == why,
        _ => false,
    };
    let done = |effect: &OwnerEffect| match effect {
        OwnerEffect::Done(said, reason) => *said == code && reason == why,
        _ => false,
    };
    standby.out.iter().any(told) && standby.out.iter().any(done)
}

#[test]
fn a_feed_with_an_event_of_a_port_is_refused() {
    for event in port_events() {
        let mut standby = Standby::new(0, true).fed(0..3);
        let mut entry = BytesMut::new();
        let event = Event::Port(event);
        Cursor::default().put(&Entry { event, now_ns: None, reads: Reads::default() }, &mut entry);
        let mut digest = standby.history.digests[3];
        digest.absorb(&keys(), &entry, None);
        keys().seal(OLD).log(standby.history.offset(3), &mut entry);
        let (entry, tag, payload) = (entry.freeze(), digest.tag(), Bytes::new());
        standby.feed(Fed { channel: 9, entry, tag, from: 2, close: false, payload }.into());
        let why = "an entry is of a client of a shared cell, which this edge cannot keep";
        assert!(gave_up(&standby, Code::Protocol, why), "{:?}", standby.out);
    }
}

#[test]
fn a_checkpoint_with_clients_is_refused() {
    for hot in [false, true] {
        let history = History::new(&SAID);
        let owner = Owner::standby(keys(), policy(), &keep(&history, 3, hot), Seed([4; 32]));
        let (owner, out, consumed) = (owner.expect("it makes sense"), Vec::new(), Vec::new());
        let mut standby = Standby { history, owner, out, done: 0, restoring: None, consumed, late: None };
        let base = Base { channel: 9, meta: standby.history.meta(3), took: Vec::new() };
        standby.owner.fed(NOW, base.into(), &mut standby.out);
        standby.owner.name_cell(CELL);
        let bytes = Bytes::from_static(&[0; 8]);
        standby.owner.fed(NOW, CheckpointPart { channel: 9, bytes }.into(), &mut standby.out);
        let mut header = standby.history.header(3);
        let state = header.ports[0].clone();
        header.clients = Many(vec![ClientState { state, client: client(), expelled: false }]);
        standby.owner.restored(NOW, CELL, Ok(Box::new(header)), &mut standby.out);
        let why = "a checkpoint has other ports than the session";
        assert!(gave_up(&standby, Code::Tampered, why), "{:?}", standby.out);
    }
}

#[test]
fn what_was_received_is_known_by_port() {
    let mut standby = Standby::new(0, true).fed(0..5);
    let waits =
        |standby: &Standby| standby.owner.ends.iter().map(|side| side.acknowledged()).collect::<Vec<_>>();
    // Of a port that is not here, and of one that did not change, nothing is told.
    for (told, expected) in [
        (received(&[(0, 1), (1, 0)]), [1, 0]),
        (received(&[(0, 2), (7, 9)]), [2, 0]),
        (received(&[]), [2, 0]),
        (received(&[(1, 0), (0, 3)]), [3, 0]),
    ] {
        standby.feed(Acknowledged { channel: 9, received: told }.into());
        assert_eq!(waits(&standby), expected);
    }
}

#[test]
fn a_standby_reports_entries_that_run_nothing() {
    let mut standby = Standby::new(0, true).fed(0..1);
    let (heard, done) = (standby.consumed.len(), standby.out.len());
    // Without ports, a start runs nothing. The owner that waits for these reports would drop a standby that makes none.
    standby.owner.ends = Ends::new(core::iter::empty());
    let start = Event::Start { seed: [3; 32], peers: Peers::default() };
    let mut entry = BytesMut::new();
    Cursor::default().put(&Entry { event: start, now_ns: None, reads: Reads::default() }, &mut entry);
    let entries = 1_000 * REPLAYED_EVERY;
    let cursor = replay_of(&mut standby.owner.phase, &mut standby.owner.follow).expect("it replays");
    (1..entries).for_each(|_| cursor.extend(entry.clone().freeze()));
    standby.owner.follow_on(NOW, &mut standby.out);
    standby.settle();
    assert_eq!((standby.owner.totals().replayed, standby.consumed.len()), (entries, heard));
    let told = standby.out[done..].iter().map(|effect| match effect {
        OwnerEffect::ToFeeder(Frame::Replayed(replayed)) => replayed.entries,
        other => panic!("{other:?}"),
    });
    assert_eq!(told.collect::<Vec<_>>(), vec![REPLAYED_EVERY; 1_000]);
}
