//! A stream through a session to a server that echoes it, of which every byte is checked; and a loop that waits for what operators
//! can see.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a stream that are in flight.
const WINDOW: u64 = 64 << 10;
const PIECE: usize = 2_000;

/// A server that echoes what it receives.
pub(crate) fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let (mut from, mut to) = (stream.try_clone().unwrap(), stream);
                // Ends when the client, or at the end of the test its agent, closes the connection.
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

/// Polls until there is an answer.
pub(crate) fn until<T>(mut ask: impl FnMut() -> Option<T>, why: impl FnOnce() -> String) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Some(answer) => return answer,
            None if Instant::now() < deadline => thread::yield_now(),
            None => panic!("{}", why()),
        }
    }
}

#[derive(Default)]
struct Shared {
    /// Number of bytes that came back, and the first error.
    heard: Mutex<(u64, Option<String>)>,
    changed: Condvar,
    stop: AtomicBool,
    /// Whether sending should pause; whether it is paused; the number of bytes sent.
    held: AtomicBool,
    rests: AtomicBool,
    said: AtomicU64,
}

/// A continuous stream of counted words to the echoing server and back, checked byte by byte, until it is finished.
pub(crate) struct Stream {
    shared: Arc<Shared>,
    writer: JoinHandle<u64>,
    reader: JoinHandle<()>,
}

/// The bytes of the stream from this position on.
fn words(from: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| {
        (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[usize::try_from(at % 8).unwrap()]
    };
    (from..from + len as u64).map(byte).collect()
}

impl Stream {
    pub(crate) fn start(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let shared = Arc::new(Shared::default());
        let (mut out, state) = (stream.try_clone().unwrap(), Arc::clone(&shared));
        let writer = thread::spawn(move || {
            let mut said = 0;
            while !state.stop.load(Ordering::Relaxed) {
                out.write_all(&words(said, PIECE)).unwrap();
                said += PIECE as u64;
                state.said.store(said, Ordering::Relaxed);
                let waits = |heard: &mut (u64, Option<String>)| {
                    let held = state.held.load(Ordering::Relaxed);
                    if state.rests.swap(held, Ordering::Relaxed) != held {
                        state.changed.notify_all();
                    }
                    (held || heard.0 + WINDOW < said) && heard.1.is_none()
                };
                drop(state.changed.wait_while(state.heard.lock().unwrap(), waits).unwrap());
            }
            out.shutdown(Shutdown::Write).unwrap();
            said
        });
        let state = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            let (mut stream, mut buffer) = (stream, vec![0; 16 << 10]);
            loop {
                let read = stream.read(&mut buffer);
                let mut heard = state.heard.lock().unwrap();
                match read {
                    Ok(0) => return,
                    Ok(len) if buffer[..len] == words(heard.0, len) => heard.0 += len as u64,
                    Ok(_) => heard.1 = Some(format!("a wrong byte after {}", heard.0)),
                    Err(error) => heard.1 = Some(format!("after {}: {error}", heard.0)),
                }
                state.changed.notify_all();
                if heard.1.is_some() {
                    return;
                }
            }
        });
        Self { shared, writer, reader }
    }

    /// Waits until `more` further bytes have come back.
    pub(crate) fn hear(&self, more: u64) {
        let mut heard = self.shared.heard.lock().unwrap();
        let target = heard.0 + more;
        while heard.0 < target {
            assert_eq!(heard.1, None);
            let (next, waited) = self.shared.changed.wait_timeout(heard, PATIENCE).unwrap();
            assert!(!waited.timed_out(), "nothing came for {PATIENCE:?}");
            heard = next;
        }
    }

    /// Bytes that have come back.
    pub(crate) fn heard(&self) -> u64 {
        self.shared.heard.lock().unwrap().0
    }

    /// Pauses sending, and waits until all sent bytes have come back.
    pub(crate) fn rest(&self) {
        self.shared.held.store(true, Ordering::Relaxed);
        let mut heard = self.shared.heard.lock().unwrap();
        while !self.shared.rests.load(Ordering::Relaxed) || heard.0 < self.shared.said.load(Ordering::Relaxed)
        {
            assert_eq!(heard.1, None);
            let (next, waited) = self.shared.changed.wait_timeout(heard, PATIENCE).unwrap();
            assert!(!waited.timed_out(), "it does not come to rest in {PATIENCE:?}");
            heard = next;
        }
    }

    pub(crate) fn go_on(&self) {
        let _heard = self.shared.heard.lock().unwrap();
        self.shared.held.store(false, Ordering::Relaxed);
        self.shared.changed.notify_all();
    }

    /// Ends the stream: all sent bytes must have come back once.
    pub(crate) fn finish(self) {
        self.hear(200_000);
        self.shared.stop.store(true, Ordering::Relaxed);
        let said = self.writer.join().unwrap();
        self.reader.join().unwrap();
        assert_eq!(*self.shared.heard.lock().unwrap(), (said, None));
    }
}
