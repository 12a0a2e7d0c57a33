//! Replays a log through a cell, handler by handler. Used by an owner that recovers a session and by the player of a recording.

use crate::cell::{CellInput, PortKind};
use alloc::{collections::VecDeque, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    header::Unacknowledged,
    id::Port,
    log::{Cursor, Entry, Event, Known, Peers, PortEvent, Read},
    seal::{Digest, SessionKeys},
};

/// Why a log cannot be followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogReplayError {
    /// Its bytes are not an entry.
    Unreadable,
    /// An entry consumes a message, timer or task that does not exist, or is of a port that does not.
    Missing,
    /// A handler read the clock, and the log does not contain the time.
    Clock,
    /// A handler's reads from the cache differ from the log.
    Reads,
}

/// A handler that the log requires to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Handler {
    pub(crate) input: CellInput,
    pub(crate) now_ns: i64,
    /// The logged results of its cache reads.
    pub(crate) reads: Vec<Read>,
}

/// What a log requires next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A handler has to run.
    Run(Handler),
    /// An entry is done that runs no handler.
    Entry,
    /// The log ends here.
    End,
}

/// The entry that runs.
#[derive(Debug)]
struct Underway {
    entry: Entry,
    /// Handlers that still have to run, in reverse order.
    inputs: Vec<CellInput>,
    /// The logged results of their cache reads.
    reads: VecDeque<Read>,
}

/// The rest of a log, and of the entry that runs.
#[derive(Debug)]
pub(crate) struct ReplayCursor {
    rest: Bytes,
    /// Log that was added later, in whole entries.
    later: VecDeque<Bytes>,
    /// How much that is. One that lags has much of it, and is asked after each entry what it holds.
    later_bytes: u64,
    cursor: Cursor,
    known: Known,
    underway: Option<Underway>,
}

impl ReplayCursor {
    /// Starts at the beginning of these entries.
    pub(crate) fn new(log: Bytes, cursor: Cursor) -> Self {
        let later = VecDeque::new();
        Self { rest: log, later, later_bytes: 0, cursor, known: Known::default(), underway: None }
    }

    /// Appends log: whole entries.
    pub(crate) fn extend(&mut self, entries: Bytes) {
        if !entries.is_empty() {
            self.later_bytes += entries.len() as u64;
            self.later.push_back(entries);
        }
    }

    /// Bytes of the remaining log, and of the objects that it has read.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.rest.len() as u64 + self.later_bytes + self.known.size()
    }

    /// The time that the running handler observes, or observed, in nanoseconds.
    pub(crate) fn now_ns(&self) -> i64 {
        let logged = self.underway.as_ref().and_then(|underway| underway.entry.now_ns);
        logged.unwrap_or(self.cursor.last_ns)
    }

    /// What comes next in the log. `inputs_of` gives the handlers of an entry, in reverse order.
    pub(crate) fn next_step(
        &mut self,
        inputs_of: impl FnOnce(Event) -> Option<Vec<CellInput>>,
    ) -> Result<Step, LogReplayError> {
        if self.underway.is_none() {
            if self.rest.is_empty() {
                let Some(later) = self.later.pop_front() else { return Ok(Step::End) };
                self.later_bytes -= later.len() as u64;
                self.rest = later;
            }
            let mut entry = self.cursor.take(&mut self.rest).map_err(|_| LogReplayError::Unreadable)?;
            let reads =
                self.known.read(core::mem::take(&mut entry.reads)).map_err(|_| LogReplayError::Unreadable)?;
            let inputs = inputs_of(entry.event.clone()).ok_or(LogReplayError::Missing)?;
            if inputs.is_empty() {
                return if reads.is_empty() { Ok(Step::Entry) } else { Err(LogReplayError::Reads) };
            }
            self.underway = Some(Underway { entry, inputs, reads: reads.into() });
        }
        let now_ns = self.now_ns();
        let Some(underway) = &mut self.underway else { return Ok(Step::End) };
        let Some(input) = underway.inputs.pop() else { return Ok(Step::End) };
        let reads = underway.reads.iter().cloned().collect();
        Ok(Step::Run(Handler { input, now_ns, reads }))
    }

    /// A handler finished. Returns whether it was its entry's last one.
    pub(crate) fn ran(&mut self, clock_read: bool, reads: &[Read]) -> Result<bool, LogReplayError> {
        let Some(Underway { entry, inputs, reads: logged }) = &mut self.underway else {
            return Err(LogReplayError::Missing);
        };
        if clock_read && entry.now_ns.is_none() {
            return Err(LogReplayError::Clock);
        }
        if reads.iter().any(|read| logged.pop_front().as_ref() != Some(read)) {
            return Err(LogReplayError::Reads);
        }
        let whole = inputs.is_empty();
        if whole && !logged.is_empty() {
            return Err(LogReplayError::Reads);
        }
        if whole {
            self.underway = None;
        }
        Ok(whole)
    }
}

