//! The entries of the interleave log: which input a cell consumed, which time it observed, what it read from its edge's cache,
//! and nothing else.
//!
//! ```text
//! entry := kind (bits 0-2) | has time (bit 3) | has reads (bit 4)  [| seed (32) | peers]  [| port]  [| event]  [| time]  [| reads]
//! peers := has server (bit 0) | client by datagrams (bit 1) | server by datagrams (bit 2) | client is known (bit 3)  [| peer]
//! time  := nanoseconds since the last logged time (LEB128); in a start entry absolute (8 bytes, little endian)
//! reads := forgets (bit 0) | number of reads << 1 (LEB128) | reads, each
//!          0 | key's digest (8) | 0 none | 1 away | 2 refused | 3, size (LEB128), bytes
//!          n: as the n-th of the first kind since the last entry that forgets, itself included (LEB128)
//! ```
//!
//! Ports 0 and 1 have kinds of their own; `port` is another one, and `event` what happens to a port ([`PortEvent`]).
//! A message needs no number: each port's messages are consumed in order. A timer needs no name: the earliest one fires. Tasks
//! need none either: they run in the order of the queue. So the entry of a plain message is one byte.

mod ports;
mod reads;

pub use ports::{Client, Joined, PortEvent};
pub use reads::{Found, Known, Logged, Read, Reads};

use crate::{
    codec::{Error, Field},
    id::Port,
    peer::Peer,
};
use alloc::sync::Arc;
use bytes::{Bytes, BytesMut};

const TIMED: u8 = 8;
const READ: u8 = 16;
/// A message of a port that is neither the client's nor the server's.
const FURTHER: u8 = 5;
/// Something happens to a port.
const PORT_EVENT: u8 = 6;
const SERVER: u8 = 1;
const CLIENT_DATAGRAMS: u8 = 2;
const SERVER_DATAGRAMS: u8 = 4;
const CLIENT_KNOWN: u8 = 8;

/// The peers of a session's cell and their protocols, from which its ports are opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peers {
    /// Whether there is a server.
    pub server: bool,
    /// Whether the client uses datagrams: each is one message, never cut and never merged.
    pub client_datagrams: bool,
    /// Whether the server uses datagrams.
    pub server_datagrams: bool,
    /// What is known of the client.
    pub client: Option<Arc<Peer>>,
}

impl Field for Peers {
    fn put(&self, out: &mut BytesMut) {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let bits = bit(self.server, SERVER)
            | bit(self.client_datagrams, CLIENT_DATAGRAMS)
            | bit(self.server_datagrams, SERVER_DATAGRAMS)
            | bit(self.client.is_some(), CLIENT_KNOWN);
        bits.put(out);
        if let Some(client) = &self.client {
            client.put(out);
        }
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        let bits = u8::take(from)?;
        let server = bits & SERVER != 0;
        let known = bits & !(SERVER | CLIENT_DATAGRAMS | SERVER_DATAGRAMS | CLIENT_KNOWN) == 0;
        let server_datagrams = bits & SERVER_DATAGRAMS != 0;
        if !known || (server_datagrams && !server) {
            return Err(Error::Unknown);
        }
        let client_datagrams = bits & CLIENT_DATAGRAMS != 0;
        let client = (bits & CLIENT_KNOWN != 0).then(|| Peer::take(from).map(Arc::new)).transpose()?;
        Ok(Self { server, client_datagrams, server_datagrams, client })
    }
}

/// One input event that a cell consumed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The next message, or the close, of this port.
    Message(Port),
    /// The timer with the earliest due time.
    Timer,
    /// The first task of the queue.
    Task,
    /// The session's first entry: the cell starts and its ports open, client first.
    Start {
        /// Seeds the cell's random generator.
        seed: [u8; 32],
        /// The peers that ports are opened for.
        peers: Peers,
    },
    /// Something happens to a port of a shared cell.
    Port(PortEvent),
}

impl Event {
    /// The sender of the message that it consumes, as [`Fed::from`](crate::frame::Fed::from) has it.
    #[must_use]
    pub fn sender(&self) -> u32 {
        match self {
            Self::Message(Port(port @ 0..2)) => *port,
            Self::Message(Port(port)) => port.saturating_add(1),
            _ => 2,
        }
    }
}

