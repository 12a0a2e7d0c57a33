//! References from comments and documents to files of the tree: each must be there.
//!
//! A reference to a file that was moved is worse than none. Names are found in comments of sources
//! and in all text of documents; code that opens files is tested elsewhere.

use std::path::{Component, Path, PathBuf};

/// Where references begin at the root of the tree.
const FOLDERS: [&str; 7] = ["crates/", "docs/", "cells/", "sdk/", "xtask/", "fuzz/", ".ci/"];
/// What is looked for.
const ENDINGS: [&str; 6] = [".md", ".rs", ".toml", ".txt", ".py", ".sh"];

/// The references of a file that lead nowhere.
///
/// `exists` gets paths relative to the root.
pub(super) fn check(path: &str, text: &str, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let is_document = path.ends_with(".md");
    let mut wrong = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let prose = if is_document { line } else { line.split_once("//").map_or("", |(_, comment)| comment) };
        let mut missing: Vec<&str> = rooted(prose).filter(|name| !exists(Path::new(name))).collect();
        if is_document {
            let folder = Path::new(path).parent().unwrap_or(Path::new(""));
            missing.extend(links(prose).filter(|link| !exists(&resolve(folder, link))));
        }
        wrong.extend(missing.iter().map(|name| format!("{path}:{}: {name} does not exist", index + 1)));
    }
    wrong
}

/// Names of files from the root on.
fn rooted(prose: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    prose
        .split(move |c: char| !is_part(c))
        .map(|name| name.trim_end_matches('.'))
        .filter(|name| FOLDERS.iter().any(|folder| name.starts_with(folder)))
        .filter(|name| ENDINGS.iter().any(|ending| name.ends_with(ending)))
        // A part in capitals stands for any name.
        .filter(|name| {
            !name.split('/').any(|part| part.len() > 2 && part.chars().all(|c| c.is_ascii_uppercase()))
        })
}

/// Targets of links to other files, without the part behind `#`.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
        .filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        .map(|link| link.split('#').next().unwrap_or_default())
        .filter(|link| !link.is_empty())
}

/// A link as it is seen from a folder.
fn resolve(folder: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_must_be_there() {
        let exists = |path: &Path| {
            ["docs/a.md", "crates/wire/src/lib.rs", "README.md"].contains(&path.to_str().unwrap_or_default())
        };
        let cases = [
            ("crates/x.rs", concat!("/", "/ see docs/a.md, and docs/b.md."), 1),
            ("crates/x.rs", "let a = \"docs/b.md\"; // fine", 0),
            ("docs/a.md", "[one](../README.md#top), [two](a.md), [three](c.md)", 1),
            ("docs/a.md", "`crates/wire/src/lib.rs` and `crates/wire/src/gone.rs`", 1),
            ("docs/a.md", "[web](https://example.org/c.md), [here](#b), cells/NAME/marram.toml", 0),
        ];
        for (path, text, expected) in cases {
            let wrong = check(path, text, exists);
            assert_eq!(wrong.len(), expected, "{text}: {wrong:?}");
        }
    }
}