/// The handlers that open ports, in reverse order: they are taken from the end of the list, the client's first.
pub(crate) fn opens(ports: impl DoubleEndedIterator<Item = Port>, peers: &Peers) -> Vec<CellInput> {
    let kind = |port: Port| match port {
        Port::CLIENT => PortKind::client(peers.client_datagrams),
        _ => PortKind::server(peers.server_datagrams),
    };
    let peer = |port: Port| peers.client.clone().filter(|_| port == Port::CLIENT);
    ports.map(|port| CellInput::Open { port, kind: kind(port), peer: peer(port) }).rev().collect()
}

/// The handlers that an event of a shared cell's port runs, in reverse order. `input_closed` says whether the port's client has ended
/// its messages, which the cell knows then.
pub(crate) fn port_handlers(event: &PortEvent, input_closed: bool) -> Vec<CellInput> {
    let port = event.port();
    match event {
        PortEvent::Joined(joined) => {
            let is_server = port.is_from_connect();
            let kind = if is_server {
                PortKind::server(joined.datagrams)
            } else {
                PortKind::client(joined.datagrams)
            };
            alloc::vec![CellInput::Open { port, kind, peer: joined.peer.clone() }]
        }
        PortEvent::Resumed { .. } | PortEvent::Expelled { .. } => Vec::new(),
        PortEvent::Left { quietly, .. } => {
            let close = (!quietly && !input_closed).then_some(CellInput::Close { port });
            core::iter::once(CellInput::Gone { port }).chain(close).collect()
        }
    }
}

/// How many messages of each port were consumed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Consumed(Vec<(Port, usize)>);

impl Consumed {
    /// How many of this port.
    pub(crate) fn get(&self, port: Port) -> usize {
        self.place(port).map_or(0, |index| self.0[index].1)
    }

    /// One more of this port. Returns how many there were.
    pub(crate) fn take(&mut self, port: Port) -> usize {
        let index = self.place(port).unwrap_or_else(|index| {
            self.0.insert(index, (port, 0));
            index
        });
        let count = &mut self.0[index].1;
        *count += 1;
        *count - 1
    }

    /// Where the port is, or belongs.
    fn place(&self, port: Port) -> Result<usize, usize> {
        self.0.binary_search_by_key(&port, |(at, _)| *at)
    }
}

impl FromIterator<(Port, usize)> for Consumed {
    /// The counts of these ports, each of which occurs once.
    fn from_iter<T: IntoIterator<Item = (Port, usize)>>(counts: T) -> Self {
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_unstable();
        Self(counts)
    }
}

