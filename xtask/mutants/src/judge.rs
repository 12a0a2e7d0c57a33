//! Runs the tests against one mutant after another, cheapest tests first.
//!
//! ```text
//! mutant n --MARRAM_MUTANT=n--> tests of the crate, tests of the edge --all pass--> simulation --passes--> survived
//!                                     '- one fails: caught                             '- fails: caught
//! ```
//! A mutant that hangs, or that takes more memory than any test, is caught too: both would be
//! noticed. The programs are the same for all mutants; only the environment differs.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{mutate::Mutant, programs::Programs};

/// The result of a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The tests of the crate, or of the edge that uses it, failed.
    UnitTests,
    /// A simulated history failed.
    Simulation,
    /// No test failed.
    Survived,
}

/// Number of simulated histories, up to the first that fails. Fewer than CI runs, since there are
/// thousands of mutants.
const SEEDS: u32 = 3_000;

/// First seed of the histories, different from those of CI.
const SEED_FROM: u32 = 1_000_000;

/// A mutant that hangs is caught: its time limit is this many times the tests' normal time, plus a constant.
const SLOWER_MAX: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory limit of a mutant, in bytes: a mutant that allocates too much is caught. The unchanged tests need a tenth of it.
const MEMORY_MAX: u64 = 2 << 30;

/// Interval at which a running program is checked.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Progress is printed after this many mutants.
const TELL_EVERY: usize = 50;

/// The programs to run, and their time limits.
pub(crate) struct Judge {
    programs: Programs,
    /// For each test program of a mutant.
    unit_tests_max: Duration,
    /// For the whole simulation of a mutant.
    simulation_max: Duration,
}

impl Judge {
    /// Checks that all tests pass without a mutant.
    ///
    /// Both are timed without a mutant (number 0), with generous limits, and give the limits for
    /// the mutants. The memory limit is that of data segments (`RLIMIT_DATA`), which processes
    /// inherit.
    ///
    /// # Errors
    /// If they do not pass: then a failure would say nothing about a mutant.
    pub(crate) fn new(programs: Programs) -> Result<Self> {
        // Applies to this process from here on, and so to every process that it starts.
        let limit = Rlimit { current: Some(MEMORY_MAX), ..getrlimit(Resource::Data) };
        setrlimit(Resource::Data, limit).context("cannot limit the memory of the tested programs")?;
        let first = Duration::from_secs(600);
        let mut judge = Self { programs, unit_tests_max: first, simulation_max: first };
        let started = Instant::now();
        if !judge.unit_tests_pass(0)? {
            bail!("the unit tests fail without any mutant");
        }
        judge.unit_tests_max = PATIENCE + started.elapsed() * SLOWER_MAX;
        let started = Instant::now();
        if !judge.simulation_passes(0)? {
            bail!("the simulation fails without any mutant");
        }
        judge.simulation_max = PATIENCE + started.elapsed() * SLOWER_MAX;
        Ok(judge)
    }

    /// Tries the mutants on all cores; the results are in the order of the mutants.
    ///
    /// As many mutants at a time as there are cores; each test program runs its tests on one
    /// thread.
    pub(crate) fn try_all<'a>(&self, mutants: &[&'a Mutant]) -> Result<Vec<(&'a Mutant, Verdict)>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (next, started, found) = (AtomicUsize::new(0), Instant::now(), Mutex::new(Vec::new()));
        let work = || -> Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(mutant) = mutants.get(index) else { return Ok(()) };
                let verdict = self.verdict(mutant.number)?;
                let mut found = found.lock().expect("no thread panics while it holds the list");
                found.push((index, verdict));
                if verdict == Verdict::Survived {
                    println!("survived: {mutant}");
                }
                if found.len() % TELL_EVERY == 0 {
                    println!("{}", progress(&found, mutants.len(), started.elapsed()));
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

    /// The first kind of test that notices the mutant.
    fn verdict(&self, number: u32) -> Result<Verdict> {
        Ok(if !self.unit_tests_pass(number)? {
            Verdict::UnitTests
        } else if self.simulation_passes(number)? {
            Verdict::Survived
        } else {
            Verdict::Simulation
        })
    }

    /// With number 0, without a mutant.
    fn unit_tests_pass(&self, number: u32) -> Result<bool> {
        for program in &self.programs.unit_tests {
            if !passes(command(program).arg("--test-threads=1"), number, self.unit_tests_max)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Also true if there is no simulator.
    fn simulation_passes(&self, number: u32) -> Result<bool> {
        let Some(simulator) = &self.programs.simulator else { return Ok(true) };
        let mut simulation = command(simulator);
        simulation.args(["--from", &SEED_FROM.to_string(), "--count", &SEEDS.to_string(), "--first"]);
        passes(&mut simulation, number, self.simulation_max)
    }
}

/// An estimate from the mean so far; mutants that survive take longest.
fn progress(found: &[(usize, Verdict)], all: usize, elapsed: Duration) -> String {
    let survived = found.iter().filter(|(_, verdict)| *verdict == Verdict::Survived).count();
    let left_s = elapsed.as_secs_f64() / found.len() as f64 * (all - found.len()) as f64;
    format!("{} of {all} tried, {survived} survived, about {left_s:.0} s left", found.len())
}

/// Without output: thousands of failures are of no interest, only that there was one.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("RUST_BACKTRACE", "0");
    command
}

/// Whether a program succeeds, within the time limit, with a mutant.
///
/// Polls, since the standard library has no wait with a time limit. A process that was killed by a
/// signal has not succeeded.
fn passes(command: &mut Command, number: u32, patience: Duration) -> Result<bool> {
    command.env("MARRAM_MUTANT", number.to_string());
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    end(&mut child)?;
    Ok(false)
}

/// Reaps it too, or zombies would add up over thousands of mutants.
fn end(child: &mut Child) -> Result<()> {
    child.kill().context("cannot kill a mutant that hangs")?;
    child.wait().context("cannot wait for a mutant that hangs")?;
    Ok(())
}
