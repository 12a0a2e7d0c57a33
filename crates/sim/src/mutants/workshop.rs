//! A copy of the crates that the simulation needs, in a workspace of its own under `target/mutants`, where they are
//! broken, built and run. The sources themselves are never touched.

use super::{Edit, Mutation};
use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// What the copy holds.
const MEMBERS: [&str; 5] = ["crates/wire", "crates/session", "crates/edge", "crates/sim", "cells/chain/algo"];
/// A mutant that runs for longer hangs, and so is caught.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often a running mutant is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What came of a mutation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Seeds failed; the first words of it.
    Caught(String),
    /// It does not compile.
    Unviable,
    /// All seeds passed.
    Survived,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught(words) => write!(f, "caught    ({words})"),
            Self::Unviable => write!(f, "unviable"),
            Self::Survived => write!(f, "SURVIVED"),
        }
    }
}

/// The place where mutants are made.
#[derive(Debug)]
pub(super) struct Workshop {
    copy: PathBuf,
}

impl Workshop {
    /// Copies the sources and builds them unbroken: what does not pass then, says nothing later.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let copy = root.join("target/mutants");
        fs::create_dir_all(&copy)?;
        for member in MEMBERS {
            copy_tree(&root.join(member), &copy.join(member))?;
            copy_tree(&root.join(member), &copy.join("original").join(member))?;
        }
        without_wasm(&copy.join("crates/sim/Cargo.toml"))?;
        fs::copy(root.join("Cargo.lock"), copy.join("Cargo.lock"))?;
        fs::write(copy.join("Cargo.toml"), manifest(&fs::read_to_string(root.join("Cargo.toml"))?))?;
        let workshop = Self { copy };
        if !workshop.build()? {
            return Err(io::Error::other("the unbroken copy does not build; see target/mutants"));
        }
        match workshop.run(500)? {
            Verdict::Survived => Ok(workshop),
            verdict => Err(io::Error::other(format!("the unbroken copy fails its seeds: {verdict}"))),
        }
    }

    /// Breaks one file, builds, runs seeds until one fails, and mends the file.
    pub(super) fn try_mutation(&self, mutation: &Mutation, seeds: u64) -> io::Result<Verdict> {
        for edit in &mutation.edits {
            // From the copy: the sources may be worked on meanwhile.
            let source = fs::read_to_string(self.original(edit))?;
            let broken =
                edit.apply(&source).ok_or_else(|| io::Error::other("the sources changed meanwhile"))?;
            fs::write(self.copy.join(&edit.file), broken)?;
        }
        let verdict = if self.build()? { self.run(seeds) } else { Ok(Verdict::Unviable) };
        for edit in &mutation.edits {
            fs::copy(self.original(edit), self.copy.join(&edit.file))?;
        }
        verdict
    }

    fn original(&self, edit: &Edit) -> PathBuf {
        self.copy.join("original").join(&edit.file)
    }

    fn build(&self) -> io::Result<bool> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--release", "--package", "marram-sim", "--target-dir"]);
        cargo.arg(self.copy.join("target")).current_dir(&self.copy).env("RUSTFLAGS", "-Awarnings");
        Ok(cargo.stderr(Stdio::null()).status()?.success())
    }

    fn run(&self, seeds: u64) -> io::Result<Verdict> {
        let program = self.copy.join("target/release/marram-sim");
        let mut command = Command::new(program);
        // Saved seeds first: some are there because they catch what few others do.
        command.args(["--first", "--count", &seeds.to_string()]);
        let log = fs::File::create(self.copy.join("log"))?;
        let mut child = command.stdout(log).stderr(Stdio::null()).spawn()?;
        let Some(passed) = wait(&mut child)? else { return Ok(Verdict::Caught("hangs".into())) };
        if passed {
            return Ok(Verdict::Survived);
        }
        let log = fs::read_to_string(self.copy.join("log"))?;
        let words = log.lines().find(|line| line.contains("FAILED")).unwrap_or("the process died");
        Ok(Verdict::Caught(words.chars().take(110).collect()))
    }
}

/// Whether the child ended well; nothing if it had to be ended.
fn wait(child: &mut Child) -> io::Result<Option<bool>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if begun.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

/// The workspace's manifest with other members, built for quick building.
fn manifest(original: &str) -> String {
    let members = MEMBERS.map(|member| format!("\"{member}\"")).join(", ");
    let mut out = format!("[workspace]\nresolver = \"3\"\nmembers = [{members}]\n");
    let rest = original.find("[workspace.package]").map_or("", |at| &original[at..]);
    out.push_str(rest.split("[profile.release]").next().unwrap_or_default());
    out.push_str(
        "[profile.release]\nopt-level = 1\nincremental = true\ncodegen-units = 64\noverflow-checks = true\n",
    );
    out.push_str("debug = false\n[profile.release.package.blake3]\nopt-level = 3\n");
    out.push_str("[profile.release.package.chacha20]\nopt-level = 3\n");
    out
}

/// The copy has no sandbox, and mutants need none: the feature stays, its dependency goes.
fn without_wasm(manifest: &Path) -> io::Result<()> {
    let original = fs::read_to_string(manifest)?;
    let kept = original.lines().filter(|line| !line.starts_with("marram-sandbox"));
    let kept = kept.map(|line| if line.starts_with("wasm = ") { "wasm = []" } else { line });
    fs::write(manifest, kept.collect::<Vec<_>>().join("\n"))
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "target" {
                copy_tree(&source, &target)?;
            }
            continue;
        }
        // What has not changed keeps its time, or everything would be built again.
        let bytes = fs::read(&source)?;
        if fs::read(&target).ok().as_ref() != Some(&bytes) {
            fs::write(&target, bytes)?;
        }
    }
    Ok(())
}
