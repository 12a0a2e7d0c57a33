//! A copy of the repository in which one crate is changed. Knows nothing of what the changes are.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::mutate::{self, Mutant};

/// What is copied; the rest is not built.
const PARTS: [&str; 7] = ["Cargo.toml", "Cargo.lock", "clippy.toml", "crates", "cells", "sdk", "xtask"];

/// What the changed crate gets: whether the mutant of this number is the one to be.
const SWITCH: &str = r#"
extern crate std;

#[doc(hidden)]
pub fn mutant(number: u32) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<u32>> =
        std::sync::LazyLock::new(|| std::env::var("MARRAM_MUTANT").ok()?.parse().ok());
    *CHOSEN == Some(number)
}
"#;

/// Writes the copy and returns the changes in it.
pub(crate) fn write(root: &Path, tree: &Path, name: &str) -> Result<Vec<Mutant>> {
    for part in PARTS {
        copy(&root.join(part), &tree.join(part))?;
    }
    let source = Path::new("crates").join(name).join("src");
    let mut mutants = Vec::new();
    for file in files(&root.join(&source))? {
        let relative = file.strip_prefix(root).context("below the root")?;
        if is_test(relative) {
            continue;
        }
        let text = read(&file)?;
        let mut changed = mutate::file(&text, &relative.display().to_string(), &mut mutants)
            .with_context(|| format!("cannot parse {}", relative.display()))?;
        if relative == source.join("lib.rs") {
            changed.push_str(SWITCH);
        }
        write_if_changed(&tree.join(relative), changed.as_bytes())?;
    }
    if mutants.is_empty() {
        bail!("nothing to change in {}", source.display());
    }
    Ok(mutants)
}

fn is_test(file: &Path) -> bool {
    file.file_stem().is_some_and(|stem| stem == "tests")
        || file.components().any(|part| part.as_os_str() == "tests")
}

/// Copies a file or folder; files that did not change keep their time, so that cargo builds only what must be.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        return write_if_changed(to, &bytes);
    }
    files(from)?.iter().try_for_each(|file| copy(file, &to.join(file.strip_prefix(from)?)))
}

/// Every file below a folder, in order, without build products.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
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

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

fn write_if_changed(file: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(file).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
}
