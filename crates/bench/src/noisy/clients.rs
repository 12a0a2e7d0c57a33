//! The clients of this benchmark: hostile ones, which keep their cell or process busy and reconnect when it is killed, and the
//! quiet one, which sends requests at a steady rate and measures from the due times.
//!
//! Hostile clients are as simple as a hostile tenant's would be: they do not wait, do not back off,
//! and come back at once. They run at the lowest priority, so that what the quiet client sees is
//! the work of the servers and not of these threads.

use super::super::peer;
use super::Kind;
use anyhow::Context;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that a client of [`Kind::Connections`] holds at a time.
const HELD: usize = 100;
/// How often hostile clients check whether they should stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Delay between attempts while the server does not listen, or not yet.
const AGAIN_AFTER: Duration = Duration::from_millis(5);
/// Bytes of a request of the quiet client and of its answer.
const SIZE: usize = 64;

/// Hostile clients, until this is dropped.
pub(super) struct Hostile {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hostile {
    /// Starts one for each address. They run at the lowest priority: the measured core is the one that serves, not the one that
    /// they share with the quiet client.
    pub(super) fn start(targets: &[(Kind, SocketAddr)]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |(kind, address): &(Kind, SocketAddr)| {
            let (kind, address, stop) = (*kind, *address, Arc::clone(&stop));
            std::thread::spawn(move || {
                lowest_priority();
                while !stop.load(Ordering::Relaxed) {
                    // It is expected that the edge ends a session: the client reconnects.
                    if visit(kind, address, &stop).is_err() {
                        std::thread::sleep(AGAIN_AFTER);
                    }
                }
            })
        };
        let threads = targets.iter().map(client).collect();
        Self { stop, threads }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The thread has ended, for any reason.
            let _ = thread.join();
        }
    }
}

/// Sets the lowest priority for this thread and what it starts.
pub(super) fn lowest_priority() {
    // If the kernel refuses, the priority stays as it is.
    let _ = rustix::process::nice(19);
}

/// One connection to a hostile cell or process, until it ends or the benchmark does.
fn visit(kind: Kind, address: SocketAddr, stop: &AtomicBool) -> std::io::Result<()> {
    if kind == Kind::Connections {
        return come_and_go(address, stop);
    }
    let mut stream = connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LOOK_EVERY))?;
    stream.set_write_timeout(Some(LOOK_EVERY))?;
    stream.write_all(&[1])?;
    let mut buffer = vec![0; 256 << 10];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            // A cell starts a flood for each byte it receives; a process floods without a pause.
            Ok(_) if kind == Kind::Flood => stream.write_all(&[1]).or_else(in_time)?,
            Ok(_) => {}
            Err(error) => in_time(error)?,
        }
    }
    Ok(())
}

/// A connection that is reset when it is closed: ports do not run out, and a session ends with its client. (A client that only
/// half-closes may still read, so its cell continues, and a timer of 1 ns never ends.)
fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(stream)
}

/// A read or write that took longer than [`LOOK_EVERY`] is no error: it only lets the thread look
/// at `stop`.
fn in_time(error: std::io::Error) -> std::io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(()),
        _ => Err(error),
    }
}

/// Opens connections as fast as it can, and sends a request on each without waiting for the answer.
fn come_and_go(address: SocketAddr, stop: &AtomicBool) -> std::io::Result<()> {
    let mut held = VecDeque::with_capacity(HELD);
    while !stop.load(Ordering::Relaxed) {
        let mut stream = connect(address)?;
        stream.write_all(&[1; SIZE])?;
        if held.len() == HELD {
            held.pop_front();
        }
        held.push_back(stream);
    }
    Ok(())
}

/// Sends `count` requests, one every `every`, independent of the answers. Returns each answer's time since its due time, in
/// microseconds.
///
/// Asking and reading have a thread each: a late answer does not delay the next request, so no time
/// is hidden.
pub(super) fn ask_steadily(stream: &TcpStream, count: u32, every: Duration) -> anyhow::Result<Vec<f64>> {
    let (mut asking, mut reading) = (stream.try_clone()?, stream.try_clone()?);
    let begun = Instant::now() + every;
    let asker = std::thread::spawn(move || -> std::io::Result<()> {
        for number in 0..count {
            let due = begun + every * number;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            asking.write_all(&request(number))?;
        }
        Ok(())
    });
    let mut times = Vec::new();
    for number in 0..count {
        let mut answer = [0; SIZE];
        reading.read_exact(&mut answer).context("the quiet client's answer did not arrive")?;
        anyhow::ensure!(answer == request(number), "the quiet client's answer is not what was asked");
        times.push((begun + every * number).elapsed().as_secs_f64() * 1e6);
    }
    asker.join().map_err(|_| anyhow::anyhow!("the quiet client panicked"))??;
    Ok(times)
}

/// Numbered, so that an answer of another request is noticed.
fn request(number: u32) -> [u8; SIZE] {
    let mut bytes = [0x5a; SIZE];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// The quiet client's connection, after enough round trips to warm up the path.
pub(super) fn quiet(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let mut stream = peer::connect(address)?;
    peer::round_trips(&mut stream, &[7; SIZE], 200)?;
    Ok(stream)
}