/// An event, the time that its handlers observed, if any, and what they read from the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The consumed event.
    pub event: Event,
    /// Session time in nanoseconds, if the handler read the clock.
    pub now_ns: Option<i64>,
    /// What was read from the cache, in order.
    pub reads: Reads,
}

/// Encodes or decodes entries in order; each time is relative to the previous one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// The last logged time in nanoseconds of session time.
    pub last_ns: i64,
}

impl Cursor {
    /// Appends an entry. A time before the last one is written as the last one: session time never runs backwards.
    pub fn put(&mut self, entry: &Entry, out: &mut BytesMut) {
        let kind = match &entry.event {
            Event::Message(Port::CLIENT) => 0,
            Event::Message(Port::SERVER) => 1,
            Event::Timer => 2,
            Event::Start { .. } => 3,
            Event::Task => 4,
            Event::Message(_) => FURTHER,
            Event::Port(_) => PORT_EVENT,
        };
        let timed = if entry.now_ns.is_some() { TIMED } else { 0 };
        let read = if entry.reads.list.is_empty() { 0 } else { READ };
        (kind | timed | read).put(out);
        match &entry.event {
            Event::Start { seed, peers } => {
                seed.put(out);
                peers.put(out);
            }
            Event::Message(port) if kind == FURTHER => port.put(out),
            Event::Port(event) => event.put(out),
            Event::Message(_) | Event::Timer | Event::Task => {}
        }
        if let Some(now_ns) = entry.now_ns {
            if kind == 3 {
                now_ns.put(out);
                self.last_ns = now_ns;
            } else {
                // In a hostile log, the difference of two times may exceed the range of a signed number.
                let delta = if now_ns > self.last_ns { now_ns.abs_diff(self.last_ns) } else { 0 };
                delta.put(out);
                self.last_ns = self.last_ns.saturating_add_unsigned(delta);
            }
        }
        if read != 0 {
            entry.reads.put(out);
        }
    }

