//! What the subcommands print.
//!
//! Through one function, because `println!` panics where its reader has gone.

use std::io::Write;

/// Writes to standard output. Errors are ignored: a reader that closes it, as `head` does, needs no more.
pub(crate) fn emit(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = written.as_ref().map_err(std::io::Error::kind)
        && error != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("marram: cannot write to standard output: {error}");
    }
}
