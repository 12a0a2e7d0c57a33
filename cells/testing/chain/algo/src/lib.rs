//! The oracle's hash chain: a small deterministic machine whose every output proves what it depends on.
//!
//! Each output is one [`Record`] of 64 bytes. From the records that both peers received, a checker that does not know the
//! protocol can verify
//!
//! - that they lie on **one** chain: records are numbered across both peers without a gap, and each carries the
//!   digest of the one before;
//! - that each input is contained **at most once and in order**: a record carries, for either peer, how many bytes of
//!   its stream were consumed and their hash, independent of how the stream was cut into messages;
//! - that timers, tasks, time and randomness were replayed: they are part of the running hash.
//!
//! What the chain does next (which peer it answers, whether it reads the clock, sets a timer or spawns a task) follows from bits
//! of its hash, so that histories vary. Does not know Wasm, logs or recovery; not a cryptographic hash.
//!
//! ```text
//! event --> absorb --> draw --> answer --> timers, tasks, flow --> (next event)
//!            hash      hash     record
//!              \________/         |
//!            bits of the hash     +--> index n, previous = digest of record n - 1, hash, streams consumed
//!            choose what follows
//! ```
//!
//! No record is ever sent twice and none is skipped, whatever fails in between: this is what the
//! simulator's oracle checks.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod delay_stage;

/// Timers have tokens below this.
pub const TOKENS: u64 = 4;

/// Tasks that only ever run without a lock have tokens below this.
pub const FREE_TASKS: u64 = 2;

/// Tasks that only ever run with their lock have tokens from [`FREE_TASKS`] on and below this.
pub const TASKS: u64 = 6;

/// Locks have numbers below this.
pub const LOCKS: u64 = 2;

/// The chain pauses no peer from this event on, so that a long conversation ends.
pub const PAUSES_UNTIL: u64 = 512;

/// Timers are set for less than this.
pub const TIMER_DELAY_NS_MAX: i64 = 50_000_000;

/// An input of the chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A peer has connected.
    Open(Peer),
    /// A piece of a peer's stream.
    Message(Peer, &'a [u8]),
    /// A peer will send no more.
    Close(Peer),
    /// A timer fired.
    Timer(u64),
    /// A task runs.
    Task(u64),
}

/// A peer of the chain; the numbers are those of the ABI's ports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Peer {
    /// Port 0.
    Client = 0,
    /// Port 1.
    Server = 1,
}

impl Peer {
    /// Both peers, in order of port.
    pub const ALL: [Self; 2] = [Self::Client, Self::Server];

    /// The peer of a port; the chain has no other ports.
    #[must_use]
    pub const fn from_port(port: u32) -> Option<Self> {
        match port {
            0 => Some(Self::Client),
            1 => Some(Self::Server),
            _ => None,
        }
    }

    /// The other one.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// The functions that the chain may call, implemented by Wasm imports or by a simulator.
pub trait Host {
    /// Session time in nanoseconds, the same throughout one event.
    fn now(&mut self) -> i64;
    /// Fills a buffer with random bytes.
    fn random(&mut self, buffer: &mut [u8]);
    /// Sends bytes to a peer: the chain sends one record at a time.
    fn send(&mut self, to: Peer, payload: &[u8]);
    /// Closes a port: nothing more will be sent to this peer.
    fn close(&mut self, to: Peer);
    /// Sets a timer, replacing the one of the same token.
    fn set_timer(&mut self, delay_ns: i64, token: u64);
    /// Cancels a timer.
    fn cancel_timer(&mut self, token: u64);
    /// Queues a task.
    fn spawn(&mut self, token: u64);
    /// Queues a task that runs when it has a lock.
    fn lock(&mut self, id: u64, token: u64);
    /// The running task releases its lock.
    fn unlock(&mut self, id: u64);
    /// Stops delivery from a peer. Does nothing if peers never send more than is requested.
    fn pause(&mut self, _peer: Peer) {}
    /// Continues delivery from a paused peer.
    fn resume(&mut self, _peer: Peer) {}
}

/// One output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Number of events consumed before it.
    pub events: u64,
    /// The running hash over these events, and over the time and randomness that were read.
    pub hash: u64,
    /// Number of records before it, to either peer.
    pub index: u64,
    /// [`Record::digest`] of the record before it; 0 in the first record.
    pub previous: u64,
    /// The consumed part of the client's and of the server's stream.
    pub streams: [Stream; 2],
}

impl Record {
    /// Bytes of a record.
    pub const SIZE: usize = 64;

