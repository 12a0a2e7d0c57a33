//! Compares ARCHITECTURE.md's code map with the tree: every folder is named, and every named crate exists.
//!
//! Only names are compared. Whether the description is true is for a reviewer.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result};

use crate::{project, shell::say};

/// At the root of the tree.
const MAP: &str = "ARCHITECTURE.md";

/// Differences between the map and the tree.
pub(super) fn check() -> Result<Vec<String>> {
    if !project::root().join(MAP).exists() {
        say(format!("the code map is not checked: there is no {MAP} yet"));
        return Ok(Vec::new());
    }
    let mut folders = folders_in("")?;
    folders.extend(folders_in("crates")?);
    Ok(differences(&project::read(MAP.as_ref())?, &folders))
}

/// The subfolders of a folder, without those that git ignores or that begin with a dot.
fn folders_in(parent: &str) -> Result<BTreeSet<String>> {
    let path = project::root().join(parent);
    let mut folders = BTreeSet::new();
    for entry in fs::read_dir(&path).with_context(|| format!("cannot list {}", path.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !name.starts_with('.') && name != "target" {
            folders.insert(Path::new(parent).join(name).display().to_string());
        }
    }
    Ok(folders)
}

/// A folder is named as `name/` or in backquotes.
fn differences(map: &str, folders: &BTreeSet<String>) -> Vec<String> {
    let missing = folders
        .iter()
        .filter(|folder| !map.contains(&format!("{folder}/")) && !map.contains(&format!("`{folder}`")));
    let unnamed = missing.map(|folder| format!("{MAP} does not name {folder}/"));
    let gone = crates_named(map).into_iter().filter(|named| !folders.contains(named));
    unnamed.chain(gone.map(|named| format!("{MAP} names {named}, which does not exist"))).collect()
}

/// Every `crates/NAME` in a text.
fn crates_named(text: &str) -> BTreeSet<String> {
    let name = |rest: &str| {
        let end =
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').unwrap_or(rest.len());
        (end > 0).then(|| format!("crates/{}", &rest[..end]))
    };
    text.split("crates/").skip(1).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_and_tree_are_compared_both_ways() {
        let folders: BTreeSet<String> = ["cells", "crates", "crates/wire"].map(str::to_owned).into();
        let cases = [
            ("`crates/wire/` and `cells`", vec![]),
            ("crates/wire/src and cells/", vec![]),
            ("`crates/wire`: bytes", vec!["ARCHITECTURE.md does not name cells/"]),
            (
                "crates/wire/, cells/, crates/util/",
                vec!["ARCHITECTURE.md names crates/util, which does not exist"],
            ),
        ];
        for (map, expected) in cases {
            assert_eq!(differences(map, &folders), expected, "{map}");
        }
    }
}
