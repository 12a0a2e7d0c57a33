//! Structured logs: one line an event on standard output, as text or JSON; and a limiter for what guests and peers can
//! trigger. Does not know what is logged.

use serde::Deserialize;
use std::sync::Mutex;
use std::time::Instant;
use tracing::level_filters::LevelFilter;

/// The environment variable that overrides the configured level.
pub const LEVEL_VARIABLE: &str = "MARRAM_LOG";

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
    let builder = tracing_subscriber::fmt().with_max_level(level).with_target(false).with_ansi(false);
    // `try_init` fails only if a subscriber is there already, as in tests that start several programs in one process.
    let _ = match options.format {
        Format::Text => builder.try_init(),
        Format::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    };
}

/// Lets a named number of lines a second through, for events that a guest or a peer can cause as often as it likes.
pub struct Limiter {
    per_second: u32,
    state: Mutex<Option<Window>>,
}

/// The second that is being counted.
struct Window {
    began: Instant,
    used: u32,
    dropped: u64,
}

impl Limiter {
    /// Allows `per_second` lines in any one second that begins with a line.
    #[must_use]
    pub const fn per_second(per_second: u32) -> Self {
        Self { per_second, state: Mutex::new(None) }
    }

    /// Whether the line may be logged; if so, how many were dropped since the last second that had a line.
    pub fn allow(&self) -> Option<u64> {
        self.allow_at(Instant::now())
    }

    fn allow_at(&self, now: Instant) -> Option<u64> {
        // A panic elsewhere while holding the lock leaves counts that are still usable.
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let window = state.get_or_insert(Window { began: now, used: 0, dropped: 0 });
        if now.saturating_duration_since(window.began).as_secs() >= 1 {
            let dropped = window.dropped;
            *window = Window { began: now, used: 1, dropped: 0 };
            return Some(dropped);
        }
        if window.used < self.per_second {
            window.used += 1;
            return Some(0);
        }
        window.dropped += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_limiter_counts_what_it_drops() {
        let limiter = Limiter::per_second(2);
        let start = Instant::now();
        let at = |ms| limiter.allow_at(start + Duration::from_millis(ms));
        let seen: Vec<_> = [0, 10, 20, 30, 1_000, 1_001, 1_002, 2_500].into_iter().map(at).collect();
        assert_eq!(seen, [Some(0), Some(0), None, None, Some(2), Some(0), None, Some(1)]);
    }
}
