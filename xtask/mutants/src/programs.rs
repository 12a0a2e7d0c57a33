//! Builds the changed tree and copies the programs, so that other runs of this tool can build theirs meanwhile.
//! Does not know what was changed.
//!
//! ```text
//! target/mechanical/
//!   lock       held while the tree is written and built
//!   tree/      the changed copy        build/   its artefacts, used again by the next run
//!   run-0/ .. run-15/   lock, programs/: the copies of one run
//! ```

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Most concurrent runs.
const RUNS_MAX: u32 = 16;

/// The programs that test mutants, cheapest first. Copies, since the next run overwrites the
/// originals while this one uses them.
pub(crate) struct Programs {
    /// The tests of the changed crate and of the edge that uses it.
    pub(crate) unit_tests: Vec<PathBuf>,
    /// Simulates histories, if requested.
    pub(crate) simulator: Option<PathBuf>,
    /// Reserves the folder of the copies for this run while it is open.
    _lock: File,
}

/// Waits until no other run writes the tree or builds; then blocks other runs until the file is closed.
///
/// The lock is the kernel's (flock): a run that is killed releases it.
pub(crate) fn lock(folder: &Path) -> Result<File> {
    let file = lock_file(folder)?;
    file.lock().with_context(|| format!("cannot lock {}", folder.display()))?;
    Ok(file)
}

impl Programs {
    /// Builds `folder/tree`, in which the crate marram-`name` was changed; if `quick`, without the simulator.
    pub(crate) fn build(folder: &Path, name: &str, quick: bool) -> Result<Self> {
        let own = format!("marram-{name}");
        let packages = ["test", "--no-run", "--package", own.as_str(), "--package", "marram-shard"];
        let tests = executables(folder, &packages)?;
        let simulator = ["build", "--package", "marram-sim", "--bin", "marram-sim"];
        let simulators = if quick { Vec::new() } else { executables(folder, &simulator)? };
        let (aside, lock) = free(folder)?;
        let copy = |program: &PathBuf| -> Result<PathBuf> {
            let name = program.file_name().context("a program has a name")?;
            let copy = aside.join(name);
            fs::copy(program, &copy).with_context(|| format!("cannot write {}", copy.display()))?;
            Ok(copy)
        };
        let unit_tests = tests.iter().map(copy).collect::<Result<_>>()?;
        let simulator = simulators.first().map(copy).transpose()?;
        Ok(Self { unit_tests, simulator, _lock: lock })
    }
}

/// An empty folder that no other run uses. A run that has ended, in any way, has released its lock.
///
/// # Errors
/// If all are taken: sixteen runs at once are more than any machine has cores for.
fn free(folder: &Path) -> Result<(PathBuf, File)> {
    for number in 0..RUNS_MAX {
        let aside = folder.join(format!("run-{number}"));
        let file = lock_file(&aside)?;
        if file.try_lock().is_ok() {
            let programs = aside.join("programs");
            if programs.exists() {
                fs::remove_dir_all(&programs)
                    .with_context(|| format!("cannot empty {}", programs.display()))?;
            }
            fs::create_dir(&programs).with_context(|| format!("cannot create {}", programs.display()))?;
            return Ok((programs, file));
        }
    }
    bail!("{RUNS_MAX} runs are under way already; wait for one of them")
}

/// Opens the file that is locked; it stays, since removing it would let two runs lock different
/// files of one name.
fn lock_file(folder: &Path) -> Result<File> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join("lock");
    File::create(&path).with_context(|| format!("cannot create {}", path.display()))
}

/// The executables that a cargo command reports.
///
/// Cargo's JSON messages name them; their file names have a hash and cannot be guessed.
///
/// # Errors
/// With the compiler's messages, if the tree does not build: then a rule of `mutate` makes a change
/// that it must not make.
fn executables(folder: &Path, arguments: &[&str]) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("cargo");
    command.current_dir(folder.join("tree")).args(arguments);
    command.args(["--release", "--locked", "--quiet", "--message-format", "json"]);
    // The mutants cause many warnings about conditions and sums, which are of no interest.
    command.arg("--target-dir").arg(folder.join("build")).env("RUSTFLAGS", "--cap-lints=allow");
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = text.lines().filter_map(|line| {
            let message = serde_json::from_str::<Value>(line).ok()?;
            message["message"]["rendered"].as_str().map(str::to_owned)
        });
        bail!("the changed tree does not build:\n{}", errors.collect::<String>());
    }
    let text = String::from_utf8(output.stdout).context("cargo wrote no UTF-8")?;
    let programs = text.lines().filter_map(|line| {
        let message = serde_json::from_str::<Value>(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    Ok(programs.collect())
}
