//! A copy of the crates that the simulation needs, in a workspace of its own under `target/mutants`, where they are
//! broken, built and run. The sources themselves are never touched.

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

/// What the copy holds.
const MEMBERS: [&str; 5] = ["crates/wire", "crates/session", "crates/edge", "crates/sim", "cells/chain/algo"];
/// How many seeds a mutant runs at a time: seconds of work.
const CHUNK: u64 = 1_000;
/// A mutant that takes longer for that many hangs, and so is caught. It says nothing of a mutant that runs through more of them.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often a running mutant is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What came of a mutation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Seeds failed; the first words of it.
    Caught(String),
    /// As above, in saved seeds only: fresh ones reach it too rarely.
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
        match workshop.run(0, &["--count", "500"])? {
            Verdict::Survived => Ok(workshop),
            verdict => Err(io::Error::other(format!("the unbroken copy fails its seeds: {verdict}"))),
        }
    }

    /// Breaks files, builds, runs fresh seeds until one fails, for each variant, and mends the files. Where none fails, saved
    /// seeds are asked, to say so.
    pub(super) fn try_mutation(
        &self,
        mutation: &Mutation,
        from: u64,
        count: u64,
        mut each: impl FnMut(Option<&str>, Verdict),
    ) -> io::Result<()> {
        let mut broken: BTreeMap<&str, String> = BTreeMap::new();
        // From behind, so that each still finds its place.
        let mut edits: Vec<&Edit> = mutation.edits.iter().collect();
        edits.sort_by_key(|edit| Reverse(edit.at));
        for edit in edits {
            // From the copy: the sources may be worked on meanwhile.
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

    /// Fresh seeds, and saved ones where those say nothing.
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
        // That too few seeds reached something is no verdict on a mutation.
        let words = log.lines().find(|line| line.contains("FAILED"));
        let died = || status.code().is_none().then_some("the process died");
        Ok(words
            .or_else(died)
            .map_or(Verdict::Survived, |words| Verdict::Caught(words.chars().take(110).collect())))
    }
}

/// How the child ended; nothing if it had to be ended.
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
