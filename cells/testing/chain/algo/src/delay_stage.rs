//! A stage around the chain: passes each peer's stream on to the other peer, some of it later. It sends delayed data when its
//! timer fires or its task runs. So the boundaries and the order of the chain's inputs depend on the stage's state, timers,
//! tasks, clock and randomness; a recovery that lost any of them would be visible in the chain's records.
//!
//! Streams are cut only at multiples of a [`Record`]'s size, so that records stay whole; datagrams are neither cut nor merged.
//!
//! ```text
//! client -- event --> stage: absorb (hash), draw (clock, random) --> pass: 5 of 8  everything now
//!                                                                          1 of 8  everything, by a task
//!                                                                          2 of 8  a part now, the rest by a timer
//! server <--------------------------------------------------------- held, sizes
//! ```
//!
//! What it holds back for one peer is always sent in order; only where it is cut and when it is
//! sent depends on the hash.

use crate::{Event, Host, Peer, Record, Stream, mix};
use alloc::vec::Vec;

/// Upper bound of a delay, exclusive.
const DELAY_NS_MAX: i64 = 20_000_000;
/// Most bytes that are held back for one peer.
const HELD_MAX: usize = 64 << 10;

/// The stage's state for one peer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct PeerBuffer {
    open: bool,
    /// The stage has closed the port: it must not send there.
    closed: bool,
    /// Whether the peer uses datagrams.
    datagrams: bool,
    /// Bytes to be sent to the peer later.
    held: Vec<u8>,
    /// For datagrams, the length of each.
    sizes: Vec<u32>,
}

impl PeerBuffer {
    /// Sends the oldest held data: at most this many records of a stream, or this many datagrams.
    fn send(&mut self, to: Peer, count: usize, host: &mut impl Host) {
        if !self.datagrams {
            let rest = self.held.split_off(count.saturating_mul(Record::SIZE).min(self.held.len()));
            let first = core::mem::replace(&mut self.held, rest);
            if !first.is_empty() {
                host.send(to, &first);
            }
            return;
        }
        for size in self.sizes.drain(..count.min(self.sizes.len())) {
            let rest = self.held.split_off(size as usize);
            host.send(to, &core::mem::replace(&mut self.held, rest));
        }
    }
}

/// The delay stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DelayStage {
    /// Decides everything; changes with each event and each draw.
    hash: u64,
    /// By port: what goes to the client, then what goes to the server.
    buffers: [PeerBuffer; 2],
}

impl Default for DelayStage {
    fn default() -> Self {
        Self { hash: 0x7765_6972, buffers: [PeerBuffer::default(), PeerBuffer::default()] }
    }
}

impl DelayStage {
    /// The next port of this peer uses datagrams.
    pub fn speaks_in_datagrams(&mut self, peer: Peer) {
        self.buffers[peer as usize].datagrams = true;
    }

    /// Consumes one event and produces its effects.
    pub fn input(&mut self, event: Event<'_>, host: &mut impl Host) {
        self.absorb(event);
        self.draw(host);
        match event {
            Event::Open(peer) => self.buffers[peer as usize].open = true,
            Event::Message(peer, payload) => self.pass(peer.opposite(), payload, host),
            Event::Close(peer) => self.end(peer.opposite(), host),
            Event::Timer(token) | Event::Task(token) => {
                self.flush(if token == 0 { Peer::Client } else { Peer::Server }, host);
            }
        }
    }

    /// The running hash, for comparing machines that must be equal.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// The whole state as bytes. Little-endian:
    ///
    /// ```text
    /// hash:8 | for each peer: open:1 closed:1 datagrams:1 | len:8 held:len | count:8 sizes:4*count
    /// ```
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::from(self.hash.to_le_bytes());
        for buffer in &self.buffers {
            let flags = [buffer.open, buffer.closed, buffer.datagrams];
            bytes.extend_from_slice(&flags.map(u8::from));
            bytes.extend_from_slice(&(buffer.held.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&buffer.held);
            bytes.extend_from_slice(&(buffer.sizes.len() as u64).to_le_bytes());
            buffer.sizes.iter().for_each(|size| bytes.extend_from_slice(&size.to_le_bytes()));
        }
        bytes
    }

