//! The messages of one flow through the cell `work`, and a server that checks each of them and notes when it came.
//!
//! ```text
//! client:  | len | rounds | number | 0    | payload |     in a stream, or one a datagram
//! server:  | len | rounds | number | word | payload |     the word depends on every message before
//! ```
//! It knows neither edges nor the client.

use super::heard::{Heard, Wrong};
use crate::cpu;
use anyhow::Context;
use rustix::net::sockopt;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Steps that the cell takes for each message: some hundreds of microseconds. All that is done for it elsewhere, on the same machine, takes about
/// a hundred; with less work in the cell the machine has no core left at half of the flow's capacity, where messages no longer travel in batches.
pub(super) const ROUNDS: u32 = 200_000;
/// Bytes of a message's header, and of its payload: each byte of it is the lowest of the message's number.
const HEADER: usize = 24;
const PAYLOAD: u32 = 1_000;
const SIZE: usize = HEADER + PAYLOAD as usize;
/// Bytes that the socket of a server in datagrams may hold, so that none is dropped there while its thread waits for a core.
const RECEIVED_MAX: usize = 16 << 20;
/// The steps of one message as one step.
const JUMP: (u64, u64) = jump(ROUNDS);

/// Multiplier and increment of as many steps of the cell's generator. Computes what `cells/testing/work` computes; a change there needs one here.
const fn jump(mut rounds: u32) -> (u64, u64) {
    // Of the step that is doubled each time, and of the steps so far.
    let mut doubled = (6_364_136_223_846_793_005_u64, 1_442_695_040_888_963_407_u64);
    let mut all = (1_u64, 0_u64);
    while rounds > 0 {
        if rounds % 2 == 1 {
            all = (all.0.wrapping_mul(doubled.0), all.1.wrapping_mul(doubled.0).wrapping_add(doubled.1));
        }
        doubled =
            (doubled.0.wrapping_mul(doubled.0), doubled.1.wrapping_mul(doubled.0).wrapping_add(doubled.1));
        rounds /= 2;
    }
    all
}

/// The cell's word after a message.
fn step(word: u64, number: u64) -> u64 {
    (word ^ number).wrapping_mul(JUMP.0).wrapping_add(JUMP.1)
}

/// A message as the client sends it, or as the server must receive it.
pub(super) fn message(number: u64, word: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SIZE);
    bytes.extend(PAYLOAD.to_le_bytes());
    bytes.extend(ROUNDS.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(word.to_le_bytes());
    bytes.resize(SIZE, number.to_le_bytes()[0]);
    bytes
}

/// How messages travel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One TCP stream: nothing may be missing.
    Stream,
    /// UDP, one message a datagram: the kernel drops those for which a socket has no room.
    Datagrams,
}

/// What the server has received.
pub(super) struct Received {
    pub(super) heard: Heard,
    /// When each message came, in this order; the number is its own, and larger than those before.
    pub(super) arrivals: Vec<(u64, Instant)>,
    /// Messages whose other bytes are wrong.
    garbled: u64,
}

/// The server of one flow.
#[derive(Clone)]
pub(super) struct Server(Arc<Mutex<Received>>);

