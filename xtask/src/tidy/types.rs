//! Names of public types: each is in one crate, so that it says which type is meant and no file has to rename an import. Reads
//! lines, not syntax, so a public type that its crate does not export counts too.

use std::collections::BTreeMap;

/// Where the crates of the product are; the types of an SDK are for programs that use no other crate.
const CRATES: &str = "crates/";
/// Crates of tests and benchmarks, on which no other crate's interface depends.
const EXEMPT: [&str; 3] = ["bench", "sim", "testbed"];
/// What precedes the name of a public type.
const KEYWORDS: [&str; 4] = ["pub struct ", "pub enum ", "pub trait ", "pub union "];
/// Macros that declare public types by name and fields.
const MACROS: [&str; 2] = ["record! {", "frames! {"];

/// Names that a type of another crate has too, at each place but the first.
pub(super) fn check(sources: &[(String, String)]) -> Vec<String> {
    let mut known: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (path, text) in sources {
        let Some(of) = crate_of(path).filter(|of| !EXEMPT.contains(of)) else { continue };
        for (line, name) in types(text) {
            let (first, place) = *known.entry(name).or_insert((of, path));
            if first != of {
                wrong.push(format!(
                    "{path}:{line}: `{name}` is also in {place}; give one of them another name"
                ));
            }
        }
    }
    wrong
}

/// The folder of the crate that a source file belongs to; none for those of its tests.
fn crate_of(path: &str) -> Option<&str> {
    let (of, file) = path.strip_prefix(CRATES)?.split_once("/src/")?;
    let is_test = file.split('/').any(|part| ["tests", "tests.rs"].contains(&part));
    (!is_test).then_some(of)
}

/// The public types that a file declares, with their lines.
fn types(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut is_in_macro) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        match line {
            "}" => is_in_macro = false,
            line if MACROS.contains(&line) => is_in_macro = true,
            _ => {}
        }
        let code = line.trim_start();
        let declared = KEYWORDS.iter().find_map(|keyword| code.strip_prefix(keyword)).map(first_word);
        let name = if is_in_macro { declared.or_else(|| declared_in_macro(line)) } else { declared };
        found.extend(name.map(|name| (index + 1, name)));
    }
    found
}

/// The name in `    Name {` or, of a frame, `    17 Name {`.
fn declared_in_macro(line: &str) -> Option<&str> {
    let head = line.strip_prefix("    ")?.strip_suffix(" {")?;
    let name = head.rsplit(' ').next()?;
    (first_word(name) == name && name.starts_with(char::is_uppercase)).then_some(name)
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_public_in_one_crate() {
        let record = "record! {\n    /// It.\n    Row {\n        /// One.\n        one: u8,\n    }\n}\n";
        let frames = "frames! {\n    /// It.\n    17 Row {\n    }\n}\n";
        for (one, other, expected) in [
            ("pub struct Row;\n", "pub struct Rows;\n", 0),
            ("pub struct Row;\n", "pub enum Row<T> {\n", 1),
            ("    pub trait Row: Copy {\n", "pub struct Row(u8);\n", 1),
            ("pub struct Row;\n", "struct Row;\npub(crate) struct Row;\n// pub struct Row;\n", 0),
            ("pub struct Row;\n", record, 1),
            (frames, record, 1),
            ("pub struct Row;\n", "fn f() {\n    Row {\n", 0),
        ] {
            let wrong = |path: &str| {
                let source = |path: &str, text: &str| (path.to_owned(), text.to_owned());
                check(&[source("crates/wire/src/a.rs", one), source(path, other)]).len()
            };
            assert_eq!(wrong("crates/shard/src/b.rs"), expected, "{one} and {other}");
            for path in [
                "crates/wire/src/b.rs",
                "crates/sim/src/b.rs",
                "crates/shard/src/b/tests.rs",
                "crates/shard/tests/b.rs",
                "sdk/host/src/b.rs",
            ] {
                assert_eq!(wrong(path), 0, "{path}");
            }
        }
    }
}
