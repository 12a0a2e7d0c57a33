//! The client of one flow of messages through the cell `work`: it sends as fast as it can, or at a rate, and knows what its server has
//! received, and when.
//!
//! Messages are due at times that nothing delays; their latencies count from then. It knows nothing of edges.

use super::heard::Wrong;
use super::scene::{PATIENCE, wait_until};
use super::sink::{Kind, Server, message};
use crate::{cpu, peer};
use anyhow::Context;
use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};
use std::time::{Duration, Instant};

/// Datagrams that are under way at most while the capacity is measured: a socket with a buffer of the usual size has room for them.
const IN_FLIGHT: u64 = 48;
/// Datagrams that have not arrived after this time were dropped.
const DROPPED_AFTER: Duration = Duration::from_millis(300);
/// How often the client asks whether a datagram has arrived.
const PAUSE: Duration = Duration::from_micros(50);

/// When a message was due, and when the client began to send it.
#[derive(Clone, Copy)]
struct Sent {
    due: Instant,
    at: Instant,
}

enum Socket {
    Stream(TcpStream),
    Datagrams(UdpSocket),
}

/// The client's side, and what the server has received.
pub(super) struct Flow {
    socket: Socket,
    server: Server,
    /// By the number of each message.
    sent: Mutex<Vec<Sent>>,
}

impl Flow {
    pub(super) fn connect(kind: Kind, address: SocketAddr, server: Server) -> anyhow::Result<Self> {
        let socket = match kind {
            Kind::Stream => Socket::Stream(peer::connect(address)?),
            Kind::Datagrams => {
                let socket = UdpSocket::bind("127.0.0.1:0")?;
                socket.connect(address)?;
                Socket::Datagrams(socket)
            }
        };
        Ok(Self { socket, server, sent: Mutex::default() })
    }

    fn sent(&self) -> MutexGuard<'_, Vec<Sent>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> u64 {
        self.sent().len() as u64
    }

    /// How many messages the server has received, or will not receive any more.
    fn passed(&self) -> u64 {
        self.server.received().heard.next()
    }

    fn send(&self, due: Instant) -> std::io::Result<()> {
        let number = {
            let mut sent = self.sent();
            sent.push(Sent { due, at: Instant::now() });
            sent.len() as u64 - 1
        };
        match &self.socket {
            Socket::Stream(stream) => (&*stream).write_all(&message(number, 0)),
            Socket::Datagrams(socket) => socket.send(&message(number, 0)).map(drop),
        }
    }

    /// Sends as fast as the flow takes messages; returns how many of them a second the server received in the second half of the time.
    pub(super) fn capacity_per_s(&self, time: Duration) -> anyhow::Result<f64> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            if matches!(self.socket, Socket::Datagrams(_)) {
                self.wait_while_passed_is_below((self.count() + 1).saturating_sub(IN_FLIGHT));
            }
            self.send(Instant::now())?;
        }
        self.wait_for_all()?;
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        let arrived = self.server.received().arrivals_in(begun + time / 2, time / 2).len() as f64;
        Ok(arrived / (time / 2).as_secs_f64())
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
        cpu::run_first();
        let (mut due, interval) = (Instant::now(), Duration::from_secs_f64(1.0 / per_s));
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.send(due)?;
            due += interval;
        }
        Ok(())
    }

    /// Waits until the server has received everything that was sent, except datagrams that were dropped.
    fn wait_for_all(&self) -> anyhow::Result<()> {
        let sent = self.count();
        if matches!(self.socket, Socket::Datagrams(_)) {
            self.wait_while_passed_is_below(sent);
            return Ok(());
        }
        wait_until(|| Ok(self.passed() >= sent))
            .with_context(|| format!("not all of {sent} messages arrived within {PATIENCE:?}"))
    }

    /// Waits until as many messages have passed, or none passes any more.
    fn wait_while_passed_is_below(&self, count: u64) {
        let mut last = (self.passed(), Instant::now());
        while last.0 < count && last.1.elapsed() < DROPPED_AFTER {
            std::thread::sleep(PAUSE);
            let passed = self.passed();
            if passed > last.0 {
                last = (passed, Instant::now());
            }
        }
    }

    /// What happened to the messages of some time. To be asked when the flow rests: it takes as long as some messages do.
    pub(super) fn sample(&self, from: Instant, time: Duration) -> Vec<Fate> {
        let (sent, received) = (self.sent(), self.server.received());
        let at = |when: Instant| sent.partition_point(|sent| sent.due < when);
        let ms = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
        (at(from)..at(from + time))
            .map(|number| Fate {
                late_ms: ms(sent[number].due, sent[number].at),
                latency_ms: received.arrival(number as u64).map(|at| ms(sent[number].due, at)),
            })
            .collect()
    }

    /// How many messages the server received in each of `count` windows from a moment on.
    pub(super) fn windows(&self, from: Instant, window: Duration, count: u32) -> Vec<f64> {
        let received = self.server.received();
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        (0..count).map(|number| received.arrivals_in(from + window * number, window).len() as f64).collect()
    }

    /// What was wrong with what the server received.
    pub(super) fn wrong(&self) -> Wrong {
        let sent = self.count();
        self.server.received().wrong(sent)
    }
}

/// What happened to one message.
#[derive(Clone, Copy)]
pub(super) struct Fate {
    /// How long after it was due the client began to send it.
    pub(super) late_ms: f64,
    /// How long after it was due it came; `None` if it was dropped.
    pub(super) latency_ms: Option<f64>,
}
