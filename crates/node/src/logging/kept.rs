//! The last lines that a process and its children logged, in a limited number of bytes. The oldest are dropped first, and
//! counted. Readers are woken for new lines; a thread that logs never waits for a reader.
//!
//! ```text
//! from a child := shard (1) | lines that it could not send before this one (8, little-endian) | line
//! ```
//!
//! ```text
//! lines:   | 41 | 42 | 43 | 44 |          bytes <= bytes_max; numbers have no gaps
//!            ▲ oldest       ▲ number      take(39): gone = 1, lines 41 to 44
//! ```
//!
//! A child's line is one datagram, so lines of several shards do not mix, and a line that does not
//! fit the socket's buffer is counted and dropped rather than waited for.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// Default for the bytes of lines that are kept.
pub const RING_BYTES: usize = 1 << 20;
/// A smaller buffer would not hold the lines of one failure.
pub const RING_BYTES_MIN: usize = 64 << 10;
/// Longest line that is kept; a longer one counts as lost.
pub const LINE_BYTES_MAX: usize = 32 << 10;
/// Most lines that are taken at once, which limits how long a thread that logs waits for the lock.
const TAKE_LINES_MAX: usize = 256;
/// The estimated memory of a line besides its text.
const LINE_COST: usize = 64;
/// Bytes before a line in a datagram.
const HEAD: usize = 9;

/// A line, as one flat JSON object.
#[derive(Clone, Debug)]
pub struct LogLine {
    /// Its number, counted from 1.
    pub number: u64,
    /// When it was received, in microseconds since 1970.
    pub at_us: u64,
    /// The shard that logged it; none for the process itself.
    pub shard: Option<u8>,
    /// The object's text, shared without a copy.
    pub text: Arc<str>,
}

/// The lines for a reader that has seen everything up to some number.
#[derive(Debug)]
pub struct LogBatch {
    /// The next ones.
    pub lines: Vec<LogLine>,
    /// How many were dropped before they were taken.
    pub gone: u64,
    /// The number of the last line that exists, taken or not.
    pub last: u64,
}

/// The last lines of a process.
pub struct LogBuffer {
    /// Identifies this run of the process.
    /// The time of its start, in microseconds since 1970.
    run: u64,
    ring: Mutex<Ring>,
}

struct Ring {
    lines: VecDeque<LogLine>,
    bytes: usize,
    /// Of texts and `LINE_COST`. A single line can never exceed it (`RING_BYTES_MIN`,
    /// `LINE_BYTES_MAX`).
    bytes_max: usize,
    /// The number of the last line.
    number: u64,
    /// Readers without a new line; all are woken by the next one.
    waiting: Vec<Waker>,
}