/// Follows a log and the messages that it consumes without running anything, from one running digest and time to those at its
/// end, and counts the messages. `message` returns a message of a port, by its number: so many of that port were consumed before.
pub(crate) fn follow<'a>(
    keys: &SessionKeys,
    (mut digest, mut cursor): (Digest, Cursor),
    log: &Bytes,
    consumed: &mut Consumed,
    message: impl Fn(Port, usize) -> Option<&'a Unacknowledged>,
) -> Result<(Digest, Cursor), LogReplayError> {
    let mut rest = log.clone();
    while !rest.is_empty() {
        let before = rest.clone();
        let entry = cursor.take(&mut rest).map_err(|_| LogReplayError::Unreadable)?;
        let bytes = before.slice(..before.len() - rest.len());
        let message = match entry.event {
            Event::Message(port) => {
                let message = message(port, consumed.get(port)).ok_or(LogReplayError::Missing)?;
                consumed.take(port);
                Some((message.close, &message.payload[..]))
            }
            Event::Timer | Event::Task | Event::Start { .. } | Event::Port(_) => None,
        };
        digest.absorb(keys, &bytes, message);
    }
    Ok((digest, cursor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::String, vec};
    use bytes::BytesMut;
    use marram_wire::log::{Found, Reads};

    /// One entry for each message; each of them reads another object.
    fn entries(count: u8, size: usize) -> Vec<Bytes> {
        let (mut cursor, mut known) = (Cursor::default(), Known::default());
        let entry = |number: u8| {
            let object = Found::Object(vec![number; size].into());
            let reads = known.write(vec![Read { key: [number; 8], found: object }]);
            let mut out = BytesMut::new();
            cursor.put(&Entry { event: Event::Message(Port::CLIENT), now_ns: None, reads }, &mut out);
            out.freeze()
        };
        (1..=count).map(entry).collect()
    }

    #[test]
    fn one_that_lags_holds_what_is_left_and_what_was_read_and_no_more() {
        let entries = entries(20, 1_000);
        let mut cursor = ReplayCursor::new(entries[0].clone(), Cursor::default());
        cursor.extend(Bytes::new());
        entries[1..].iter().for_each(|entry| cursor.extend(entry.clone()));
        let all: usize = entries.iter().map(Bytes::len).sum();
        assert_eq!(cursor.held_bytes(), all as u64);
        let (mut left, mut previous) = (all, None::<Bytes>);
        for (number, entry) in (1..).zip(entries) {
            left -= entry.len();
            let input = || CellInput::Close { port: Port::CLIENT };
            let Ok(Step::Run(handler)) = cursor.next_step(|_| Some(vec![input()])) else {
                panic!("entry {number}")
            };
            assert_eq!((handler.reads.len(), handler.reads[0].key), (1, [number; 8]));
            assert_eq!(cursor.held_bytes(), (left + usize::from(number) * 1_000) as u64);
            assert_eq!(cursor.ran(false, &handler.reads), Ok(true));
            assert!(previous.is_none_or(|previous| previous.is_unique()), "{number}");
            previous = Some(entry);
        }
    }

    /// Entries of `log`, in order: `m` runs two handlers, `-` none.
    fn plain(log: &str) -> Bytes {
        let (mut cursor, mut out) = (Cursor::default(), BytesMut::new());
        for kind in log.chars() {
            let event = if kind == 'm' { Event::Message(Port::CLIENT) } else { Event::Task };
            cursor.put(&Entry { event, now_ns: None, reads: Reads::default() }, &mut out);
        }
        out.freeze()
    }

    /// The steps to the end of the log: `r` for each handler that runs, `e` for an entry without one.
    fn steps(cursor: &mut ReplayCursor) -> String {
        let mut steps = String::new();
        loop {
            let inputs = |event| match event {
                Event::Message(port) => vec![CellInput::Close { port }, CellInput::Gone { port }],
                _ => Vec::new(),
            };
            match cursor.next_step(|event| Some(inputs(event))).expect("each entry has its inputs") {
                Step::Run(handler) => {
                    let is_last = matches!(handler.input, CellInput::Close { .. });
                    assert_eq!(cursor.ran(false, &[]), Ok(is_last));
                    steps.push('r');
                }
                Step::Entry => steps.push('e'),
                Step::End => return steps,
            }
        }
    }

    #[test]
    fn an_entry_that_runs_nothing_is_an_entry() {
        let expected = |log: &str| log.replace('m', "rr").replace('-', "e");
        for log in ["", "-", "m", "-m", "m-", "m---m", "---", "-m--m-"] {
            let mut cursor = ReplayCursor::new(plain(log), Cursor::default());
            assert_eq!(steps(&mut cursor), expected(log), "{log}");
            // A feed sends more, in parts of any size.
            for later in ["-", "--m", "m-", "-m-", "m"] {
                cursor.extend(plain(later));
                assert_eq!(steps(&mut cursor), expected(later), "{log}, then {later}");
            }
            ["-m", "-", "m"].into_iter().for_each(|part| cursor.extend(plain(part)));
            assert_eq!(steps(&mut cursor), expected("-m-m"), "{log}, then three parts");
            assert_eq!(cursor.held_bytes(), 0);
        }
    }

    #[test]
    fn an_entry_that_runs_nothing_reads_nothing() {
        let mut cursor = ReplayCursor::new(entries(1, 10).remove(0), Cursor::default());
        assert_eq!(cursor.next_step(|_| Some(Vec::new())), Err(LogReplayError::Reads));
    }

    #[test]
    fn messages_are_counted_by_port() {
        let mut consumed: Consumed = [(Port(5), 2), (Port(1), 7)].into_iter().collect();
        let order = [5, 0, 1, 9, 5, 3, 0, 5];
        let numbers: Vec<usize> = order.iter().map(|port| consumed.take(Port(*port))).collect();
        assert_eq!(numbers, [2, 0, 7, 0, 3, 0, 1, 4]);
        let counts = |consumed: &Consumed| (0..10).map(|port| consumed.get(Port(port))).collect::<Vec<_>>();
        assert_eq!(counts(&consumed), [2, 8, 0, 1, 0, 5, 0, 0, 0, 1]);
        assert_eq!(counts(&Consumed::default()), [0; 10]);
    }
}
