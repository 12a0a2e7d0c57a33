//! Clients of one or many memcached servers, real or cells, on one thread that never sleeps. It sends each request when it is
//! due, whether or not earlier ones were answered, and measures each answer from its request's due time.
//!
//! ```text
//! due times: random, from an absolute schedule      |--x-----x-x--------x---> time
//! ask(): writes if the socket takes it, else later     |     | |
//! turn(): polls without waiting, reads answers         '-> answered: now - due
//! ```
//! One thread that never sleeps adds no wake-up of its own to a measured time. Its limit is its
//! core: `clients_busy` near 1 says that the clients were measured and not the servers.

mod protocol;

use crate::peer;
use anyhow::{Context, bail};
use marram_wire::seeded::Seeded;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use protocol::{GETS, KEYS, Phrases, Request};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// An answer that takes longer counts as dropped.
const DROPPED_AFTER: Duration = Duration::from_secs(1);
/// How long it waits at the end for outstanding answers.
const PATIENCE: Duration = Duration::from_secs(20);
const EVENTS: usize = 1024;
/// Bytes of the read buffer.
const READ: usize = 16 << 10;

/// One connection of a tenant.
struct Client {
    stream: TcpStream,
    tenant: usize,
    /// Bytes to be written when the socket accepts them.
    out: Vec<u8>,
    /// The beginning of an incomplete answer.
    partial: Vec<u8>,
    /// Requests without an answer, oldest first; memcached answers a connection in order.
    asked: VecDeque<(Instant, Request)>,
}

/// All clients of one variant.
pub(super) struct Load {
    poll: Poll,
    events: Events,
    clients: Vec<Client>,
    tenants: Vec<Phrases>,
    random: Random,
    /// Shared by all clients: each read is processed before the next.
    buffer: Vec<u8>,
}

/// Results of an open loop.
#[derive(Default)]
pub(super) struct Answered {
    /// Time from each request's due time to its answer, in microseconds.
    pub(super) waits_us: Vec<f64>,
    /// How many answers took longer than a second.
    pub(super) drops: u64,
}

/// Results of a closed loop.
pub(super) struct Capacity {
    /// Answers a second.
    pub(super) per_s: f64,
    /// All answers, including those that came after the time was over.
    pub(super) answers: f64,
    /// The share of the time in which clients had work: near 1, the clients were the bottleneck.
    pub(super) clients_busy: f64,
}

impl Load {
    /// Connects `each` clients to each tenant, and sets all of its keys.
    ///
    /// The keys are set one by one, through the first client of each tenant, and each answer is
    /// awaited.
    pub(super) fn connect(addresses: &[SocketAddr], each: usize) -> anyhow::Result<Self> {
        let poll = Poll::new()?;
        let mut clients = Vec::with_capacity(addresses.len() * each);
        for tenant in (0..each).flat_map(|_| 0..addresses.len()) {
            let stream = peer::connect(addresses[tenant])?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let interests = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(clients.len()), interests)?;
            let client =
                Client { stream, tenant, out: Vec::new(), partial: Vec::new(), asked: VecDeque::new() };
            clients.push(client);
        }
        let mut load = Self {
            poll,
            events: Events::with_capacity(EVENTS),
            clients,
            tenants: (0..addresses.len()).map(Phrases::new).collect(),
            random: Random(Seeded::new(1)),
            buffer: vec![0; READ],
        };
        for key in 0..KEYS {
            for client in 0..addresses.len() {
                load.ask(client, Instant::now(), Request { sets: true, key })?;
            }
            load.finish(|_| {})?;
        }
        Ok(load)
    }

    /// Measures how many answers a second there are if every client sends its next request as soon as it has its answer.
    ///
    /// A client has one request in flight, so the number of clients bounds the queue at the
    /// servers.
    pub(super) fn capacity(&mut self, time: Duration) -> anyhow::Result<Capacity> {
        let begun = Instant::now();
        for client in 0..self.clients.len() {
            let request = self.random.request();
            self.ask(client, begun, request)?;
        }
        let (mut answers, mut idle, mut again) = (0_u32, Duration::ZERO, Vec::new());
        let mut now = begun;
        while now - begun < time {
            self.turn(|client, _| again.push(client))?;
            let nothing = again.is_empty();
            answers += u32::try_from(again.len())?;
            for client in again.drain(..) {
                let request = self.random.request();
                self.ask(client, now, request)?;
            }
            let before = std::mem::replace(&mut now, Instant::now());
            if nothing {
                idle += now - before;
            }
        }
        let spent = begun.elapsed().as_secs_f64();
        let late = u32::try_from(self.clients.len())?;
        self.finish(|_| {})?;
        Ok(Capacity {
            per_s: f64::from(answers) / spent,
            answers: f64::from(answers + late),
            clients_busy: 1.0 - idle.as_secs_f64() / spent,
        })
    }

    /// Sends `rate` requests a second at random times, for a while.
    ///
    /// `rate` is for all clients together; each request goes to a random one. Requests that become
    /// due while the thread is busy are sent late, and their waits count from when they were due.
    pub(super) fn open_loop(&mut self, rate: f64, time: Duration) -> anyhow::Result<Answered> {
        let mut answered = Answered::default();
        let mut note = |wait: Duration| {
            answered.drops += u64::from(wait > DROPPED_AFTER);
            answered.waits_us.push(wait.as_secs_f64() * 1e6);
        };
        let begun = Instant::now();
        let mut after = self.random.gap(rate);
        while after < time {
            while begun + after <= Instant::now() && after < time {
                let (client, request) = (self.random.below(self.clients.len()), self.random.request());
                self.ask(client, begun + after, request)?;
                after += self.random.gap(rate);
            }
            self.turn(|_, wait| note(wait))?;
        }
        self.finish(note)?;
        Ok(answered)
    }

    /// Waits until every request is answered.
    fn finish(&mut self, mut note: impl FnMut(Duration)) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.clients.iter().any(|client| !client.asked.is_empty()) {
            anyhow::ensure!(Instant::now() < deadline, "some requests were not answered in {PATIENCE:?}");
            self.turn(|_, wait| note(wait))?;
        }
        Ok(())
    }

    /// Requests of one client may queue behind one another; the socket's buffer may be full.
    fn ask(&mut self, client: usize, due: Instant, request: Request) -> anyhow::Result<()> {
        let client = &mut self.clients[client];
        client.asked.push_back((due, request));
        self.tenants[client.tenant].ask(request, &mut client.out);
        client.flush()
    }

    /// Processes the answers that have arrived: `answered` gets each answer's client and its time since the due time.
    fn turn(&mut self, mut answered: impl FnMut(usize, Duration)) -> anyhow::Result<()> {
        match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        for event in &self.events {
            let Token(index) = event.token();
            let client = &mut self.clients[index];
            if event.is_writable() {
                client.flush()?;
            }
            // Edge-triggered: reads go on until the socket has nothing more.
            while client.read(&self.tenants[client.tenant], &mut self.buffer, |wait| answered(index, wait))? {
            }
        }
        Ok(())
    }
}

