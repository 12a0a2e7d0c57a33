//! A text with places for figures, and how it is filled in. Reads no file.
//!
//! ```text
//! {forward.added_p50_us}       a figure, with up to three decimals
//! {forward.added_p50_us:.1}    with this many
//! {forward.added_p50_us:aim}   the limit of its bar
//! {runs}                       alone on a line: when each benchmark was run
//! hand: | ... |                figures that were recorded by hand: shown until all figures of the next line are measured
//! ---                          everything up to here is for readers of the template
//! ```
//! The last cell of a row gets `missed` if a figure of the row misses its bar. A cell with a figure
//! that has not been measured says so instead of all else.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};

use super::results::{Results, parts as parts_of, run};

/// Instead of a figure.
pub(super) const NOT_MEASURED: &str = "not measured yet";
/// Before a line that stands for the next one.
pub(super) const BY_HAND: &str = "hand: ";
/// The line for the table of runs.
const RUNS: &str = "{runs}";
/// What the renderer alone may say.
const MISSED: &str = "missed";

/// A part of a line.
enum Part<'a> {
    Text(&'a str),
    Figure(&'a str, Form),
}

/// How to write a figure.
enum Form {
    Short,
    Decimals(usize),
    Aim,
}

/// A line with its figures.
struct Filled {
    text: String,
    /// Whether all figures were there.
    is_measured: bool,
}

/// The text with all figures in their places.
///
/// # Errors
/// With the row, if a figure is not in the result of its benchmark, or a place is badly written.
pub(super) fn render(template: &str, results: &Results) -> Result<String> {
    let mut out = String::new();
    let mut by_hand = None;
    for line in body(template).lines() {
        if let Some(row) = line.strip_prefix(BY_HAND) {
            ensure!(by_hand.is_none(), "`{line}`: a second line of figures by hand for one row");
            by_hand = Some(row);
            continue;
        }
        if line == RUNS {
            out += &runs(&benchmarks(template, results)?, results);
            continue;
        }
        let filled = fill(line, results).with_context(|| format!("`{line}`"))?;
        out += match by_hand.take() {
            Some(row) if !filled.is_measured => row,
            _ => &filled.text,
        };
        out.push('\n');
    }
    Ok(out)
}

/// Without the part for readers.
fn body(template: &str) -> &str {
    template.split_once("\n---\n").map_or(template, |(_, body)| body)
}

/// One line.
fn fill(line: &str, results: &Results) -> Result<Filled> {
    ensure!(!line.starts_with('|') || !line.contains(MISSED), "`{MISSED}` is added where a bar is missed");
    let (mut cells, mut is_measured, mut is_missed) = (Vec::new(), true, false);
    for cell in line.split('|') {
        let parts = parts(cell)?;
        let text = cell_text(&parts, results)?;
        is_measured &= text.is_some();
        cells.push(text.unwrap_or_else(|| format!(" {NOT_MEASURED} ")));
        for part in parts {
            if let Part::Figure(name, _) = part {
                is_missed |= results.misses(name)?;
            }
        }
    }
    let mut text = cells.join("|");
    if is_missed {
        let end = text.trim_end_matches([' ', '|']).len();
        text.insert_str(end, &format!(": {MISSED}"));
    }
    Ok(Filled { text, is_measured })
}

/// `None` if a figure of the cell has not been measured.
fn cell_text(parts: &[Part<'_>], results: &Results) -> Result<Option<String>> {
    let mut text = String::new();
    for part in parts {
        let value = match part {
            Part::Text(words) => {
                text += words;
                continue;
            }
            Part::Figure(name, Form::Aim) => results.aim(name)?.map(|bar| short(bar.limit)),
            Part::Figure(name, Form::Short) => results.figure(name)?.map(short),
            Part::Figure(name, Form::Decimals(count)) => {
                results.figure(name)?.map(|value| fixed(value, *count))
            }
        };
        let Some(value) = value else { return Ok(None) };
        text += &value;
    }
    Ok(Some(text))
}

/// Splits at the braces.
fn parts(text: &str) -> Result<Vec<Part<'_>>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, behind) = after.split_once('}').context("a `{` without its `}`")?;
        let (name, form) = match inside.split_once(':') {
            None => (inside, Form::Short),
            Some((name, "aim")) => (name, Form::Aim),
            Some((name, form)) => {
                let count = form.strip_prefix('.').and_then(|count| count.parse().ok());
                (name, Form::Decimals(count.with_context(|| format!("`{form}` is neither `aim` nor `.1`"))?))
            }
        };
        if name.is_empty() || name.contains(char::is_whitespace) {
            bail!("`{{{inside}}}` names no figure");
        }
        found.extend([Part::Text(before), Part::Figure(name, form)]);
        rest = behind;
    }
    found.push(Part::Text(rest));
    Ok(found)
}

