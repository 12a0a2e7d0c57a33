//! Clients of one cell, or subscribers of one channel, on one thread: some speak, and all check what they hear.
//!
//! ```text
//! message:  | number 8 | speaker 4 | when it was sent, in nanoseconds 8 | zeros |      64 B
//! ```
//! The cell sends each message to all clients, in one order. A speaker numbers its messages, so every client notices one that is missing,
//! or that comes twice.

use super::redis::{self, Channel, Publisher};
use crate::{cpu, peer};
use anyhow::Context;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub(super) const SIZE: usize = 64;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
const EVENTS: usize = 1_024;
const READ: usize = 64 << 10;

/// What all clients heard in one loop.
pub(super) struct Heard {
    pub(super) per_s: f64,
    /// Of each delivery.
    pub(super) waits_ms: Vec<f64>,
    /// Of each client, the longest time between two of its deliveries.
    pub(super) gaps_ms: Vec<f64>,
}

struct Client {
    stream: TcpStream,
    /// What has arrived of a message.
    rest: Vec<u8>,
    /// The number of the next message of each speaker, from when this client heard the first.
    next: Vec<Option<u64>>,
}

/// All clients of a cell.
pub(super) struct Crowd {
    poll: Poll,
    events: Events,
    clients: Vec<Client>,
    /// Of a channel: those who speak. Clients of a cell speak for themselves.
    publishers: Vec<Publisher>,
    /// Bytes before and behind each message that a client hears.
    around: [usize; 2],
    /// Messages that each has said so far.
    said: Vec<u64>,
    begun: Instant,
    /// Deliveries that did not come, and that came twice.
    pub(super) lost: u64,
    pub(super) repeated: u64,
}

/// A message that a client has received.
struct Message {
    number: u64,
    speaker: usize,
    sent: Duration,
}

impl Message {
    fn to_bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let sent_ns = u64::try_from(self.sent.as_nanos()).unwrap_or(u64::MAX);
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.speaker as u64).to_le_bytes());
        bytes[16..24].copy_from_slice(&sent_ns.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; SIZE]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let speaker = usize::try_from(word(8)).unwrap_or(usize::MAX);
        Self { number: word(0), speaker, sent: Duration::from_nanos(word(16)) }
    }
}

impl Crowd {
    /// Connects so many clients, one after the other, each of which says one message, which all hear.
    pub(super) fn join(address: SocketAddr, count: usize) -> anyhow::Result<Self> {
        let mut crowd = Self::new()?;
        for number in 0..count {
            crowd.enter(peer::connect(address)?, count)?;
            crowd.say(number)?;
            // All that are here hear it.
            let mut missing = number + 1;
            let deadline = Instant::now() + PATIENCE;
            while missing > 0 {
                anyhow::ensure!(Instant::now() < deadline, "{missing} clients do not hear client {number}");
                crowd.turn(&mut |_, _| missing -= 1)?;
            }
        }
        Ok(crowd)
    }

