//! `[epoch]`: how often the outputs of sessions leave that wait for a backup, and how long a session waits for a new one. Those of a shared
//! cell with a standby wait for a backup too, which confirms each message.
//!
//! ```text
//! every := time of 500us to 1s, or "message"
//! form  := "log", "auto" or "pages"
//! ```
//!
//! The values become an `EpochSettings`. Some other fields have no meaning under `epoch` and are refused: the backup has what ends would
//! keep. A backup that gets the log alone replays it as it comes, so that no replay is ever long.

use crate::source::{Problem, Source};
use crate::units::Time;
use marram_shard::api::{BackupForm, EpochSettings, Protect};
use serde::Deserialize;
use std::str::FromStr;
use std::time::Duration;
use toml::Spanned;

/// The time between two epochs, unless the manifest says otherwise.
pub const EVERY: Duration = Duration::from_millis(1);
/// At most 2,000 epochs a second: more cost CPU time and gain nothing.
pub const EVERY_MIN: Duration = Duration::from_micros(500);
/// At least one epoch a second.
pub const EVERY_MAX: Duration = Duration::from_secs(1);
/// How long a session waits for a new backup, unless the manifest says otherwise.
pub const ALONE_AFTER: Duration = Duration::from_secs(3);
/// The longest such wait.
pub const ALONE_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The table as written.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    every: Option<Spanned<String>>,
    alone_after: Option<Spanned<Time>>,
    form: Option<Spanned<String>>,
}

/// The table of an app with this protection, and what stands for it where a shared cell has a standby; none for every other protection.
pub(super) fn resolve(
    source: &Source,
    written: Option<Spanned<Written>>,
    (protect, shared): (Protect, bool),
) -> Result<Option<EpochSettings>, Problem> {
    match (written, protect) {
        (written, Protect::Epoch) => {
            written.map(Spanned::into_inner).unwrap_or_default().resolve(source).map(Some)
        }
        // Checkpoint and log at hand, or replayed as it comes.
        (None, Protect::Warm) if shared => Ok(Some(standby(BackupForm::Auto))),
        (None, Protect::Hot) if shared => Ok(Some(standby(BackupForm::Log))),
        (None, _) => Ok(None),
        (Some(written), _) => {
            let what = "[epoch] needs `protect = \"epoch\"`; write that, or remove the table";
            Err(source.problem(&written.span(), what))
        }
    }
}

/// What one client sees must not be ordered otherwise for another, so each output waits until the standby has what led to it.
fn standby(form: BackupForm) -> EpochSettings {
    let alone_after_ms = u32::try_from(ALONE_AFTER.as_millis()).unwrap_or(u32::MAX);
    EpochSettings { every_us: 0, alone_after_ms, form }
}

impl Written {
    fn resolve(self, source: &Source) -> Result<EpochSettings, Problem> {
        let every_us = match &self.every {
            None => us(EVERY),
            Some(written) => every_us(source, written)?,
        };
        let alone_after = self.alone_after.as_ref().map_or(ALONE_AFTER, |time| time.get_ref().0);
        if let Some(written) = self.alone_after.filter(|_| alone_after > ALONE_AFTER_MAX) {
            let what =
                "the time that a session waits for a new backup is at most \"1h\"; \"0s\" waits for none";
            return Err(source.problem(&written.span(), what));
        }
        let form = match &self.form {
            None => BackupForm::default(),
            Some(written) => BackupForm::named(written.get_ref()).ok_or_else(|| {
                let what = "what the backup gets is \"log\" (it replays the cell's inputs), \"pages\" (it holds the memory that changed) \
                            or \"auto\" (whichever is fewer bytes)";
                source.problem(&written.span(), what)
            })?,
        };
        let alone_after_ms = u32::try_from(alone_after.as_millis()).unwrap_or(u32::MAX);
        Ok(EpochSettings { every_us, alone_after_ms, form })
    }
}

/// The time between two epochs, in microseconds; 0 for one with each message.
pub(crate) fn every_us(source: &Source, written: &Spanned<String>) -> Result<u32, Problem> {
    every(written.get_ref()).ok_or_else(|| {
        source.problem(
            &written.span(),
            "an epoch lasts from \"500us\" to \"1s\" (2,000 to 1 a second), \
             in whole microseconds; or write \"message\" for one with each message",
        )
    })
}

fn every(written: &str) -> Option<u32> {
    if written == "message" {
        return Some(0);
    }
    let time = Time::from_str(written).ok()?.0;
    let is_whole = time.subsec_nanos().is_multiple_of(1_000);
    (is_whole && (EVERY_MIN..=EVERY_MAX).contains(&time)).then(|| us(time))
}