    /// Decodes one entry and removes it from the front.
    ///
    /// # Errors
    /// If the bytes are not a valid entry.
    pub fn take(&mut self, from: &mut Bytes) -> Result<Entry, Error> {
        let head = u8::take(from)?;
        let event = match head & !(TIMED | READ) {
            0 => Event::Message(Port::CLIENT),
            1 => Event::Message(Port::SERVER),
            2 => Event::Timer,
            3 => Event::Start { seed: Field::take(from)?, peers: Field::take(from)? },
            4 => Event::Task,
            FURTHER => match Field::take(from)? {
                // They have a kind of their own.
                Port::CLIENT | Port::SERVER => return Err(Error::Unknown),
                port => Event::Message(port),
            },
            PORT_EVENT => Event::Port(Field::take(from)?),
            _ => return Err(Error::Unknown),
        };
        let now_ns = if head & TIMED == 0 {
            None
        } else if matches!(event, Event::Start { .. }) {
            self.last_ns = i64::take(from)?;
            Some(self.last_ns)
        } else {
            self.last_ns = self.last_ns.checked_add_unsigned(u64::take(from)?).ok_or(Error::TooLarge)?;
            Some(self.last_ns)
        };
        let reads = if head & READ == 0 { Reads::default() } else { Field::take(from)? };
        Ok(Entry { event, now_ns, reads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Generation, HostId, SessionId};
    use alloc::{boxed::Box, vec, vec::Vec};

    #[test]
    fn times_however_far_apart_survive() {
        let start = Event::Start { seed: [0; 32], peers: Peers::default() };
        let entries = [(start, i64::MIN), (Event::Timer, i64::MAX)];
        let (mut cursor, mut out) = (Cursor::default(), BytesMut::new());
        for (event, at) in entries {
            cursor.put(&Entry { event, now_ns: Some(at), reads: Reads::default() }, &mut out);
        }
        let (mut cursor, mut bytes) = (Cursor::default(), out.freeze());
        let times = [0, 1].map(|_| cursor.take(&mut bytes).ok().and_then(|entry| entry.now_ns));
        assert_eq!(times, [Some(i64::MIN), Some(i64::MAX)]);
    }

    #[test]
    fn entries_survive_and_a_plain_message_is_one_byte() {
        let entries = [
            Entry {
                event: Event::Start { seed: [9; 32], peers: Peers { server: true, ..Peers::default() } },
                now_ns: Some(1_700_000_000_000_000_000),
                reads: Reads::default(),
            },
            Entry { event: Event::Message(Port::CLIENT), now_ns: None, reads: Reads::default() },
            Entry {
                event: Event::Message(Port::SERVER),
                now_ns: Some(1_700_000_000_000_000_500),
                reads: Reads::default(),
            },
            Entry { event: Event::Timer, now_ns: Some(1_700_000_001_000_000_500), reads: Reads::default() },
            Entry { event: Event::Task, now_ns: None, reads: Reads::default() },
            Entry { event: Event::Task, now_ns: Some(1_700_000_001_000_000_501), reads: Reads::default() },
        ];
        let mut out = BytesMut::new();
        let mut writer = Cursor::default();
        entries.iter().for_each(|entry| writer.put(entry, &mut out));
        assert_eq!(out.len(), 42 + 1 + 3 + 6 + 1 + 2);
        let mut bytes = out.freeze();
        let mut reader = Cursor::default();
        for entry in entries {
            assert_eq!(reader.take(&mut bytes), Ok(entry));
        }
        assert!(bytes.is_empty());
        assert_eq!(reader, writer);
    }

    /// What an entry of a further kind can be, in the order of the encoding.
    fn of_further_ports() -> Vec<Event> {
        let client =
            Client { session: SessionId([3; 16]), host: HostId([4; 16]), generation: generation(1 << 40) };
        let peers = [None, Peer::new(None, Some("web-1")).map(Arc::new)];
        let mut events: Vec<_> = [2, 0x7f, 0x80, u32::MAX].map(|port| Event::Message(Port(port))).into();
        for port in [0, 2, 0x80, u32::MAX].map(Port) {
            let joins =
                peers.iter().flat_map(|peer| [false, true].map(|datagrams| (peer.clone(), datagrams)));
            let joined = |(peer, datagrams)| {
                PortEvent::Joined(Box::new(Joined { port, client: client.clone(), datagrams, peer }))
            };
            let others = [
                PortEvent::Resumed { port, generation: generation(7) },
                PortEvent::Expelled { port },
                PortEvent::Left { port, quietly: false },
                PortEvent::Left { port, quietly: true },
            ];
            assert!(others.iter().all(|event| event.port() == port));
            events.extend(joins.map(joined).chain(others).map(Event::Port));
        }
        events
    }

    fn generation(count: u64) -> Generation {
        Generation { count, opener: 5 }
    }

    fn encoded(event: Event) -> Vec<u8> {
        let mut out = BytesMut::new();
        Cursor::default().put(&Entry { event, now_ns: None, reads: Reads::default() }, &mut out);
        out.into()
    }

    /// The entry, if it is all of these bytes.
    fn decoded(bytes: &[u8]) -> Option<Entry> {
        let mut bytes = Bytes::copy_from_slice(bytes);
        Cursor::default().take(&mut bytes).ok().filter(|_| bytes.is_empty())
    }

    #[test]
    fn port_events_survive_and_each_has_one_encoding() {
        let events = of_further_ports();
        for event in &events {
            let bytes = encoded(event.clone());
            let entry = |event: &Event| Entry { event: event.clone(), now_ns: None, reads: Reads::default() };
            assert_eq!(decoded(&bytes), Some(entry(event)));
            // What is cut is no entry.
            assert!((0..bytes.len()).all(|end| decoded(&bytes[..end]).is_none()), "{event:?}");
            // Each other byte anywhere is refused, or is of another entry, which is encoded so. A time or a longer integer would
            // need another byte.
            for at in 0..bytes.len() {
                for byte in (0..=u8::MAX).filter(|byte| *byte != bytes[at]) {
                    let mut other = bytes.clone();
                    other[at] = byte;
                    let Some(read) = decoded(&other) else { continue };
                    assert_ne!(read.event, *event, "byte {at} is {byte}");
                    let again = encoded(read.event);
                    let is_padded = again.len() < other.len();
                    assert!(again == other || is_padded, "byte {at} is {byte}: {event:?}");
                }
            }
        }
        let all: alloc::collections::BTreeSet<_> = events.iter().cloned().map(encoded).collect();
        assert_eq!(all.len(), events.len());
    }

    #[test]
    fn further_kinds_have_no_second_form_of_what_others_say() {
        let heads = |after: &[u8]| -> Vec<u8> {
            (0..=u8::MAX).filter(|head| decoded(&[&[*head], after].concat()).is_some()).collect()
        };
        // Messages of ports 0 and 1 have a byte of their own, as all messages of ports above them have not.
        assert_eq!(heads(&[]), [0, 1, 2, 4]);
        assert_eq!([heads(&[0]), heads(&[1])], [[8, 9, 10, 12]; 2]);
        assert_eq!(heads(&[2]), [5, 8, 9, 10, 12]);
        // The server's port neither joins nor leaves, and no further thing happens to a port.
        let whats = |after: &[u8]| -> Vec<u8> {
            (0..=u8::MAX).filter(|what| decoded(&[&[PORT_EVENT, *what], after].concat()).is_some()).collect()
        };
        assert_eq!([whats(&[0]), whats(&[1]), whats(&[2])], [vec![2], vec![], vec![2]]);
        let ends: [&[u8]; 5] = [&[0, 0], &[0, 1], &[1, 0], &[2, 1], &[2, 2]];
        assert_eq!(ends.map(whats), [vec![3], vec![3], vec![], vec![3], vec![]]);
        let generation = [&[0][..], &[0; 9]].concat();
        assert_eq!(whats(&generation), [1]);
        assert_eq!(whats(&[&[1][..], &[0; 9]].concat()), []);
        let joined = |port: u8, flags: u8| whats(&[&[port][..], &[0; 32], &[0; 9], &[flags]].concat());
        let flags = |port| (0..=u8::MAX).filter(move |flags| joined(port, *flags) == [0]).collect::<Vec<_>>();
        assert_eq!([flags(0), flags(1), flags(2)], [vec![0, 1], vec![], vec![0, 1]]);
    }

    #[test]
    fn a_message_of_a_further_port_is_not_the_servers() {
        let messages = [0, 1, 2, 3, 0x80].map(|port| encoded(Event::Message(Port(port))));
        assert_eq!(messages, [vec![0], vec![1], vec![5, 2], vec![5, 3], vec![5, 0x80, 1]]);
        let senders = [0, 1, 2, 3, 300].map(|port| Event::Message(Port(port)).sender());
        assert_eq!((senders, Event::Timer.sender()), ([0, 1, 3, 4, 301], 2));
    }

    #[test]
    fn every_pair_of_peers_has_a_byte_of_its_own_and_no_other_byte_has_a_meaning() {
        // Peers with a known client follow.
        let peer = Peer::new(None, Some("web-1"));
        let mut known = BytesMut::new();
        peer.as_ref().unwrap().put(&mut known);
        let meanings = (0..=255).filter_map(|byte| {
            let after = if byte & CLIENT_KNOWN == 0 { &[] } else { &known[..] };
            let mut bytes = Bytes::from([&[byte], after].concat());
            Peers::take(&mut bytes).ok().filter(|_| bytes.is_empty())
        });
        let bytes = meanings.map(|peers| {
            assert!(peers.client.is_none() || peers.client.as_deref() == peer.as_ref());
            let mut out = BytesMut::new();
            peers.put(&mut out);
            out[0]
        });
        assert_eq!(bytes.collect::<Vec<u8>>(), [0, 1, 2, 3, 5, 7, 8, 9, 10, 11, 13, 15]);
    }

    #[test]
    fn time_never_runs_backwards() {
        let mut cursor = Cursor { last_ns: 100 };
        let mut out = BytesMut::new();
        cursor.put(&Entry { event: Event::Timer, now_ns: Some(40), reads: Reads::default() }, &mut out);
        assert_eq!(cursor.last_ns, 100);
    }
}
