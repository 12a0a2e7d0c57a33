//! A log on its way through a cell, handler by handler. An owner that recovers a session and whoever runs a recording go the
//! same way.

use crate::cell::{Input, PortKind};
use alloc::{collections::VecDeque, vec::Vec};
use bytes::{Bytes, BytesMut};
use marram_wire::{
    header::Unacknowledged,
    id::Port,
    log::{Cursor, Entry, Event, Known, Peers, Read},
    seal::{Digest, SessionKeys},
};

/// Why a log cannot be followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lost {
    /// Its bytes are no entry.
    Unreadable,
    /// An entry consumes what never was.
    Missing,
    /// A handler read the clock, and the log does not say what it read.
    Clock,
    /// A handler read other things from the cache than the log says.
    Reads,
}

/// A handler that the log says to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Handler {
    pub(crate) input: Input,
    pub(crate) now_ns: i64,
    /// What it finds in the cache.
    pub(crate) reads: Vec<Read>,
}

/// The entry that runs.
#[derive(Debug)]
struct Underway {
    entry: Entry,
    /// Handlers that still have to, last one first.
    inputs: Vec<Input>,
    /// What they find in the cache.
    reads: VecDeque<Read>,
}

/// What is left of a log, and of the entry that runs.
#[derive(Debug)]
pub(crate) struct Course {
    rest: Bytes,
    cursor: Cursor,
    known: Known,
    underway: Option<Underway>,
}

impl Course {
    /// From the beginning of these entries.
    pub(crate) fn new(log: Bytes, cursor: Cursor) -> Self {
        Self { rest: log, cursor, known: Known::default(), underway: None }
    }

    /// More of the log has come.
    pub(crate) fn extend(&mut self, log: &[u8]) {
        let mut rest = BytesMut::from(&self.rest[..]);
        rest.extend_from_slice(log);
        self.rest = rest.freeze();
    }

    /// What the handler that runs observes, or observed, as the time.
    pub(crate) fn now_ns(&self) -> i64 {
        let logged = self.underway.as_ref().and_then(|underway| underway.entry.now_ns);
        logged.unwrap_or(self.cursor.last_ns)
    }

    /// The next handler to run; none where the log ends. `inputs_of` gives those of an entry, last one first.
    pub(crate) fn next_handler(
        &mut self,
        inputs_of: impl FnOnce(Event) -> Option<Vec<Input>>,
    ) -> Result<Option<Handler>, Lost> {
        if self.underway.is_none() {
            if self.rest.is_empty() {
                return Ok(None);
            }
            let mut entry = self.cursor.take(&mut self.rest).map_err(|_| Lost::Unreadable)?;
            let reads = self.known.read(core::mem::take(&mut entry.reads)).map_err(|_| Lost::Unreadable)?;
            let inputs = inputs_of(entry.event).ok_or(Lost::Missing)?;
            self.underway = Some(Underway { entry, inputs, reads: reads.into() });
        }
        let now_ns = self.now_ns();
        let Some(underway) = &mut self.underway else { return Ok(None) };
        let reads = underway.reads.iter().cloned().collect();
        Ok(underway.inputs.pop().map(|input| Handler { input, now_ns, reads }))
    }

    /// A handler came to its end: whether that was its entry's last one.
    pub(crate) fn ran(&mut self, clock_read: bool, reads: &[Read]) -> Result<bool, Lost> {
        let Some(Underway { entry, inputs, reads: logged }) = &mut self.underway else {
            return Err(Lost::Missing);
        };
        if clock_read && entry.now_ns.is_none() {
            return Err(Lost::Clock);
        }
        if reads.iter().any(|read| logged.pop_front().as_ref() != Some(read)) {
            return Err(Lost::Reads);
        }
        let whole = inputs.is_empty();
        if whole && !logged.is_empty() {
            return Err(Lost::Reads);
        }
        if whole {
            self.underway = None;
        }
        Ok(whole)
    }
}

/// The handlers that open ports, of which the client's is the first; the list is taken from its end.
pub(crate) fn opens(ports: impl DoubleEndedIterator<Item = Port>, peers: Peers) -> Vec<Input> {
    let kind = |port: Port| match port {
        Port::CLIENT => PortKind::client(peers.client_datagrams),
        _ => PortKind::server(peers.server_datagrams),
    };
    ports.map(|port| Input::Open { port, kind: kind(port) }).rev().collect()
}

/// Goes through a log and the messages that it consumes without running anything, from one running digest and time to those
/// behind it. `message` gives an end's messages, by its place and from 0.
pub(crate) fn follow<'a>(
    keys: &SessionKeys,
    (mut digest, mut cursor): (Digest, Cursor),
    log: &Bytes,
    message: impl Fn(usize, usize) -> Option<&'a Unacknowledged>,
) -> Result<(Digest, Cursor), Lost> {
    let mut rest = log.clone();
    let mut consumed = [0; 2];
    while !rest.is_empty() {
        let before = rest.clone();
        let entry = cursor.take(&mut rest).map_err(|_| Lost::Unreadable)?;
        let bytes = before.slice(..before.len() - rest.len());
        let message = match entry.event {
            Event::Message(port) => {
                let index = usize::from(port != Port::CLIENT);
                let message = message(index, consumed[index]).ok_or(Lost::Missing)?;
                consumed[index] += 1;
                Some((message.close, &message.payload[..]))
            }
            Event::Timer | Event::Task | Event::Start { .. } => None,
        };
        digest.absorb(keys, &bytes, message);
    }
    Ok((digest, cursor))
}
