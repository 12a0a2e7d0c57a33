//! Runs many seeds on all cores: which seeds fail, which states were reached, whether equal seeds run equally.
//!
//! ```text
//! seeds  [s0 s1 s2 s3 ...]   one counter, `next`: each worker takes the next index
//! workers  0..cores          each runs whole seeds and keeps a Tally of its own
//! main thread                looks at `at[worker]` every LOOK; merges the tallies at the end
//! ```
//! A seed runs on one thread from its start to its end and shares nothing with others, so the order
//! in which seeds run has no effect on their results. Knows nothing of a world: only [`run`] and
//! what it returns.

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
///
/// Both runs are in this process, so the check finds what depends on addresses, on hash maps or on
/// what an earlier seed left behind.
const TWICE: u64 = 100;

/// If a seed takes longer, a step of a machine hangs. The heaviest seeds need ten seconds of a core, which they may have to share.
const HANG: Duration = Duration::from_secs(180);
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
    /// The seeds that failed, in order. The threads add them in any order; [`run_all`] sorts them
    /// by seed, so that the output of two runs can be compared.
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

    /// Counts are sums, so the order of merging has no effect. Failures are sorted later.
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
///
/// Each thread stops by its own count of failures, so up to `failures_max` times the number of
/// threads can be returned. Seeds that were not begun by then are in no count.
///
/// # Exits
/// With code 1, if a step of a machine does not return for `HANG`: a thread cannot be ended from
/// outside, and without this a mutation that loops for ever would never be reported.
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
        // Relaxed: the value is only compared for change.
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
