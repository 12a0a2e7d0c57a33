//! Tests the simulation itself: breaks the protocol on purpose, one rule at a time, and checks that seeds fail.
//!
//! Named mutations each remove one rule, and state the reason for it (`mutations/named.txt`). All are compiled into one program,
//! and each run of it selects one. `cargo xtask mutants` does systematic mutations of operators and calls.
//!
//! A simulator that finds nothing is worth nothing unless it would find something. Each named
//! mutation is a bug that a careful author could write; if fresh seeds do not catch it, the faults,
//! the watch or the oracle are too weak, and that is a failure of this crate.
//!
//! ```text
//! mutations/named.txt --named--> edits --patch--> files with switches --workshop--> one program
//! MARRAM_MUTANT=trace target/mutants/.../marram-sim --from 7000000 --count 250  -> which seeds reach which mutation
//! MARRAM_MUTANT=7 target/mutants/.../marram-sim --first --seeds 7000003,7000041  -> FAILED or not
//! ```
//! Only the seeds that reach a mutation are run with it: the others would run as without it.
//! CI first tries the seed that caught a mutation when it was last searched for (`record`), and searches for what these seeds miss.

mod named;
mod patch;
mod record;
mod switch;
#[cfg(test)]
mod tests;
mod workshop;

use crate::{plan::HALLS_FROM, run};
use named::{Mutation, Named};
use record::Record;
use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};
use switch::Reached;
use workshop::{Verdict, Workshop};

/// A named mutation must be caught within this many fresh seeds: saved seeds alone say nothing about future bugs.
const FRESH_SEEDS: u64 = 20_000;
/// The same for a slow one, of which one seed in six thousand or more comes near the broken rule.
const FRESH_SEEDS_SLOW: u64 = 100_000;
/// The first fresh seed: nothing was ever tuned to these seeds.
const FRESH_FROM: u64 = 7_000_000;
/// Seeds of the first round: most mutations are caught by these. Rounds double from here on, so
/// that easy mutations cost little and hard ones get whole batches.
const ROUND_MIN: u64 = 250;
/// Seeds of a later round at most.
const ROUND_MAX: u64 = 2_000;
/// For so many fresh seeds there is one more with a hall: of the others few have one.
const ONE_HALL_IN: u64 = 5;
/// Most processes at a time. Each has as many threads as there are cores, so more gain nothing.
const PROCESSES_MAX: usize = 4;
/// Seeds that must run without a mutation exactly as in this program, from 0 on. A switch that is
/// off must change nothing, or a caught mutant would only show that the copy is broken.
const COMPARED_SEEDS: u64 = 100;

/// The workspace from which this program was built.
fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Reads the list of mutations. The list is read when the program runs, not when it is built: it
/// must fit the sources that are there now.
fn read() -> io::Result<Named> {
    named::parse(&fs::read_to_string(root().join(named::LIST))?).map_err(io::Error::other)
}

/// Which mutations to try, and how.
#[derive(Default, Debug)]
pub struct Chosen<'a> {
    /// Only those whose name contains this text.
    pub only: Option<&'a str>,
    /// The slow ones too, of which the recorded seeds are otherwise all that is tried.
    pub slow: bool,
    /// Writes the seeds that a search found to the record.
    pub write: bool,
}

impl Chosen<'_> {
    /// Whether fresh seeds are searched from the first on, whatever is recorded.
    fn searches(&self) -> bool {
        self.only.is_some() || self.slow
    }

    fn includes(&self, mutation: &Mutation, record: &Record) -> bool {
        let is_quick =
            self.slow || !mutation.slow || (!self.searches() && record.contains_key(&mutation.name));
        self.only.map_or(is_quick, |only| mutation.name.contains(only))
    }
}

