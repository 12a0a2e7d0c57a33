//! A relay between two TCP programs that counts bytes and can delay each of them: a long wire in user space, for kernels without
//! such a device. It can also hold one direction.

use anyhow::Context;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes read at a time.
const PIECE: usize = 64 << 10;
/// Pieces in flight in one direction: more than a wire of 20 ms holds at 10 Gbit/s.
const PIECES_MAX: usize = 4096;

/// Bytes that a relay has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// From the connecting program to the listening one.
    pub forth: u64,
    /// In the other direction.
    pub back: u64,
}

#[derive(Default)]
struct Shared {
    forth: AtomicU64,
    back: AtomicU64,
    /// What was written of [`Shared::forth`].
    passed: AtomicU64,
    stopped: AtomicBool,
    /// Whether nothing passes from the connecting program to the listening one.
    holds: Mutex<bool>,
    goes_on: Condvar,
}

impl Shared {
    fn hold(&self, holds: bool) {
        *self.holds.lock().unwrap_or_else(PoisonError::into_inner) = holds;
        self.goes_on.notify_all();
    }

    fn await_passage(&self) {
        let holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        // The guard is of no use behind the wait.
        drop(self.goes_on.wait_while(holds, |holds| *holds).unwrap_or_else(PoisonError::into_inner));
    }
}

/// A direction of a relay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    /// From the connecting program to the listening one.
    Forth,
    Back,
}

/// Forwards every connection to one address.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Relay {
    /// Starts a relay to `target` that delays every byte by `delay`, each way, and a connection's end too.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start(target: SocketAddr, delay: Duration) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port for a relay")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let counters = Arc::clone(&shared);
        thread::spawn(move || {
            for near in listener.incoming() {
                if counters.stopped.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(near) = near else { continue };
                let counters = Arc::clone(&counters);
                thread::spawn(move || pass(near, target, delay, &counters));
            }
        });
        Ok(Self { address, shared })
    }

    /// The address to connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Holds what the connecting program sends from now on, while the other direction goes on.
    pub fn hold(&self) {
        self.shared.hold(true);
    }

    /// Passes on what was held, and what follows.
    pub fn go_on(&self) {
        self.shared.hold(false);
    }

    /// Bytes of the connecting program that are held, or on their way.
    #[must_use]
    pub fn held(&self) -> u64 {
        let passed = self.shared.passed.load(Ordering::Acquire);
        self.shared.forth.load(Ordering::Acquire) - passed
    }

    /// Bytes taken so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            forth: self.shared.forth.load(Ordering::Relaxed),
            back: self.shared.back.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.shared.hold(false);
        // This wakes the listener's thread, which sees that it should stop, and ends.
        let _ = TcpStream::connect(self.address);
    }
}

/// Connects to the target and forwards both directions; if that fails, it closes the client's connection.
fn pass(near: TcpStream, target: SocketAddr, delay: Duration, shared: &Arc<Shared>) {
    let Ok(far) = TcpStream::connect(target) else { return };
    let pair = || Ok::<_, io::Error>((near.try_clone()?, far.try_clone()?));
    let (Ok(_), Ok(_), Ok((near_back, far_back))) = (near.set_nodelay(true), far.set_nodelay(true), pair())
    else {
        return;
    };
    let counters = Arc::clone(shared);
    thread::spawn(move || one_way(far_back, near_back, (delay, Course::Back), &counters));
    one_way(near, far, (delay, Course::Forth), shared);
}

/// Forwards one direction until it ends, and then its end.
fn one_way(mut from: TcpStream, to: TcpStream, (delay, course): (Duration, Course), shared: &Arc<Shared>) {
    // The end is sent as a piece without bytes, so it is delayed as they are.
    let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    let mut writer = to;
    let (closer, passing) = (from.try_clone(), Arc::clone(shared));
    let thread = thread::spawn(move || {
        for (due, piece) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if course == Course::Forth {
                passing.await_passage();
            }
            let written = writer.write_all(&piece);
            if course == Course::Forth {
                passing.passed.fetch_add(piece.len() as u64, Ordering::Release);
            }
            if written.is_err() {
                // The receiver is gone, so the reader must stop, too.
                let _ = closer.map(|from| from.shutdown(Shutdown::Both));
                return;
            }
        }
        // A peer that is gone needs no end of stream.
        let _ = writer.shutdown(Shutdown::Write);
    });
    let mut buffer = vec![0; PIECE];
    loop {
        // A reset ends the stream too.
        let len = from.read(&mut buffer).unwrap_or(0);
        let counter = if course == Course::Forth { &shared.forth } else { &shared.back };
        counter.fetch_add(len as u64, Ordering::AcqRel);
        if sender.send((Instant::now() + delay, buffer[..len].to_vec())).is_err() || len == 0 {
            break;
        }
    }
    drop(sender);
    // The writer has no result.
    let _ = thread.join();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A relay without delay, and both ends of a connection through it.
    fn joined() -> (Relay, TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let relay = Relay::start(listener.local_addr().unwrap(), Duration::ZERO).unwrap();
        let client = TcpStream::connect(relay.address()).unwrap();
        let (server, _) = listener.accept().unwrap();
        (relay, client, server)
    }

    #[test]
    fn bytes_pass_both_ways_and_are_counted() {
        let (relay, mut client, mut server) = joined();
        client.write_all(b"hello").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        server.write_all(b"welcome").unwrap();
        drop(server);
        let mut back = Vec::new();
        client.read_to_end(&mut back).unwrap();
        assert_eq!((&got[..], &back[..]), (&b"hello"[..], &b"welcome"[..]));
        assert_eq!(relay.counts(), Counts { forth: 5, back: 7 });
    }

    #[test]
    fn one_direction_can_be_held() {
        let (relay, mut client, mut server) = joined();
        relay.hold();
        client.write_all(b"hello").unwrap();
        server.write_all(b"welcome").unwrap();
        let mut got = [0; 7];
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"welcome");
        while relay.held() < 5 {
            thread::yield_now();
        }
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.read(&mut got).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        relay.go_on();
        server.set_nonblocking(false).unwrap();
        server.read_exact(&mut got[..5]).unwrap();
        assert_eq!(&got[..5], b"hello");
    }
}