    /// Eight little-endian words: events, hash, index, previous; bytes and hash of the client's stream, then of the
    /// server's.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let [client, server] = self.streams;
        let words = [
            self.events,
            self.hash,
            self.index,
            self.previous,
            client.bytes,
            client.hash,
            server.bytes,
            server.hash,
        ];
        let mut bytes = [0; Self::SIZE];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The inverse of [`Record::to_bytes`]; every 64 bytes are some record.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let mut words = [0; Self::SIZE / 8];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = place.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        }
        let [events, hash, index, previous, client_bytes, client_hash, server_bytes, server_hash] = words;
        let streams = [
            Stream { bytes: client_bytes, hash: client_hash },
            Stream { bytes: server_bytes, hash: server_hash },
        ];
        Self { events, hash, index, previous, streams }
    }

    /// The value of `previous` in the next record.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut stream = Stream::EMPTY;
        stream.consume(&self.to_bytes());
        stream.hash
    }
}

/// How many bytes of a peer's stream were consumed, and their hash: a checker that knows what was sent
/// computes the same values itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Number of bytes.
    pub bytes: u64,
    /// FNV-1a over them: byte by byte, so that message boundaries have no effect.
    pub hash: u64,
}

impl Stream {
    /// No bytes consumed.
    pub const EMPTY: Self = Self { bytes: 0, hash: 0xcbf2_9ce4_8422_2325 };

    /// Consumes further bytes.
    pub fn consume(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// The chain's state for one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PeerState {
    stream: Stream,
    /// Whether it has ever connected.
    open: bool,
    /// The chain has closed the port: it must not send there.
    closed: bool,
}

/// The chain. All of its state is here, and a copy of it is a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    /// Consumed so far.
    events: u64,
    /// What is drawn from it decides everything; the start is a constant, so two chains differ only
    /// by their input.
    hash: u64,
    /// Sent so far, which is the next one's index.
    records: u64,
    /// The digest of the last one; 0 before the first.
    previous: u64,
    /// By port.
    peers: [PeerState; 2],
}

impl Default for Chain {
    fn default() -> Self {
        let peer = PeerState { stream: Stream::EMPTY, open: false, closed: false };
        Self { events: 0, hash: 0x6d61_7272_616d_2e31, records: 0, previous: 0, peers: [peer; 2] }
    }
}

impl Chain {
    /// Bytes of a saved chain.
    pub const SAVED_SIZE: usize = 68;

    /// Consumes one event and produces its effects.
    pub fn input(&mut self, event: Event<'_>, host: &mut impl Host) {
        self.events += 1;
        self.absorb(event);
        self.draw(event, host);
        self.answer(event, host);
        self.change_timers(host);
        self.change_tasks(event, host);
        self.change_flow(event, host);
    }

    /// The running hash, for comparing machines that must be equal.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// The whole state as bytes. The next record, and for each peer two bytes: `open`, `closed`.
    #[must_use]
    pub fn save(&self) -> [u8; Self::SAVED_SIZE] {
        let mut bytes = [0; Self::SAVED_SIZE];
        bytes[..Record::SIZE].copy_from_slice(&self.record().to_bytes());
        for (place, peer) in bytes[Record::SIZE..].chunks_exact_mut(2).zip(&self.peers) {
            place.copy_from_slice(&[u8::from(peer.open), u8::from(peer.closed)]);
        }
        bytes
    }

    /// Decodes the state from [`Chain::save`]. Any other 68 bytes make some chain as well.
    #[must_use]
    pub fn restore(bytes: &[u8; Self::SAVED_SIZE]) -> Self {
        let mut head = [0; Record::SIZE];
        head.copy_from_slice(&bytes[..Record::SIZE]);
        let record = Record::from_bytes(&head);
        let flag = |index: usize| bytes[Record::SIZE + index] != 0;
        let peer = |index: usize| PeerState {
            stream: record.streams[index],
            open: flag(2 * index),
            closed: flag(2 * index + 1),
        };
        Self {
            events: record.events,
            hash: record.hash,
            records: record.index,
            previous: record.previous,
            peers: [peer(0), peer(1)],
        }
    }

    /// Adds the event to the running hash, and its bytes to their stream.
    fn absorb(&mut self, event: Event<'_>) {
        let (kind, peer, word) = match event {
            Event::Open(peer) => {
                self.peers[peer as usize].open = true;
                (1, peer as u64, 0)
            }
            Event::Message(peer, payload) => {
                let stream = &mut self.peers[peer as usize].stream;
                stream.consume(payload);
                (2, peer as u64, stream.hash)
            }
            Event::Close(peer) => (3, peer as u64, 0),
            Event::Timer(token) => (4, 0, token),
            Event::Task(token) => (5, 0, token),
        };
        self.mix(kind << 8 | peer);
        self.mix(word);
    }