/// Tries named mutations. Returns whether all were caught.
///
/// Without choice: each with the seed on record, and those that are not slow and were missed by it with fresh seeds, from the first on.
/// A slow one that its seed misses is reported and not searched for, which would take minutes; it counts as not caught.
///
/// # Errors
/// If the copy cannot be written or built, if a mutation does not fit the sources, if the copy runs differently without one, or if the
/// record cannot be read or written.
pub fn run_named(chosen: &Chosen<'_>) -> io::Result<bool> {
    let (named, mut record) = (read()?, record::read(&root())?);
    let all = named.mutations.len();
    let mutations: Vec<&Mutation> =
        named.mutations.iter().filter(|it| chosen.includes(it, &record)).collect();
    if mutations.is_empty() {
        let only = chosen.only.unwrap_or_default();
        return Err(io::Error::other(format!("no name in {} contains `{only}`", named::LIST)));
    }
    if mutations.len() < all && chosen.only.is_none() {
        println!("{} of {all} are slow and left out; `--slow` runs them too", all - mutations.len());
    }
    let begun = Instant::now();
    let workshop = Workshop::open(&root(), &named)?;
    println!("all {all} built in {:.0} s", begun.elapsed().as_secs_f64());
    is_unchanged(&workshop)?;
    println!("without a mutation, {COMPARED_SEEDS} seeds run as ever");
    let (left, stale) = if chosen.searches() {
        (mutations.clone(), 0)
    } else {
        try_recorded(&workshop, &mutations, &record)?
    };
    let caught = mutations.len() - left.len() - stale;
    let search = Search { workshop: &workshop, begun };
    let (found, missed) = search.run(&left)?;
    let missed = missed + stale;
    if chosen.write {
        left.iter().for_each(|mutation| _ = record.remove(&mutation.name));
        record.retain(|name, _| named.mutations.iter().any(|mutation| mutation.name == *name));
        record.extend(found);
        record::write(&root(), &record)?;
    }
    println!(
        "{} of {} named mutations caught by fresh seeds, {caught} of them by those on record, {:.0} s",
        mutations.len() - missed,
        mutations.len(),
        begun.elapsed().as_secs_f64()
    );
    Ok(missed == 0)
}

/// Tries each mutation with the seed on record. Returns what has none or is missed by it, and apart from these the number of slow ones
/// that are missed: seeds are on record for the protocol as it is now.
///
/// # Errors
/// If the copy cannot be run.
fn try_recorded<'a>(
    workshop: &Workshop,
    mutations: &[&'a Mutation],
    record: &Record,
) -> io::Result<(Vec<&'a Mutation>, usize)> {
    let verdicts = on_all_cores(mutations, |mutation| {
        let Some(seed) = record.get(&mutation.name) else { return Ok(false) };
        Ok(workshop.run(mutation.number, &["--first", "--seeds", &seed.to_string()])? != Verdict::Survived)
    })?;
    let missed = mutations.iter().zip(verdicts).filter(|(_, is_caught)| !is_caught);
    let (slow, left): (Vec<&Mutation>, _) = missed.map(|(mutation, _)| *mutation).partition(|it| it.slow);
    for mutation in &slow {
        println!(
            "{:<64} is slow, and its seed on record misses it now: search for another with `--only {0} --write`",
            mutation.name
        );
    }
    Ok((left, slow.len()))
}

/// Checks that the copy does without a mutation what the sources do: otherwise mutants would show nothing.
fn is_unchanged(workshop: &Workshop) -> io::Result<()> {
    let different =
        |seed: &u64| -> io::Result<bool> { Ok(workshop.hash_of(*seed)? != Some(run(*seed, false).hash)) };
    let seeds: Vec<u64> = (0..COMPARED_SEEDS).collect();
    for (seed, differs) in seeds.iter().zip(on_all_cores(&seeds, different)?) {
        if differs {
            return Err(io::Error::other(format!(
                "seed {seed} runs differently with no mutation selected: an entry with BROKEN changes more than its mutation, or \
                 this program was built from other sources; compare `marram-sim {seed}` with that of \
                 target/mutants/target/release"
            )));
        }
    }
    Ok(())
}

