//! Starts other programs and prints messages about that. Does not know their purpose.
//!
//! Every program that xtask starts goes through here, so that an error always has the command line
//! in it.

use std::{
    ffi::OsStr,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Whether standard output is reserved for one program's result; then everything else goes to standard error.
static RESERVED: AtomicBool = AtomicBool::new(false);

/// From now on no message of this tool, and no program that [`run`] starts, writes to standard output.
pub(crate) fn reserve_stdout() {
    RESERVED.store(true, Ordering::Relaxed);
}

/// Runs a program with its output passed through.
///
/// # Errors
/// If it cannot be started or fails; its own messages are on the terminal already.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    if RESERVED.load(Ordering::Relaxed) {
        command.stdout(std::io::stderr());
    }
    let status = command.status().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Runs a program and returns what it wrote to standard output; what it wrote to standard error is in the error.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed: {}\n{}", line(command), output.status, errors.trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` wrote no UTF-8", line(command)))
}

/// Whether a program of this name is on the path. Looks for a file and does not start it: some
/// programs have no harmless option.
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Announces what is about to happen.
pub(crate) fn say(what: impl std::fmt::Display) {
    if RESERVED.load(Ordering::Relaxed) {
        eprintln!("==> {what}");
    } else {
        println!("==> {what}");
    }
}

/// Runs one step under a heading and a closing line with its time.
///
/// The heading and the time let a CI log be read from its end.
pub(crate) fn step(name: &str, action: impl FnOnce() -> Result<()>) -> Result<()> {
    say(name);
    let started = Instant::now();
    let result = action().with_context(|| format!("step `{name}`"));
    let verdict = if result.is_ok() { "done" } else { "FAILED" };
    println!("<== {name}: {verdict} in {}", seconds(started.elapsed()));
    result
}

/// A duration as text for people.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// The command as it would be typed, for messages.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