impl Server {
    /// Starts it, until the program ends. Of a stream it has one connection: if that ends early, messages are missing.
    pub(super) fn start(kind: Kind) -> anyhow::Result<(Self, SocketAddr)> {
        let received = Received::new(kind);
        let server = Self(Arc::new(Mutex::new(received)));
        let own = server.clone();
        let address = match kind {
            Kind::Stream => {
                let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port for a server")?;
                let address = listener.local_addr()?;
                std::thread::spawn(move || listener.accept().and_then(|(stream, _)| own.serve(stream)));
                address
            }
            Kind::Datagrams => {
                let socket = UdpSocket::bind(("127.0.0.1", 0)).context("no free port for a server")?;
                let address = socket.local_addr()?;
                // Only root may exceed the limit of the machine.
                if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVED_MAX).is_err() {
                    sockopt::set_socket_recv_buffer_size(&socket, RECEIVED_MAX)?;
                }
                std::thread::spawn(move || own.serve_datagrams(&socket));
                address
            }
        };
        Ok((server, address))
    }

    pub(super) fn received(&self) -> MutexGuard<'_, Received> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        cpu::run_first();
        let (mut buffer, mut partial) = (vec![0; 64 << 10], Vec::new());
        loop {
            let len = stream.read(&mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            let at = Instant::now();
            partial.extend_from_slice(&buffer[..len]);
            let whole = partial.len() / SIZE * SIZE;
            let mut received = self.received();
            partial.drain(..whole).as_slice().chunks(SIZE).for_each(|message| received.take(message, at));
        }
    }

    fn serve_datagrams(&self, socket: &UdpSocket) -> std::io::Result<()> {
        cpu::run_first();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let len = socket.recv(&mut buffer)?;
            let at = Instant::now();
            self.received().take(&buffer[..len], at);
        }
    }
}

impl Received {
    fn new(kind: Kind) -> Self {
        let heard = match kind {
            Kind::Stream => Heard::new(0, step),
            Kind::Datagrams => Heard::with_drops(0, step),
        };
        Self { heard, arrivals: Vec::new(), garbled: 0 }
    }

    fn take(&mut self, bytes: &[u8], at: Instant) {
        if bytes.len() != SIZE {
            self.garbled += 1;
            return;
        }
        let number =
            |from: usize| bytes[from..from + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let (number, word) = (number(8), number(16));
        self.garbled += u64::from(bytes != message(number, word));
        if self.heard.hear(number, word) {
            self.arrivals.push((number, at));
        }
    }

    /// Those that came in this time.
    pub(super) fn arrivals_in(&self, from: Instant, time: Duration) -> &[(u64, Instant)] {
        let at = |when: Instant| self.arrivals.partition_point(|(_, at)| *at < when);
        &self.arrivals[at(from)..at(from + time)]
    }

    /// When a message came.
    pub(super) fn arrival(&self, number: u64) -> Option<Instant> {
        let index = self.arrivals.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        Some(self.arrivals[index].1)
    }

    /// What was wrong, if `sent` messages were sent.
    pub(super) fn wrong(&self, sent: u64) -> Wrong {
        let wrong = self.heard.wrong(sent);
        Wrong { changed: wrong.changed + self.garbled, ..wrong }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_as_many_steps() {
        let (one, two) = (jump(1), jump(2));
        for rounds in [0, 1, 2, 3, 1_000, 1_001] {
            let steps = (0..rounds).fold(5_u64, |word, _| word.wrapping_mul(one.0).wrapping_add(one.1));
            let all = jump(rounds);
            assert_eq!(5_u64.wrapping_mul(all.0).wrapping_add(all.1), steps, "{rounds}");
        }
        assert_ne!(one, two);
    }

    #[test]
    fn a_garbled_message_is_noticed() {
        let mut received = Received::new(Kind::Stream);
        received.take(&message(0, step(0, 0)), Instant::now());
        let mut other = message(1, step(step(0, 0), 1));
        other[SIZE - 1] ^= 1;
        received.take(&other, Instant::now());
        assert_eq!(received.wrong(2), Wrong { changed: 1, ..Wrong::default() });
        received.take(&other[1..], Instant::now());
        assert_eq!(received.wrong(2).changed, 2);
    }
    #[test]
    fn arrivals_are_found_by_time_and_by_number() {
        let (begun, ms) = (Instant::now(), Duration::from_millis);
        let mut received = Received::new(Kind::Datagrams);
        for (number, at) in [(0, 1), (1, 3), (4, 3), (5, 8)] {
            let word = (0..=number).fold(0, step);
            received.take(&message(number, word), begun + ms(at));
        }
        assert_eq!(received.arrivals_in(begun + ms(3), ms(5)).len(), 2);
        assert_eq!(received.arrival(4), Some(begun + ms(3)));
        assert_eq!((received.arrival(2), received.wrong(7).lost), (None, 3));
    }
}
