//! Structured logs: one line for each event on standard output, as text or JSON; the last lines are kept for operators.
//! Does not know what is logged.
//!
//! ```text
//! tracing ─▶ levels ─┬─▶ standard output, text or JSON        (systemd, a terminal)
//!                    └─▶ Keeper, always JSON ─┬─▶ LogBuffer    (a process with an admin API)
//!                                             └─▶ datagrams ─▶ the supervisor's LogBuffer   (a shard)
//! ```
//!
//! A line is made on the thread that logs. Writing to standard output may block if its reader does
//! not read; the second destination never does.

mod kept;
mod levels;
mod machines;
mod panics;

pub use kept::{LINE_BYTES_MAX, LogBatch, LogBuffer, LogLine, RING_BYTES, RING_BYTES_MIN, Receiver};
pub use levels::{Level, Levels, LevelsError};

use serde::Deserialize;
use std::fmt;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The environment variable that overrides the configured levels.
pub const LEVEL_VARIABLE: &str = "MARRAM_LOG";
/// The environment variable with which a supervisor sets the format of its shards' lines.
const FORMAT_VARIABLE: &str = "MARRAM_LOG_FORMAT";

/// The options of this process's subscriber.
/// A supervisor passes them on to its shards.
static STARTED: OnceLock<(Format, Levels)> = OnceLock::new();
/// The second destination of this process's lines, besides standard output.
/// Set after the subscriber in a shard, which learns its socket with the setup; lines before that
/// go to standard output alone.
static SINK: OnceLock<Sink> = OnceLock::new();

/// A destination for lines.
enum Sink {
    /// A buffer in this process.
    Kept(LogBuffer),
    /// The parent process.
    Elsewhere(kept::Sender),
}

/// The format of lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Text, for people.
    #[default]
    Text,
    /// One flat JSON object on each line, for programs.
    Json,
}

/// What to log and how.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogOptions {
    /// Text or JSON.
    pub format: Format,
    /// The levels, unless [`LEVEL_VARIABLE`] overrides them.
    pub levels: Levels,
    /// Bytes of lines to keep for operators; none if the program has no admin API.
    pub kept: Option<usize>,
}

/// Why lines cannot be logged as asked: the user changes [`LEVEL_VARIABLE`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogError {
    /// The variable's value.
    text: String,
    why: LevelsError,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{LEVEL_VARIABLE}={}: {}", self.text, self.why)
    }
}

impl std::error::Error for LogError {}

/// Installs the process's subscriber. A second call has no effect: the first one's options stay.
///
/// # Errors
/// If the environment variable has an unknown level.
///
/// Call it before other threads start, so that no line is missing.
pub fn start(options: &LogOptions) -> Result<(), LogError> {
    let levels = match std::env::var(LEVEL_VARIABLE) {
        Ok(text) => text.parse().map_err(|why| LogError { text, why })?,
        Err(_) => options.levels.clone(),
    };
    if let Some(bytes) = options.kept {
        // A second buffer has no effect either.
        let _ = SINK.set(Sink::Kept(LogBuffer::new(bytes)));
    }
    install(options.format, levels, options.kept.is_some());
    Ok(())
}

/// `keeps`: whether a second destination exists or will be set.
fn install(format: Format, levels: Levels, keeps: bool) {
    let filter = levels.filter();
    if STARTED.set((format, levels)).is_err() {
        return;
    }
    let lines = || tracing_subscriber::fmt::layer().with_ansi(false);
    let flat = || lines().json().flatten_event(true).with_current_span(false).with_span_list(false);
    let mut layers = vec![match format {
        Format::Text => lines().with_target(false).boxed(),
        Format::Json => flat().boxed(),
    }];
    if keeps {
        layers.push(flat().with_writer(|| Keeper).boxed());
    }
    // Fails only if a test program has its own subscriber: lines then go to that one.
    let _ = tracing_subscriber::registry().with(filter).with(layers).try_init();
    panics::log();
    machines::connect();
}

/// Writes lines to the second destination.
struct Keeper;

impl io::Write for Keeper {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match SINK.get() {
            Some(Sink::Kept(kept)) => kept.add(None, line),
            Some(Sink::Elsewhere(sender)) => sender.send(line),
            // A shard that has not received the socket yet.
            None => {}
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The buffer of kept lines, if this process has one.
#[must_use]
pub fn kept() -> Option<&'static LogBuffer> {
    match SINK.get() {
        Some(Sink::Kept(kept)) => Some(kept),
        Some(Sink::Elsewhere(_)) | None => None,
    }
}

/// Sends this process's lines to the socket as well, as lines of shard `shard`.
pub fn send_to(socket: UnixDatagram, shard: u8) {
    // A second socket has no effect.
    let _ = SINK.set(Sink::Elsewhere(kept::Sender::new(socket, shard)));
}

/// The environment variables for a child process that make it log as this one does.
pub fn environment() -> impl Iterator<Item = (&'static str, String)> {
    let (format, levels) = STARTED.get().cloned().unwrap_or_default();
    let format = match format {
        Format::Text => "text",
        Format::Json => "json",
    };
    [(FORMAT_VARIABLE, format.to_owned()), (LEVEL_VARIABLE, levels.to_string())].into_iter()
}

/// Installs the subscriber of a child process, with the settings of its parent's [`environment`].
///
/// A level that cannot be read is replaced by the default: a shard must not fail because of its
/// log.
pub fn start_from_environment() {
    let json = std::env::var(FORMAT_VARIABLE).is_ok_and(|format| format == "json");
    // The parent wrote the levels and has checked them.
    let levels = std::env::var(LEVEL_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
    install(if json { Format::Json } else { Format::Text }, levels, true);
}
