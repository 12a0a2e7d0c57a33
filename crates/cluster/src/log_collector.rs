//! The log lines of all processes of a run, in the order in which they were read, and waiting for a line.

use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of lines that are kept. A run of hours logs more; the oldest lines are dropped then, because what waits for a line
/// waits for a new one.
const EVENTS_MAX: usize = 2_000_000;

/// One line of a process's log.
#[derive(Clone, Debug)]
pub struct LogEvent {
    /// When it was read.
    pub at: Instant,
    /// Name of the process that logged it.
    pub who: Arc<str>,
    /// Its fields; a line that is not JSON becomes the string `message`.
    pub fields: Value,
}

impl LogEvent {
    /// The field `event`, which names what happened; empty for lines that are only for people.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text("event")
    }

    /// A field that is a string; empty if it is not there.
    #[must_use]
    pub fn text(&self, field: &str) -> &str {
        self.fields[field].as_str().unwrap_or_default()
    }

    /// A field that is a number; 0 if it is not there.
    #[must_use]
    pub fn number(&self, field: &str) -> u64 {
        self.fields[field].as_u64().unwrap_or(0)
    }
}

/// The latest lines. An event keeps its index when older ones are dropped.
#[derive(Default)]
struct Kept {
    events: VecDeque<LogEvent>,
    /// Index of the first event that is kept: the number of those that were dropped.
    first: usize,
}

impl Kept {
    fn add(&mut self, event: LogEvent, most: usize) {
        if self.events.len() >= most && self.events.pop_front().is_some() {
            self.first += 1;
        }
        self.events.push_back(event);
    }

    fn end(&self) -> usize {
        self.first + self.events.len()
    }

    /// The kept events from index `start` on.
    fn from(&self, start: usize) -> impl DoubleEndedIterator<Item = &LogEvent> {
        self.events.range(start.saturating_sub(self.first).min(self.events.len())..)
    }
}

/// The latest events of a run. Clones share them.
#[derive(Clone, Default)]
pub struct LogCollector {
    shared: Arc<(Mutex<Kept>, Condvar)>,
}

impl LogCollector {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        // A thread that panicked has added an event or not: both states are valid.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one line of a process.
    pub fn add(&self, who: &Arc<str>, line: &str) {
        let fields = serde_json::from_str(line).unwrap_or_else(|_| serde_json::json!({ "message": line }));
        self.kept().add(LogEvent { at: Instant::now(), who: Arc::clone(who), fields }, EVENTS_MAX);
        self.shared.1.notify_all();
    }

    /// The current end of the collected logs: what is logged from here on has this index or a larger one.
    #[must_use]
    pub fn end(&self) -> usize {
        self.kept().end()
    }

    /// The first event from `start` on that `wanted` accepts, and the index after it; waits up to `patience` for it.
    pub fn wait(
        &self,
        start: usize,
        patience: Duration,
        mut wanted: impl FnMut(&LogEvent) -> bool,
    ) -> Option<(usize, LogEvent)> {
        let deadline = Instant::now() + patience;
        let (mut kept, mut start) = (self.kept(), start);
        loop {
            let begin = start.max(kept.first);
            if let Some((number, event)) = kept.from(begin).enumerate().find(|(_, event)| wanted(event)) {
                return Some((begin + number + 1, event.clone()));
            }
            start = start.max(kept.end());
            let left = deadline.checked_duration_since(Instant::now())?;
            kept = self.shared.1.wait_timeout(kept, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The number of kept events from `start` on that `wanted` accepts.
    pub fn count(&self, start: usize, mut wanted: impl FnMut(&LogEvent) -> bool) -> usize {
        self.kept().from(start).filter(|event| wanted(event)).count()
    }

    /// All kept events from `start` on that `wanted` accepts.
    pub fn all(&self, start: usize, mut wanted: impl FnMut(&LogEvent) -> bool) -> Vec<LogEvent> {
        self.kept().from(start).filter(|event| wanted(event)).cloned().collect()
    }

    /// The latest event that `wanted` accepts.
    pub fn last(&self, mut wanted: impl FnMut(&LogEvent) -> bool) -> Option<LogEvent> {
        self.kept().from(0).rev().find(|event| wanted(event)).cloned()
    }

    /// The last lines, for a report of what went wrong.
    #[must_use]
    pub fn tail(&self, count: usize) -> String {
        self.tail_of(count, |_| true)
    }

    /// The last lines that `wanted` accepts.
    #[must_use]
    pub fn tail_of(&self, count: usize, mut wanted: impl FnMut(&LogEvent) -> bool) -> String {
        let kept = self.kept();
        let mut last: Vec<&LogEvent> = kept.from(0).rev().filter(|event| wanted(event)).take(count).collect();
        last.reverse();
        last.iter().map(|event| format!("{}: {}\n", event.who, event.fields)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_sees_what_was_there_and_what_comes() {
        let logs = LogCollector::default();
        let who: Arc<str> = "a".into();
        logs.add(&who, "{\"event\":\"one\",\"n\":7}");
        logs.add(&who, "panicked at");
        let (next, event) = logs.wait(0, Duration::ZERO, |event| event.name() == "one").unwrap();
        assert_eq!((next, event.number("n")), (1, 7));
        assert!(logs.wait(next, Duration::ZERO, |event| event.name() == "one").is_none());
        let writer = logs.clone();
        let thread = std::thread::spawn(move || writer.add(&"b".into(), "{\"event\":\"two\"}"));
        let (next, _) = logs.wait(0, Duration::from_secs(60), |event| event.name() == "two").unwrap();
        thread.join().unwrap();
        assert_eq!(next, 3);
    }

    #[test]
    fn an_event_keeps_its_index_when_older_ones_are_dropped() {
        let mut kept = Kept::default();
        for number in 0..5 {
            let fields = serde_json::json!({ "number": number });
            kept.add(LogEvent { at: Instant::now(), who: "a".into(), fields }, 3);
        }
        let numbers = |start| kept.from(start).map(|event| event.number("number")).collect::<Vec<u64>>();
        assert_eq!((kept.first, kept.end()), (2, 5));
        assert_eq!((numbers(0), numbers(3), numbers(9)), (vec![2, 3, 4], vec![3, 4], vec![]));
    }
}
