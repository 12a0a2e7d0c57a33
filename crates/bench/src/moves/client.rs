//! A client of the cell `ballast` that always has one request in flight, and the waits that it sees.
//!
//! ```text
//!          asked                            hand-over       owned by the other edge
//! operator --|----------- copy, replay ----------|--------------|-----> time
//! client   . . . . . . . . . . . . . . . . . . . [ blackout ] . . .     always one request in flight
//! ```
//! It knows nothing of edges: others say when the session changed its edge.

use crate::{cpu, pinger, stats};
use anyhow::Context;
use std::net::TcpStream;
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};
use std::time::{Duration, Instant};

/// Most pages that one request changes: more would be a wait of its own.
const PAGES_MAX: u64 = 64;

/// When an answer came, and how long it was waited for.
pub(super) type Wait = (Instant, Duration);

/// A client that always has one request in flight, and changes pages of the state at a rate.
pub(super) struct Client {
    stream: TcpStream,
    pages_per_s: u64,
    stop: AtomicBool,
    waits: Mutex<Vec<Wait>>,
}

impl Client {
    /// Of a session whose state is there already.
    pub(super) fn new(stream: TcpStream, pages_per_s: u64) -> Self {
        Self { stream, pages_per_s, stop: AtomicBool::new(false), waits: Mutex::default() }
    }

    /// All waits since these were last cleared.
    pub(super) fn waits(&self) -> MutexGuard<'_, Vec<Wait>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks on a thread of its own until `work` is done.
    ///
    /// # Errors
    /// Those of `work`, or if an answer is wrong or does not come.
    pub(super) fn asks_during<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        std::thread::scope(|scope| {
            let talks = scope.spawn(|| self.talk());
            let done = work();
            self.stop.store(true, Ordering::Relaxed);
            talks.join().map_err(|_| anyhow::anyhow!("the client panicked"))??;
            done
        })
    }

    /// Asks until it is stopped. Each answer must be the one to its question.
    fn talk(&self) -> anyhow::Result<()> {
        cpu::run_first();
        let mut stream = self.stream.try_clone()?;
        let (begun, mut changed) = (Instant::now(), 0);
        for number in 0u64.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "pages"
            )]
            let due = (begun.elapsed().as_secs_f64() * self.pages_per_s as f64) as u64;
            let pages = due.saturating_sub(changed).min(PAGES_MAX);
            let (op, a) = if pages > 0 { (b'T', pages) } else { (b'E', 0) };
            let b = if pages > 0 { changed } else { number };
            let asked = Instant::now();
            let (first, second) = pinger::ask(&mut stream, op, a, b)?;
            let answered = Instant::now();
            anyhow::ensure!(
                first == a && (pages > 0 || second == b),
                "the answer to {number} is another one's"
            );
            changed += pages;
            self.waits().push((answered, answered - asked));
        }
        Ok(())
    }
}

/// The lengths of waits, in milliseconds.
pub(super) fn lengths_ms(waits: &[Wait]) -> Vec<f64> {
    waits.iter().map(|(_, wait)| wait.as_secs_f64() * 1e3).collect()
}

/// The blackout, in milliseconds: the longest wait some of which was at most `near` before or after the session was reported to have its
/// new owner, less the median wait.
pub(super) fn blackout_ms(waits: &[Wait], owned: Instant, near: Duration) -> anyhow::Result<f64> {
    let is_near = |(end, wait): &&Wait| *end + near >= owned && *end <= owned + near + *wait;
    let spans = waits.iter().filter(is_near).map(|(_, wait)| *wait).max();
    let spans = spans.context("no answer came near the hand-over")?;
    Ok(spans.as_secs_f64() * 1e3 - stats::median(&lengths_ms(waits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blackout_is_the_longest_wait_near_the_hand_over_less_the_median() {
        let (begun, ms) = (Instant::now(), Duration::from_millis);
        let wait = |end, length| (begun + ms(end), ms(length));
        let waits = [wait(10, 50), wait(91, 1), wait(97, 6), wait(98, 1), wait(105, 1)];
        assert!((blackout_ms(&waits, begun + ms(100), ms(10)).unwrap() - 5.0).abs() < 1e-9);
        assert!(blackout_ms(&waits, begun + ms(50), ms(10)).is_err());
        let long = [wait(91, 1), wait(97, 6), wait(150, 50), wait(151, 1), wait(152, 1)];
        assert!(
            (blackout_ms(&long, begun + ms(100), ms(10)).unwrap() - 49.0).abs() < 1e-9,
            "the answer came late"
        );
    }
}
