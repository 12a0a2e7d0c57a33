//! Many clients on one thread, each of which asks at a fixed rate, whether it has its answers or not: an open loop.
//!
//! ```text
//! question:  T 1 page | E number       to the cell `ballast`, due at a time that no answer delays
//! answer:    T word   | E number       the word depends on every question before
//! ```
//! A wait counts from when its question was due. Questions of different clients are due at different milliseconds. The thread sleeps when nothing
//! is due and nothing has arrived, since it shares the cores with the edges.

use super::heard::{Heard, Wrong};
use super::scene::PATIENCE;
use crate::ballast::xorshift;
use crate::pinger::{self, Pinger};
use anyhow::Context;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Of the generator that fills a cell; the first word of its state is the one after it.
const SEED: u64 = 7;
/// Of each session.
pub(super) const STATE_BYTES: u64 = 16 << 10;
/// How often each client asks in a second, and the time between two of its questions.
const PER_S: u64 = 10;
const PERIOD_MS: u64 = 1_000 / PER_S;
/// How long the thread sleeps at most.
const TURN: Duration = Duration::from_millis(1);
const EVENTS: usize = 1024;
/// Bytes of a question and of an answer: two commands of the cell.
const SIZE: usize = 34;

/// When a question was due, and when its answer came.
#[derive(Clone, Copy)]
pub(super) struct Answered {
    pub(super) due: Instant,
    pub(super) at: Instant,
}

impl Answered {
    pub(super) fn wait_ms(self) -> f64 {
        (self.at - self.due).as_secs_f64() * 1e3
    }
}

/// One client and its session.
struct Client {
    stream: TcpStream,
    /// When its first question is due, from the beginning.
    phase: Duration,
    asked: u64,
    heard: Heard,
    answers: Vec<Answered>,
    /// Bytes of a question that the socket has not taken yet, and of an incomplete answer.
    unsent: Vec<u8>,
    partial: Vec<u8>,
    /// Why it asks no more.
    failed: Option<std::io::Error>,
}

/// All clients.
pub(crate) struct Sessions {
    poll: Poll,
    clients: Vec<Client>,
}

impl Sessions {
    /// Connects `count` clients, whose cells hold some state.
    pub(crate) fn open(address: SocketAddr, count: usize) -> anyhow::Result<Self> {
        let poll = Poll::new()?;
        let mut clients = Vec::with_capacity(count);
        for index in 0..count {
            let stream = Pinger::fill_from(address, STATE_BYTES, SEED).context("a session did not begin")?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry().register(&mut stream, Token(index), Interest::READABLE | Interest::WRITABLE)?;
            clients.push(Client {
                stream,
                phase: Duration::from_millis(index as u64 * PERIOD_MS / count as u64),
                asked: 0,
                heard: Heard::new(xorshift(SEED), |word, _| xorshift(word)),
                answers: Vec::new(),
                unsent: Vec::new(),
                partial: Vec::new(),
                failed: None,
            });
        }
        Ok(Self { poll, clients })
    }

    /// Asks until it is stopped, and then until every question is answered, or no answer comes any more.
    pub(crate) fn talk(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let (begun, mut events) = (Instant::now(), Events::with_capacity(EVENTS));
        let mut stopped: Option<Instant> = None;
        loop {
            if stopped.is_none() && stop.load(Ordering::Relaxed) {
                stopped = Some(Instant::now());
            }
            match stopped {
                None => self.clients.iter_mut().for_each(|client| client.ask_what_is_due(begun)),
                Some(_) if self.clients.iter().all(Client::has_all) => return Ok(()),
                // What is missing by now is lost.
                Some(at) if at.elapsed() > PATIENCE => return Ok(()),
                Some(_) => {}
            }
            match self.poll.poll(&mut events, Some(TURN)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.into()),
                _ => {}
            }
            for event in &events {
                self.clients[event.token().0].turn(begun);
            }
        }
    }

    /// The answers of each client.
    pub(super) fn answers(&self) -> impl Iterator<Item = &[Answered]> {
        self.clients.iter().map(|client| &client.answers[..])
    }

    /// What was wrong with the answers of all clients.
    pub(crate) fn wrong(&self) -> Wrong {
        let mut sum = Wrong::default();
        self.clients.iter().for_each(|client| sum.add(client.heard.wrong(client.asked)));
        sum
    }

    /// How many clients lost their connection, and why one of them did.
    pub(crate) fn failed(&self) -> (usize, Option<&std::io::Error>) {
        let mut failed = self.clients.iter().filter_map(|client| client.failed.as_ref());
        let first = failed.next();
        (usize::from(first.is_some()) + failed.count(), first)
    }
}

impl Client {
    /// When a question is due.
    fn due(&self, begun: Instant, number: u64) -> Instant {
        begun + self.phase + Duration::from_millis(number * PERIOD_MS)
    }

    fn ask_what_is_due(&mut self, begun: Instant) {
        while self.failed.is_none() && self.due(begun, self.asked) <= Instant::now() {
            self.unsent.extend_from_slice(&pinger::command(b'T', 1, 0));
            self.unsent.extend_from_slice(&pinger::command(b'E', 0, self.asked));
            self.asked += 1;
            self.send();
        }
    }

    fn has_all(&self) -> bool {
        self.failed.is_some() || self.heard.next() >= self.asked
    }

    /// The socket is ready for something.
    fn turn(&mut self, begun: Instant) {
        if self.failed.is_none() {
            self.send();
            let received = self.receive(begun);
            self.note(received);
        }
    }

    fn send(&mut self) {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match self.stream.write(&self.unsent[sent..]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.note(Err(error));
                    break;
                }
            }
        }
        self.unsent.drain(..sent);
    }

    /// Reads all that has arrived.
    fn receive(&mut self, begun: Instant) -> std::io::Result<()> {
        let mut buffer = [0; 4 << 10];
        loop {
            let len = match self.stream.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                read => read?,
            };
            let at = Instant::now();
            self.partial.extend_from_slice(&buffer[..len]);
            let whole = self.partial.len() / SIZE * SIZE;
            for answer in self.partial.drain(..whole).collect::<Vec<_>>().chunks(SIZE) {
                let word = |from: usize| {
                    answer[from..from + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
                };
                // Of `T` the word is the second number, and of `E` the number.
                let (word, number) = (word(9), word(SIZE - 8));
                if self.heard.hear(number, word) {
                    self.answers.push(Answered { due: self.due(begun, number), at });
                }
            }
        }
    }

    fn note(&mut self, result: std::io::Result<()>) {
        match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => self.failed = Some(error),
            Ok(()) => {}
        }
    }
}
