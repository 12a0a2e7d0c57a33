//! One TCP stream of messages through the cell `work`: a client that sends as fast as it can, or at a rate, and a server that checks each
//! message and notes when it came.
//!
//! ```text
//! client:  | len | rounds | number | 0    | payload |     due at a time that nothing delays
//! server:  | len | rounds | number | word | payload |     the word depends on every message before
//! ```
//! It knows nothing of edges.

use super::heard::{Heard, Wrong};
use super::scene::{PATIENCE, wait_until};
use crate::peer;
use anyhow::Context;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};
use std::time::{Duration, Instant};

/// Steps that the cell takes for each message: some tens of microseconds, beside which the rest of its way is short.
pub(super) const ROUNDS: u32 = 40_000;
/// Bytes of a message's header, and of its payload: each byte of it is the lowest of the message's number.
const HEADER: usize = 24;
const PAYLOAD: u32 = 1_000;
const SIZE: usize = HEADER + PAYLOAD as usize;
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
fn message(number: u64, word: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SIZE);
    bytes.extend(PAYLOAD.to_le_bytes());
    bytes.extend(ROUNDS.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(word.to_le_bytes());
    bytes.resize(SIZE, number.to_le_bytes()[0]);
    bytes
}

/// What the server has received.
struct Received {
    heard: Heard,
    /// When each message came, in this order; the number is its own.
    arrivals: Vec<(u64, Instant)>,
    /// Messages whose other bytes are wrong.
    garbled: u64,
}

/// The server of one stream.
#[derive(Clone)]
pub(super) struct Server(Arc<Mutex<Received>>);

impl Server {
    /// Starts it, until the program ends.
    pub(super) fn start() -> anyhow::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port for a server")?;
        let address = listener.local_addr()?;
        let received = Received { heard: Heard::new(0, step), arrivals: Vec::new(), garbled: 0 };
        let server = Self(Arc::new(Mutex::new(received)));
        let own = server.clone();
        // It has one connection. If that ends early, messages are missing.
        std::thread::spawn(move || listener.accept().and_then(|(stream, _)| own.serve(stream)));
        Ok((server, address))
    }

    fn received(&self) -> MutexGuard<'_, Received> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
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
}

impl Received {
    fn take(&mut self, bytes: &[u8], at: Instant) {
        let number =
            |from: usize| bytes[from..from + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let (number, word) = (number(8), number(16));
        self.garbled += u64::from(bytes != message(number, word));
        if self.heard.hear(number, word) {
            self.arrivals.push((number, at));
        }
    }
}

/// The client's side, and what the server has received.
pub(super) struct Flow {
    stream: TcpStream,
    server: Server,
    /// When each message was due, by its number.
    due: Mutex<Vec<Instant>>,
}

impl Flow {
    pub(super) fn connect(address: SocketAddr, server: Server) -> anyhow::Result<Self> {
        Ok(Self { stream: peer::connect(address)?, server, due: Mutex::default() })
    }

    fn due(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, due: Instant) -> std::io::Result<()> {
        let number = {
            let mut all = self.due();
            all.push(due);
            all.len() as u64 - 1
        };
        (&self.stream).write_all(&message(number, 0))
    }

    /// Sends as fast as the connection takes messages; returns how many of them a second the server received in the second half of the time.
    pub(super) fn capacity_per_s(&self, time: Duration) -> anyhow::Result<f64> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.send(Instant::now())?;
        }
        self.wait_for_all()?;
        Ok(self.arrivals_in(begun + time / 2, time / 2) / (time / 2).as_secs_f64())
    }

    /// Sends at a rate while `work` is done.
    pub(super) fn paced<T>(&self, per_s: f64, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let stop = AtomicBool::new(false);
        let done = std::thread::scope(|scope| {
            let sends = scope.spawn(|| self.send_paced(per_s, &stop));
            let done = work();
            stop.store(true, Ordering::Relaxed);
            sends.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
            done
        })?;
        self.wait_for_all()?;
        Ok(done)
    }

    fn send_paced(&self, per_s: f64, stop: &AtomicBool) -> std::io::Result<()> {
        let (mut due, interval) = (Instant::now(), Duration::from_secs_f64(1.0 / per_s));
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.send(due)?;
            due += interval;
        }
        Ok(())
    }

    /// Waits until the server has received everything that was sent.
    fn wait_for_all(&self) -> anyhow::Result<()> {
        let sent = self.due().len() as u64;
        wait_until(|| Ok(self.server.received().heard.next() >= sent))
            .with_context(|| format!("not all of {sent} messages arrived within {PATIENCE:?}"))
    }

    /// How many messages the server received in this time.
    pub(super) fn arrivals_in(&self, from: Instant, time: Duration) -> f64 {
        let received = self.server.received();
        let within = received.arrivals.iter().filter(|(_, at)| *at >= from && *at < from + time);
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        let count = within.count() as f64;
        count
    }

    /// The times that messages which were due in this time took to the server, in milliseconds. A message that has not arrived is not among them.
    pub(super) fn latencies_ms(&self, from: Instant, time: Duration) -> Vec<f64> {
        let (received, due) = (self.server.received(), self.due());
        let latency = |(number, at): &(u64, Instant)| {
            let due = *due.get(usize::try_from(*number).ok()?)?;
            (due >= from && due < from + time).then(|| (*at - due).as_secs_f64() * 1e3)
        };
        received.arrivals.iter().filter_map(latency).collect()
    }

    /// What was wrong with what the server received.
    pub(super) fn wrong(&self) -> Wrong {
        let received = self.server.received();
        let wrong = received.heard.wrong(self.due().len() as u64);
        Wrong { changed: wrong.changed + received.garbled, ..wrong }
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
        let mut received = Received { heard: Heard::new(0, step), arrivals: Vec::new(), garbled: 0 };
        received.take(&message(0, step(0, 0)), Instant::now());
        let mut other = message(1, step(step(0, 0), 1));
        other[SIZE - 1] ^= 1;
        received.take(&other, Instant::now());
        assert_eq!((received.garbled, received.heard.wrong(2)), (1, Wrong::default()));
    }
}
