//! A host that collects, and the properties that a checker relies on.

extern crate std;

use std::{vec, vec::Vec};

use super::*;

#[derive(Default)]
struct Collector {
    now_ns: i64,
    random: u64,
    sent: Vec<(Peer, Record)>,
    closed: Vec<Peer>,
    timers: Vec<u64>,
    tasks: Vec<u64>,
    reads: usize,
}

impl Host for Collector {
    fn now(&mut self) -> i64 {
        self.reads += 1;
        self.now_ns
    }

    fn random(&mut self, buffer: &mut [u8]) {
        self.reads += 1;
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        buffer.copy_from_slice(&self.random.to_le_bytes());
    }

    fn send(&mut self, to: Peer, payload: &[u8]) {
        assert!(!self.closed.contains(&to), "sent after close");
        self.sent.push((to, Record::from_bytes(payload.try_into().unwrap())));
    }

    fn close(&mut self, to: Peer) {
        self.closed.push(to);
    }

    fn set_timer(&mut self, delay_ns: i64, token: u64) {
        assert!((0..TIMER_DELAY_NS_MAX).contains(&delay_ns) && token < TOKENS);
        self.timers.push(token);
    }

    fn cancel_timer(&mut self, token: u64) {
        self.timers.retain(|set| *set != token);
    }

    fn spawn(&mut self, token: u64) {
        self.tasks.push(token);
    }

    fn lock(&mut self, id: u64, token: u64) {
        assert!(id < LOCKS && (FREE_TASKS..TASKS).contains(&token));
        self.tasks.push(token);
    }

    fn unlock(&mut self, _: u64) {}
}

/// Both peers open, then `count` messages in turn, then both close.
fn history(count: u8) -> Vec<Event<'static>> {
    const PAYLOADS: [&[u8]; 3] = [b"a", b"longer", b""];
    let mut events = vec![Event::Open(Peer::Client), Event::Open(Peer::Server)];
    events.extend((0..count).map(|n| {
        let peer = Peer::ALL[usize::from(n % 2)];
        Event::Message(peer, PAYLOADS[usize::from(n) % PAYLOADS.len()])
    }));
    events.extend([Event::Close(Peer::Client), Event::Close(Peer::Server)]);
    events
}

