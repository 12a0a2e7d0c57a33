//! A client of the cell `ballast` that sends requests continuously, and records the longest wait for an answer.
//!
//! ```text
//! command, answer:  | op 1 | a 8 | b 8 |      little-endian; an answer repeats the op
//!                     B  fill with a bytes from seed b    -> bytes held, checksum
//!                     E  echo number b                    -> a, b
//!                     T  change pages, F  forward, S  state   (see `faults::talk`)
//! ```
//! A numbered echo shows losses and repeats at once: the answer to number n must be n. The next
//! request goes out after the answer, so at most one is in flight, and the longest wait between two
//! answers is the gap that a client sees.

use super::peer;
use anyhow::Context;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a command and of an answer.
const SIZE: usize = 17;
/// Delay between an answer and the next request, so that the client does not keep a core busy.
const PACE: Duration = Duration::from_millis(1);
/// How long there may be no answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Encodes one command: its operation, and its two numbers.
#[must_use]
pub(super) fn command(op: u8, a: u64, b: u64) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes[0] = op;
    bytes[1..9].copy_from_slice(&a.to_le_bytes());
    bytes[9..].copy_from_slice(&b.to_le_bytes());
    bytes
}

/// Sends a command and returns the two numbers of its answer.
pub(super) fn ask(stream: &mut TcpStream, op: u8, a: u64, b: u64) -> anyhow::Result<(u64, u64)> {
    stream.write_all(&command(op, a, b))?;
    let mut answer = [0; SIZE];
    stream.read_exact(&mut answer).context("the cell did not answer")?;
    anyhow::ensure!(answer[0] == op, "the cell answered {:#04x} to {op:#04x}", answer[0]);
    let word =
        |from: usize| answer[from..from + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Ok((word(1), word(9)))
}

/// What the thread and the one who measures share. The measurement is reset for each fault; the
/// counts of losses are not.
#[derive(Default)]
struct State {
    /// Of the current measurement: answers since its start, and the longest wait.
    answers: u64,
    longest: Duration,
    /// By how much the answers' numbers were higher than those asked for; `repeated` has the
    /// reverse.
    lost: u64,
    repeated: u64,
    /// Number of requests so far.
    next: u64,
    /// Set when the pinger is dropped; the thread looks at it between two requests.
    stop: bool,
    /// Why the thread ended early, if it did.
    failed: Option<String>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends requests until it is dropped.
pub(super) struct Pinger {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Pinger {
    /// Continues on a connection on which every command has been answered.
    pub(super) fn start(mut stream: TcpStream) -> Self {
        let shared = Arc::new(Shared::default());
        let state = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            if let Err(error) = ping(&mut stream, &state) {
                state.lock().failed = Some(format!("{error:#}"));
                state.changed.notify_all();
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// Connects, and fills the cell with `bytes` of incompressible state.
    pub(super) fn fill(address: SocketAddr, bytes: u64) -> anyhow::Result<TcpStream> {
        Self::fill_from(address, bytes, 0x5eed)
    }

    /// The same, with state that is made from `seed`.
    pub(super) fn fill_from(address: SocketAddr, bytes: u64, seed: u64) -> anyhow::Result<TcpStream> {
        let mut stream = peer::connect(address)?;
        let (held, _) = ask(&mut stream, b'B', bytes, seed)?;
        anyhow::ensure!(held == bytes, "the cell holds {held} bytes, not {bytes}");
        Ok(stream)
    }

    /// Runs `fault`, waits until answers arrive again, and returns the longest wait, in milliseconds.
    ///
    /// `fault` runs on the caller's thread while requests go on. The wait includes detection,
    /// recovery and the way to the client.
    ///
    /// # Errors
    /// If the client's connection failed, or no answer came for [`PATIENCE`].
    pub(super) fn longest_wait_ms(&self, fault: impl FnOnce()) -> anyhow::Result<f64> {
        /// Answers after the fault that mean that it is over.
        const ENOUGH: u64 = 30;
        {
            let mut state = self.shared.lock();
            (state.answers, state.longest) = (0, Duration::ZERO);
        }
        fault();
        // Answers that were in flight when the fault happened do not end the wait.
        let struck = self.shared.lock().answers;
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.shared.lock();
        while state.answers < struck + ENOUGH {
            if let Some(why) = &state.failed {
                anyhow::bail!("the client failed: {why}");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            anyhow::ensure!(!left.is_zero(), "no answers for {PATIENCE:?}");
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state.longest.as_secs_f64() * 1e3)
    }

    /// The number of answers that did not arrive, and of answers that arrived twice.
    pub(super) fn lost_and_repeated(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.lost, state.repeated)
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        if let Some(thread) = self.thread.take() {
            // Its error, if any, is in the shared state.
            let _ = thread.join();
        }
    }
}

/// The thread's loop: ask, count, rest.
fn ping(stream: &mut TcpStream, shared: &Shared) -> anyhow::Result<()> {
    let mut last = Instant::now();
    loop {
        let number = {
            let mut state = shared.lock();
            if state.stop {
                return Ok(());
            }
            state.next += 1;
            state.next
        };
        let (_, answered) = ask(stream, b'E', 0, number)?;
        let now = Instant::now();
        let mut state = shared.lock();
        state.answers += 1;
        state.longest = state.longest.max(now - last);
        state.lost += answered.saturating_sub(number);
        state.repeated += number.saturating_sub(answered);
        drop(state);
        shared.changed.notify_all();
        last = now;
        std::thread::sleep(PACE);
    }
}
