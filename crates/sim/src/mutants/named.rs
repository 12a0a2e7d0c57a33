//! Reads the list of named mutations.
//!
//! ```text
//! == name
//! any words: why the rule exists
//! variants: Kind Other ... if one build holds several: `marram_wire::MUTANT` is the number of one, from 1 on
//! slow: why CI has no time for it; `--slow` runs it too
//! file: crates/session/src/...
//! -- from
//! text as it is in the file, exactly once
//! -- to
//! its replacement
//! -- and
//! file: ... another file, if one is not enough
//! ```

use super::{Edit, Mutation};
use std::{fs, io, path::Path};

/// Reads all mutations and locates each in the sources under `root`.
pub(super) fn parse(text: &str, root: &Path) -> io::Result<Vec<Mutation>> {
    text.split("\n== ").skip(1).map(|entry| one(entry, root)).collect()
}

fn one(entry: &str, root: &Path) -> io::Result<Mutation> {
    let name = entry.lines().next().unwrap_or_default().trim();
    let edits = entry.split("\n-- and\n").map(|part| edit(name, part, root)).collect::<io::Result<_>>()?;
    let variants = entry.lines().find_map(|line| line.strip_prefix("variants: ")).unwrap_or_default();
    let variants = variants.split_whitespace().map(str::to_owned).collect();
    let slow = entry.lines().any(|line| line.starts_with("slow: "));
    Ok(Mutation { name: name.into(), variants, slow, edits })
}

fn edit(name: &str, part: &str, root: &Path) -> io::Result<Edit> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("mutation `{name}`: {what}"));
    let (head, texts) = part.split_once("\n-- from\n").ok_or_else(|| wrong("`-- from` is missing"))?;
    let (from, to) = texts.split_once("\n-- to\n").ok_or_else(|| wrong("`-- to` is missing"))?;
    let file = head
        .lines()
        .find_map(|line| line.strip_prefix("file: "))
        .ok_or_else(|| wrong("`file: ` is missing"))?;
    let source = fs::read_to_string(root.join(file))?;
    let mut places = source.match_indices(from);
    let (at, _) = places.next().ok_or_else(|| wrong("its text is not in the file any more: adapt it"))?;
    if places.next().is_some() {
        return Err(wrong("its text stands in the file more than once: make it longer"));
    }
    Ok(Edit { file: file.into(), at, from: from.into(), to: to.trim_end_matches('\n').into() })
}
