//! Logs panics as lines, besides the message on standard error, which remote operators do not see.

use marram_transport::LogLimiter;
use std::panic::{self, PanicHookInfo};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Longest text that is logged. Two large values that should be equal can both be in a panic's text.
const TEXT_BYTES_MAX: usize = 4 << 10;
/// Longest name of a thread.
const NAME_BYTES_MAX: usize = 64;

/// From now on, logs each panic after the previous hook has run; the effect of the panic does not change. Rate-limited, with a
/// count of those suppressed: code that panics may do so again at once.
pub(super) fn log() {
    let (before, limiter) = (panic::take_hook(), Mutex::new(LogLimiter::new(Instant::now())));
    panic::set_hook(Box::new(move |panic| {
        before(panic);
        // Held only for this statement, which cannot panic: so no thread waits for itself.
        let passed = limiter.lock().unwrap_or_else(PoisonError::into_inner).pass(Instant::now());
        if let Some(suppressed) = passed {
            line(panic, suppressed);
        }
    }));
}

/// Nothing in here may panic, since that would end the process, or wait for a lock that this thread may hold: the log's writers
/// skip what they cannot write, and the buffer of kept lines skips this line if it is locked.
fn line(panic: &PanicHookInfo<'_>, suppressed: Option<u64>) {
    let thread = thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let thread = &thread[..thread.floor_char_boundary(NAME_BYTES_MAX)];
    let place = panic.location().map(tracing::field::display);
    let text = panic.payload_as_str().unwrap_or("without a message");
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    tracing::error!(event = "panicked", thread, place, suppressed, "a thread panicked: {text}");
}
