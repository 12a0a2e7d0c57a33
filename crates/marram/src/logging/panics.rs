//! Panics as lines of the log, besides what is said of them on standard error: that is read by nobody who asks from elsewhere.

use std::panic::{self, PanicHookInfo};
use std::thread;

/// Longest text that is logged. Two large values that should have been equal are in the text of one.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// From now on a panic is logged, after everything that was done about one before. What comes of it stays as it is.
pub(super) fn log() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        before(panic);
        line(panic);
    }));
}

/// Nothing in here may panic, since that would end the process, nor wait for what this thread may hold: the log's writers give up
/// where they cannot write, and the lines that are kept go without this one if somebody holds them.
fn line(panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let place = panic.location().map(tracing::field::display);
    let text = panic.payload_as_str().unwrap_or("it says nothing");
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    tracing::error!(event = "panicked", thread, place, "a thread panicked: {text}");
}
