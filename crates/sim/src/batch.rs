//! Many seeds on all cores: who fails, what was reached, whether equal seeds run equally.

use crate::{run, watch::Counts};
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

/// One in so many seeds is run twice, to see that it runs the same.
const TWICE: u64 = 100;

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which.
    pub seed: u64,
    /// Why.
    pub violations: Vec<String>,
}

/// What came of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Seeds that were run to a verdict without a violation.
    pub passed: u64,
    /// Events in all of them.
    pub events: u64,
    /// Seeds that were run twice.
    pub twice: u64,
    /// The others, in order of seed.
    pub failures: Vec<Failure>,
    /// Rare states reached.
    pub counts: Counts,
}

impl Tally {
    fn merge(&mut self, other: Self) {
        self.passed += other.passed;
        self.events += other.events;
        self.twice += other.twice;
        self.failures.extend(other.failures);
        self.counts.merge(&other.counts);
    }
}

/// Runs all seeds, on as many threads as there are cores; breaks off after about `failures_max` failures, since the rest
/// would say nothing new.
#[must_use]
pub fn run_all(seeds: &[u64], failures_max: usize) -> Tally {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let whole = Mutex::new(Tally::default());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let part = work(seeds, failures_max, &next, &stop);
                whole.lock().unwrap_or_else(PoisonError::into_inner).merge(part);
            });
        }
    });
    let mut whole = whole.into_inner().unwrap_or_else(PoisonError::into_inner);
    whole.failures.sort_by_key(|failure| failure.seed);
    whole
}

fn work(seeds: &[u64], failures_max: usize, next: &AtomicUsize, stop: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    while !stop.load(Ordering::Relaxed) {
        let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
        let mut outcome = run(seed, false);
        tally.events += outcome.events;
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
