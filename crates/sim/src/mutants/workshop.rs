//! A copy of the crates that the simulation needs, in a workspace of its own under `target/mutants`, with all mutations behind
//! switches. It is built once. The sources themselves are never changed.
//!
//! ```text
//! target/mutants/
//!   Cargo.toml       members and profile of the copy; Cargo.lock is the workspace's
//!   crates/..., cells/testing/...            copies, some with switches
//!   target/          built once, incrementally the next time
//!   logs/            output of the runs in progress
//! ```
//! The mutation is chosen by an environment variable at run time (`switch`). Reading it costs an atomic load
//! per switch, in release mode.

use super::{
    named::{self, Edit, Named},
    patch::{self, Patched},
    switch::{self, Reached},
};
use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Crates in the copy.
const MEMBERS: [&str; 6] = [
    "crates/wire",
    "crates/session",
    "crates/shard",
    "crates/sim",
    "cells/testing/chain/algo",
    "cells/testing/hall/algo",
];
/// The simulator's manifest.
const MANIFEST: &str = "crates/sim/Cargo.toml";
/// If a run takes longer, the mutant hangs, and so is caught.
const PATIENCE: Duration = Duration::from_secs(300);
/// Interval at which a running mutant is checked.
const LOOK: Duration = Duration::from_millis(10);
/// The part of a failure that is shown, in characters.
const SHOWN_CHARS_MAX: usize = 110;
/// The part of a compiler's output that is shown, in lines.
const SHOWN_LINES_MAX: usize = 60;

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Seeds failed; the first line of the output about that.
    Caught(String),
    /// As above, but only saved seeds: fresh seeds reach it too rarely.
    SavedOnly(String),
    /// All seeds passed.
    Survived,
}

impl Verdict {
    /// The fresh seed that failed. A process that died or hangs names none.
    pub(super) fn seed(&self) -> Option<u64> {
        let Self::Caught(words) = self else { return None };
        words.strip_prefix("seed ")?.split(' ').next()?.parse().ok()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught(words) => write!(f, "caught    ({words})"),
            Self::SavedOnly(words) => write!(f, "SURVIVED  fresh seeds, caught by a saved one ({words})"),
            Self::Survived => write!(f, "SURVIVED"),
        }
    }
}

/// The directory where the copy is, with its simulator.
#[derive(Debug)]
pub(super) struct Workshop {
    /// Absolute, or relative to the working directory, as the root that was given.
    copy: PathBuf,
    /// Runs so far: each has a file of its own for its output.
    runs: AtomicU64,
}

impl Workshop {
    /// Copies the sources, with the mutations in them, and builds.
    ///
    /// # Errors
    /// If the copy cannot be written, or if mutations do not fit the sources or do not compile: which, and what to do.
    pub(super) fn open(root: &Path, named: &Named) -> io::Result<Self> {
        let workshop = Self { copy: root.join("target/mutants"), runs: AtomicU64::new(0) };
        let patched = patch_all(root, &named.edits)?;
        for member in MEMBERS {
            workshop.copy_tree(root, Path::new(member), &patched)?;
        }
        workshop.write(Path::new("Cargo.lock"), &fs::read(root.join("Cargo.lock"))?)?;
        let manifest = manifest(&fs::read_to_string(root.join("Cargo.toml"))?);
        workshop.write(Path::new("Cargo.toml"), manifest.as_bytes())?;
        fs::create_dir_all(workshop.copy.join("logs"))?;
        workshop.build(&patched)?;
        Ok(workshop)
    }

    /// Runs the simulator with a mutation.
    ///
    /// `arguments` are those of `marram-sim`. A seed that fails, a process that dies and one that
    /// hangs all count as caught: any of them would be noticed.
    pub(super) fn run(&self, number: u32, arguments: &[&str]) -> io::Result<Verdict> {
        let (status, log) = self.output(&number.to_string(), arguments)?;
        let Some(status) = status else { return Ok(Verdict::Caught("hangs".into())) };
        // Too low coverage of rare states says nothing about a mutation.
        let words = log.lines().find(|line| line.contains("FAILED"));
        let died = || status.code().is_none().then_some("the process died");
        let caught = |words: &str| Verdict::Caught(words.chars().take(SHOWN_CHARS_MAX).collect());
        Ok(words.or_else(died).map_or(Verdict::Survived, caught))
    }

