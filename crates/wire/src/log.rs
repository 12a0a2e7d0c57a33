//! The entries of the interleave log: which input a cell consumed, which time it observed, what it read from its edge's cache,
//! and nothing else.
//!
//! ```text
//! entry := kind (bits 0-2) | has time (bit 3) | has reads (bit 4)  [| seed (32) | peers]  [| time]  [| reads]
//! peers := has server (bit 0) | client by datagrams (bit 1) | server by datagrams (bit 2) | client is known (bit 3)  [| peer]
//! time  := nanoseconds since the last logged time (LEB128); in a start entry absolute (8 bytes, little endian)
//! reads := forgets (bit 0) | number of reads << 1 (LEB128) | reads, each
//!          0 | key's digest (8) | 0 none | 1 away | 2 refused | 3, size (LEB128), bytes
//!          n: as the n-th of the first kind since the last entry that forgets, itself included (LEB128)
//! ```
//!
//! A message needs no number: each port's messages are consumed in order. A timer needs no name: the earliest one fires. Tasks
//! need none either: they run in the order of the queue. So the entry of a plain message is one byte.

mod reads;

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
            Event::Message(port) if *port == Port::CLIENT => 0,
            Event::Message(_) => 1,
            Event::Timer => 2,
            Event::Task => 4,
            Event::Start { .. } => 3,
        };
        let timed = if entry.now_ns.is_some() { TIMED } else { 0 };
        let read = if entry.reads.list.is_empty() { 0 } else { READ };
        (kind | timed | read).put(out);
        if let Event::Start { seed, peers } = &entry.event {
            seed.put(out);
            peers.put(out);
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
            4 => Event::Task,
            3 => Event::Start { seed: Field::take(from)?, peers: Field::take(from)? },
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
        assert_eq!(bytes.collect::<alloc::vec::Vec<u8>>(), [0, 1, 2, 3, 5, 7, 8, 9, 10, 11, 13, 15]);
    }

    #[test]
    fn time_never_runs_backwards() {
        let mut cursor = Cursor { last_ns: 100 };
        let mut out = BytesMut::new();
        cursor.put(&Entry { event: Event::Timer, now_ns: Some(40), reads: Reads::default() }, &mut out);
        assert_eq!(cursor.last_ns, 100);
    }
}
