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

mod named;
mod patch;
mod switch;
#[cfg(test)]
mod tests;
mod workshop;

use crate::{plan::HALLS_FROM, run};
use named::{Mutation, Named};
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

/// Tries the named mutations: all that are not slow, all with `slow`, or those whose name contains `only`.
/// Returns whether all were caught.
///
/// # Errors
/// If the copy cannot be written or built, if a mutation does not fit the sources, or if the copy runs differently without one.
pub fn run_named(only: Option<&str>, slow: bool) -> io::Result<bool> {
    let named = read()?;
    let is_chosen =
        |mutation: &&Mutation| only.map_or(slow || !mutation.slow, |only| mutation.name.contains(only));
    let chosen: Vec<&Mutation> = named.mutations.iter().filter(is_chosen).collect();
    if chosen.is_empty() {
        return Err(io::Error::other(format!(
            "no name in {} contains `{}`",
            named::LIST,
            only.unwrap_or_default()
        )));
    }
    if only.is_none() && !slow {
        let (all, left_out) = (named.mutations.len(), named.mutations.len() - chosen.len());
        println!("{left_out} of {all} are slow and left out; `--slow` runs them too");
    }
    let begun = Instant::now();
    let workshop = Workshop::open(&root(), &named)?;
    println!("all {} built in {:.0} s", named.mutations.len(), begun.elapsed().as_secs_f64());
    is_unchanged(&workshop)?;
    println!("without a mutation, {COMPARED_SEEDS} seeds run as ever");
    let missed = try_all(&workshop, &chosen)?;
    let (all, took) = (chosen.len(), begun.elapsed().as_secs_f64());
    println!("{} of {all} named mutations caught by fresh seeds, {took:.0} s", all - missed);
    Ok(missed == 0)
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

/// Runs fresh seeds with each mutation until one fails, and the saved seeds if none does. Returns how many fresh seeds missed.
///
/// A mutation that only a saved seed catches counts as missed: the saved seeds were chosen because
/// of past bugs, so they say nothing about how often fresh seeds reach the broken rule.
fn try_all(workshop: &Workshop, chosen: &[&Mutation]) -> io::Result<usize> {
    let begun = Instant::now();
    let report = |mutation: &Mutation, verdict: &Verdict| {
        println!("{:<64} {verdict}, {:.0} s", mutation.name, begun.elapsed().as_secs_f64());
    };
    let (mut left, mut next, mut round) = (chosen.to_vec(), FRESH_FROM, ROUND_MIN);
    let seeds_of = |mutation: &Mutation| if mutation.slow { FRESH_SEEDS_SLOW } else { FRESH_SEEDS };
    let mut survivors = Vec::new();
    loop {
        survivors.extend(left.extract_if(.., |mutation| next >= FRESH_FROM + seeds_of(mutation)));
        if left.is_empty() {
            break;
        }
        // The last round of one that is not slow goes a little further.
        let count = round.min(FRESH_FROM + FRESH_SEEDS_SLOW - next);
        let mut reached = workshop.reached(next, count)?;
        reached.extend(workshop.reached(HALLS_FROM + next, count / ONE_HALL_IN)?);
        let verdicts = on_all_cores(&left, |mutation| {
            let seeds = that_reach(mutation, &reached);
            if seeds.is_empty() {
                return Ok(Verdict::Survived);
            }
            let verdict = workshop.run(mutation.number, &["--first", "--seeds", &seeds])?;
            if verdict != Verdict::Survived {
                report(mutation, &verdict);
            }
            Ok(verdict)
        })?;
        let mut verdicts = verdicts.iter();
        left.retain(|_| verdicts.next() == Some(&Verdict::Survived));
        (next, round) = (next + count, (round * 2).min(ROUND_MAX));
    }
    for mutation in &survivors {
        let verdict = match workshop.run(mutation.number, &["--first", "--count", "0"])? {
            Verdict::Caught(words) => Verdict::SavedOnly(words),
            verdict => verdict,
        };
        report(mutation, &verdict);
    }
    Ok(survivors.len())
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
