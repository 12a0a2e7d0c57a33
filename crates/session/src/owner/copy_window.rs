//! How much of a checkpoint may be on its way to a keeper: enough that a long link is used, and no more than waits nowhere.
//!
//! The window begins small. As long as what fills it arrives about as fast as the first parts did, it grows by what arrives, so
//! it doubles in each round trip. When parts take longer, they wait in a queue, before live frames of the same wire; then the window
//! loses a quarter, once for what is on its way. This is the rule of congestion control by delay (Brakmo and Peterson, TCP Vegas, 1995).

use alloc::collections::VecDeque;
use marram_wire::limits::{CHECKPOINT_WINDOW, COPY_WINDOW_MAX};

/// A part may take this much longer than the fastest one, beside a quarter of its time.
const QUEUED_NS: u64 = 250_000;

/// The bytes on their way to one keeper.
#[derive(Debug)]
pub(super) struct CopyWindow {
    size: u64,
    /// Bytes that were sent, and those of them that are stored.
    sent: u64,
    stored: u64,
    /// For each part on its way: the bytes that had been sent with it, and when that was.
    parts: VecDeque<(u64, u64)>,
    /// The shortest time from a part to its answer, in nanoseconds.
    fastest_ns: u64,
    /// Whether the window was full since the last answer: otherwise a larger one is of no use.
    was_full: bool,
    /// It is not reduced again before so many bytes are stored.
    reduced_until: u64,
}

impl Default for CopyWindow {
    fn default() -> Self {
        Self {
            size: CHECKPOINT_WINDOW,
            sent: 0,
            stored: 0,
            parts: VecDeque::new(),
            fastest_ns: u64::MAX,
            was_full: false,
            reduced_until: 0,
        }
    }
}

impl CopyWindow {
    /// Bytes that are not stored.
    pub(super) fn in_flight(&self) -> u64 {
        self.sent - self.stored
    }

    pub(super) fn is_full(&self) -> bool {
        self.in_flight() >= self.size
    }

    /// A part is sent.
    pub(super) fn send(&mut self, now_ns: u64, bytes: u64) {
        self.sent += bytes;
        self.parts.push_back((self.sent, now_ns));
        self.was_full |= self.is_full();
    }

    /// The keeper has stored this many more bytes. False if that is more than it was sent.
    pub(super) fn store(&mut self, now_ns: u64, bytes: u64) -> bool {
        if bytes > self.in_flight() {
            return false;
        }
        self.stored += bytes;
        let mut sent_ns = None;
        while let Some((_, at_ns)) = self.parts.pop_front_if(|(sent, _)| *sent <= self.stored) {
            sent_ns = Some(at_ns);
        }
        let Some(took_ns) = sent_ns.map(|sent_ns| now_ns.saturating_sub(sent_ns)) else { return true };
        self.fastest_ns = self.fastest_ns.min(took_ns);
        if took_ns > self.fastest_ns + self.fastest_ns / 4 + QUEUED_NS {
            if self.stored >= self.reduced_until {
                self.size = (self.size - self.size / 4).max(CHECKPOINT_WINDOW);
                self.reduced_until = self.sent;
            }
        } else if self.was_full {
            self.size = (self.size + bytes).min(COPY_WINDOW_MAX);
        }
        self.was_full = self.is_full();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::limits::PART_SIZE;

    const MS: u64 = 1_000_000;
    const PART: u64 = PART_SIZE as u64;

    /// A link that carries a part in `part_ns`, one after the other, and whose answers come a round trip later. Returns the window, the
    /// bytes that were stored in the time, and the longest time that a part waited for those before it.
    fn run(round_trip_ns: u64, part_ns: u64, time_ns: u64) -> (CopyWindow, u64, u64) {
        let mut window = CopyWindow::default();
        let (mut answers, mut free_ns, mut now_ns, mut waited_ns) = (VecDeque::new(), 0_u64, 0, 0);
        while now_ns < time_ns {
            while !window.is_full() {
                window.send(now_ns, PART);
                waited_ns = waited_ns.max(free_ns.saturating_sub(now_ns));
                free_ns = free_ns.max(now_ns) + part_ns;
                answers.push_back(free_ns + round_trip_ns);
            }
            now_ns = answers.pop_front().unwrap();
            assert!(window.store(now_ns, PART));
            assert!(window.in_flight() <= COPY_WINDOW_MAX && window.size >= CHECKPOINT_WINDOW);
        }
        let stored = window.stored;
        (window, stored, waited_ns)
    }

    #[test]
    fn a_long_link_is_filled() {
        // 100 MB/s at 40 ms: a window of 256 KiB would carry 6.
        let (_, stored, _) = run(40 * MS, PART * 10, 2_000 * MS);
        assert!(stored > 120_000_000, "{stored} bytes in two seconds");
    }

    #[test]
    fn parts_do_not_wait_long_where_the_link_is_full() {
        // 10 MB/s: more than 400 kB at 40 ms only wait.
        let (window, stored, waited_ns) = run(40 * MS, PART * 100, 4_000 * MS);
        assert!(stored > 30_000_000, "{stored} bytes in four seconds");
        assert!(waited_ns < 60 * MS, "{waited_ns} ns");
        assert!(window.size < 1 << 20, "{window:?}");
        // 1 GB/s at 0.1 ms: the first window is enough.
        let (window, _, waited_ns) = run(MS / 10, PART, 1_000 * MS);
        assert!(waited_ns < MS && window.size < 1 << 20, "{window:?}, {waited_ns} ns");
    }

    #[test]
    fn a_copy_that_does_not_fill_the_window_does_not_grow_it() {
        let mut window = CopyWindow::default();
        for now_ns in (0..1_000).map(|round| round * MS) {
            window.send(now_ns, PART);
            assert!(window.store(now_ns + 40 * MS, PART));
        }
        assert_eq!((window.size, window.in_flight()), (CHECKPOINT_WINDOW, 0));
        assert!(!window.store(0, 1), "nothing is on its way");
    }
}
