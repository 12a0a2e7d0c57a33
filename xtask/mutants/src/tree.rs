//! A copy of the repository in which one crate is changed. Does not know the changes.
//!
//! The whole repository is copied, so that the workspace and its lockfile work as they are. Only
//! one crate differs: it is parsed and printed again with the changes in it, and its root gets the
//! switch.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::mutate::{self, Mutant};

/// The copied parts; the rest is not built. What cargo needs to read the workspace, also for
/// members that are not built.
const PARTS: [&str; 7] = ["Cargo.toml", "Cargo.lock", "clippy.toml", "crates", "cells", "sdk", "xtask"];

/// Added to the changed crate: whether the mutant of this number is selected. Every changed place
/// calls it by `crate::mutant(n)`. Reading the environment happens once; later calls cost an atomic
/// load.
const SWITCH: &str = r#"
extern crate std;

#[doc(hidden)]
pub fn mutant(number: u32) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<u32>> =
        std::sync::LazyLock::new(|| std::env::var("MARRAM_MUTANT").ok()?.parse().ok());
    *CHOSEN == Some(number)
}
"#;

/// Writes the copy and returns the changes in it. Removes files that no longer exist.
///
/// # Errors
/// If a file cannot be read or parsed, or the crate has nothing to change, which is most often a
/// wrong name.
pub(crate) fn write(root: &Path, tree: &Path, name: &str) -> Result<Vec<Mutant>> {
    let source = Path::new("crates").join(name).join("src");
    let (mut mutants, mut written) = (Vec::new(), BTreeSet::new());
    for part in PARTS {
        for file in files(&root.join(part))? {
            let relative = file.strip_prefix(root).context("below the root")?;
            let mut bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            if relative.starts_with(&source) && !is_test(relative) {
                bytes = change(&bytes, relative, relative == source.join("lib.rs"), &mut mutants)?;
            }
            write_if_changed(&tree.join(relative), &bytes)?;
            written.insert(tree.join(relative));
        }
    }
    for file in files(tree)?.iter().filter(|file| !written.contains(*file)) {
        fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    if mutants.is_empty() {
        bail!("nothing to change in {}", source.display());
    }
    Ok(mutants)
}

/// Only the root of the crate gets the switch.
fn change(bytes: &[u8], file: &Path, is_root: bool, mutants: &mut Vec<Mutant>) -> Result<Vec<u8>> {
    let name = file.display().to_string();
    let text = str::from_utf8(bytes).with_context(|| format!("{name} is not UTF-8"))?;
    let mut changed = mutate::file(text, &name, mutants).with_context(|| format!("cannot parse {name}"))?;
    if is_root {
        changed.push_str(SWITCH);
    }
    Ok(changed.into_bytes())
}

/// Files of tests are copied as they are: they judge.
fn is_test(file: &Path) -> bool {
    file.file_stem().is_some_and(|stem| stem == "tests")
        || file.components().any(|part| part.as_os_str() == "tests")
}

/// The file itself, or every file below a folder, in order, without build products.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.is_file() {
        return Ok(vec![folder.to_path_buf()]);
    }
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if !path.is_dir() {
            found.push(path);
        } else if path.file_name().is_some_and(|name| name != "target") {
            found.extend(files(&path)?);
        }
    }
    found.sort();
    Ok(found)
}

/// An unchanged file keeps its modification time, so that cargo builds only what is necessary.
fn write_if_changed(file: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(file).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
}
