//! Clients and servers that send in both directions at once, in pieces of 1 B to 1 MB; each ends its own direction when it is
//! done. Both know every byte that the other sends, and report the position of a lost, repeated or changed one.

use marram_wire::seeded::Seeded;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long any one read or write may take: longer than any recovery.
const PATIENCE: Duration = Duration::from_secs(90);
/// Largest piece, in bytes.
const PIECE_MAX: u64 = 1_000_000;
/// Delay between two pieces, since applications also compute.
const PACE: Duration = Duration::from_millis(2);

/// The bytes that one side of a session sends, and the other expects.
struct Stream {
    random: Seeded,
    rest: Vec<u8>,
}

impl Stream {
    fn new(seed: u64) -> Self {
        Self { random: Seeded::new(seed), rest: Vec::new() }
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        while self.rest.len() < len {
            self.rest.extend_from_slice(&self.random.word().to_le_bytes());
        }
        let tail = self.rest.split_off(len);
        std::mem::replace(&mut self.rest, tail)
    }
}

/// A client's first message.
struct Hello {
    seed: u64,
    up: u64,
    down: u64,
}

impl Hello {
    fn bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.up.to_le_bytes());
        bytes[16..].copy_from_slice(&self.down.to_le_bytes());
        bytes
    }

    fn read(stream: &mut TcpStream) -> std::io::Result<Self> {
        let mut bytes = [0; 24];
        stream.read_exact(&mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        Ok(Self { seed: word(0), up: word(8), down: word(16) })
    }
}

/// Sends `total` bytes in pieces of many sizes, then ends this direction.
fn send(stream: &mut TcpStream, seed: u64, total: u64) -> Result<(), String> {
    let (mut bytes, mut sizes, mut left) = (Stream::new(seed), Seeded::new(!seed), total);
    while left > 0 {
        let limit = match sizes.below(10) {
            0..6 => 200,
            6..9 => 64 << 10,
            _ => PIECE_MAX,
        };
        let len = (1 + sizes.below(limit)).min(left);
        let piece = bytes.take(usize::try_from(len).unwrap());
        stream.write_all(&piece).map_err(|error| format!("sending, {left} of {total} left: {error}"))?;
        left -= len;
        thread::sleep(PACE);
    }
    stream.shutdown(Shutdown::Write).map_err(|error| format!("ending after {total}: {error}"))
}

/// Receives until the other direction ends, and compares every byte.
fn receive(stream: &mut TcpStream, seed: u64, total: u64) -> Result<(), String> {
    let (mut expected, mut buffer, mut got) = (Stream::new(seed), vec![0; 64 << 10], 0);
    loop {
        match stream
            .read(&mut buffer)
            .map_err(|error| format!("receiving after {got} of {total}: {error}"))?
        {
            0 if got == total => return Ok(()),
            0 => return Err(format!("the stream ended after {got} of {total} bytes")),
            len => {
                let wanted = expected.take(len);
                if buffer[..len] != wanted {
                    let at = (0..len).find(|at| buffer[*at] != wanted[*at]).unwrap_or(len);
                    return Err(format!("byte {} of {total} is wrong", got + at as u64));
                }
                got += len as u64;
            }
        }
    }
}

fn both(stream: &TcpStream, sends: (u64, u64), receives: (u64, u64)) -> Result<(), String> {
    let clone = || stream.try_clone().map_err(|error| error.to_string());
    let (mut out, mut inward) = (clone()?, clone()?);
    let sender = thread::spawn(move || send(&mut out, sends.0, sends.1));
    let received = receive(&mut inward, receives.0, receives.1);
    let sent = sender.join().map_err(|_| "the sender panicked".to_owned())?;
    received.and(sent)
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    sessions: AtomicU64,
    bytes: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

/// A server, and clients that open one session after another.
pub(crate) struct Traffic {
    pub(crate) server: SocketAddr,
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Starts the server.
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let state = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&state);
                thread::spawn(move || {
                    if let Err(why) = serve(stream) {
                        state.wrong.lock().unwrap().push(format!("server: {why}"));
                    }
                });
            }
        });
        Self { server, shared, clients: Vec::new() }
    }

    /// Starts `count` clients. Each opens a new session whenever its last one is done, with at most `bytes_max` each way.
    pub(crate) fn start(&mut self, address: SocketAddr, count: u64, bytes_max: u64, seed: u64) {
        for client in 0..count {
            let shared = Arc::clone(&self.shared);
            self.clients.push(thread::spawn(move || {
                let mut random = Seeded::new(seed.wrapping_add(client));
                while !shared.stop.load(Ordering::Relaxed) {
                    let hello = Hello {
                        seed: random.word(),
                        up: random.below(bytes_max),
                        down: random.below(bytes_max),
                    };
                    if let Err(why) = converse(address, &hello) {
                        shared
                            .wrong
                            .lock()
                            .unwrap()
                            .push(format!("client {client}, {:#x}: {why}", hello.seed));
                        return;
                    }
                    shared.sessions.fetch_add(1, Ordering::Relaxed);
                    shared.bytes.fetch_add(hello.up + hello.down, Ordering::Relaxed);
                }
            }));
        }
    }

    /// Errors so far.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.shared.wrong.lock().unwrap().clone()
    }

    /// Lets every client finish its session; returns the number of sessions and of bytes.
    pub(crate) fn finish(mut self) -> (u64, u64) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            client.join().unwrap();
        }
        assert_eq!(self.wrong(), Vec::<String>::new());
        (self.shared.sessions.load(Ordering::Relaxed), self.shared.bytes.load(Ordering::Relaxed))
    }
}

/// Runs a client's session.
fn converse(address: SocketAddr, hello: &Hello) -> Result<(), String> {
    let mut stream = TcpStream::connect(address).map_err(|error| format!("connecting: {error}"))?;
    prepare(&stream).and_then(|()| stream.write_all(&hello.bytes())).map_err(|error| error.to_string())?;
    both(&stream, (hello.seed, hello.up), (!hello.seed, hello.down))
}

/// Runs a server's session.
fn serve(mut stream: TcpStream) -> Result<(), String> {
    prepare(&stream).map_err(|error| error.to_string())?;
    let hello = Hello::read(&mut stream).map_err(|error| format!("reading what to do: {error}"))?;
    both(&stream, (!hello.seed, hello.down), (hello.seed, hello.up))
}
