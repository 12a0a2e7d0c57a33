//! Runs many seeds on all cores: which seeds fail, which states were reached, whether equal seeds run equally.

use crate::{run, watch::Counts};
use std::{
    process,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// One in this many seeds is run twice, to check that both runs are equal.
const TWICE: u64 = 100;

/// If one step of a machine takes longer, its thread hangs; no seed needs a hundredth of this.
const HANG: Duration = Duration::from_secs(60);
/// Interval at which threads are checked.
const LOOK: Duration = Duration::from_millis(20);

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The violations found.
    pub violations: Vec<String>,
}

/// Results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Seeds that completed without a violation.
    pub passed: u64,
    /// Events in all of these.
    pub events: u64,
    /// Answers of the Wasm machine that were compared with the fake's.
    pub compared: u64,
    /// Seeds that ran twice.
    pub twice: u64,
    /// The seeds that failed, in order.
    pub failures: Vec<Failure>,
    /// Rare states reached.
    pub counts: Counts,
}

impl Tally {
    /// Seeds that completed, passed or failed.
    #[must_use]
    pub fn seeds(&self) -> u64 {
        self.passed + self.failures.len() as u64
    }

    fn merge(&mut self, other: Self) {
        self.passed += other.passed;
        self.events += other.events;
        self.compared += other.compared;
        self.twice += other.twice;
        self.failures.extend(other.failures);
        self.counts.merge(&other.counts);
    }
}

/// Runs all seeds, on one thread per core; stops after about `failures_max` failures, since further ones would add no
/// information.
#[must_use]
pub fn run_all(seeds: &[u64], failures_max: usize) -> Tally {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let whole = Mutex::new(Tally::default());
    let at: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        let workers = at.iter().map(|at| {
            scope.spawn(|| {
                let part = work(seeds, failures_max, (&next, &stop, at));
                whole.lock().unwrap_or_else(PoisonError::into_inner).merge(part);
            })
        });
        let workers: Vec<_> = workers.collect();
        let mut seen: Vec<_> = at.iter().map(|at| (at.load(Ordering::Relaxed), Instant::now())).collect();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(LOOK);
            for ((seed, since), (at, worker)) in seen.iter_mut().zip(at.iter().zip(&workers)) {
                let now_at = at.load(Ordering::Relaxed);
                if now_at != *seed || worker.is_finished() {
                    (*seed, *since) = (now_at, Instant::now());
                } else if since.elapsed() > HANG {
                    // The thread cannot be ended; the process can.
                    println!("seed {seed} FAILED: a machine hangs inside one step");
                    process::exit(1);
                }
            }
        }
    });
    let mut whole = whole.into_inner().unwrap_or_else(PoisonError::into_inner);
    whole.failures.sort_by_key(|failure| failure.seed);
    whole
}

/// Runs seeds until none are left; `at` shows the current seed.
fn work(
    seeds: &[u64],
    failures_max: usize,
    (next, stop, at): (&AtomicUsize, &AtomicBool, &AtomicU64),
) -> Tally {
    let mut tally = Tally::default();
    while !stop.load(Ordering::Relaxed) {
        let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
        at.store(seed, Ordering::Relaxed);
        let mut outcome = run(seed, false);
        tally.events += outcome.events;
        tally.compared += outcome.compared;
        tally.counts.merge(&outcome.watch.counts);
        if seed.is_multiple_of(TWICE) && outcome.violations.is_empty() {
            tally.twice += 1;
            let again = run(seed, false);
            if again.hash != outcome.hash {
                outcome
                    .violations
                    .push(format!("ran differently twice: {:x}, {:x}", outcome.hash, again.hash));
            }
        }
        if outcome.violations.is_empty() {
            tally.passed += 1;
        } else {
            tally.failures.push(Failure { seed, violations: outcome.violations });
            if tally.failures.len() >= failures_max {
                stop.store(true, Ordering::Relaxed);
            }
        }
    }
    tally
}