impl Client {
    /// Writes what the socket takes.
    fn flush(&mut self) -> anyhow::Result<()> {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(count) => _ = self.out.drain(..count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("a client cannot ask"),
            }
        }
        Ok(())
    }

    /// Reads once; returns whether more may be available.
    fn read(
        &mut self,
        phrases: &Phrases,
        buffer: &mut [u8],
        mut answered: impl FnMut(Duration),
    ) -> anyhow::Result<bool> {
        let len = match self.stream.read(buffer) {
            Ok(0) => bail!("a server has closed a connection"),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error).context("a client cannot read"),
        };
        let now = Instant::now();
        let whole = std::mem::take(&mut self.partial);
        let joined = if whole.is_empty() { None } else { Some([&whole[..], &buffer[..len]].concat()) };
        let mut bytes = joined.as_deref().unwrap_or(&buffer[..len]);
        while let Some((due, request)) = self.asked.front() {
            let Some(size) = phrases.answer(*request, bytes).map_err(anyhow::Error::msg)? else { break };
            answered(now - *due);
            bytes = &bytes[size..];
            self.asked.pop_front();
        }
        self.partial.extend_from_slice(bytes);
        Ok(len == buffer.len())
    }
}

/// Requests and their due times: the same in each run, distributed as from independent clients.
struct Random(Seeded);

impl Random {
    fn next(&mut self) -> u32 {
        u32::try_from(self.0.word() >> 33).expect("31 bits")
    }

    fn below(&mut self, count: usize) -> usize {
        self.next() as usize % count.max(1)
    }

    fn request(&mut self) -> Request {
        Request { sets: self.next() % 100 >= GETS, key: self.next() % KEYS }
    }

    /// A random gap with an exponential distribution.
    fn gap(&mut self, rate: f64) -> Duration {
        let part = (f64::from(self.next()) + 1.0) / f64::from(1_u32 << 31);
        Duration::from_secs_f64(-part.ln() / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_as_long_as_the_rate_says() {
        let mut random = Random(Seeded::new(1));
        let sum: Duration = (0..10_000).map(|_| random.gap(1_000.0)).sum();
        assert!((9.5..10.5).contains(&sum.as_secs_f64()), "{sum:?}");
    }

    #[test]
    fn most_requests_get() {
        let mut random = Random(Seeded::new(1));
        let sets = (0..10_000).filter(|_| random.request().sets).count();
        assert!((400..600).contains(&sets), "{sets}");
        assert!((0..1_000).all(|_| random.request().key < KEYS));
    }
}
