//! Clients of one cell, on one thread: some speak, and all check what they hear.
//!
//! ```text
//! message:  | number 8 | speaker 4 | when it was sent, in nanoseconds 8 | zeros |      64 B
//! ```
//! The cell sends each message to all clients, in one order. A speaker numbers its messages, so every client notices one that is missing,
//! or that comes twice.

use crate::{cpu, peer};
use anyhow::Context;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const SIZE: usize = 64;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
const EVENTS: usize = 1_024;
const READ: usize = 64 << 10;

/// What all clients heard in one loop.
pub(super) struct Heard {
    pub(super) per_s: f64,
    /// Of each delivery.
    pub(super) waits_ms: Vec<f64>,
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
        let (poll, events) = (Poll::new()?, Events::with_capacity(EVENTS));
        let mut crowd = Self {
            poll,
            events,
            clients: Vec::new(),
            said: Vec::new(),
            begun: Instant::now(),
            lost: 0,
            repeated: 0,
        };
        for number in 0..count {
            let stream = peer::connect(address)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            crowd.poll.registry().register(&mut stream, Token(number), Interest::READABLE)?;
            crowd.clients.push(Client { stream, rest: Vec::new(), next: vec![None; count] });
            crowd.said.push(0);
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

    fn say(&mut self, number: usize) -> anyhow::Result<()> {
        let message = Message { number: self.said[number], speaker: number, sent: self.begun.elapsed() };
        self.said[number] += 1;
        // One message is under way: the socket has room for it.
        self.clients[number].stream.write_all(&message.to_bytes()).context("a client cannot send")
    }

    /// Reads what has arrived, and tells which client got what.
    fn turn(&mut self, hears: &mut impl FnMut(usize, &Message)) -> anyhow::Result<()> {
        self.poll.poll(&mut self.events, Some(Duration::from_millis(100)))?;
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
            let (whole, rest) = client.rest.as_chunks::<SIZE>();
            for bytes in whole {
                let message = Message::from_bytes(bytes);
                let next = client.next.get_mut(message.speaker).context("this was said by no client")?;
                let expected = next.replace(message.number + 1).unwrap_or(message.number);
                self.lost += message.number.saturating_sub(expected);
                self.repeated += expected.saturating_sub(message.number);
                hears(at, &message);
            }
            client.rest = rest.to_vec();
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
                if at == message.speaker {
                    answered.push(at);
                }
            })?;
            outstanding -= waits_ms.len() - before;
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
        Ok(Heard { per_s, waits_ms })
    }
}