/// A search among fresh seeds.
struct Search<'a> {
    workshop: &'a Workshop,
    begun: Instant,
}

impl Search<'_> {
    /// Runs fresh seeds with each mutation until one fails, and the saved seeds if none does. Returns which seeds failed, by the
    /// mutations' names, and how many mutations fresh seeds missed.
    ///
    /// A mutation that only a saved seed catches counts as missed: the saved seeds were chosen because
    /// of past bugs, so they say nothing about how often fresh seeds reach the broken rule.
    ///
    /// # Errors
    /// If the copy cannot be run, or if a seed fails without a mutation.
    fn run(&self, chosen: &[&Mutation]) -> io::Result<(Record, usize)> {
        let (mut left, mut next, mut round) = (chosen.to_vec(), FRESH_FROM, ROUND_MIN);
        let seeds_of = |mutation: &Mutation| if mutation.slow { FRESH_SEEDS_SLOW } else { FRESH_SEEDS };
        let (mut found, mut survivors) = (Record::new(), Vec::new());
        loop {
            survivors.extend(left.extract_if(.., |mutation| next >= FRESH_FROM + seeds_of(mutation)));
            if left.is_empty() {
                break;
            }
            // The last round of one that is not slow goes a little further.
            let count = round.min(FRESH_FROM + FRESH_SEEDS_SLOW - next);
            let mut reached = self.workshop.reached(next, count)?;
            reached.extend(self.workshop.reached(HALLS_FROM + next, count / ONE_HALL_IN)?);
            let verdicts = on_all_cores(&left, |mutation| self.try_one(mutation, &reached))?;
            let caught = left.iter().zip(&verdicts).filter_map(|(it, verdict)| Some((it, verdict.seed()?)));
            found.extend(caught.map(|(mutation, seed)| (mutation.name.clone(), seed)));
            let mut verdicts = verdicts.iter();
            left.retain(|_| verdicts.next() == Some(&Verdict::Survived));
            (next, round) = (next + count, (round * 2).min(ROUND_MAX));
        }
        for mutation in &survivors {
            let verdict = match self.workshop.run(mutation.number, &["--first", "--count", "0"])? {
                Verdict::Caught(words) => Verdict::SavedOnly(words),
                verdict => verdict,
            };
            self.report(mutation, &verdict);
        }
        Ok((found, survivors.len()))
    }

    /// Runs with a mutation those of the seeds that reach it.
    fn try_one(&self, mutation: &Mutation, reached: &[Reached]) -> io::Result<Verdict> {
        let seeds = that_reach(mutation, reached);
        if seeds.is_empty() {
            return Ok(Verdict::Survived);
        }
        let verdict = self.workshop.run(mutation.number, &["--first", "--seeds", &seeds])?;
        if verdict != Verdict::Survived {
            self.report(mutation, &verdict);
        }
        Ok(verdict)
    }

    fn report(&self, mutation: &Mutation, verdict: &Verdict) {
        println!("{:<64} {verdict}, {:.0} s", mutation.name, self.begun.elapsed().as_secs_f64());
    }
}

/// The seeds that reach a mutation, as an argument of `marram-sim`. Those with few events come first: any of them may fail, and some take
/// as long as a thousand others.
fn that_reach(mutation: &Mutation, reached: &[Reached]) -> String {
    let mut reaching: Vec<_> = reached.iter().filter(|it| it.mutations.contains(&mutation.number)).collect();
    reaching.sort_by_key(|it| it.events);
    reaching.iter().map(|it| it.seed.to_string()).collect::<Vec<_>>().join(",")
}

/// Does something for each, in several threads; the results are in order.
///
/// # Errors
/// The first error of any thread; the others finish what they have begun.
fn on_all_cores<T: Sync, R: Send>(
    each: &[T],
    act: impl Fn(&T) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(PROCESSES_MAX);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> io::Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = each.get(index) else { return Ok(()) };
            let result = act(one)?;
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("the work does not panic"))
    })?;
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}
