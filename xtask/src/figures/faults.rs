//! The table of docs/faults.md, whose cells may be of several runs. Does not know which faults and policies there are.
//!
//! ```text
//! docs/figures/faults.json    the newest run, as it was printed
//!   earlier: [ ... ]          earlier runs, the newest first, as long as the table shows a cell of theirs
//! ```
//! A table cell is of the newest run that measured all its combinations. What a run did not measure stays as it was, with the date
//! and the commit of the run that did.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::results::{parts, run};
use crate::shell::say;

/// A table cell of which `marram bench faults` measured nothing, and the end of one of which it measured a part.
const NOT_RUN: &str = "not run";
const PARTIAL: &str = " combinations)";
/// A table cell that no run measured, on the page.
const NOT_RECORDED: &str = "not recorded yet";

/// Text of a table cell by the titles of its row and its column.
type Cells<'a> = BTreeMap<(&'a str, &'a str), &'a str>;

/// The table of several runs.
struct Merged<'a> {
    /// In Markdown.
    table: String,
    columns: Vec<&'a str>,
    /// How many cells the table has of each run, by column.
    counts: Vec<Vec<usize>>,
}

/// The table, and below it a line for each run that it has cells of.
///
/// # Errors
/// If a run has no table.
pub(super) fn render(result: &Value) -> Result<String> {
    let Merged { table, columns, counts } = merge(result)?;
    let all = columns.len() * (table.lines().count() - 2);
    let mut out = table + "\n";
    for (part, counts) in parts(result).zip(counts) {
        let titles = columns.iter().zip(&counts).filter(|(_, count)| **count > 0);
        let titles = titles.map(|(title, _)| *title).collect::<Vec<_>>().join("; ");
        let when = match run(part) {
            Some([date, commit, machine]) => format!("{date}, commit {commit}, {machine}"),
            None => "recorded by hand".into(),
        };
        if !titles.is_empty() {
            let count: usize = counts.iter().sum();
            out += &format!("- {titles} ({count} of {all} table cells): {when}\n");
        }
    }
    Ok(out)
}

/// Adds the runs before it to a result, as far as the table still needs them. Says which table cells it does not replace because it
/// measured only a part of them.
///
/// # Errors
/// If it measured no table cell completely, or a run has no table.
pub(super) fn add_earlier(result: &mut Value, before: &Value) -> Result<()> {
    let measured = cells(result)?;
    for ((row, column), cell) in measured.iter().filter(|(_, cell)| cell.ends_with(PARTIAL)) {
        say(format!("measured in part, so not replaced: {column}, {row}: {cell}"));
    }
    ensure!(measured.values().any(|cell| is_whole(cell)), "no table cell was measured completely");
    let mut earlier: Vec<Value> = parts(before).cloned().collect();
    earlier.iter_mut().filter_map(Value::as_object_mut).for_each(|run| _ = run.remove("earlier"));
    result["earlier"] = earlier.into();
    let counts = merge(result)?.counts;
    let mut is_shown = counts[1..].iter().map(|counts| counts.iter().any(|count| *count > 0));
    if let Some(earlier) = result["earlier"].as_array_mut() {
        earlier.retain(|_| is_shown.next() == Some(true));
    }
    Ok(())
}

/// With the rows and columns of the newest run.
fn merge(result: &Value) -> Result<Merged<'_>> {
    let runs = parts(result).map(cells).collect::<Result<Vec<_>>>()?;
    let lines = lines(result)?;
    let (heads, rows) = lines.split_first().context("the table of a run is empty")?;
    let columns = heads[1..].to_vec();
    let mut counts = vec![vec![0; columns.len()]; runs.len()];
    let mut table = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for row in rows {
        table += &format!("| {} |", row[0]);
        for (index, column) in columns.iter().enumerate() {
            let whole = runs.iter().enumerate().find_map(|(run, cells)| {
                let cell = cells.get(&(row[0], *column)).filter(|cell| is_whole(cell))?;
                Some((run, *cell))
            });
            if let Some((run, _)) = whole {
                counts[run][index] += 1;
            }
            table += &format!(" {} |", whole.map_or(NOT_RECORDED, |(_, cell)| cell));
        }
        table.push('\n');
    }
    Ok(Merged { table, columns, counts })
}

/// Whether all combinations of a table cell were measured.
fn is_whole(cell: &str) -> bool {
    ![NOT_RUN, NOT_RECORDED].contains(&cell) && !cell.ends_with(PARTIAL)
}

/// The table cells that a run printed.
fn cells(run: &Value) -> Result<Cells<'_>> {
    let lines = lines(run)?;
    let (heads, rows) = lines.split_first().context("the table of a run is empty")?;
    let mut cells = Cells::new();
    for row in rows {
        cells.extend(heads.iter().zip(row).skip(1).map(|(head, cell)| ((row[0], *head), *cell)));
    }
    Ok(cells)
}