    /// Decodes the state from [`DelayStage::save`]; `None` for anything else. Every length is
    /// checked against the bytes that are there.
    #[must_use]
    pub fn restore(bytes: &[u8]) -> Option<Self> {
        let (hash, mut rest) = bytes.split_first_chunk()?;
        let mut stage = Self { hash: u64::from_le_bytes(*hash), ..Self::default() };
        for buffer in &mut stage.buffers {
            let ([open, closed, datagrams], after) = rest.split_first_chunk()?;
            let (len, after) = after.split_first_chunk()?;
            let (held, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
            let (count, mut after) = after.split_first_chunk()?;
            let mut sizes = Vec::new();
            for _ in 0..u64::from_le_bytes(*count) {
                let (size, behind) = after.split_first_chunk()?;
                sizes.push(u32::from_le_bytes(*size));
                after = behind;
            }
            let (open, closed, datagrams) = (*open != 0, *closed != 0, *datagrams != 0);
            *buffer = PeerBuffer { open, closed, datagrams, held: held.into(), sizes };
            rest = after;
        }
        rest.is_empty().then_some(stage)
    }

    /// Mixes an event into the hash: its kind and peer, or the bytes of a message.
    fn absorb(&mut self, event: Event<'_>) {
        let word = match event {
            Event::Open(peer) => 1 << 8 | peer as u64,
            Event::Close(peer) => 2 << 8 | peer as u64,
            Event::Timer(token) => 3 << 8 | token,
            Event::Task(token) => 4 << 8 | token,
            Event::Message(peer, payload) => {
                let mut stream = Stream::EMPTY;
                stream.consume(payload);
                stream.hash ^ peer as u64
            }
        };
        self.hash = mix(self.hash, word);
    }

    /// Sometimes reads the clock, and sometimes random bytes; the results decide what happens next.
    fn draw(&mut self, host: &mut impl Host) {
        if self.hash.is_multiple_of(4) {
            let now_ns = host.now();
            self.hash = mix(self.hash, u64::from_le_bytes(now_ns.to_le_bytes()));
        }
        if (self.hash / 8).is_multiple_of(4) {
            let mut bytes = [0; 8];
            host.random(&mut bytes);
            self.hash = mix(self.hash, u64::from_le_bytes(bytes));
        }
    }

    /// Passes on all of it at once, its first part, or nothing yet. Drops the message if the peer
    /// is not there or its port is closed: sending would be an error of the stage.
    fn pass(&mut self, to: Peer, payload: &[u8], host: &mut impl Host) {
        let buffer = &mut self.buffers[to as usize];
        if !buffer.open || buffer.closed {
            return;
        }
        buffer.held.extend_from_slice(payload);
        if buffer.datagrams {
            buffer.sizes.push(u32::try_from(payload.len()).unwrap_or(u32::MAX));
        }
        let parts = if buffer.datagrams { buffer.sizes.len() } else { buffer.held.len() / Record::SIZE } + 1;
        let choice = self.hash / 64;
        if buffer.held.len() > HELD_MAX || choice % 8 < 5 {
            return self.flush(to, host);
        }
        if choice % 8 == 5 {
            return host.spawn(to as u64);
        }
        let count = usize::try_from(choice / 8 % parts as u64).unwrap_or(0);
        buffer.send(to, count, host);
        let delay_ns = i64::try_from(choice / 1024).unwrap_or(i64::MAX) % DELAY_NS_MAX;
        host.set_timer(delay_ns, to as u64);
    }

    /// Sends everything that is held back for a peer.
    fn flush(&mut self, to: Peer, host: &mut impl Host) {
        self.buffers[to as usize].send(to, usize::MAX, host);
        host.cancel_timer(to as u64);
    }

    /// Passes on a close, after everything that is held back.
    fn end(&mut self, to: Peer, host: &mut impl Host) {
        let buffer = &self.buffers[to as usize];
        if buffer.open && !buffer.closed {
            self.flush(to, host);
            self.buffers[to as usize].closed = true;
            host.close(to);
        }
    }
}