    /// Sometimes reads the clock, and sometimes random bytes; always when a port opens, so that sessions begin differently
    /// and some greet a peer before it has sent anything.
    fn draw(&mut self, event: Event<'_>, host: &mut impl Host) {
        let choice = self.hash;
        if choice.is_multiple_of(8) {
            let now_ns = host.now();
            self.mix(u64::from_le_bytes(now_ns.to_le_bytes()));
        }
        if matches!(event, Event::Open(_)) || (choice / 8).is_multiple_of(8) {
            let mut bytes = [0; 8];
            host.random(&mut bytes);
            self.mix(u64::from_le_bytes(bytes));
        }
    }

    /// Sends a record to one peer, the other, both or neither; passes on a close after a last record.
    fn answer(&mut self, event: Event<'_>, host: &mut impl Host) {
        let choice = self.hash / 64 % 4;
        for peer in Peer::ALL {
            let last_word = event == Event::Close(self.partner(peer));
            if last_word || choice == peer as u64 || choice == 2 {
                self.send(peer, host);
            }
            if last_word && self.can_send(peer) {
                self.peers[peer as usize].closed = true;
                host.close(peer);
            }
        }
    }

    /// Sometimes sets or cancels a timer.
    fn change_timers(&mut self, host: &mut impl Host) {
        let choice = self.hash / 256;
        let token = choice / 64 % TOKENS;
        if choice.is_multiple_of(8) {
            let delay_ns = i64::try_from(choice / 256).unwrap_or(i64::MAX) % TIMER_DELAY_NS_MAX;
            host.set_timer(delay_ns, token);
        } else if choice % 16 == 1 {
            host.cancel_timer(token);
        }
    }

    /// Sometimes queues a task. A task that has its lock keeps it for another run, or releases it: a task that is not queued
    /// holds no lock.
    fn change_tasks(&self, event: Event<'_>, host: &mut impl Host) {
        let choice = self.hash >> 40;
        if let Event::Task(token @ FREE_TASKS..) = event {
            if choice.is_multiple_of(4) {
                host.spawn(token);
            } else {
                host.unlock(token % LOCKS);
            }
        }
        let token = choice / 16 % TASKS;
        match (choice / 4 % 4, token) {
            (0, ..FREE_TASKS) => host.spawn(token),
            (0, _) => host.lock(token % LOCKS, token),
            _ => {}
        }
    }

    /// Sometimes pauses a peer, and more often resumes it; not before both have connected.
    fn change_flow(&self, event: Event<'_>, host: &mut impl Host) {
        let choice = self.hash >> 20;
        let peer = Peer::ALL[usize::from(choice & 32 != 0)];
        if matches!(event, Event::Open(_)) || !self.peers[peer as usize].open {
            return;
        }
        match choice % 32 {
            0 | 1 if self.events < PAUSES_UNTIL => host.pause(peer),
            ..8 => host.resume(peer),
            _ => {}
        }
    }

    /// The peer whose close is passed on to this peer: the other one, or, if there is no other,
    /// itself. A peer without a counterpart gets its own close back, as nothing else would end the
    /// session.
    fn partner(&self, peer: Peer) -> Peer {
        if self.peers[peer.opposite() as usize].open { peer.opposite() } else { peer }
    }

    /// It has connected, and the chain has not closed the port.
    fn can_send(&self, peer: Peer) -> bool {
        let state = &self.peers[peer as usize];
        state.open && !state.closed
    }

    /// Sends the next record, if the peer can be sent anything; the chain goes on only if so.
    fn send(&mut self, peer: Peer, host: &mut impl Host) {
        if !self.can_send(peer) {
            return;
        }
        let record = self.record();
        host.send(peer, &record.to_bytes());
        self.records += 1;
        self.previous = record.digest();
    }

    /// The record that would be sent now.
    fn record(&self) -> Record {
        Record {
            events: self.events,
            hash: self.hash,
            index: self.records,
            previous: self.previous,
            streams: [self.peers[0].stream, self.peers[1].stream],
        }
    }

    /// Every word that the machine learns of passes through here.
    fn mix(&mut self, word: u64) {
        self.hash = mix(self.hash, word);
    }
}

/// One round of a 64-bit finaliser: a change of any input bit changes about half of the output bits.
#[must_use]
pub const fn mix(hash: u64, word: u64) -> u64 {
    let mut hash = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests;
