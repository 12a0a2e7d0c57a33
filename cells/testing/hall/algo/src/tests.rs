//! A host that collects, and the properties that a checker relies on.

extern crate std;

use std::{vec, vec::Vec};

use super::*;

#[derive(Default)]
struct Collector {
    random: u64,
    sent: Vec<(u32, HallRecord)>,
    closed: Vec<u32>,
    timers: Vec<u64>,
}

impl HallHost for Collector {
    fn now(&mut self) -> i64 {
        17
    }

    fn random(&mut self, buffer: &mut [u8]) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        buffer.copy_from_slice(&self.random.to_le_bytes());
    }

    fn send(&mut self, to: u32, payload: &[u8]) {
        self.sent.push((to, HallRecord::from_bytes(payload.try_into().unwrap()).unwrap()));
    }

    fn close(&mut self, to: u32) {
        self.closed.push(to);
    }

    fn set_timer(&mut self, delay_ns: i64, token: u64) {
        assert!((0..TIMER_DELAY_NS_MAX).contains(&delay_ns) && token < TOKENS);
        self.timers.push(token);
    }

    fn cancel_timer(&mut self, token: u64) {
        self.timers.retain(|set| *set != token);
    }
}

impl Collector {
    /// The records that a port got.
    fn of(&self, port: u32) -> Vec<HallRecord> {
        self.sent.iter().filter(|(to, _)| *to == port).map(|(_, record)| *record).collect()
    }
}

fn run(events: &[HallEvent<'_>]) -> (Hall, Collector) {
    let (mut hall, mut host) = (Hall::default(), Collector::default());
    events.iter().for_each(|event| hall.input(*event, &mut host));
    (hall, host)
}

use HallEvent::{Close, Message, Open, Timer};

#[test]
fn all_that_are_here_get_one_chain() {
    let (_, host) = run(&[
        Open(0),
        Open(2),
        Message(2, b"ab"),
        Message(0, b"c"),
        Timer(1),
        Message(2, b"d"),
        Close(0),
        Message(2, b"e"),
    ]);
    let (first, second) = (host.of(0), host.of(2));
    let indices = |records: &[HallRecord]| records.iter().map(|record| record.index).collect::<Vec<_>>();
    assert_eq!(indices(&first), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(indices(&second), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(first[1..], second[..6], "the same records");
    let whole: Vec<_> = first.iter().chain(&second[6..]).collect();
    assert_eq!(whole[0].previous, 0);
    assert!(whole.windows(2).all(|pair| pair[1].previous == pair[0].digest()));
    assert!(whole.iter().all(|record| record.life == whole[0].life && record.events == record.index + 1));
    assert_eq!(host.closed, [0]);
}

#[test]
fn a_record_names_its_speaker_and_all_that_this_one_said() {
    let (_, host) = run(&[Open(0), Open(2), Message(2, b"ab"), Message(2, b"c"), Message(0, b"x"), Close(2)]);
    let mut said = Stream::EMPTY;
    said.consume(b"abc");
    let records = host.of(2);
    let what: Vec<_> =
        records.iter().map(|record| (record.deed, record.port, record.speaker.bytes)).collect();
    assert_eq!(
        what,
        [
            (Deed::Joined, 2, 0),
            (Deed::Spoke, 2, 2),
            (Deed::Spoke, 2, 3),
            (Deed::Spoke, 0, 1),
            (Deed::Left, 2, 3)
        ]
    );
    assert_eq!((records[2].speaker, records[4].speaker), (said, said));
}

#[test]
fn a_number_that_is_used_again_is_another_client() {
    let (hall, host) = run(&[Open(0), Message(0, b"ab"), Open(0), Message(0, b"x")]);
    assert_eq!(host.of(0).last().unwrap().speaker.bytes, 1);
    // What comes from a port that is not open leaves no trace.
    let (closed, _) =
        run(&[Open(0), Message(0, b"ab"), Open(0), Message(0, b"x"), Message(2, b"y"), Close(2)]);
    assert_eq!(closed, hall);
}

#[test]
fn a_restored_hall_goes_on_as_the_saved_one() {
    let events = [Open(0), Open(2), Message(2, b"ab"), Open(3), Close(0), Timer(2), Message(3, b"z")];
    for cut in 0..=events.len() {
        let (hall, _) = run(&events[..cut]);
        let restored = Hall::restore(&hall.save()).unwrap();
        assert_eq!(restored, hall);
    }
    let saved = run(&events).0.save();
    for len in (0..saved.len()).filter(|len| *len < 40 || (len - 40) % 20 != 0) {
        assert_eq!(Hall::restore(&saved[..len]), None);
    }
}

#[test]
fn records_survive_and_two_halls_differ() {
    let (_, host) = run(&[Open(7), Message(7, b"ab")]);
    for (_, record) in &host.sent {
        assert_eq!(HallRecord::from_bytes(&record.to_bytes()), Some(*record));
    }
    let mut bytes = host.sent[0].1.to_bytes();
    bytes[44] = 4;
    assert_eq!(HallRecord::from_bytes(&bytes), None, "there is no such deed");
    let mut other = Collector { random: 5, ..Collector::default() };
    Hall::default().input(Open(7), &mut other);
    assert_ne!(other.sent[0].1.life, host.sent[0].1.life);
}

#[test]
fn timers_are_set_and_clocks_are_read_sometimes() {
    let mut events = vec![Open(0)];
    let payloads: Vec<[u8; 1]> = (0..200).map(|n| [n]).collect();
    events.extend(payloads.iter().map(|payload| Message(0, payload)));
    let (_, host) = run(&events);
    assert!(!host.timers.is_empty());
    assert_eq!(host.sent.len(), events.len());
}
