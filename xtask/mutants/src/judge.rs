//! Runs the tests against one mutant after the other, cheapest first.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::mutate::Mutant;

/// How a mutant fared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The tests of the crate, or of the edge that is made of it, failed.
    UnitTests,
    /// A simulated history was wrong.
    Simulation,
    /// Nothing noticed.
    Survived,
}

/// How many histories are simulated, until the first that fails.
const SEEDS: u32 = 3_000;

/// The histories begin here, beside those of CI.
const SEED_FROM: u32 = 1_000_000;

/// A mutant that hangs is caught.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often a running program is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The programs to run.
pub(crate) struct Judge {
    unit_tests: Vec<PathBuf>,
    simulator: PathBuf,
}

impl Judge {
    /// Builds the changed tree and makes sure that, with no mutant chosen, all is well.
    pub(crate) fn build(folder: &Path, name: &str) -> Result<Self> {
        let own = format!("marram-{name}");
        let packages = ["test", "--no-run", "--package", own.as_str(), "--package", "marram-edge"];
        let tests = executables(folder, &packages)?;
        let simulators = executables(folder, &["build", "--package", "marram-sim", "--bins"])?;
        let [simulator] = simulators.as_slice() else {
            bail!("marram-sim has not one program but {simulators:?}")
        };
        let judge = Self { unit_tests: tests, simulator: simulator.clone() };
        match judge.verdict(0)? {
            Verdict::Survived => Ok(judge),
            other => bail!("the tests fail without any mutant: {other:?}"),
        }
    }

    /// Tries them on all cores; the answers come in the order of the questions.
    pub(crate) fn try_all<'a>(&self, mutants: &[&'a Mutant]) -> Result<Vec<(&'a Mutant, Verdict)>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || -> Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(mutant) = mutants.get(index) else { return Ok(()) };
                let verdict = self.verdict(mutant.number)?;
                let mut found = found.lock().expect("no thread panics while it holds the list");
                found.push((index, verdict));
                if verdict == Verdict::Survived || found.len() % 50 == 0 {
                    println!("{}/{}: {verdict:?}: {mutant}", found.len(), mutants.len());
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("the work does not panic"))
        })?;
        let mut found = found.into_inner().expect("no thread panicked");
        found.sort_by_key(|(index, _)| *index);
        Ok(found.into_iter().map(|(index, verdict)| (mutants[index], verdict)).collect())
    }

    fn verdict(&self, number: u32) -> Result<Verdict> {
        for program in &self.unit_tests {
            if !passes(Command::new(program).arg("--test-threads=1"), number)? {
                return Ok(Verdict::UnitTests);
            }
        }
        let mut simulation = Command::new(&self.simulator);
        simulation.args(["--from", &SEED_FROM.to_string(), "--count", &SEEDS.to_string(), "--first"]);
        let survived = passes(&mut simulation, number)?;
        Ok(if survived { Verdict::Survived } else { Verdict::Simulation })
    }
}

/// Whether a program succeeds, in time, with a mutant.
fn passes(command: &mut Command, number: u32) -> Result<bool> {
    command.env("MARRAM_MUTANT", number.to_string()).env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    end(&mut child)?;
    Ok(false)
}

fn end(child: &mut Child) -> Result<()> {
    child.kill().context("cannot end a mutant that hangs")?;
    child.wait().context("cannot wait for a mutant that hangs")?;
    Ok(())
}

/// What a cargo command builds, by its own account.
fn executables(folder: &Path, arguments: &[&str]) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("cargo");
    command.current_dir(folder.join("tree")).args(arguments);
    command.args(["--release", "--locked", "--quiet", "--message-format", "json"]);
    // Half of the conditions are strange now; that is not worth a word.
    command.arg("--target-dir").arg(folder.join("build")).env("RUSTFLAGS", "-Awarnings");
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