/// With three decimals at most.
fn short(value: f64) -> String {
    let text = fixed(value, 3);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// With this many decimals, and a comma before each three digits of the whole part.
fn fixed(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::new();
    // What was rounded to zero has no sign.
    if value < 0.0 && text.contains(|c: char| ('1'..='9').contains(&c)) {
        out.push('-');
    }
    for (index, digit) in whole.char_indices() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

/// The names of all figures in a template.
pub(super) fn figures(template: &str) -> Result<Vec<&str>> {
    let mut names = Vec::new();
    for line in body(template).lines().filter(|line| *line != RUNS && !line.starts_with(BY_HAND)) {
        names.extend(parts(line)?.into_iter().filter_map(|part| match part {
            Part::Figure(name, _) => Some(name),
            Part::Text(_) => None,
        }));
    }
    Ok(names)
}

/// The benchmarks that a template names or that have a result.
pub(super) fn benchmarks(template: &str, results: &Results) -> Result<BTreeSet<String>> {
    let named =
        figures(template)?.into_iter().filter_map(|name| name.split_once('.')).map(|(bench, _)| bench);
    Ok(named.chain(results.names()).map(str::to_owned).collect())
}

/// When each benchmark was run, and where; each run if its table has cells of several. Those that were recorded by hand share a row.
fn runs(names: &BTreeSet<String>, results: &Results) -> String {
    let mut rows = "| figures of | date | commit | machine |\n|---|---|---|---|\n".to_owned();
    let mut by_hand = Vec::new();
    for name in names {
        let runs: Vec<_> =
            results.get(name).map_or_else(|| vec![None], |result| parts_of(result).map(run).collect());
        let what = format!("`{name}`{}", if runs.len() > 1 { " (in part)" } else { "" });
        for run in runs {
            match run {
                Some([date, commit, machine]) => {
                    rows += &format!("| {what} | {date} | {commit} | {machine} |\n")
                }
                None => by_hand.push(what.clone()),
            }
        }
    }
    if !by_hand.is_empty() {
        rows += &format!("| {} | recorded by hand, from several earlier commits | | |\n", by_hand.join(", "));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let mut results = Results::default();
        for (name, value, limit) in [("a.x", 0.5, 10.0), ("a.y", 61.26, 60.0), ("b.x", 1_596.7, 2_000.0)] {
            results.measure(name, value, limit);
        }
        results
    }

    #[test]
    fn figures_take_their_places() {
        let cases = [
            ("| adds {a.x} us | {a.x:aim} |", "| adds 0.5 us | 10 |"),
            ("{b.x:.0} ms, {a.x:.2}", "1,597 ms, 0.50"),
            ("| `a` | {a.y:.1} ms; aim {a.y:aim} |", "| `a` | 61.3 ms; aim 60: missed |"),
            ("| {a.y:.0} and {a.x} | words |", "| 61 and 0.5 | words: missed |"),
            ("| {c.x} us of {a.x} | {a.x} |", "| not measured yet | 0.5 |"),
            ("hand: | 4 to 5 |\n| {a.x} |", "| 0.5 |"),
            (
                "hand: | 4 to 5; aim 3: missed |\n| {c.x} |\n| {c.x} |",
                "| 4 to 5; aim 3: missed |\n| not measured yet |",
            ),
            ("for readers {\n---\n{a.x}", "0.5"),
        ];
        for (template, expected) in cases {
            assert_eq!(render(template, &results()).unwrap(), format!("{expected}\n"), "{template}");
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error_that_names_the_row() {
        let cases = [
            ("| `z` | {a.z} |", "there is no figure `a.z`"),
            ("| `a` | {a.x:two} |", "`two` is neither"),
            ("| `a` | {a.x |", "without its"),
            ("| `a` | {} |", "names no figure"),
            ("| `a` | 5; aim 3: missed |", "is added where"),
            ("hand: | 1 |\nhand: | 2 |\n| {a.x} |", "a second line"),
        ];
        for (template, expected) in cases {
            let error = format!("{:#}", render(template, &results()).unwrap_err());
            let row = template.lines().last().unwrap().trim_end_matches(" {a.x} |");
            assert!(error.contains(expected) && error.contains(row), "{error}");
        }
    }

    #[test]
    fn figures_are_rounded_and_grouped() {
        let cases =
            [(0.25, 1, "0.2"), (0.35, 1, "0.3"), (999.6, 0, "1,000"), (-20.4, 0, "-20"), (-0.04, 1, "0.0")];
        for (value, decimals, expected) in cases {
            assert_eq!(fixed(value, decimals), expected, "{value}");
        }
        for (value, expected) in [(1.0 / 3.0, "0.333"), (10.0, "10"), (869_000.0, "869,000"), (0.0, "0")] {
            assert_eq!(short(value), expected, "{value}");
        }
    }

    #[test]
    fn a_result_changes_the_figures_of_its_benchmark_alone() {
        let template =
            "# Figures\n| `a` | {a.x} |\n| `b` | {b.x} |\nhand: | `c` | 1 to 2 |\n| `c` | {c.x} |\n{runs}\n";
        let mut results = results();
        let before = render(template, &results).unwrap();
        results.measure("c.x", 7.0, 8.0);
        let after = render(template, &results).unwrap();
        let changed: Vec<(&str, &str)> =
            before.lines().zip(after.lines()).filter(|(before, after)| before != after).collect();
        assert_eq!(changed[0], ("| `c` | 1 to 2 |", "| `c` | 7 |"));
        assert_eq!(changed.len(), 2, "and the row of its run: {changed:?}");
        assert!(before.contains("| `c` | recorded by hand") && after.contains("| `c` | 2026-01-02 | abc |"));
        results.insert("c", serde_json::json!({ "metrics": { "x": 7 }, "date": "2026-01-03", "commit": "def", "earlier": [{}] }));
        let of_two = render(template, &results).unwrap();
        for row in ["| `c` (in part) | 2026-01-03 | def |", "| `c` (in part) | recorded by hand"] {
            assert!(of_two.contains(row), "{of_two}");
        }
    }
}
