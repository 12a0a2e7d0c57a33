//! Suggests the closest known name for an unknown one.

use alloc::{format, string::String, vec, vec::Vec};

/// `; did you mean ...?` if one of the names is close to the written one; else an empty text.
pub fn did_you_mean<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(written, names).map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

/// The closest name, if one is close enough: a spelling mistake, or the same name with an additional word.
pub fn nearest<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_ascii_lowercase();
    let names: Vec<&str> = names.into_iter().collect();
    let longer = names.iter().copied().find(|name| {
        let rest = name.strip_prefix(&*written).filter(|_| !written.is_empty());
        rest.is_some_and(|rest| rest.starts_with(['_', '-']))
    });
    // One edit in three letters; other names are not guessed.
    let edits_max = written.chars().count().div_ceil(3).min(4);
    let edits = names.into_iter().map(|name| (distance(&written, &name.to_ascii_lowercase()), name));
    let spelt = edits.filter(|(edits, _)| *edits <= edits_max).min_by_key(|(edits, _)| *edits);
    spelt.map(|(_, name)| name).or(longer)
}

/// The number of omitted, added, changed or swapped letters.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut edits = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                edits = edits.min(rows[i - 2][j - 2] + 1);
            }
            row.push(edits);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_understood_and_another_word_is_not() {
        let names = ["sessions", "recoveries", "cells", "half_open"];
        for (written, meant) in [
            ("sesions", Some("sessions")),
            ("session", Some("sessions")),
            ("SESSIONS", Some("sessions")),
            ("clels", Some("cells")),
            ("half-open", Some("half_open")),
            ("half", Some("half_open")),
            ("memory", None),
            ("", None),
        ] {
            assert_eq!(nearest(written, names), meant, "{written}");
        }
    }
}
