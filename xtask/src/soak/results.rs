//! The file of results that the repository keeps: the last run of each soak. Does not know what a soak does.
//!
//! ```text
//! | soak | amount | in CI | date | commit | time | result |      one row per soak, in the order of the names
//! ```
//! A row is written whether the run passed or failed; a failed one is bold, and stays until a run
//! passes.

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

/// One run. Its name is the key of its row.
pub(super) struct Run<'a> {
    pub(super) name: &'a str,
    pub(super) amount: &'a str,
    pub(super) in_ci: &'a str,
    pub(super) time: Duration,
    pub(super) passed: bool,
}

/// Puts a run in place of an earlier one of the same soak.
pub(super) fn record(run: &Run<'_>) -> Result<()> {
    let Stamp { date, commit } = Stamp::now()?;
    let path = project::root().join(FILE);
    let before = fs::read_to_string(&path).unwrap_or_default();
    fs::write(&path, with(&before, run, &date, &commit)).with_context(|| format!("cannot write {FILE}"))?;
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
fn with(before: &str, run: &Run<'_>, date: &str, commit: &str) -> String {
    let minutes = run.time.as_secs().div_ceil(60);
    let result = if run.passed { "passed" } else { "**failed**" };
    let start = format!("| {} |", run.name);
    let row =
        format!("{start} {} | {} | {date} | {commit} | {minutes} min | {result} |", run.amount, run.in_ci);
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| soak |");
    let mut rows: Vec<&str> =
        before.lines().filter(is_row).filter(|line| !line.starts_with(&start)).collect();
    rows.push(&row);
    rows.sort_unstable();
    format!("{HEAD}{}\n", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_replaces_the_one_before() {
        let run =
            |name, passed| Run { name, amount: "much", in_ci: "less", time: Duration::from_secs(61), passed };
        let one = with("", &run("sim", false), "2026-01-01", "a");
        let two = with(&one, &run("faults", true), "2026-01-02", "b");
        let three = with(&two, &run("sim", true), "2026-01-03", "c");
        let rows: Vec<&str> = three.lines().skip(6).collect();
        assert_eq!(
            rows,
            [
                "| faults | much | less | 2026-01-02 | b | 2 min | passed |",
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
