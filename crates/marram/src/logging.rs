//! Structured logs: one line an event on standard output, as text or JSON. Does not know what is logged.

use serde::Deserialize;
use std::sync::OnceLock;
use tracing::level_filters::LevelFilter;

/// The environment variable that overrides the configured level.
pub const LEVEL_VARIABLE: &str = "MARRAM_LOG";
/// The environment variable by which a supervisor tells its shards how lines look.
const FORMAT_VARIABLE: &str = "MARRAM_LOG_FORMAT";

/// What this process's subscriber was installed with.
static STARTED: OnceLock<(Format, LevelFilter)> = OnceLock::new();

/// How a line looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One flat JSON object a line, for programs.
    Json,
}

/// What is logged at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// What needs an operator.
    Error,
    /// What an operator may want to look at.
    Warn,
    /// Sessions, edges, deployments coming and going.
    #[default]
    Info,
    /// Why they do.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    fn filter(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

/// What to log and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Text or JSON.
    pub format: Format,
    /// Unless [`LEVEL_VARIABLE`] says otherwise.
    pub level: Level,
}

/// Installs the process's subscriber. A second call has no effect: the first one's options stay.
pub fn start(options: Options) {
    let level = std::env::var(LEVEL_VARIABLE)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| options.level.filter());
    if STARTED.set((options.format, level)).is_err() {
        return;
    }
    let builder = tracing_subscriber::fmt().with_max_level(level).with_target(false).with_ansi(false);
    // Fails only if a test program has a subscriber of its own: then its lines go there.
    let _ = match options.format {
        Format::Text => builder.try_init(),
        Format::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    };
}

/// What a child process needs in its environment to log as this one does.
pub fn environment() -> impl Iterator<Item = (&'static str, String)> {
    let (format, level) = STARTED.get().copied().unwrap_or((Format::Text, LevelFilter::INFO));
    let format = match format {
        Format::Text => "text",
        Format::Json => "json",
    };
    [(FORMAT_VARIABLE, format.to_owned()), (LEVEL_VARIABLE, level.to_string())].into_iter()
}

/// Installs the subscriber of a child process, as its parent's [`environment`] says.
pub fn start_from_environment() {
    let json = std::env::var(FORMAT_VARIABLE).is_ok_and(|format| format == "json");
    start(Options { format: if json { Format::Json } else { Format::Text }, level: Level::Info });
}