    /// Subscribes so many clients to a channel of Redis, of which so many speak.
    pub(super) fn subscribe(
        address: SocketAddr,
        channel: &Channel,
        (count, speakers): (usize, usize),
    ) -> anyhow::Result<Self> {
        let mut crowd = Self { around: redis::AROUND, ..Self::new()? };
        for _ in 0..count {
            crowd.enter(redis::subscribe(address, channel)?, count)?;
        }
        for _ in 0..speakers.min(count) {
            crowd.publishers.push(Publisher::connect(address, channel)?);
        }
        Ok(crowd)
    }

    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS),
            clients: Vec::new(),
            publishers: Vec::new(),
            around: [0, 0],
            said: Vec::new(),
            begun: Instant::now(),
            lost: 0,
            repeated: 0,
        })
    }

    /// One more client; there will be so many.
    fn enter(&mut self, stream: std::net::TcpStream, count: usize) -> anyhow::Result<()> {
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        self.poll.registry().register(&mut stream, Token(self.clients.len()), Interest::READABLE)?;
        self.clients.push(Client { stream, rest: Vec::new(), next: vec![None; count] });
        self.said.push(0);
        Ok(())
    }

    fn say(&mut self, number: usize) -> anyhow::Result<()> {
        let message = Message { number: self.said[number], speaker: number, sent: self.begun.elapsed() };
        self.said[number] += 1;
        if let Some(publisher) = self.publishers.get_mut(number) {
            return publisher.say(&message.to_bytes());
        }
        // One message is under way: the socket has room for it.
        self.clients[number].stream.write_all(&message.to_bytes()).context("a client cannot send")
    }

    /// Reads what has arrived, and tells which client got what.
    fn turn(&mut self, hears: &mut impl FnMut(usize, &Message)) -> anyhow::Result<()> {
        self.poll.poll(&mut self.events, Some(Duration::from_millis(100)))?;
        let [before, behind] = self.around;
        let mut buffer = [0; READ];
        for event in &self.events {
            let at = event.token().0;
            let client = &mut self.clients[at];
            loop {
                match client.stream.read(&mut buffer) {
                    Ok(0) => anyhow::bail!("the connection of client {at} has ended"),
                    Ok(len) => client.rest.extend_from_slice(&buffer[..len]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error).context("a client's connection broke"),
                }
            }
            let mut whole = client.rest.chunks_exact(before + SIZE + behind);
            for bytes in &mut whole {
                let (message, _) = bytes[before..].split_first_chunk().context("a message is whole")?;
                let message = Message::from_bytes(message);
                let next = client.next.get_mut(message.speaker).context("this was said by no client")?;
                let expected = next.unwrap_or(message.number);
                *next = Some(expected.max(message.number + 1));
                self.lost += message.number.saturating_sub(expected);
                if message.number < expected {
                    self.repeated += 1;
                    continue;
                }
                hears(at, &message);
            }
            client.rest = whole.remainder().to_vec();
        }
        Ok(())
    }

    /// So many clients speak for this time, each when it has its own message back. Returns when all have heard everything.
    pub(super) fn speak(&mut self, time: Duration, speakers: usize) -> anyhow::Result<Heard> {
        cpu::run_first();
        let count = self.clients.len();
        let speakers = speakers.min(count);
        let begun = Instant::now();
        let (mut waits_ms, mut outstanding) = (Vec::new(), 0);
        let mut heard: Vec<Option<Instant>> = vec![None; count];
        let mut gaps_ms = vec![0_f64; count];
        for speaker in 0..speakers {
            self.say(speaker)?;
            outstanding += count;
        }
        let mut last = begun;
        while outstanding > 0 {
            anyhow::ensure!(last.elapsed() < PATIENCE, "{outstanding} deliveries are missing");
            let (mut answered, since) = (Vec::new(), self.begun);
            let before = waits_ms.len();
            self.turn(&mut |at, message| {
                waits_ms.push(since.elapsed().saturating_sub(message.sent).as_secs_f64() * 1e3);
                let now = Instant::now();
                let gap = heard[at].replace(now).map_or(Duration::ZERO, |before| now - before);
                gaps_ms[at] = gaps_ms[at].max(gap.as_secs_f64() * 1e3);
                if at == message.speaker {
                    answered.push(at);
                }
            })?;
            let heard_now = waits_ms.len() - before;
            let left = outstanding.checked_sub(heard_now);
            let what = || format!("{heard_now} deliveries arrived, and {outstanding} were due");
            outstanding = left.with_context(what)?;
            if waits_ms.len() > before {
                last = Instant::now();
            }
            for speaker in answered.into_iter().filter(|_| begun.elapsed() < time) {
                self.say(speaker)?;
                outstanding += count;
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        let per_s = waits_ms.len() as f64 / last.duration_since(begun).as_secs_f64();
        Ok(Heard { per_s, waits_ms, gaps_ms })
    }
}
