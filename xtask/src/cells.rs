//! Builds the cells to Wasm modules: `target/cells/NAME.wasm`, one for each folder `cells/GROUP/NAME` that has a manifest.
//!
//! ```text
//! cells/GROUP/NAME/ (Cargo package + marram.toml)  --cargo, wasm32-wasip1-->  target/cells/NAME.wasm
//!                                     counter only, with debug information -->  target/cells/debugger/counter.wasm
//! ```
//! Everything that starts an edge finds its modules here: the demo, tests, benchmarks. The cells
//! are a workspace of their own, with a profile for small modules.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::{
    c, project,
    shell::{run, say},
    toolchain::{CELL_TARGET, Toolchain},
};

/// The cell that a test debugs step by step. One is enough, since debug information makes a module
/// much larger.
const DEBUGGED: &str = "counter";

/// Builds all cells, and one with debug information in `target/cells/debugger/`; then those in C. Cargo decides which are out of
/// date; a module whose bytes did not change keeps its modification time.
pub(crate) fn build() -> Result<()> {
    let toolchain = Toolchain::ensure()?;
    let names = names()?;
    build_as(&toolchain, "release", &names, &project::cell_modules())?;
    build_as(&toolchain, "debugger", &[DEBUGGED.to_owned()], &project::cell_modules().join("debugger"))?;
    c::build()?;
    say(format!("{} cells are in {}", names.len(), project::cell_modules().display()));
    Ok(())
}

/// Builds the native server with which `marram bench classify` compares the cell, next to the cells.
///
/// It is an example of the cell's package, so that both have one source.
pub(crate) fn build_classify_process() -> Result<()> {
    let target = project::target().join("cells-native");
    let mut command = project::cargo("build");
    command.args(["--release", "--locked", "--manifest-path", "cells/Cargo.toml", "--package", "classify"]);
    command.args(["--example", "classify_process"]).arg("--target-dir").arg(&target);
    run(&mut command)?;
    let (from, to) =
        (target.join("release/examples/classify_process"), project::cell_modules().join("classify-process"));
    fs::copy(&from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

///
/// Modules are copied only if their bytes differ: edges and tests name images by digest, and caches
/// by modification time.
fn build_as(toolchain: &Toolchain, profile: &str, names: &[String], modules: &Path) -> Result<()> {
    let mut command = project::cargo("build");
    command.args(["--profile", profile, "--locked", "--manifest-path", "cells/Cargo.toml"]);
    names.iter().for_each(|name| _ = command.args(["--package", name]));
    toolchain.apply(&mut command, CELL_TARGET)?;
    run(&mut command)?;
    let built = project::target().join("wasm").join(CELL_TARGET).join(profile);
    fs::create_dir_all(modules).with_context(|| format!("cannot create {}", modules.display()))?;
    for name in names {
        let file = format!("{name}.wasm");
        let from = built.join(&file);
        let bytes = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        let to = modules.join(&file);
        if fs::read(&to).is_ok_and(|old| old == bytes) {
            continue;
        }
        fs::write(&to, &bytes).with_context(|| format!("cannot write {}", to.display()))?;
        say(format!("{}: {} bytes", to.display(), bytes.len()));
    }
    Ok(())
}

/// The names of the cells, ordered by their folders. A folder without a manifest is a library of
/// other cells.
fn names() -> Result<Vec<String>> {
    let manifests = project::files(|path| path.starts_with("cells") && path.ends_with("marram.toml"))?;
    if manifests.is_empty() {
        bail!("no cells/*/*/marram.toml");
    }
    let workspace = project::read(Path::new("cells/Cargo.toml"))?;
    manifests.iter().map(|manifest| name(manifest, &workspace)).collect()
}

/// The name of the cell with this manifest: its folder's. Fails if the folder is no member of the workspace.
fn name(manifest: &Path, workspace: &str) -> Result<String> {
    let folder = manifest.parent().context("a manifest is in a folder")?;
    let member = folder.strip_prefix("cells")?.to_str().context("a cell's folder has no name in UTF-8")?;
    if !workspace.contains(&format!("\"{member}\"")) {
        bail!(
            "cells/{member} has a manifest, but is no member of the workspace of cells: add \"{member}\" to \
             `members` in cells/Cargo.toml, or remove its marram.toml"
        );
    }
    let (_, name) = member.rsplit_once('/').with_context(|| format!("cells/{member} is in no group"))?;
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_its_folders_name_and_is_a_member() {
        let workspace = "members = [\n    \"services/forward\",\n    \"lone\",\n]\n";
        let named = |folder: &str| name(&Path::new("cells").join(folder).join("marram.toml"), workspace);
        assert_eq!(named("services/forward").unwrap(), "forward");
        for (folder, words) in [("testing/forward", "add \"testing/forward\""), ("lone", "in no group")] {
            let error = named(folder).unwrap_err().to_string();
            assert!(error.contains(words), "{error} does not say {words}");
        }
    }

    #[test]
    fn each_group_has_cells_and_no_two_have_one_name() {
        let mut names = names().unwrap();
        let count = names.len();
        assert!(["forward", "snake", DEBUGGED].iter().all(|name| names.iter().any(|other| other == name)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "modules of one name would replace each other");
    }
}