    /// The hash of a seed's events, without a mutation.
    ///
    /// `None` if the run printed none, because it failed before its end.
    pub(super) fn hash_of(&self, seed: u64) -> io::Result<Option<u64>> {
        let (_, log) = self.output("0", &[&seed.to_string()])?;
        let hash = log.lines().rev().find_map(|line| line.rsplit_once(", trace ")).map(|(_, hash)| hash);
        Ok(hash.and_then(|hash| u64::from_str_radix(hash, 16).ok()))
    }

    /// Runs seeds without a mutation: which mutations each of them reaches.
    ///
    /// # Errors
    /// If a seed fails. With a mutation it would fail too, which would say nothing about the mutation.
    pub(super) fn reached(&self, from: u64, count: u64) -> io::Result<Vec<Reached>> {
        let (from, count) = (from.to_string(), count.to_string());
        let (_, log) = self.output(switch::TRACE, &["--from", &from, "--count", &count])?;
        let failed: Vec<&str> = log.lines().filter(|line| line.contains("FAILED")).collect();
        let reached = switch::reached(&log);
        if failed.is_empty() && reached.len().to_string() == count {
            return Ok(reached);
        }
        Err(io::Error::other(format!(
            "without a mutation, {} of {count} seeds from {from} on ended, and these failed:\n{}",
            reached.len(),
            failed.join("\n")
        )))
    }

    /// How a run exited, nothing if it was killed, and what it wrote.
    fn output(&self, selected: &str, arguments: &[&str]) -> io::Result<(Option<ExitStatus>, String)> {
        let mut command = Command::new(self.copy.join("target/release/marram-sim"));
        command.args(arguments).env(switch::VARIABLE, selected);
        // A file, not a pipe: nothing reads while it runs.
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let path = self.copy.join("logs").join(format!("{selected}-{run}"));
        let mut child = command.stdout(fs::File::create(&path)?).stderr(Stdio::null()).spawn()?;
        let status = wait(&mut child)?;
        let log = fs::read_to_string(&path)?;
        fs::remove_file(&path)?;
        Ok((status, log))
    }

    /// Warnings are allowed: a mutation leaves unused variables behind.
    fn build(&self, patched: &BTreeMap<String, Patched>) -> io::Result<()> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--release", "--package", "marram-sim", "--target-dir"]);
        cargo.arg(self.copy.join("target")).current_dir(&self.copy).env("RUSTFLAGS", "-Awarnings");
        let output = cargo.output()?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let shown = text.lines().take(SHOWN_LINES_MAX).collect::<Vec<_>>().join("\n");
        let entries = blame(&text, patched);
        let hint =
            if entries.is_empty() { "  if the sources build, an entry is wrong".into() } else { entries };
        Err(io::Error::other(format!(
            "the copy with all mutations, target/mutants, does not build:\n{shown}\n\n{hint}\n  Adapt the entry in {}: \
             `from` and `to` must be of the same type, each between braces; see the head of the list",
            named::LIST
        )))
    }

    /// Copies a folder, with the mutations; without build products.
    fn copy_tree(&self, root: &Path, folder: &Path, patched: &BTreeMap<String, Patched>) -> io::Result<()> {
        for entry in fs::read_dir(root.join(folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                if entry.file_name() != "target" {
                    self.copy_tree(root, &path, patched)?;
                }
                continue;
            }
            let mut bytes = match path.to_str().and_then(|path| patched.get(path)) {
                Some(patched) => patched.text.clone().into_bytes(),
                None => fs::read(entry.path())?,
            };
            match path.to_str() {
                Some(switch::FILE) => bytes.extend_from_slice(switch::SOURCE.as_bytes()),
                Some(MANIFEST) => bytes = without_wasm(&String::from_utf8_lossy(&bytes)).into_bytes(),
                Some(path) => {
                    for [_, from, to] in switch::SIMULATOR.iter().filter(|[file, ..]| *file == path) {
                        bytes = String::from_utf8_lossy(&bytes).replace(from, to).into_bytes();
                    }
                }
                None => {}
            }
            self.write(&path, &bytes)?;
        }
        Ok(())
    }

    /// An unchanged file keeps its modification time, otherwise everything would be built again.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let target = self.copy.join(path);
        if fs::read(&target).is_ok_and(|old| old == bytes) {
            return Ok(());
        }
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(target, bytes)
    }
}

