//! Guest output: log lines, rate-limited for each app, and the last errors of stopped guests, for the log line about the end of
//! their session. Only operators see it: an end gets the reason why a handler was stopped, never its output.
//!
//! Output is a side effect outside the session: a replay prints again, and nothing of it is in the
//! log or in a checkpoint.

use marram_sandbox::{Print, PrintLevel};
use marram_transport::LogLimiter;
use marram_wire::id::SessionId;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;
use tracing::{debug, error, info, warn};

/// Apps with a rate limiter of their own.
const LIMITERS_MAX: usize = 1_024;
/// How many recently stopped sessions are kept. A session ends in the same step, or when its ends have sent what a recording
/// needs.
const STOPPED_MAX: usize = 64;
/// Bytes of a session's last errors.
const ERRORS_BYTES_MAX: usize = 1_024;
/// The line that Rust's library prints after each panic. It does not help here.
const BACKTRACE_NOTE: &str = "note: run with `RUST_BACKTRACE";

/// Rate limiters, and last errors of stopped sessions.
#[derive(Default)]
pub(super) struct GuestLog {
    /// One for each app: an app that prints much does not suppress others' lines.
    limiters: BTreeMap<String, LogLimiter>,
    /// Newest first.
    stopped: VecDeque<(SessionId, String)>,
}

impl GuestLog {
    /// Writes what a cell printed to the log.
    /// The lines are of the part `guest`, so operators can set a level for them.
    pub(super) fn write(&mut self, app: Option<&str>, session: Option<SessionId>, prints: Vec<Print>) {
        let session = session.map(tracing::field::display);
        let (now, key) = (Instant::now(), app.unwrap_or_default());
        if !self.limiters.contains_key(key) {
            if self.limiters.len() >= LIMITERS_MAX {
                // All limiters begin again: 1,024 apps that print are rare, and one more burst of each
                // does no harm.
                self.limiters.clear();
            }
            self.limiters.insert(key.to_owned(), LogLimiter::new(now));
        }
        let Some(limiter) = self.limiters.get_mut(key) else { return };
        for print in prints {
            let Some(suppressed) = limiter.pass(now) else { continue };
            let (stage, text) = (print.stage, print.text);
            match print.level {
                PrintLevel::Error => error!(target: "guest", app, session, stage, suppressed, "{text}"),
                PrintLevel::Warning => warn!(target: "guest", app, session, stage, suppressed, "{text}"),
                PrintLevel::Information => info!(target: "guest", app, session, stage, suppressed, "{text}"),
                PrintLevel::Debug => debug!(target: "guest", app, session, stage, suppressed, "{text}"),
            }
        }
    }

    /// Keeps what a session's cell printed in the handler that was stopped, whether or not it is logged.
    pub(super) fn stopped(&mut self, session: SessionId, prints: &[Print]) {
        self.stopped.retain(|(other, _)| *other != session);
        let Some(words) = last_errors(prints) else { return };
        self.stopped.truncate(STOPPED_MAX - 1);
        self.stopped.push_front((session, words));
    }

    /// What the cell of a session printed before it was stopped, if that was recent.
    pub(super) fn last_errors(&self, session: SessionId) -> Option<&str> {
        self.stopped.iter().find(|(other, _)| *other == session).map(|(_, words)| words.as_str())
    }
}

/// The errors among these, the last ones if there are many; `None` if there are none.
fn last_errors(prints: &[Print]) -> Option<String> {
    let is_word =
        |print: &&Print| print.level == PrintLevel::Error && !print.text.starts_with(BACKTRACE_NOTE);
    let mut words: Vec<&str> = Vec::new();
    let mut left = ERRORS_BYTES_MAX;
    for print in prints.iter().rev().filter(is_word) {
        let text = print.text.trim();
        words.push(&text[..text.floor_char_boundary(left)]);
        left = left.saturating_sub(text.len());
        if left == 0 {
            break;
        }
    }
    words.reverse();
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn print(level: PrintLevel, text: &str) -> Print {
        Print { stage: 0, level, text: text.into() }
    }

    #[test]
    fn the_last_errors_are_no_more_than_can_be_read() {
        let panicked = [
            print(PrintLevel::Information, "all is well"),
            print(PrintLevel::Error, "thread '<unnamed>' (1) panicked at lib.rs:1:2:"),
            print(PrintLevel::Error, "out of sugar"),
            print(
                PrintLevel::Error,
                "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
            ),
        ];
        let words = "thread '<unnamed>' (1) panicked at lib.rs:1:2: out of sugar";
        assert_eq!(last_errors(&panicked).as_deref(), Some(words));
        assert_eq!(last_errors(&panicked[..1]), None);
        let many: Vec<Print> =
            (0..999).map(|count| print(PrintLevel::Error, &format!("{count} \u{fc}"))).collect();
        let words = last_errors(&many).unwrap();
        assert!(words.ends_with("997 \u{fc} 998 \u{fc}") && words.len() < 2 * ERRORS_BYTES_MAX, "{words}");
    }

    #[test]
    fn cells_that_were_stopped_recently_are_remembered_and_no_others() {
        let mut guest_log = GuestLog::default();
        let session = |of: usize| SessionId([u8::try_from(of).unwrap(); 16]);
        for of in 0..=STOPPED_MAX {
            guest_log.stopped(session(of), &[print(PrintLevel::Error, &of.to_string())]);
        }
        assert_eq!((guest_log.last_errors(session(0)), guest_log.last_errors(session(1))), (None, Some("1")));
        // Stopped again, without output.
        guest_log.stopped(session(1), &[]);
        assert_eq!(guest_log.last_errors(session(1)), None);
    }
}