fn run(events: &[Event<'_>], host: &mut Collector) -> Chain {
    let mut chain = Chain::default();
    events.iter().for_each(|event| chain.input(*event, host));
    chain
}

#[test]
fn records_are_linked_and_numbered_across_both_peers() {
    let mut host = Collector { random: 1, ..Default::default() };
    run(&history(200), &mut host);
    assert!(host.sent.len() > 100 && Peer::ALL.iter().all(|peer| host.sent.iter().any(|(to, _)| to == peer)));
    let mut previous = 0;
    for (index, (_, record)) in host.sent.iter().enumerate() {
        assert_eq!((record.index, record.previous), (index as u64, previous));
        previous = record.digest();
    }
    assert_eq!(host.closed, [Peer::Server, Peer::Client]);
    assert!(host.reads > 20 && !host.timers.is_empty());
    assert!((0..TASKS).all(|token| host.tasks.contains(&token)), "{:?}", host.tasks);
}

#[test]
fn stream_hashes_do_not_depend_on_the_cut() {
    let (mut whole, mut cut) = (Stream::EMPTY, Stream::EMPTY);
    whole.consume(b"one stream");
    b"one stream".chunks(3).for_each(|piece| cut.consume(piece));
    assert_eq!(whole, cut);
}

#[test]
fn every_change_of_the_past_changes_the_hash() {
    let hash =
        |events: &[Event<'_>], now_ns| run(events, &mut Collector { now_ns, ..Default::default() }).hash();
    let events = history(60);
    let expected = hash(&events, 0);
    for index in 2..events.len() {
        let mut lost = events.clone();
        lost.remove(index);
        assert_ne!(hash(&lost, 0), expected, "event {index} lost");
        let mut repeated = events.clone();
        repeated.insert(index, events[index]);
        assert_ne!(hash(&repeated, 0), expected, "event {index} repeated");
    }
    assert_ne!(hash(&events, 1), expected, "another time");
}

#[test]
fn a_saved_chain_continues_like_the_original() {
    let events = history(80);
    for cut in [0, 1, 2, 40, 81] {
        let mut host = Collector::default();
        let chain = run(&events[..cut], &mut host);
        let mut restored = Chain::restore(&chain.save());
        assert_eq!(restored, chain);
        events[cut..].iter().for_each(|event| restored.input(*event, &mut host));
        assert_eq!(restored, run(&events, &mut Collector::default()));
    }
}

#[test]
fn a_peer_that_is_not_there_is_never_sent_to() {
    let mut host = Collector::default();
    let events: Vec<_> =
        history(100).into_iter().filter(|event| *event != Event::Open(Peer::Server)).collect();
    run(&events, &mut host);
    assert!(host.sent.iter().all(|(to, _)| *to == Peer::Client));
}

/// Collects everything that a delay stage sends.
#[derive(Default)]
struct Pool {
    sent: [Vec<u8>; 2],
    sends: usize,
    sizes: [Vec<usize>; 2],
    timers: Vec<u64>,
    tasks: Vec<u64>,
    closed: Vec<Peer>,
}

impl Host for Pool {
    fn now(&mut self) -> i64 {
        3
    }

    fn random(&mut self, buffer: &mut [u8]) {
        buffer.fill(5);
    }

    fn send(&mut self, to: Peer, payload: &[u8]) {
        assert!(!self.closed.contains(&to) && !payload.is_empty());
        self.sent[to as usize].extend_from_slice(payload);
        self.sends += 1;
        self.sizes[to as usize].push(payload.len());
    }

    fn close(&mut self, to: Peer) {
        self.closed.push(to);
    }

    fn set_timer(&mut self, _: i64, token: u64) {
        self.timers.retain(|set| *set != token);
        self.timers.push(token);
    }

    fn cancel_timer(&mut self, token: u64) {
        self.timers.retain(|set| *set != token);
    }

    fn spawn(&mut self, token: u64) {
        self.tasks.push(token);
    }

    fn lock(&mut self, _: u64, _: u64) {
        unreachable!("a delay stage has no locks");
    }

    fn unlock(&mut self, _: u64) {
        unreachable!("a delay stage has no locks");
    }
}

#[test]
fn a_delay_stage_passes_everything_on_in_order_and_some_of_it_late() {
    let (mut stage, mut pool, mut expected) =
        (delay_stage::DelayStage::default(), Pool::default(), [vec![], vec![]]);
    Peer::ALL.iter().for_each(|peer| stage.input(Event::Open(*peer), &mut pool));
    let mut late = 0;
    for n in 0..400_u16 {
        let (from, payload) = (Peer::ALL[usize::from(n % 2)], [n.to_le_bytes(); 50].concat());
        expected[from.opposite() as usize].extend_from_slice(&payload);
        stage.input(Event::Message(from, &payload), &mut pool);
        stage = delay_stage::DelayStage::restore(&stage.save()).unwrap();
        late += usize::from(!pool.timers.is_empty());
        if n % 3 == 0 && !pool.timers.is_empty() {
            let token = pool.timers.remove(0);
            stage.input(Event::Timer(token), &mut pool);
        }
        if n % 2 == 0
            && let Some(token) = pool.tasks.pop()
        {
            stage.input(Event::Task(token), &mut pool);
        }
    }
    assert!(late > 100 && pool.sends > 250, "{late} {}", pool.sends);
    Peer::ALL.iter().for_each(|peer| stage.input(Event::Close(*peer), &mut pool));
    assert_eq!(pool.sent, expected);
    assert_eq!((&pool.closed[..], &pool.timers[..]), (&[Peer::Server, Peer::Client][..], &[][..]));
}

#[test]
fn a_delay_stage_neither_cuts_nor_merges_datagrams() {
    let (mut stage, mut pool, mut expected) =
        (delay_stage::DelayStage::default(), Pool::default(), [vec![], vec![]]);
    stage.speaks_in_datagrams(Peer::Client);
    Peer::ALL.iter().for_each(|peer| stage.input(Event::Open(*peer), &mut pool));
    let mut held = 0;
    for n in 0..400_u16 {
        let (from, size) = (Peer::ALL[usize::from(n % 2)], 1 + usize::from(n * 37 % 300));
        expected[from.opposite() as usize].push(size);
        let before = pool.sends;
        stage.input(Event::Message(from, &vec![7; size]), &mut pool);
        stage = delay_stage::DelayStage::restore(&stage.save()).unwrap();
        held += usize::from(pool.sends == before);
        if n % 5 == 0 && !pool.timers.is_empty() {
            let token = pool.timers.remove(0);
            stage.input(Event::Timer(token), &mut pool);
        }
    }
    assert!(held > 50, "{held}");
    Peer::ALL.iter().for_each(|peer| stage.input(Event::Close(*peer), &mut pool));
    assert_eq!(pool.sizes[Peer::Client as usize], expected[Peer::Client as usize]);
    let bytes = |sizes: &[usize]| sizes.iter().sum::<usize>();
    let server = Peer::Server as usize;
    assert_eq!(bytes(&pool.sizes[server]), bytes(&expected[server]));
    assert_ne!(pool.sizes[server], expected[server], "a stream is cut again");
}

#[test]
fn the_chain_is_pinned() {
    let mut host = Collector::default();
    let chain = run(&history(10), &mut host);
    assert_eq!(chain.hash(), PINNED_HASH);
}

/// Changing the algorithm makes recorded sessions of the chain cell unreplayable: change this value only with the algorithm.
const PINNED_HASH: u64 = 12_161_393_007_409_682_100;
