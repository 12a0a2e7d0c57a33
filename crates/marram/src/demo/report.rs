//! The output for people: a timeline while the demo runs, a table at its end, and the verdict.

use super::curl::Download;
use super::data::Data;
use super::faults::Faults;
use marram_cluster::{LogCollector, LogEvent};
use marram_node::text::table;
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

/// Everything on which the verdict depends.
pub(super) struct Outcome {
    pub(super) expected: Data,
    pub(super) download: Download,
    pub(super) requests: usize,
    pub(super) web: &'static str,
    pub(super) faults: Faults,
}

impl Outcome {
    /// The closing table.
    pub(super) fn table(&self) -> String {
        let (download, faults) = (&self.download, &self.faults);
        let row = |what: &str, wanted: String, got: String| vec![what.to_owned(), wanted, got];
        let gaps: Vec<String> = faults.gaps_ms.iter().map(|gap| format!("{gap:.1}")).collect();
        let rows = [
            row("bytes received by curl", self.expected.size.to_string(), download.bytes.to_string()),
            row("SHA-256", digest(&self.expected.sha256), digest(&download.sha256)),
            row("curl's exit", "success".into(), download.status.clone()),
            row("connections of curl", "1".into(), download.connections.to_string()),
            row(&format!("requests logged by {}", self.web), "1".into(), self.requests.to_string()),
            row("edges killed", "3 or more".into(), faults.kills.to_string()),
            row("  of them within a recovery", "1".into(), faults.kills_in_recovery.to_string()),
            row("edges stopped and resumed", "1 or more".into(), faults.stops.to_string()),
            row("recoveries", "3 or more".into(), faults.recoveries.to_string()),
            row("frames of replaced edges refused", "1 or more".into(), faults.zombies_refused.to_string()),
            row("time without an owner, ms", String::new(), gaps.join(", ")),
        ];
        format!("\n{}\n", table::format(&["", "WANTED", "SEEN"], &rows))
    }

    /// The first thing that is wrong, if any.
    pub(super) fn verdict(&self) -> Result<(), String> {
        let (download, faults) = (&self.download, &self.faults);
        let checks = [
            (download.bytes == self.expected.size, "the number of bytes is wrong"),
            (
                download.sha256 == self.expected.sha256,
                "the SHA-256 is wrong: bytes lost, repeated or changed",
            ),
            (download.success, "curl failed"),
            (download.connections == 1, "curl did not make exactly one connection"),
            (self.requests == 1, "the server did not log exactly one request"),
            (faults.kills >= 3 && faults.kills_in_recovery >= 1, "not every kill was made"),
            (faults.recoveries >= 3, "the session did not recover three times"),
            (faults.zombies_refused >= 1, "no frame of a replaced edge was refused"),
        ];
        let mut wrong: Vec<String> =
            checks.iter().filter(|(held, _)| !held).map(|(_, what)| (*what).to_owned()).collect();
        wrong.extend(faults.interrupted.iter().map(|why| format!("the faults stopped early: {why}")));
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}

fn digest(bytes: &[u8; 32]) -> String {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}..{}", &text[..16], &text[48..])
}

/// For people: exact up to 2^53 bytes.
#[expect(clippy::cast_precision_loss, reason = "sizes of files, shown with one decimal")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