fn us(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use crate::manifest::Manifest;
    use crate::source::Source;
    use marram_shard::api::{BackupForm, EpochSettings};

    fn parse(rest: &str) -> Result<Option<EpochSettings>, String> {
        let text = format!("name = \"a\"\nmodule = \"a.wasm\"\n{rest}\n");
        let parsed = Manifest::parse(&Source::new("marram.toml", text));
        parsed.map(|manifest| manifest.epoch).map_err(|problem| problem.to_string())
    }

    #[test]
    fn epochs_have_a_pace() {
        let pace = |every_us, alone_after_ms| {
            Ok(Some(EpochSettings { every_us, alone_after_ms, form: BackupForm::Log }))
        };
        for (epoch, expected) in [
            ("", pace(1_000, 3_000)),
            ("[epoch]", pace(1_000, 3_000)),
            ("[epoch]\nevery = \"500us\"", pace(500, 3_000)),
            ("[epoch]\nevery = \"1s\"\nalone_after = \"0s\"", pace(1_000_000, 0)),
            ("[epoch]\nevery = \"message\"\nalone_after = \"1h\"", pace(0, 3_600_000)),
        ] {
            assert_eq!(parse(&format!("protect = \"epoch\"\n{epoch}")), expected, "{epoch}");
        }
        for (protect, form) in [
            ("none", None),
            ("standby", Some(BackupForm::Auto)),
            ("standby\"\nstandby = \"warm", Some(BackupForm::Auto)),
            ("standby\"\nstandby = \"hot", Some(BackupForm::Log)),
        ] {
            let expected = form.map(|form| EpochSettings { every_us: 0, alone_after_ms: 3_000, form });
            let shared = format!("cell = \"shared\"\nprotect = \"{protect}\"");
            assert_eq!(parse(&shared), Ok(expected), "{protect}");
            assert_eq!(parse(&format!("protect = \"{protect}\"")), Ok(None), "{protect}");
        }
        let target = "cell = \"shared\"\nprotect = \"standby\"\n[keep]\nrecovery_target = \"1ms\"";
        assert!(parse(target).is_ok(), "a warm standby replays when it goes on");
        for (written, form) in
            [("log", BackupForm::Log), ("auto", BackupForm::Auto), ("pages", BackupForm::Pages)]
        {
            let epoch = format!("protect = \"epoch\"\n[epoch]\nform = \"{written}\"");
            let expected = EpochSettings { every_us: 1_000, alone_after_ms: 3_000, form };
            assert_eq!(parse(&epoch), Ok(Some(expected)));
        }
        let target = "protect = \"epoch\"\n[epoch]\nform = \"auto\"\n[keep]\nrecovery_target = \"1ms\"";
        assert!(parse(target).is_ok(), "a backup that holds the log replays it when it goes on");
    }

    #[test]
    fn every_error_names_line_field_and_fix() {
        let epoch = "protect = \"epoch\"";
        for (text, words) in [
            (
                format!("{epoch}\n[epoch]\nevery = \"499us\""),
                &[":5", "`epoch.every`", "\"500us\"", "\"message\""][..],
            ),
            (format!("{epoch}\n[epoch]\nevery = \"1001ms\""), &[":5", "`epoch.every`", "\"1s\""]),
            (format!("{epoch}\n[epoch]\nevery = \"0s\""), &[":5", "`epoch.every`", "\"message\""]),
            (format!("{epoch}\n[epoch]\nevery = \"0.5005ms\""), &[":5", "`epoch.every`", "whole"]),
            (format!("{epoch}\n[epoch]\nevery = \"often\""), &[":5", "`epoch.every`", "\"500us\""]),
            (format!("{epoch}\n[epoch]\nevery = 1"), &[":5", "`epoch.every`", "string"]),
            (format!("{epoch}\n[epoch]\nalone_after = \"61m\""), &[":5", "`epoch.alone_after`", "\"1h\""]),
            (
                format!("{epoch}\n[epoch]\nform = \"page\""),
                &[":5", "`epoch.form`", "\"log\"", "\"pages\"", "\"auto\""],
            ),
            (format!("{epoch}\n[epoch]\neach = \"1ms\""), &[":5", "each", "`every`"]),
            ("[epoch]\nevery = \"1ms\"".into(), &[":3", "`epoch`", "`protect = \"epoch\"`", "remove"]),
            ("protect = \"standby\"\n[epoch]".into(), &[":4", "`protect = \"epoch\"`"]),
            ("cell = \"shared\"\nprotect = \"standby\"\n[epoch]".into(), &[":5", "`protect = \"epoch\"`"]),
            (
                "cell = \"shared\"\nprotect = \"standby\"\n[keep]\ncheckpoint = \"client\"".into(),
                &[":6", "`keep.checkpoint`", "`protect = \"standby\"`", "backup", "remove"],
            ),
            (
                "cell = \"shared\"\nprotect = \"standby\"\nstandby = \"hot\"\n[keep]\nrecovery_target = \"1ms\"".into(),
                &[":7", "`keep.recovery_target`", "replays", "remove"],
            ),
            (
                "cell = \"shared\"\nprotect = \"endpoints\"".into(),
                &[":4", "`protect`", "\"standby\"", "\"epoch\"", "\"none\"", "\"client\""],
            ),
            (
                format!("{epoch}\ncell = \"shared\"\nserver = \"web\""),
                &[":5", "`server`", "cell of their own", "\"client\""],
            ),
            (format!("{epoch}\nstandby = \"hot\""), &[":4", "`standby`", "`protect = \"standby\"`"]),
            (
                format!("{epoch}\n[keep]\ncheckpoint = \"client\""),
                &[":5", "`keep.checkpoint`", "backup", "remove"],
            ),
            (format!("{epoch}\n[keep]\nwitness = \"strict\""), &[":5", "`keep.witness`", "backup", "remove"]),
            (
                format!("{epoch}\n[keep]\nrecovery_target = \"1ms\""),
                &[":5", "`keep.recovery_target`", "replays", "remove"],
            ),
        ] {
            let error = parse(&text).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{text}: {error:?} does not say {word:?}");
            }
        }
    }
}
