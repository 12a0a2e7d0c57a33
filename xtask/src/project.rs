//! The paths of the project's files, and calls of cargo for them.
//!
//! Every other module names files relative to the root and leaves it to this one where that is.
//! Build products go below `target/`, each kind with its own flags into a folder of its own: two
//! builds with different flags in one folder would compile everything again each time.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context, Result};

/// The repository's root: determined once, at the start.
static ROOT: OnceLock<PathBuf> = OnceLock::new();

/// Prefixes of variables that cargo sets for the program that it runs. Other builds must not see them: build scripts would run
/// again.
const OURS: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

/// Finds the repository: the one of this `cargo xtask`, or that of the working directory. This program may have
/// been compiled elsewhere, if a target folder is shared.
///
/// # Errors
/// If neither is in a checkout.
pub(crate) fn find_root() -> Result<()> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let working = std::env::current_dir().context("there is no working directory")?;
    let root =
        find(manifest.as_deref(), &working).context("this is not a checkout of Marram: run it in one")?;
    // An earlier caller has read the same environment.
    let _ = ROOT.set(root);
    Ok(())
}

/// The root is known by this file.
fn find(manifest: Option<&Path>, working: &Path) -> Option<PathBuf> {
    let is_root = |folder: &&Path| folder.join("xtask/src/project.rs").is_file();
    let own = manifest.and_then(Path::parent);
    own.into_iter().chain(working.ancestors()).find(is_root).map(Path::to_path_buf)
}

/// The repository's root.
///
/// # Panics
/// If the program was started outside of a checkout and [`find_root`] was not called first.
pub(crate) fn root() -> &'static Path {
    ROOT.get_or_init(|| {
        let working = std::env::current_dir().unwrap_or_default();
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        find(manifest.as_deref(), &working).expect("`main` has found it")
    })
}

/// Folder of all build products.
pub(crate) fn target() -> PathBuf {
    root().join("target")
}

/// A program of the workspace as the tests built it last, in the repository's root.
pub(crate) fn built(program: &str) -> Command {
    let mut command = Command::new(target().join("debug").join(program));
    command.current_dir(root());
    command
}

/// Folder of the cells' Wasm modules.
pub(crate) fn cell_modules() -> PathBuf {
    target().join("cells")
}

/// The workspaces besides the main one, each with its own lockfile.
pub(crate) const SIDE_MANIFESTS: [&str; 3] =
    ["sdk/rust/Cargo.toml", "cells/Cargo.toml", "xtask/mutants/Cargo.toml"];

/// How the main workspace is checked and tested: one set of flags, or its dependencies are compiled again.
pub(crate) const WORKSPACE_FLAGS: [&str; 4] = ["--locked", "--workspace", "--features", "marram-sim/wasm"];

/// Tells a test program how many tests to run at a time.
pub(crate) const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Tests to run at a time: two for each core, since those with real processes mostly wait for them.
pub(crate) fn test_threads() -> String {
    (2 * std::thread::available_parallelism().map_or(1, usize::from)).to_string()
}

/// The fuzz targets, which are built with their own flags.
pub(crate) const FUZZ_MANIFEST: &str = "fuzz/Cargo.toml";

/// Every workspace of the repository.
pub(crate) fn manifests() -> Vec<&'static str> {
    ["Cargo.toml", FUZZ_MANIFEST].into_iter().chain(SIDE_MANIFESTS).collect()
}

/// The cargo that runs this program, in the repository's root.
///
/// `CARGO` is the cargo of the toolchain that runs xtask; another one on the path would build with
/// another compiler.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.arg(subcommand).current_dir(root());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| OURS.iter().any(|ours| name.starts_with(ours))) {
            command.env_remove(name);
        }
    }
    command
}

/// The same for a workspace other than the main one. Its artefacts go to a folder of their own, since it has other
/// profiles and flags.
pub(crate) fn side_cargo(subcommand: &str, manifest: &str) -> Command {
    let mut command = cargo(subcommand);
    command.args(["--manifest-path", manifest, "--locked", "--target-dir"]).arg(target().join("side"));
    command
}

/// Every file of the tree that git would track and whose name passes the filter, relative to the root, in order.
///
/// Walks the tree instead of asking git, so that it works in a source archive, too. Files that git
/// ignores elsewhere are found as well.
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

/// Whether a folder contains build products or git's own data.
fn is_skipped(folder: &Path) -> bool {
    let name = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
    matches!(name, "target" | ".git" | "corpus" | "artifacts")
}

/// Reads a text file of the tree.
pub(crate) fn read(relative: &Path) -> Result<String> {
    std::fs::read_to_string(root().join(relative))
        .with_context(|| format!("cannot read {}", relative.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_about_this_program_is_not_said_to_cargo() {
        // Cargo runs tests as it runs programs.
        assert!(
            std::env::var_os("CARGO_PKG_NAME").is_some() && std::env::var_os("CARGO_MANIFEST_DIR").is_some()
        );
        let command = cargo("build");
        let kept = |name: &str| !command.get_envs().any(|(other, value)| other == name && value.is_none());
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
            assert!(!kept(name), "{name}");
        }
        assert!(kept("CARGO") && kept("PATH"));
    }

    #[test]
    fn the_root_is_that_of_the_alias_or_of_the_working_directory() {
        let own = root().to_path_buf();
        let elsewhere = std::env::temp_dir();
        assert_eq!(find(Some(&own.join("xtask")), &elsewhere), Some(own.clone()));
        assert_eq!(find(Some(&elsewhere), &own.join("crates/wire")), Some(own.clone()));
        assert_eq!(find(None, &own), Some(own));
        assert_eq!(find(None, &elsewhere), None);
    }
}
