//! Where the project's files are, and how cargo is called on them.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository's root")
}

/// Everything that is built.
pub(crate) fn target() -> PathBuf {
    root().join("target")
}

/// The Wasm modules of the cells.
pub(crate) fn cell_modules() -> PathBuf {
    target().join("cells")
}

/// The workspaces beside the main one, each with a lockfile of its own.
pub(crate) const SIDE_MANIFESTS: [&str; 3] =
    ["sdk/rust/Cargo.toml", "cells/Cargo.toml", "xtask/mutants/Cargo.toml"];

/// The fuzz targets, which are built with flags of their own.
pub(crate) const FUZZ_MANIFEST: &str = "fuzz/Cargo.toml";

/// Every workspace of the repository.
pub(crate) fn manifests() -> Vec<&'static str> {
    ["Cargo.toml", FUZZ_MANIFEST].into_iter().chain(SIDE_MANIFESTS).collect()
}

/// The cargo that runs us, in the repository's root.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.arg(subcommand).current_dir(root());
    command
}

/// The same for a workspace beside the main one. Its artefacts go to a folder of their own, since it has other
/// profiles and flags.
pub(crate) fn side_cargo(subcommand: &str, manifest: &str) -> Command {
    let mut command = cargo(subcommand);
    command.args(["--manifest-path", manifest, "--locked", "--target-dir"]).arg(target().join("side"));
    command
}

/// Every file of the tree that git would keep and whose name passes the filter, relative to the root, in order.
pub(crate) fn files(keep: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                if !is_skipped(&path) {
                    folders.push(path);
                }
            } else {
                let relative = path.strip_prefix(root()).expect("below the root").to_path_buf();
                if keep(&relative) {
                    found.push(relative);
                }
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Build products and what git keeps for itself.
fn is_skipped(folder: &Path) -> bool {
    let name = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
    matches!(name, "target" | ".git" | "corpus" | "artifacts")
}

/// Reads a text file of the tree.
pub(crate) fn read(relative: &Path) -> Result<String> {
    std::fs::read_to_string(root().join(relative))
        .with_context(|| format!("cannot read {}", relative.display()))
}
