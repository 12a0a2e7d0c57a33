//! Log levels, with a level of its own for each part of the program: `info,agent=debug`.
//!
//! ```text
//! levels := [level] ("," part "=" level | "," level)*       "warn,agent=debug": the last plain level counts
//! ```

use marram_shard::suggest;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use std::fmt;
use std::str::FromStr;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// The parts of the program with a level of their own, and the log targets of each.
const PARTS: [(&str, &str); 7] = [
    ("agent", "marram_agent"),
    ("edge", "marram_node::edge"),
    ("admin", "marram_admin"),
    ("coordinator", "marram_node::coordinator"),
    ("recorder", "marram_node::recorder"),
    // What the machines of sessions ignore, and their phases: at level `trace`.
    ("session", super::machines::TARGET),
    // What cells print.
    ("guest", "guest"),
];

/// The least severe level that is logged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, clap::ValueEnum)]
pub enum Level {
    /// Errors that an operator must fix.
    Error,
    /// Problems that an operator may want to look at.
    Warn,
    /// Sessions, edges, deployments that start and end.
    #[default]
    Info,
    /// The reasons for these.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    const ALL: [(&'static str, Self); 5] = [
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];

    fn filter(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }

    /// Parses a level, ignoring case.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        Self::ALL.into_iter().find(|(name, _)| *name == text).map(|(_, level)| level)
    }

    /// The name of the level.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, level)| *level == self).map_or("info", |(name, _)| name)
    }
}

/// A level for everything, and others for some parts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Levels {
    all: Level,
    parts: Vec<(&'static str, Level)>,
}

impl Levels {
    /// The filter for these levels.
    /// The most specific target wins, so a part's level holds against that of everything, in either
    /// direction.
    pub(super) fn filter(&self) -> Targets {
        let targets = Targets::new().with_default(self.all.filter());
        let target = |part: &str| PARTS.iter().find(|(name, _)| *name == part).map_or("", |(_, at)| *at);
        self.parts
            .iter()
            .fold(targets, |targets, (part, level)| targets.with_target(target(part), level.filter()))
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.all.name())?;
        self.parts.iter().try_for_each(|(part, level)| write!(f, ",{part}={}", level.name()))
    }
}

/// Why a text gives no levels: the words that its author must change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LevelsError {
    /// There is no such level.
    NoLevel(String),
    /// There is no such part of the program.
    NoPart(String),
}

impl fmt::Display for LevelsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLevel(text) => {
                let names = Level::ALL.map(|(name, _)| name);
                let guess = suggest::did_you_mean(text, names);
                write!(f, "there is no level `{text}`{guess}; there are {}", listed(&names))
            }
            Self::NoPart(text) => {
                let names = PARTS.map(|(name, _)| name);
                let guess = suggest::did_you_mean(text, names);
                write!(f, "no part is called `{text}`{guess}; there are {}", listed(&names))
            }
        }
    }
}

impl std::error::Error for LevelsError {}

impl FromStr for Levels {
    type Err = LevelsError;

    fn from_str(text: &str) -> Result<Self, LevelsError> {
        let level =
            |text: &str| Level::read(text.trim()).ok_or_else(|| LevelsError::NoLevel(text.trim().to_owned()));
        let mut levels = Self::default();
        for word in text.split(',').filter(|word| !word.trim().is_empty()) {
            let Some((part, of)) = word.split_once('=') else {
                levels.all = level(word)?;
                continue;
            };
            let (part, names) = (part.trim(), PARTS.map(|(name, _)| name));
            let Some(name) = names.into_iter().find(|name| *name == part) else {
                return Err(LevelsError::NoPart(part.to_owned()));
            };
            levels.parts.push((name, level(of)?));
        }
        Ok(levels)
    }
}

fn listed(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

impl<'de> Deserialize<'de> for Levels {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_and_written_by_part() {
        for (text, shown) in [
            ("", "info"),
            ("debug", "debug"),
            ("WARN", "warn"),
            ("info,agent=debug", "info,agent=debug"),
            ("agent=debug , guest=error, warn", "warn,agent=debug,guest=error"),
        ] {
            assert_eq!(text.parse::<Levels>().map(|levels| levels.to_string()), Ok(shown.into()), "{text}");
        }
        for (text, words) in [
            ("inof", &["`inof`", "did you mean `info`?", "`error`, `warn`"][..]),
            ("info,agnet=debug", &["`agnet`", "did you mean `agent`?", "coordinator"]),
            ("agent=loud", &["`loud`", "trace"]),
        ] {
            let why = text.parse::<Levels>().expect_err("it is wrong").to_string();
            words.iter().for_each(|word| assert!(why.contains(word), "{text}: {why}"));
        }
    }

    #[test]
    fn a_part_is_logged_at_its_own_level() {
        let filter = "warn,agent=debug,guest=error".parse::<Levels>().expect("it is right").filter();
        for (target, level, heard) in [
            ("marram_agent::reports", tracing::Level::DEBUG, true),
            ("marram_node::edge::shard", tracing::Level::INFO, false),
            ("marram_node::edge::shard", tracing::Level::WARN, true),
            ("guest", tracing::Level::WARN, false),
        ] {
            assert_eq!(filter.would_enable(target, &level), heard, "{target} {level}");
        }
    }
}
