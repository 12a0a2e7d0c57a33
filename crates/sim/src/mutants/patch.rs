//! Puts all mutations into the text of a file, each behind its switch. Textual: does not parse Rust.
//!
//! ```text
//! source    a < b                      source    if a < b {
//! becomes   (if S { a <= b } else { a < b })     becomes   if a < b && !S {     (`to` has BROKEN)
//! ```
//! `S` asks whether the mutation is selected. All mutations are in one text, so the copy is
//! compiled once; two that change the same text become one chain of `if`s, and one inside another
//! is nested.

use super::named::{self, Edit};
use std::{collections::BTreeSet, ops::Range};

/// The text of a file with all mutations.
#[derive(Clone, Debug)]
pub(super) struct Patched {
    pub(super) text: String,
    /// The entries of each replaced text, and what replaces it. For errors of the compiler, which
    /// name lines of the patched file.
    places: Vec<(String, String)>,
}

impl Patched {
    /// The entries whose text is on this line, from 1 on; for errors of the compiler.
    pub(super) fn entries_at(&self, line: usize) -> Option<&str> {
        let lines = |written: &str| {
            let at = self.text.find(written)?;
            let first = self.text[..at].matches('\n').count() + 1;
            Some(first..=first + written.matches('\n').count())
        };
        let at_line =
            self.places.iter().filter(|(_, written)| lines(written).is_some_and(|it| it.contains(&line)));
        // The innermost, if one is in another.
        at_line.min_by_key(|(_, written)| written.len()).map(|(entries, _)| &entries[..])
    }
}

/// A change and where its text is in the file, in bytes.
#[derive(Clone, Debug)]
struct Located<'a> {
    edit: &'a Edit,
    at: Range<usize>,
}

/// Applies the changes of one file.
///
/// # Errors
/// Which entries do not fit the file, why, and what to do; all of them.
pub(super) fn apply(source: &str, edits: &[&Edit]) -> Result<Patched, Vec<String>> {
    let (mut located, mut problems) = (Vec::new(), Vec::new());
    for edit in edits {
        match locate(source, edit).and_then(|at| is_replaceable(edit).map(|()| at)) {
            Ok(at) => located.push(Located { edit, at }),
            Err(problem) => problems.push(format!("{}: {problem}", named::place(&edit.entry, edit.line))),
        }
    }
    // Variants of one entry have the same problem.
    problems.dedup();
    if !problems.is_empty() {
        return Err(problems);
    }
    // A text before those that are inside it.
    located.sort_by_key(|it| (it.at.start, usize::MAX - it.at.end));
    let mut places = Vec::new();
    let text = write(source, 0..source.len(), &located, &mut places).map_err(|problem| vec![problem])?;
    Ok(Patched { text, places })
}

/// The place of the text to replace, in bytes.
///
/// # Errors
/// If it is there never or more than once: the list must be adapted, and the message says how.
fn locate(source: &str, edit: &Edit) -> Result<Range<usize>, String> {
    let mut found = source.match_indices(&edit.from);
    match (found.next(), found.count()) {
        (Some((at, _)), 0) => Ok(at..at + edit.from.len()),
        (Some(_), more) => Err(format!(
            "its `from` text is in {} {} times; make it longer, so that it is there once",
            edit.file,
            more + 1
        )),
        (None, _) => Err(format!(
            "its `from` text is no longer in {}{}\n  Copy the present text to `from` and break the same rule in `to`; if \
             the rule is gone, remove the entry, and its name from docs/protocol.md",
            edit.file,
            nearest(source, &edit.from)
        )),
    }
}

/// Where the source has most words of a text. A hint for the author whose text has changed since:
/// the window of as many lines that shares most words with it.
fn nearest(source: &str, text: &str) -> String {
    fn words(text: &str) -> BTreeSet<&str> {
        text.split(|char: char| !char.is_alphanumeric() && char != '_')
            .filter(|word| !word.is_empty())
            .collect()
    }
    let (wanted, lines) = (words(text), source.lines().collect::<Vec<_>>());
    let windows = lines.windows(text.lines().count().clamp(1, lines.len().max(1)));
    let score = |window: &[&str]| {
        let there = words(&window.join(" ")).intersection(&wanted).count();
        (there, usize::MAX - window.concat().len())
    };
    match (1..).zip(windows).max_by_key(|(_, window)| score(window)) {
        Some((line, window)) if score(window).0 * 2 > wanted.len() => {
            format!(". Line {line} is the most similar:\n{}", window.join("\n"))
        }
        _ => ", nor anything similar".into(),
    }
}

