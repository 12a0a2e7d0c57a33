//! The output for people while the demo runs: a line for each fault and for each report of the agents.
//!
//! Times are those at which this process read a report, from one clock; the gaps in the text are
//! the agents' own measurements.

use marram_cluster::{LogCollector, LogEvent};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Prints lines with the time since the start.
#[derive(Clone)]
pub(super) struct Timeline {
    start: Instant,
}

impl Timeline {
    pub(super) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(super) fn say(&self, text: &str) {
        self.say_at(Instant::now(), text);
    }

    /// `at` may lie before the line that was printed last: reports are printed by another thread.
    fn say_at(&self, at: Instant, text: &str) {
        println!("[{:8.3} s]  {text}", at.saturating_duration_since(self.start).as_secs_f64());
    }

    /// Prints a fault, with the number of bytes received until then.
    pub(super) fn fault(&self, text: &str, bytes: u64) {
        self.say(&format!("*** {text} (after {:.1} MiB)", mebibytes(bytes)));
    }

    /// Prints the agents' reports as they arrive, until the follower is dropped.
    pub(super) fn follow(&self, logs: &LogCollector) -> Follower {
        let stopped = Arc::new(AtomicBool::new(false));
        let (timeline, logs, stop) = (self.clone(), logs.clone(), Arc::clone(&stopped));
        let mut next = logs.end();
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // The wait ends regularly, to check whether to stop.
                let found = logs.wait(next, Duration::from_millis(100), |event| sentence(event).is_some());
                if let Some((after, event)) = found {
                    next = after;
                    if let Some(text) = sentence(&event) {
                        timeline.say_at(event.at, &text);
                    }
                }
            }
        });
        Follower { stopped, thread: Some(thread) }
    }
}

/// Prints until dropped.
pub(super) struct Follower {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only prints, so its result does not matter.
            let _ = thread.join();
        }
    }
}

/// An agent's report in words, for those reports that belong to the timeline.
fn sentence(event: &LogEvent) -> Option<String> {
    let who = &event.who;
    match event.name() {
        "owned" if event.number("gap_us") == 0 => {
            Some(format!("    {who}: the session begins at {}", event.text("edge")))
        }
        "owned" => {
            let gap = Duration::from_micros(event.number("gap_us")).as_secs_f64() * 1e3;
            Some(format!("    {who}: the session continues at {} after {gap:.1} ms", event.text("edge")))
        }
        "orphaned" => Some(format!("    {who}: the session has no owner: {}", event.text("reason"))),
        "ended" => Some(format!("    {who}: the session is over: {}", event.text("reason"))),
        _ => None,
    }
}

/// For people: exact up to 2^53 bytes.
#[expect(clippy::cast_precision_loss, reason = "sizes of files, shown with one decimal")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
