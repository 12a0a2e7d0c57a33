//! The hall: a small deterministic machine that many clients share, and whose every output proves what it depends on.
//!
//! Each input becomes one [`HallRecord`] of 64 bytes, which is sent to every open port. From the records that the clients
//! received, a checker that does not know the protocol can verify
//!
//! - that all clients saw **one** history: a record has its index and the digest of the one before, so a client sees every gap,
//!   and two clients have the same record at an index;
//! - that each input is contained **once and in order**: a record says how many bytes of its speaker's stream were consumed, and
//!   their hash, independent of how the stream was cut into messages;
//! - that timers, time and randomness were replayed: they are part of the running hash.
//!
//! A client that joins gets the record of that first: it tells the client its port, and where the history is. Who closes gets the
//! record of that last. Does not know Wasm, logs or recovery; not a cryptographic hash.
//!
//! ```text
//! port 0 opens   --> record 0 --> port 0
//! port 2 opens   --> record 1 --> ports 0, 2
//! port 2 speaks  --> record 2 --> ports 0, 2
//! port 0 closes  --> record 3 --> ports 0, 2;  port 0 is closed
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::{collections::BTreeMap, vec::Vec};
use marram_chain_algo::Stream;

/// Timers have tokens below this.
pub const TOKENS: u64 = 4;

/// Timers are set for less than this.
pub const TIMER_DELAY_NS_MAX: i64 = 50_000_000;

/// The port of a record that is no client's.
pub const NO_PORT: u32 = u32::MAX;

/// A message that is just this stops the handler of the cell that runs the hall. The hall itself takes it as any other.
pub const STOP: &[u8] = b"stop this handler";

/// A client whose message is this and a little-endian number of four bytes gets so many bytes beside each further record, which say
/// nothing. For a client that does not read: what waits for it becomes much sooner.
pub const TELL_MORE: &[u8] = b"tell me more: ";

/// An input of the hall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HallEvent<'a> {
    /// A client has joined at this port. The number may have been another client's before.
    Open(u32),
    /// A piece of a client's stream.
    Message(u32, &'a [u8]),
    /// A client will send no more, or is gone.
    Close(u32),
    /// A timer fired.
    Timer(u64),
}

/// The functions that the hall may call, implemented by Wasm imports or by a simulator.
pub trait HallHost {
    /// Session time in nanoseconds, the same throughout one event.
    fn now(&mut self) -> i64;
    /// Fills a buffer with random bytes.
    fn random(&mut self, buffer: &mut [u8]);
    /// Sends a record to a client.
    fn send(&mut self, to: u32, payload: &[u8]);
    /// Closes a port: nothing more will be sent to this client.
    fn close(&mut self, to: u32);
    /// Sets a timer, replacing the one of the same token.
    fn set_timer(&mut self, delay_ns: i64, token: u64);
    /// Cancels a timer.
    fn cancel_timer(&mut self, token: u64);
}

/// What a record is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Deed {
    /// The client joined.
    Joined = 0,
    /// The client said something.
    Spoke = 1,
    /// The client left.
    Left = 2,
    /// A timer fired.
    Waited = 3,
}

impl Deed {
    const ALL: [Self; 4] = [Self::Joined, Self::Spoke, Self::Left, Self::Waited];
}

/// One input, as all clients get it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HallRecord {
    /// Number of records before it.
    pub index: u64,
    /// [`HallRecord::digest`] of the record before it; 0 in the first record.
    pub previous: u64,
    /// Drawn by the hall's first input: a hall that begins again is another one.
    pub life: u64,
    /// Inputs consumed, with this one.
    pub events: u64,
    /// The running hash over these, and over the time and randomness that were read.
    pub hash: u64,
    /// What it is about.
    pub deed: Deed,
    /// Whose input it is, or [`NO_PORT`].
    pub port: u32,
    /// What was consumed of that client's stream, with this input.
    pub speaker: Stream,
}

impl HallRecord {
    /// Bytes of a record.
    pub const SIZE: usize = 64;

    /// Eight little-endian words: index, previous, life, events, hash; the deed above the port; bytes and hash of the speaker's
    /// stream.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let words = [
            self.index,
            self.previous,
            self.life,
            self.events,
            self.hash,
            (self.deed as u64) << 32 | u64::from(self.port),
            self.speaker.bytes,
            self.speaker.hash,
        ];
        let mut bytes = [0; Self::SIZE];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The inverse of [`HallRecord::to_bytes`]; none if there is no such deed.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let mut words = [0; Self::SIZE / 8];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = place.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        }
        let [index, previous, life, events, hash, what, said, said_hash] = words;
        let deed = *Deed::ALL.get(usize::try_from(what >> 32).ok()?)?;
        let port = u32::try_from(what & u64::from(u32::MAX)).ok()?;
        let speaker = Stream { bytes: said, hash: said_hash };
        Some(Self { index, previous, life, events, hash, deed, port, speaker })
    }

    /// The value of `previous` in the next record.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut stream = Stream::EMPTY;
        stream.consume(&self.to_bytes());
        stream.hash
    }
}

/// The hall. All of its state is here, and a copy of it is a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hall {
    /// Drawn at the first input; 0 before that.
    life: u64,
    events: u64,
    /// What is drawn from it decides about timers and time.
    hash: u64,
    /// Records so far, which is the next one's index.
    records: u64,
    /// The digest of the last one; 0 before the first.
    previous: u64,
    /// The clients that are here, with what was consumed of their streams.
    here: BTreeMap<u32, Stream>,
}