/// The lines of the table that a run printed, each as its cells. The first has the titles of the columns.
fn lines(run: &Value) -> Result<Vec<Vec<&str>>> {
    let text = run["markdown"].as_str().context("a run has no table")?;
    let lines = text.lines().filter(|line| line.starts_with("| "));
    Ok(lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A result that has two faults under two policies in its table.
    fn result(commit: Option<&str>, cells: [[&str; 2]; 2]) -> Value {
        let [[a, b], [c, d]] = cells;
        let markdown = format!(
            "<!-- begin -->\n| what | `x` | `y`, 9 Hz |\n|---|---|---|\n| kill | {a} | {b} |\n| hang | {c} | {d} |\n<!-- end -->\n"
        );
        let mut result = json!({ "markdown": markdown });
        if let Some(commit) = commit {
            result["date"] = "2026-01-02".into();
            result["commit"] = commit.into();
        }
        result
    }

    fn rows(result: &Value) -> Vec<String> {
        render(result).unwrap().lines().map(str::to_owned).collect()
    }

    fn commits(result: &Value) -> Vec<&Value> {
        parts(result).map(|run| &run["commit"]).collect()
    }

    #[test]
    fn a_run_replaces_the_table_cells_that_it_measured_completely() {
        let by_hand = result(None, [["1", NOT_RECORDED], ["3", NOT_RECORDED]]);
        assert_eq!(
            rows(&by_hand)[2..],
            [
                "| kill | 1 | not recorded yet |",
                "| hang | 3 | not recorded yet |",
                "",
                "- `x` (2 of 4 table cells): recorded by hand"
            ]
        );
        let mut second =
            result(Some("b"), [[NOT_RUN, "20"], ["30 (2 of 6 combinations)", "40 (1 of 4 combinations)"]]);
        add_earlier(&mut second, &by_hand).unwrap();
        let shown = rows(&second);
        assert_eq!(
            shown[..4],
            [
                "| what | `x` | `y`, 9 Hz |",
                "|---|---|---|",
                "| kill | 1 | 20 |",
                "| hang | 3 | not recorded yet |"
            ]
        );
        assert!(
            shown[5].starts_with("- `y`, 9 Hz (1 of 4 table cells): 2026-01-02, commit b, "),
            "{shown:?}"
        );
        assert_eq!(shown[6], "- `x` (2 of 4 table cells): recorded by hand");
    }

    #[test]
    fn a_run_is_kept_while_the_table_has_a_cell_of_it() {
        let mut last = result(None, [["1", "2"], ["3", NOT_RECORDED]]);
        for (commit, cells, kept) in [
            ("b", [[NOT_RUN, "20"], [NOT_RUN, "40"]], json!(["b", null])),
            ("c", [[NOT_RUN, "21"], [NOT_RUN, NOT_RUN]], json!(["c", "b", null])),
            ("d", [["11", NOT_RUN], ["31", NOT_RUN]], json!(["d", "c", "b"])),
            ("e", [["5", "6"], ["7", "8"]], json!(["e"])),
        ] {
            let mut next = result(Some(commit), cells);
            add_earlier(&mut next, &last).unwrap();
            assert_eq!(json!(commits(&next)), kept);
            assert!(next["earlier"].as_array().unwrap().iter().all(|run| run["earlier"].is_null()));
            last = next;
        }
        assert_eq!(rows(&last)[2..4], ["| kill | 5 | 6 |", "| hang | 7 | 8 |"]);
    }

    #[test]
    fn a_run_without_a_whole_table_cell_is_refused() {
        let before = result(None, [["1", "2"], ["3", "4"]]);
        for cell in [NOT_RUN, "goes on: 7 / not run (5 of 10 combinations)"] {
            let error = add_earlier(&mut result(Some("b"), [[cell; 2]; 2]), &before).unwrap_err().to_string();
            assert!(error.contains("no table cell"), "{error}");
        }
        assert!(add_earlier(&mut json!({ "metrics": {} }), &before).is_err());
    }

    #[test]
    fn rows_and_columns_are_those_of_the_newest_run() {
        let mut next = result(Some("b"), [["10", NOT_RUN], [NOT_RUN, NOT_RUN]]);
        next["markdown"] = next["markdown"].as_str().unwrap().replace("hang", "stop").into();
        add_earlier(&mut next, &result(None, [["1", "2"], ["3", "4"]])).unwrap();
        assert_eq!(
            rows(&next)[2..4],
            ["| kill | 10 | 2 |", "| stop | not recorded yet | not recorded yet |"]
        );
    }
}
