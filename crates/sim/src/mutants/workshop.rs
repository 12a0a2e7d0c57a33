//! A copy of the crates that the simulation needs, in a workspace of its own under `target/mutants`, where mutants are
//! built and run. The sources themselves are never changed.

use super::{Edit, Mutation};
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Crates in the copy.
const MEMBERS: [&str; 5] =
    ["crates/wire", "crates/session", "crates/shard", "crates/sim", "cells/testing/chain/algo"];
/// Seeds that a mutant runs at a time: seconds of work.
const CHUNK: u64 = 1_000;
/// If a mutant takes longer for that many seeds, it hangs, and so is caught. Not a limit on all of its seeds.
const PATIENCE: Duration = Duration::from_secs(300);
/// Interval at which a running mutant is checked.
const LOOK: Duration = Duration::from_millis(20);

/// The result of a mutation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Seeds failed; the first line of the output about that.
    Caught(String),
    /// As above, but only saved seeds: fresh seeds reach it too rarely.
    SavedOnly(String),
    /// It does not compile.
    Unviable,
    /// All seeds passed.
    Survived,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught(words) => write!(f, "caught    ({words})"),
            Self::SavedOnly(words) => write!(f, "SURVIVED  fresh seeds, caught by a saved one ({words})"),
            Self::Unviable => write!(f, "unviable"),
            Self::Survived => write!(f, "SURVIVED"),
        }
    }
}

/// The directory where mutants are built.
#[derive(Debug)]
pub(super) struct Workshop {
    copy: PathBuf,
}

impl Workshop {
    /// Copies the sources and builds and runs them unchanged: if that fails, mutants would show nothing.
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
        match workshop.run(0, &["--count", "500"])? {
            Verdict::Survived => Ok(workshop),
            verdict => Err(io::Error::other(format!("the unbroken copy fails its seeds: {verdict}"))),
        }
    }

    /// Changes the files, builds, runs fresh seeds until one fails, for each variant, and restores the files. If none fails, runs
    /// the saved seeds, to report that.
    pub(super) fn try_mutation(
        &self,
        mutation: &Mutation,
        from: u64,
        count: u64,
        mut each: impl FnMut(Option<&str>, Verdict),
    ) -> io::Result<()> {
        let mut broken: BTreeMap<&str, String> = BTreeMap::new();
        // From the last to the first, so that the offsets stay valid.
        let mut edits: Vec<&Edit> = mutation.edits.iter().collect();
        edits.sort_by_key(|edit| Reverse(edit.at));
        for edit in edits {
            // Read from the copy: the sources may change meanwhile.
            let source = match broken.remove(&edit.file[..]) {
                Some(source) => source,
                None => fs::read_to_string(self.original(edit))?,
            };
            let source =
                edit.apply(&source).ok_or_else(|| io::Error::other("the sources changed meanwhile"))?;
            broken.insert(&edit.file, source);
        }
        for (file, source) in &broken {
            fs::write(self.copy.join(file), source)?;
        }
        let built = self.build();
        for edit in &mutation.edits {
            fs::copy(self.original(edit), self.copy.join(&edit.file))?;
        }
        let built = built?;
        let names = mutation.variants.iter().map(|name| Some(&name[..]));
        let names: Vec<_> = if mutation.variants.is_empty() { vec![None] } else { names.collect() };
        for (place, name) in (1..).zip(names) {
            let verdict = if built { self.search(place, from, count)? } else { Verdict::Unviable };
            each(name, verdict);
        }
        Ok(())
    }

    /// Runs fresh seeds, then the saved ones if no fresh seed fails.
    fn search(&self, variant: u32, from: u64, count: u64) -> io::Result<Verdict> {
        let end = from + count;
        let mut next = from;
        while next < end {
            let chunk = CHUNK.min(end - next);
            let (first, size) = (next.to_string(), chunk.to_string());
            let fresh = self.run(variant, &["--first", "--from", &first, "--count", &size])?;
            if fresh != Verdict::Survived {
                return Ok(fresh);
            }
            next += chunk;
        }
        Ok(match self.run(variant, &["--first", "--count", "0"])? {
            Verdict::Caught(words) => Verdict::SavedOnly(words),
            verdict => verdict,
        })
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

    fn run(&self, variant: u32, arguments: &[&str]) -> io::Result<Verdict> {
        let program = self.copy.join("target/release/marram-sim");
        let mut command = Command::new(program);
        command.args(arguments).env("MARRAM_MUTANT", variant.to_string());
        let log = fs::File::create(self.copy.join("log"))?;
        let mut child = command.stdout(log).stderr(Stdio::null()).spawn()?;
        let Some(status) = wait(&mut child)? else { return Ok(Verdict::Caught("hangs".into())) };
        let log = fs::read_to_string(self.copy.join("log"))?;
        // Too low coverage of rare states says nothing about a mutation.
        let words = log.lines().find(|line| line.contains("FAILED"));
        let died = || status.code().is_none().then_some("the process died");
        Ok(words
            .or_else(died)
            .map_or(Verdict::Survived, |words| Verdict::Caught(words.chars().take(110).collect())))
    }
}

/// How the child exited; `None` if it was killed.
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

/// The workspace's manifest with other members and settings for fast builds.
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

/// Removes the sandbox dependency: the copy has no sandbox, and mutants need none. The feature stays.
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
        // An unchanged file keeps its modification time, otherwise everything would be built again.
        let bytes = fs::read(&source)?;
        if fs::read(&target).ok().as_ref() != Some(&bytes) {
            fs::write(&target, bytes)?;
        }
    }
    Ok(())
}
