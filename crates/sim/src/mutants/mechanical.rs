//! Draws mutations from the sources: operators, conditions and statements, one at a time.
//!
//! The sources are formatted by rustfmt, so an operator is a word between spaces and a statement is often a line.

use super::{Edit, Mutation};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Where the protocol lives.
const PLACES: [&str; 2] = ["crates/session/src", "crates/edge/src/shard"];

/// What a word between spaces becomes.
const WORDS: [(&str, &str); 16] = [
    (" == ", " != "),
    (" != ", " == "),
    (" < ", " <= "),
    (" <= ", " < "),
    (" > ", " >= "),
    (" >= ", " > "),
    (" && ", " || "),
    (" || ", " && "),
    (" + ", " - "),
    (" - ", " + "),
    (" += ", " -= "),
    (" -= ", " += "),
    (".min(", ".max("),
    (".max(", ".min("),
    ("true", "false"),
    ("false", "true"),
];

/// Every mutation of every file.
pub(super) fn candidates(root: &Path) -> io::Result<Vec<Mutation>> {
    let mut files = Vec::new();
    for place in PLACES {
        collect(&root.join(place), &mut files)?;
    }
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let source = fs::read_to_string(&path)?;
        let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        of_file(&file, &source, &mut all);
    }
    Ok(all)
}

fn collect(place: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !place.is_dir() {
        let file = place.with_extension("rs");
        files.extend(file.is_file().then_some(file));
        return Ok(());
    }
    for entry in fs::read_dir(place)? {
        let path = entry?.path();
        let tests = path.file_stem().is_some_and(|stem| stem == "tests");
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") && !tests {
            files.push(path);
        }
    }
    Ok(())
}

fn of_file(file: &str, source: &str, all: &mut Vec<Mutation>) {
    let mut at = 0;
    for (number, line) in (1..).zip(source.split_inclusive('\n')) {
        if line.trim() == "#[cfg(test)]" {
            return;
        }
        let mut add = |from: &str, column: usize, to: &str| {
            let name = format!("{file}:{number}:{} `{}` -> `{}`", column + 1, from.trim(), to.trim());
            let (from, to) = (from.to_owned(), to.to_owned());
            all.push(Mutation { name, edits: vec![Edit { file: file.into(), at: at + column, from, to }] });
        };
        of_line(code_of(line), &mut add);
        at += line.len();
    }
}

/// The line without its comment; lines with strings are left alone but for what stands before the first quote.
fn code_of(line: &str) -> &str {
    let end = line.find("//").into_iter().chain(line.find('"')).min().unwrap_or(line.len());
    line[..end].trim_end()
}

fn of_line(code: &str, add: &mut impl FnMut(&str, usize, &str)) {
    let trimmed = code.trim_start();
    let indent = code.len() - trimmed.len();
    if trimmed.is_empty() || trimmed.starts_with('#') || is_declaration(trimmed) {
        return;
    }
    for (from, to) in WORDS {
        for (column, _) in code.match_indices(from) {
            if is_word(code, column, from) {
                add(from, column, to);
            }
        }
    }
    for (column, _) in code.match_indices('!') {
        let before = code[..column].chars().next_back();
        let after = code[column + 1..].chars().next();
        let negates = before.is_none_or(|c| c == ' ' || c == '(')
            && after.is_some_and(|c| c.is_alphanumeric() || c == '(' || c == '_');
        if negates {
            add("!", column, "");
        }
    }
    condition(code, add);
    if let Some(body) = trimmed.strip_suffix(" {")
        && (body.starts_with("fn ") || body.contains(" fn "))
        && !body.contains("->")
    {
        add(" {", code.len() - 2, " { if true { return; }");
    }
    if is_statement(trimmed) {
        add(trimmed, indent, "");
    }
}

fn is_declaration(code: &str) -> bool {
    [
        "use ",
        "pub use ",
        "mod ",
        "impl",
        "const ",
        "pub const ",
        "pub(crate) const ",
        "type ",
        "struct ",
        "enum ",
    ]
    .iter()
    .any(|start| code.starts_with(start))
}

/// Whether letters do not go on at either side, where the text is made of letters.
fn is_word(code: &str, column: usize, text: &str) -> bool {
    if !text.starts_with(|c: char| c.is_alphabetic()) {
        return true;
    }
    let letter = |c: char| c.is_alphanumeric() || c == '_';
    !code[..column].ends_with(letter) && !code[column + text.len()..].starts_with(letter)
}

/// A whole condition, turned round.
fn condition(code: &str, add: &mut impl FnMut(&str, usize, &str)) {
    let Some(start) = code.find("if ").filter(|start| is_word(code, *start, "if")) else { return };
    let Some(end) = code.rfind(" {").filter(|end| *end > start + 3) else { return };
    let text = &code[start + 3..end];
    if !text.contains("let ") && !text.contains('{') && !text.contains("=>") {
        add(text, start + 3, &format!("!({text})"));
    }
}

/// A statement that stands alone on its line and can be left out without harm to the grammar.
fn is_statement(code: &str) -> bool {
    let balance = |open: char, close: char| code.matches(open).count() == code.matches(close).count();
    code.ends_with(';')
        && !["let ", "return ", "}", ")", "]", ".", "break ", "pub "]
            .iter()
            .any(|start| code.starts_with(start))
        && balance('(', ')')
        && balance('{', '}')
        && balance('[', ']')
        && (code.contains('(') || code.contains('=') || code == "return;" || code == "continue;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutants(line: &str) -> Vec<(String, String)> {
        let mut all = Vec::new();
        of_line(code_of(line), &mut |from, _, to| all.push((from.to_owned(), to.to_owned())));
        all
    }

    #[test]
    fn a_line_gives_each_change_once() {
        let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        assert_eq!(
            mutants("        if a < b && !self.done(c) { // now < then"),
            [
                pair(" < ", " <= "),
                pair(" && ", " || "),
                pair("!", ""),
                pair("a < b && !self.done(c)", "!(a < b && !self.done(c))"),
            ]
        );
        assert_eq!(mutants("    self.close(now);"), [pair("self.close(now);", "")]);
        assert_eq!(mutants("    let list: Vec<u8> = Vec::new();"), []);
        assert_eq!(mutants("    fn drop_all(&mut self) {"), [pair(" {", " { if true { return; }")]);
        assert_eq!(mutants("    // if a < b {"), []);
    }
}
