//! When, and of which commit, a result is. Does not know what was run.

use std::{
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};

use crate::{project, shell::capture};

/// What this tool writes itself. A tree with no other changes is still the commit's.
const WRITTEN: [&str; 4] = ["docs/soak.md", "docs/figures/", "docs/benchmarks.md", "docs/faults.md"];

/// The day and the commit of a result.
pub(crate) struct Stamp {
    /// As `2026-11-23`, in UTC.
    pub(crate) date: String,
    /// Ten digits, with a mark if the tree had other changes.
    pub(crate) commit: String,
}

impl Stamp {
    /// Of this moment and of the tree as it is.
    ///
    /// # Errors
    /// If this is no git repository, or the clock is wrong.
    pub(crate) fn now() -> Result<Self> {
        let git =
            |arguments: &[&str]| capture(Command::new("git").args(arguments).current_dir(project::root()));
        let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
        let changed = is_changed(&git(&["status", "--porcelain", "-uno"])?);
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock stands before 1970")?;
        Ok(Self {
            date: date(seconds.as_secs() / 86_400),
            commit: format!("{}{}", commit.trim(), if changed { " and changes" } else { "" }),
        })
    }
}

/// Whether `git status --porcelain` lists more than results.
fn is_changed(status: &str) -> bool {
    // Two letters and a space come before a path.
    let is_result =
        |line: &str| WRITTEN.iter().any(|path| line.get(3..).is_some_and(|it| it.starts_with(path)));
    status.lines().any(|line| !is_result(line))
}

/// A day since 1970 as `2026-11-23`: Howard Hinnant's `civil_from_days`.
fn date(day: u64) -> String {
    let z = day + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{}-{month:02}-{of_month:02}", year + era * 400 + later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        for (day, expected) in
            [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_780, "2026-11-23")]
        {
            assert_eq!(date(day), expected);
        }
    }

    #[test]
    fn results_alone_are_no_change() {
        for (status, expected) in [
            ("", false),
            (" M docs/soak.md\nM  docs/figures/forward.json\n M docs/benchmarks.md\n", false),
            (" M docs/faults.md\n M crates/wire/src/lib.rs\n", true),
        ] {
            assert_eq!(is_changed(status), expected, "{status}");
        }
    }
}