/// Whether `if switch { to } else { from }` can be written in place of `from`, as far as the text shows.
fn is_replaceable(edit: &Edit) -> Result<(), String> {
    if edit.is_whole {
        return Ok(());
    }
    let from = edit.from.trim();
    let what = if !is_balanced(from) || !is_balanced(&edit.to) {
        "its `from` or `to` text opens a bracket that it does not close, or closes one that it did not open"
    } else if from.starts_with("let ") && from.ends_with(';') {
        "its `from` text is a `let`, whose name would not exist after the `if`"
    } else if from.ends_with(',') {
        "its `from` text ends in a comma, so it is no expression"
    } else {
        return Ok(());
    };
    Err(format!(
        "{what}. `from` and `to` are each put between braces: make them whole expressions or statements (of `if a < b {{` take \
         `a < b`), or write the word BROKEN in `to`, which then replaces `from` as it stands (`if a < b && !BROKEN {{`)"
    ))
}

/// Whether brackets match. Strings and characters with brackets would be misread; no entry needs
/// any.
fn is_balanced(text: &str) -> bool {
    let mut open = Vec::new();
    for char in text.chars() {
        match char {
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' if open.pop() != Some(char) => return false,
            _ => {}
        }
    }
    open.is_empty()
}

/// The text of a range with all changes in it. Where several changes begin at the same place, the
/// longest is first: the others are inside it.
fn write(
    source: &str,
    range: Range<usize>,
    mut located: &[Located<'_>],
    places: &mut Vec<(String, String)>,
) -> Result<String, String> {
    let (mut text, mut end) = (String::new(), range.start);
    while let Some(first) = located.first() {
        let same = located.iter().take_while(|it| it.at == first.at).count();
        let inside = located.iter().take_while(|it| it.at.start < first.at.end).count();
        let (here, rest) = located.split_at(inside);
        let (here, inner) = here.split_at(same);
        text.push_str(&source[end..first.at.start]);
        let written = write_one(source, here, inner, places)?;
        let mut entries: Vec<&str> = here.iter().map(|it| &it.edit.entry[..]).collect();
        entries.dedup();
        places.push((entries.join("`, `"), written.clone()));
        text.push_str(&written);
        (end, located) = (first.at.end, rest);
    }
    text.push_str(&source[end..range.end]);
    Ok(text)
}

/// One text with everything that can replace it, or a part of it.
fn write_one(
    source: &str,
    here: &[Located<'_>],
    inner: &[Located<'_>],
    places: &mut Vec<(String, String)>,
) -> Result<String, String> {
    let Located { edit, at } = &here[0];
    let name = |it: &Located<'_>| named::place(&it.edit.entry, it.edit.line);
    if let Some(other) = inner.iter().find(|it| it.at.end > at.end) {
        return Err(format!(
            "{} and {}: their `from` texts overlap; make them equal, or one a part of the other",
            name(&here[0]),
            name(other)
        ));
    }
    let mut all = here.iter().chain(inner);
    if let Some(whole) = all.clone().find(|it| it.edit.is_whole) {
        let is_alone = |it: &Located<'_>| it.at == whole.at && it.edit.switch == whole.edit.switch;
        let Some(other) = all.find(|it| !is_alone(it)) else { return Ok(edit.to.clone()) };
        return Err(format!(
            "{}: {} changes the same text, so `to` must do without BROKEN, or `from` be shorter",
            name(whole),
            name(other)
        ));
    }
    let mut text = String::new();
    for it in here {
        text.push_str(&format!("if {} {{\n{}\n}} else ", it.edit.switch, it.edit.to));
    }
    text.push_str(&format!("{{\n{}\n}}", write(source, at.clone(), inner, places)?));
    let is_statement = edit.from.trim_end().ends_with([';', '}']);
    Ok(if is_statement { text } else { format!("({text})") })
}