impl LogBuffer {
    /// A buffer of this size in bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let ring = Ring { lines: VecDeque::new(), bytes: 0, bytes_max, number: 0, waiting: Vec::new() };
        Self { run: now_us(), ring: Mutex::new(ring) }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // A thread that panicked with the lock held has added a line or not: both are fine.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ring, unless another thread has locked it.
    fn free_ring(&self) -> Option<MutexGuard<'_, Ring>> {
        match self.ring.try_lock() {
            Ok(ring) => Some(ring),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// A number that identifies this run of the process.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Adds a line.
    ///
    /// A line that is too long or no JSON object becomes one that says that a line was lost.
    pub fn add(&self, shard: Option<u8>, line: &[u8]) {
        let line = line.trim_ascii_end();
        match std::str::from_utf8(line) {
            Ok(text) if text.len() <= LINE_BYTES_MAX && text.starts_with('{') => {
                self.push(shard, text.into())
            }
            _ => self.lost(shard, 1),
        }
    }

    /// Adds a line that says how many lines were lost.
    fn lost(&self, shard: Option<u8>, count: u64) {
        let text = format!(
            "{{\"level\":\"WARN\",\"target\":\"marram_node::logging\",\"message\":\"{count} lines were lost before they \
             could be kept\"}}"
        );
        self.push(shard, text.into());
    }

    fn push(&self, shard: Option<u8>, text: Arc<str>) {
        // A panicking thread may hold any lock, even this one: it does not wait for it.
        let ring = if std::thread::panicking() { self.free_ring() } else { Some(self.ring()) };
        let Some(mut ring) = ring else { return };
        let waiting = {
            ring.number += 1;
            ring.bytes += text.len() + LINE_COST;
            let line = LogLine { number: ring.number, at_us: now_us(), shard, text };
            ring.lines.push_back(line);
            while ring.bytes > ring.bytes_max {
                let Some(oldest) = ring.lines.pop_front() else { break };
                ring.bytes -= oldest.text.len() + LINE_COST;
            }
            std::mem::take(&mut ring.waiting)
        };
        // Readers are woken without the lock: a waker may run code that logs.
        drop(ring);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The lines after the one with this number, at most `TAKE_LINES_MAX`: a reader that wants more asks again from the last of
    /// these. If there is none, `waker` is woken for the next line.
    pub fn take(&self, after: u64, waker: Option<&Waker>) -> LogBatch {
        let next = after.saturating_add(1);
        let mut ring = self.ring();
        let last = ring.number;
        let first = ring.lines.front().map_or(last + 1, |line| line.number);
        let gone = first.saturating_sub(next);
        let skipped = usize::try_from(next.saturating_sub(first)).unwrap_or(usize::MAX);
        let left = ring.lines.range(skipped.min(ring.lines.len())..);
        let lines: Vec<LogLine> = left.take(TAKE_LINES_MAX).cloned().collect();
        if let Some(waker) = waker.filter(|_| lines.is_empty())
            && !ring.waiting.iter().any(|known| known.will_wake(waker))
        {
            ring.waiting.push(waker.clone());
        }
        LogBatch { lines, gone, last }
    }
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Receives the lines of child processes.
pub struct Receiver(UnixDatagram);

impl Receiver {
    /// Starts a thread that adds received lines to `kept`.
    ///
    /// # Errors
    /// If the operating system has no socket or thread left.
    pub fn start(kept: &'static LogBuffer) -> io::Result<Self> {
        let (theirs, ours) = UnixDatagram::pair()?;
        // So that a shard never blocks on this process.
        theirs.set_nonblocking(true)?;
        thread::Builder::new().name("log".into()).spawn(move || {
            let mut datagram = vec![0; HEAD + LINE_BYTES_MAX + 1];
            // Ends with the process, which holds the other end itself.
            while let Ok(size) = ours.recv(&mut datagram) {
                receive(kept, &datagram[..size]);
            }
        })?;
        Ok(Self(theirs))
    }

    /// A descriptor for one more process.
    ///
    /// # Errors
    /// If there is no file descriptor left.
    pub fn sender(&self) -> io::Result<OwnedFd> {
        self.0.try_clone().map(OwnedFd::from)
    }
}

fn receive(kept: &LogBuffer, datagram: &[u8]) {
    let Some((head, line)) = datagram.split_at_checked(HEAD) else { return };
    let mut lost = [0; HEAD - 1];
    lost.copy_from_slice(&head[1..]);
    let lost = u64::from_le_bytes(lost);
    if lost > 0 {
        kept.lost(Some(head[0]), lost);
    }
    kept.add(Some(head[0]), line);
}

/// The sending side, in a child process.
pub(super) struct Sender {
    socket: UnixDatagram,
    shard: u8,
    lost: AtomicU64,
}

impl Sender {
    pub(super) fn new(socket: UnixDatagram, shard: u8) -> Self {
        Self { socket, shard, lost: AtomicU64::new(0) }
    }

    /// Does not block: the receiver has made the socket non-blocking. Lost lines are reported with
    /// the next one that gets through.
    pub(super) fn send(&self, line: &[u8]) {
        let lost = self.lost.swap(0, Relaxed);
        let mut datagram = Vec::with_capacity(HEAD + line.len());
        datagram.push(self.shard);
        datagram.extend_from_slice(&lost.to_le_bytes());
        datagram.extend_from_slice(line);
        if line.len() > LINE_BYTES_MAX || self.socket.send(&datagram).is_err() {
            self.lost.fetch_add(lost + 1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    fn texts(taken: &LogBatch) -> Vec<(u64, &str)> {
        taken.lines.iter().map(|line| (line.number, &*line.text)).collect()
    }

    #[test]
    fn the_oldest_go_first_and_are_counted() {
        let kept = LogBuffer::new(3 * (LINE_COST + 7));
        for digit in 1..=5 {
            kept.add(None, format!("{{\"a\":{digit}}}\n").as_bytes());
        }
        let all = kept.take(0, None);
        assert_eq!((texts(&all), all.gone), (vec![(3, "{\"a\":3}"), (4, "{\"a\":4}"), (5, "{\"a\":5}")], 2));
        let next = kept.take(4, None);
        assert_eq!((texts(&next), next.gone, next.last), (vec![(5, "{\"a\":5}")], 0, 5));
        assert!(kept.take(5, None).lines.is_empty());
    }

    #[test]
    fn a_reader_of_all_lines_gets_them_in_pieces() {
        let kept = LogBuffer::new(RING_BYTES);
        (0..2 * TAKE_LINES_MAX + 1).for_each(|_| kept.add(None, b"{}"));
        let (mut after, mut sizes) = (0, Vec::new());
        loop {
            let taken = kept.take(after, None);
            let Some(line) = taken.lines.last() else { break };
            assert_eq!((taken.gone, taken.lines[0].number, taken.last), (0, after + 1, 513));
            after = line.number;
            sizes.push(taken.lines.len());
        }
        assert_eq!(sizes, [TAKE_LINES_MAX, TAKE_LINES_MAX, 1]);
    }

    #[test]
    fn a_number_that_no_line_has_yet_is_waited_for() {
        let kept = LogBuffer::new(RING_BYTES);
        kept.add(None, b"{}");
        for after in [1, u64::MAX - 1, u64::MAX] {
            let taken = kept.take(after, None);
            assert!(taken.lines.is_empty() && taken.gone == 0, "{taken:?}");
        }
    }

    #[test]
    fn a_thread_that_panics_holding_the_lines_does_not_wait_for_them() {
        struct Last(Arc<LogBuffer>);
        impl Drop for Last {
            fn drop(&mut self) {
                self.0.add(None, b"{\"last\":1}");
            }
        }
        let kept = Arc::new(LogBuffer::new(RING_BYTES));
        let theirs = Arc::clone(&kept);
        let panicked = std::thread::spawn(move || {
            let same = Arc::clone(&theirs);
            let _ring = same.ring();
            let _first = Last(theirs);
            panic!("with the lines in hand");
        });
        assert!(panicked.join().is_err());
        kept.add(None, b"{}");
        assert_eq!(texts(&kept.take(0, None)), [(1, "{}")]);
    }

    #[test]
    fn what_is_no_line_or_too_long_is_counted() {
        let kept = LogBuffer::new(RING_BYTES);
        kept.add(Some(3), b"panicked");
        kept.add(None, format!("{{{}}}", " ".repeat(LINE_BYTES_MAX)).as_bytes());
        let taken = kept.take(0, None);
        assert!(taken.lines.iter().all(|line| line.text.contains("1 lines were lost")), "{taken:?}");
        assert_eq!(taken.lines.iter().map(|line| line.shard).collect::<Vec<_>>(), [Some(3), None]);
    }

    #[test]
    fn whichever_waits_is_woken_once() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Relaxed);
            }
        }
        let (kept, count) = (LogBuffer::new(RING_BYTES), Arc::new(Count(AtomicUsize::new(0))));
        let waker = Waker::from(Arc::clone(&count));
        assert!(kept.take(0, Some(&waker)).lines.is_empty());
        kept.add(None, b"{}");
        kept.add(None, b"{}");
        assert_eq!(count.0.load(Relaxed), 1);
    }

    #[test]
    fn lines_of_a_child_say_which_and_what_was_lost() {
        let (theirs, ours) = UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let (kept, sender) = (LogBuffer::new(RING_BYTES), Sender::new(theirs, 7));
        let long = vec![b'{'; LINE_BYTES_MAX];
        // There is no reader, so at some point the socket is full.
        while sender.lost.load(Relaxed) == 0 {
            sender.send(&long);
        }
        let mut datagram = vec![0; HEAD + LINE_BYTES_MAX];
        ours.set_nonblocking(true).unwrap();
        while ours.recv(&mut datagram).is_ok() {}
        sender.send(b"{\"a\":1}");
        let size = ours.recv(&mut datagram).unwrap();
        receive(&kept, &datagram[..size]);
        let taken = kept.take(0, None);
        assert!(taken.lines[0].text.contains("1 lines were lost"), "{taken:?}");
        assert_eq!((&*taken.lines[1].text, taken.lines[1].shard), ("{\"a\":1}", Some(7)));
    }
}
