//! The file of results that the repository keeps: the last run of each soak. Does not know what a soak does.
//!
//! ```text
//! | soak | amount | in CI | date | commit | time | result |      one row per soak, in the order of the names
//! ```
//! A row is written whether the run passed or failed; a failed one is bold, and stays until a run
//! passes. A soak that was never run has a row that says so.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

use crate::{project, stamp::Stamp};

/// Where results are kept.
pub(super) const FILE: &str = "docs/soak.md";
/// The front page, which says how fresh they are.
const README: &str = "README.md";
/// What stands before that date.
const DATED: &str = "were last made on ";

const HEAD: &str = "# Long runs\n\n\
    Written by `cargo xtask soak`: the last run of each. CI runs less of the same, or nothing ([CONTRIBUTING.md](../CONTRIBUTING.md)).\n\n\
    | soak | amount | in CI | date | commit | time | result |\n\
    |---|---|---|---|---|---|---|\n";

/// A soak, as its row describes it. Its name is the key of the row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) name: &'a str,
    /// What it runs, and what CI runs of the same.
    pub(super) amount: &'a str,
    pub(super) in_ci: &'a str,
}

/// One run.
pub(super) struct Run<'a> {
    pub(super) subject: Subject<'a>,
    pub(super) time: Duration,
    pub(super) passed: bool,
}

impl Subject<'_> {
    /// The beginning of its row.
    fn key(&self) -> String {
        format!("| {} |", self.name)
    }

    fn row(&self, date: &str, commit: &str, time: &str, result: &str) -> String {
        let Self { amount, in_ci, .. } = self;
        format!("{} {amount} | {in_ci} | {date} | {commit} | {time} | {result} |", self.key())
    }
}

/// Puts a run in place of an earlier one of the same soak. `all` are the soaks that there are.
pub(super) fn record(run: &Run<'_>, all: &[Subject<'_>]) -> Result<()> {
    let Stamp { date, commit } = Stamp::now()?;
    let path = project::root().join(FILE);
    let before = fs::read_to_string(&path).unwrap_or_default();
    fs::write(&path, with(&before, run, &date, &commit, all))
        .with_context(|| format!("cannot write {FILE}"))?;
    let readme = project::root().join(README);
    let text = fs::read_to_string(&readme).with_context(|| format!("cannot read {README}"))?;
    fs::write(&readme, dated(&text, &date)?).with_context(|| format!("cannot write {README}"))
}

/// The README's text with the date of the newest run, which stands after [`DATED`].
fn dated(readme: &str, date: &str) -> Result<String> {
    let (before, after) =
        readme.split_once(DATED).with_context(|| format!("{README} has no `{DATED}` and a date"))?;
    let end = after.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(after.len());
    Ok(format!("{before}{DATED}{date}{}", &after[end..]))
}

/// The file's text with a run in it; rows are in the order of their names.
fn with(before: &str, run: &Run<'_>, date: &str, commit: &str, all: &[Subject<'_>]) -> String {
    let minutes = format!("{} min", run.time.as_secs().div_ceil(60));
    let result = if run.passed { "passed" } else { "**failed**" };
    let key = run.subject.key();
    let mut rows: Vec<String> =
        rows(before).filter(|line| !line.starts_with(&key)).map(str::to_owned).collect();
    rows.push(run.subject.row(date, commit, &minutes, result));
    let missing = all.iter().filter(|soak| !rows.iter().any(|row| row.starts_with(&soak.key())));
    let missing: Vec<String> = missing.map(|soak| soak.row("", "", "", "not run yet")).collect();
    rows.extend(missing);
    rows.sort_unstable();
    format!("{HEAD}{}\n", rows.join("\n"))
}

/// The rows of soaks in the file's text.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| soak |"))
}

/// Checks that the file has one row for each of these soaks, and no other; and that one that was not run is described as it is now.
#[cfg(test)]
pub(super) fn check(all: &[Subject<'_>]) {
    let text = fs::read_to_string(project::root().join(FILE)).expect("it is there");
    let mut keys: Vec<String> = all.iter().map(Subject::key).collect();
    keys.sort_unstable();
    let found: Vec<&str> = rows(&text).collect();
    assert_eq!(found.len(), keys.len(), "{FILE} has a row for each soak, and no other");
    for (row, key) in found.iter().zip(&keys) {
        assert!(row.starts_with(key), "{FILE} has no row {key} where it belongs: {row}");
    }
    for soak in all {
        let unrun = soak.row("", "", "", "not run yet");
        let row = found.iter().find(|row| row.starts_with(&soak.key())).expect("each has a row");
        assert!(!row.ends_with("| not run yet |") || *row == unrun, "{FILE} should say\n{unrun}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(name: &str) -> Subject<'_> {
        Subject { name, amount: "much", in_ci: "less" }
    }

    #[test]
    fn a_run_replaces_the_one_before_and_what_was_not_run_is_listed() {
        let all = ["sim", "faults", "fuzz"].map(subject);
        let run = |name, passed| Run { subject: subject(name), time: Duration::from_secs(61), passed };
        let one = with("", &run("sim", false), "2026-01-01", "a", &all);
        let two = with(&one, &run("faults", true), "2026-01-02", "b", &all);
        let three = with(&two, &run("sim", true), "2026-01-03", "c", &all);
        let found: Vec<&str> = three.lines().skip(6).collect();
        assert_eq!(
            found,
            [
                "| faults | much | less | 2026-01-02 | b | 2 min | passed |",
                "| fuzz | much | less |  |  |  | not run yet |",
                "| sim | much | less | 2026-01-03 | c | 2 min | passed |",
            ]
        );
        assert!(one.contains("**failed**"));
    }

    #[test]
    fn the_front_page_has_the_date_of_the_newest_run() {
        let text = fs::read_to_string(project::root().join(README)).expect("it is there");
        let after = dated(&text, "2031-02-03").expect("it has a date");
        assert!(after.contains("were last made on 2031-02-03."), "{after}");
        assert_eq!(after.len(), text.len(), "the rest is as it was");
    }
}
