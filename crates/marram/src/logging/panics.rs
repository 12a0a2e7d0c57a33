//! Panics as lines of the log, besides what is said of them on standard error: that is read by nobody who asks from elsewhere.

use marram_agent::net::LogLimiter;
use std::panic::{self, PanicHookInfo};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Longest text that is logged. Two large values that should have been equal are in the text of one.
const TEXT_BYTES_MAX: usize = 4 << 10;
/// Longest name of a thread.
const NAME_BYTES_MAX: usize = 64;

/// From now on a panic is logged, after everything that was done about one before. What comes of it stays as it is. Of many only
/// some are, with how many were not: what panics once may do so again at once.
pub(super) fn log() {
    let (before, limiter) = (panic::take_hook(), Mutex::new(LogLimiter::new(Instant::now())));
    panic::set_hook(Box::new(move |panic| {
        before(panic);
        // Held for this statement and nowhere else, where nothing panics: no thread waits for itself.
        let passed = limiter.lock().unwrap_or_else(PoisonError::into_inner).pass(Instant::now());
        if let Some(suppressed) = passed {
            line(panic, suppressed);
        }
    }));
}

/// Nothing in here may panic, since that would end the process, nor wait for what this thread may hold: the log's writers give up
/// where they cannot write, and the lines that are kept go without this one if somebody holds them.
fn line(panic: &PanicHookInfo<'_>, suppressed: Option<u64>) {
    let thread = thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let thread = &thread[..thread.floor_char_boundary(NAME_BYTES_MAX)];
    let place = panic.location().map(tracing::field::display);
    let text = panic.payload_as_str().unwrap_or("it says nothing");
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    tracing::error!(event = "panicked", thread, place, suppressed, "a thread panicked: {text}");
}