impl Default for Hall {
    fn default() -> Self {
        let (hash, here) = (0x6d61_7272_616d_2e32, BTreeMap::new());
        Self { life: 0, events: 0, hash, records: 0, previous: 0, here }
    }
}

impl Hall {
    /// Consumes one event and produces its effects. What a port says that is not open is ignored.
    pub fn input(&mut self, event: HallEvent<'_>, host: &mut impl HallHost) {
        let Some((deed, port, speaker)) = self.consume(event) else { return };
        self.events += 1;
        self.draw(deed, host);
        self.tell(deed, port, speaker, host);
        if deed == Deed::Left {
            self.here.remove(&port);
            host.close(port);
        }
        self.change_timers(host);
    }

    /// The running hash, for comparing machines that must be equal.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// What was consumed of the stream of a client that is here.
    #[must_use]
    pub fn said(&self, port: u32) -> Option<Stream> {
        self.here.get(&port).copied()
    }

    /// The whole state as bytes: five words, then 20 bytes for each client that is here.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [self.life, self.events, self.hash, self.records, self.previous] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for (port, stream) in &self.here {
            bytes.extend_from_slice(&port.to_le_bytes());
            bytes.extend_from_slice(&stream.bytes.to_le_bytes());
            bytes.extend_from_slice(&stream.hash.to_le_bytes());
        }
        bytes
    }

    /// Decodes the state from [`Hall::save`]; none for bytes of another size.
    #[must_use]
    pub fn restore(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.split_at_checked(40)?;
        let (words, _) = words.as_chunks::<8>();
        let [life, events, hash, records, previous] = *words else { return None };
        let word = u64::from_le_bytes;
        let (clients, rest) = rest.as_chunks::<20>();
        let client = |bytes: &[u8; 20]| {
            let (port, stream) = bytes.split_first_chunk()?;
            let (said, hash) = stream.split_first_chunk()?;
            let stream = Stream { bytes: word(*said), hash: word(hash.try_into().ok()?) };
            Some((u32::from_le_bytes(*port), stream))
        };
        let here = clients.iter().map(client).collect::<Option<_>>()?;
        let hall = Self {
            life: word(life),
            events: word(events),
            hash: word(hash),
            records: word(records),
            previous: word(previous),
            here,
        };
        rest.is_empty().then_some(hall)
    }

    /// Adds the event to the running hash, and its bytes to their stream. None if its port is not open.
    fn consume(&mut self, event: HallEvent<'_>) -> Option<(Deed, u32, Stream)> {
        let (deed, port, speaker) = match event {
            HallEvent::Open(port) => {
                self.here.insert(port, Stream::EMPTY);
                (Deed::Joined, port, Stream::EMPTY)
            }
            HallEvent::Message(port, payload) => {
                let stream = self.here.get_mut(&port)?;
                stream.consume(payload);
                (Deed::Spoke, port, *stream)
            }
            HallEvent::Close(port) => (Deed::Left, port, *self.here.get(&port)?),
            HallEvent::Timer(token) => {
                self.mix(token);
                (Deed::Waited, NO_PORT, Stream::EMPTY)
            }
        };
        self.mix((deed as u64) << 32 | u64::from(port));
        self.mix(speaker.hash);
        Some((deed, port, speaker))
    }

    /// Sometimes reads the clock, and sometimes random bytes; always when a client joins.
    fn draw(&mut self, deed: Deed, host: &mut impl HallHost) {
        let choice = self.hash;
        if choice.is_multiple_of(8) {
            let now_ns = host.now();
            self.mix(u64::from_le_bytes(now_ns.to_le_bytes()));
        }
        if deed == Deed::Joined || (choice / 8).is_multiple_of(8) {
            let mut bytes = [0; 8];
            host.random(&mut bytes);
            self.mix(u64::from_le_bytes(bytes));
        }
        if self.life == 0 {
            self.life = self.hash | 1;
        }
    }

    /// Sends the next record to all that are here.
    fn tell(&mut self, deed: Deed, port: u32, speaker: Stream, host: &mut impl HallHost) {
        let record = HallRecord {
            index: self.records,
            previous: self.previous,
            life: self.life,
            events: self.events,
            hash: self.hash,
            deed,
            port,
            speaker,
        };
        let bytes = record.to_bytes();
        self.here.keys().for_each(|to| host.send(*to, &bytes));
        self.records += 1;
        self.previous = record.digest();
    }

    /// Sometimes sets or cancels a timer.
    fn change_timers(&self, host: &mut impl HallHost) {
        let choice = self.hash / 256;
        let token = choice / 64 % TOKENS;
        if choice.is_multiple_of(8) {
            let delay_ns = i64::try_from(choice / 256).unwrap_or(i64::MAX) % TIMER_DELAY_NS_MAX;
            host.set_timer(delay_ns, token);
        } else if choice % 16 == 1 {
            host.cancel_timer(token);
        }
    }

    /// Every word that the machine learns of passes through here.
    fn mix(&mut self, word: u64) {
        self.hash = marram_chain_algo::mix(self.hash, word);
    }
}

#[cfg(test)]
mod tests;
