//! The cells that ship with Marram, as built by `cargo xtask cells`.

use super::temp_dir::TempDir;
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};

/// A directory of built cells.
#[derive(Clone, Debug)]
pub struct CellFiles {
    directory: PathBuf,
}

impl CellFiles {
    /// Uses `given`, or looks where the build writes them: `target/cells` below the working directory, or beside the directory of
    /// this program.
    ///
    /// # Errors
    /// If they are in none of these places.
    pub fn find(given: Option<&Path>) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("the program's own path is unknown")?;
        let beside = program.parent().and_then(Path::parent).map(|target| target.join("cells"));
        // Test programs are one directory further down.
        let above = program.ancestors().nth(3).map(|target| target.join("cells"));
        let places = match given {
            Some(given) => vec![given.to_owned()],
            None => [Some(PathBuf::from("target/cells")), beside, above].into_iter().flatten().collect(),
        };
        for directory in &places {
            if directory.join("forward.wasm").is_file() {
                return Ok(Self { directory: std::path::absolute(directory)? });
            }
        }
        bail!("the cells are not built: run `cargo xtask cells`, or name their directory with --cells");
    }

    /// Path of the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of a cell's module.
    #[must_use]
    pub fn module(&self, cell: &str) -> PathBuf {
        self.directory.join(format!("{cell}.wasm"))
    }

    /// Writes a manifest for the cell `name`, with `rest` behind its name and module, and returns its path.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn manifest(&self, place: &TempDir, name: &str, cell: &str, rest: &str) -> anyhow::Result<PathBuf> {
        let module = self.module(cell);
        let text = format!("name = \"{name}\"\nmodule = {:?}\n{rest}", module.display().to_string());
        place.write(&format!("apps/{name}/marram.toml"), text)
    }
}