/// The changed files, by their path.
///
/// All problems are collected, since a change of a source file often makes several entries unusable
/// at once.
///
/// # Errors
/// If changes do not fit the sources: all of these.
pub(super) fn patch_all(root: &Path, edits: &[Edit]) -> io::Result<BTreeMap<String, Patched>> {
    let (mut patched, mut problems) = (BTreeMap::new(), Vec::new());
    let mut by_file: BTreeMap<&str, Vec<&Edit>> = BTreeMap::new();
    for edit in edits {
        by_file.entry(&edit.file).or_default().push(edit);
    }
    for (file, edits) in by_file {
        let Ok(source) = fs::read_to_string(root.join(file)) else {
            problems
                .push(format!("{}: there is no file {file}", named::place(&edits[0].entry, edits[0].line)));
            continue;
        };
        match patch::apply(&source, &edits) {
            Ok(changed) => _ = patched.insert(file.into(), changed),
            Err(wrong) => problems.extend(wrong),
        }
    }
    if problems.is_empty() { Ok(patched) } else { Err(io::Error::other(problems.join("\n"))) }
}

/// The entries to which the compiler's errors point.
///
/// The compiler names a file and a line of the copy; its members have the same paths as in the
/// workspace.
fn blame(errors: &str, patched: &BTreeMap<String, Patched>) -> String {
    let mut entries: Vec<String> = Vec::new();
    for place in errors.lines().filter_map(|line| line.trim_start().strip_prefix("--> ")) {
        let mut parts = place.split(':');
        let (file, line) = (parts.next(), parts.next().and_then(|line| line.parse().ok()));
        let (Some(patched), Some(line)) = (file.and_then(|file| patched.get(file)), line) else { continue };
        let Some(names) = patched.entries_at(line) else { continue };
        let words = format!("  {place} is in the text of `{names}`");
        if !entries.contains(&words) {
            entries.push(words);
        }
    }
    entries.join("\n")
}

/// How the child exited; `None` if it was killed.
///
/// Polls, because the standard library has no wait with a time limit.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

/// The workspace's manifest with other members and settings for a fast build.
fn manifest(original: &str) -> String {
    let members = MEMBERS.map(|member| format!("\"{member}\"")).join(", ");
    let mut out = format!("[workspace]\nresolver = \"3\"\nmembers = [{members}]\n");
    let rest = original.find("[workspace.package]").map_or("", |at| &original[at..]);
    out.push_str(rest.split("[profile.release]").next().unwrap_or_default());
    // Overflow checks stay on: a mutation that makes a counter wrap must be caught at that place.
    out.push_str(
        "[profile.release]\nopt-level = 2\nincremental = true\ncodegen-units = 16\nlto = \"off\"\noverflow-checks = true\ndebug = false\n",
    );
    for cipher in ["blake3", "chacha20"] {
        out.push_str(&format!("[profile.release.package.{cipher}]\nopt-level = 3\n"));
    }
    out
}

/// Removes the sandbox dependency: the copy has no sandbox, and mutants need none. The feature stays.
fn without_wasm(manifest: &str) -> String {
    let kept = manifest.lines().filter(|line| !line.starts_with("marram-sandbox"));
    let kept = kept.map(|line| if line.starts_with("wasm = ") { "wasm = []" } else { line });
    kept.collect::<Vec<_>>().join("\n")
}
