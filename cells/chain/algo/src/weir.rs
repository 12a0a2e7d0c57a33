//! A stage to put around the chain: passes each peer's stream on to the other, some of it later. What it holds back comes
//! when its timer fires or its task has its turn, so where the chain's inputs are cut, and in which order they come, depends on
//! the weir's state, timers, tasks, clock and randomness; a recovery that lost any of them would show in the chain's records.
//!
//! Streams are cut only at multiples of a [`Record`]'s size, so that records stay whole.

use crate::{Event, Host, Peer, Record, Stream, mix};
use alloc::vec::Vec;

/// Held back for less than this.
const DELAY_NS_MAX: i64 = 20_000_000;
/// No more than this is held back for one peer.
const HELD_MAX: usize = 64 << 10;

/// What the weir knows of one peer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Bank {
    open: bool,
    /// Closed by us: it must not be sent to.
    closed: bool,
    /// What the peer is to be sent later.
    held: Vec<u8>,
}

/// The machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Weir {
    hash: u64,
    banks: [Bank; 2],
}

impl Default for Weir {
    fn default() -> Self {
        Self { hash: 0x7765_6972, banks: [Bank::default(), Bank::default()] }
    }
}

impl Weir {
    /// Consumes one event and does what follows from it.
    pub fn input(&mut self, event: Event<'_>, host: &mut impl Host) {
        self.absorb(event);
        self.draw(host);
        match event {
            Event::Open(peer) => self.banks[peer as usize].open = true,
            Event::Message(peer, payload) => self.pass(peer.opposite(), payload, host),
            Event::Close(peer) => self.end(peer.opposite(), host),
            Event::Timer(token) | Event::Task(token) => {
                self.pour(if token == 0 { Peer::Client } else { Peer::Server }, host);
            }
        }
    }

    /// The running hash, for comparing machines that should be equal.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// The whole state as bytes.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::from(self.hash.to_le_bytes());
        for bank in &self.banks {
            bytes.extend_from_slice(&[u8::from(bank.open), u8::from(bank.closed)]);
            bytes.extend_from_slice(&(bank.held.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&bank.held);
        }
        bytes
    }

    /// The state that [`Weir::save`] wrote; `None` for anything else.
    #[must_use]
    pub fn restore(bytes: &[u8]) -> Option<Self> {
        let (hash, mut rest) = bytes.split_first_chunk()?;
        let mut weir = Self { hash: u64::from_le_bytes(*hash), ..Self::default() };
        for bank in &mut weir.banks {
            let ([open, closed], after) = rest.split_first_chunk()?;
            let (len, after) = after.split_first_chunk()?;
            let (held, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
            *bank = Bank { open: *open != 0, closed: *closed != 0, held: held.into() };
            rest = after;
        }
        rest.is_empty().then_some(weir)
    }

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

    /// Now and then reads the clock, and now and then randomness; what comes decides what happens next.
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

    /// All of it at once, the first part of it, or nothing yet.
    fn pass(&mut self, to: Peer, payload: &[u8], host: &mut impl Host) {
        let bank = &mut self.banks[to as usize];
        if !bank.open || bank.closed {
            return;
        }
        bank.held.extend_from_slice(payload);
        let records = bank.held.len() / Record::SIZE + 1;
        let choice = self.hash / 64;
        if bank.held.len() > HELD_MAX || choice % 8 < 5 {
            return self.pour(to, host);
        }
        if choice % 8 == 5 {
            return host.spawn(to as u64);
        }
        let cut = usize::try_from(choice / 8 % records as u64).unwrap_or(0) * Record::SIZE;
        let rest = bank.held.split_off(cut);
        let first = core::mem::replace(&mut bank.held, rest);
        if !first.is_empty() {
            host.send(to, &first);
        }
        let delay_ns = i64::try_from(choice / 1024).unwrap_or(i64::MAX) % DELAY_NS_MAX;
        host.set_timer(delay_ns, to as u64);
    }

    /// Everything that was held back for a peer.
    fn pour(&mut self, to: Peer, host: &mut impl Host) {
        let held = core::mem::take(&mut self.banks[to as usize].held);
        if !held.is_empty() {
            host.send(to, &held);
        }
        host.cancel_timer(to as u64);
    }

    fn end(&mut self, to: Peer, host: &mut impl Host) {
        let bank = &self.banks[to as usize];
        if bank.open && !bank.closed {
            self.pour(to, host);
            self.banks[to as usize].closed = true;
            host.close(to);
        }
    }
}
