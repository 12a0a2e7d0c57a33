//! The log lines of all processes of a run, in the order in which they were read, and waiting for a line.

use serde_json::Value;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of lines that are kept; later lines are dropped.
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

/// All events of a run. Clones share them.
#[derive(Clone, Default)]
pub struct LogCollector {
    shared: Arc<(Mutex<Vec<LogEvent>>, Condvar)>,
}

impl LogCollector {
    fn events(&self) -> MutexGuard<'_, Vec<LogEvent>> {
        // A thread that panicked has added an event or not: both states are valid.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one line of a process.
    pub fn add(&self, who: &Arc<str>, line: &str) {
        let fields = serde_json::from_str(line).unwrap_or_else(|_| serde_json::json!({ "message": line }));
        let mut events = self.events();
        if events.len() < EVENTS_MAX {
            events.push(LogEvent { at: Instant::now(), who: Arc::clone(who), fields });
            self.shared.1.notify_all();
        }
    }

    /// The current end of the collected logs: what is logged from here on has this index or a larger one.
    #[must_use]
    pub fn end(&self) -> usize {
        self.events().len()
    }

    /// The first event from `start` on that `wanted` accepts, and the index after it; waits up to `patience` for it.
    pub fn wait(
        &self,
        start: usize,
        patience: Duration,
        mut wanted: impl FnMut(&LogEvent) -> bool,
    ) -> Option<(usize, LogEvent)> {
        let deadline = Instant::now() + patience;
        let (mut events, mut next) = (self.events(), start);
        loop {
            while let Some(event) = events.get(next) {
                next += 1;
                if wanted(event) {
                    return Some((next, event.clone()));
                }
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            events = self.shared.1.wait_timeout(events, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The number of events from `start` on that `wanted` accepts.
    pub fn count(&self, start: usize, mut wanted: impl FnMut(&LogEvent) -> bool) -> usize {
        self.events().iter().skip(start).filter(|event| wanted(event)).count()
    }

    /// All events from `start` on that `wanted` accepts.
    pub fn all(&self, start: usize, mut wanted: impl FnMut(&LogEvent) -> bool) -> Vec<LogEvent> {
        self.events().iter().skip(start).filter(|event| wanted(event)).cloned().collect()
    }

    /// The latest event that `wanted` accepts.
    pub fn last(&self, mut wanted: impl FnMut(&LogEvent) -> bool) -> Option<LogEvent> {
        self.events().iter().rev().find(|event| wanted(event)).cloned()
    }

    /// The last lines, for a report of what went wrong.
    #[must_use]
    pub fn tail(&self, count: usize) -> String {
        self.tail_of(count, |_| true)
    }

    /// The last lines that `wanted` accepts.
    #[must_use]
    pub fn tail_of(&self, count: usize, mut wanted: impl FnMut(&LogEvent) -> bool) -> String {
        let events = self.events();
        let mut last: Vec<&LogEvent> =
            events.iter().rev().filter(|event| wanted(event)).take(count).collect();
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
}
