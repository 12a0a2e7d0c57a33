//! `marram-sim`: runs seeds, prints which failed and how to reproduce them.
//!
//! Exit codes: 0 if all seeds passed and, in a run that is large enough, every rare state was
//! reached often; 1 otherwise; 2 for wrong arguments. Output is for people and for
//! `mutants::workshop`, which looks for the word `FAILED` and for `, trace` and a hash: change
//! these words in both places.

use marram_sim::{
    batch::{self, Tally},
    mutants,
    plan::HALLS_FROM,
    run,
    watch::Rare,
};
use std::{
    panic,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Seeds that failed in the past; they always run first. One per line; words after the number say
/// why it is there and are ignored.
const SAVED: &str = include_str!("../seeds.txt");
/// Number of new seeds that a run without arguments adds to the saved seeds. They are the seeds
/// from 0 on, so two runs without arguments are the same run.
const FRESH: u64 = 10_000;
/// A run of at least [`FRESH`] seeds must reach every rare state this often, or its coverage is too low.
const REACHED_MIN: u64 = 50;
/// Of a hundred first faults at least this many must hit a running session, or the coverage is too low.
const RUNNING_STRUCK_PERCENT_MIN: u64 = 95;
/// Percentages are checked only from this many seeds on.
const SHARE_OF_MIN: u64 = 5_000;
/// Number of last events that are shown of a failed seed.
const LINES_SHOWN: usize = 80;
/// The run stops after this many failures.
const FAILURES_MAX: usize = 20;

const USAGE: &str =
    "usage: marram-sim [SEED | [--halls] --from SEED --count N | [--halls] --seeds SEED,SEED] [--first] [--verbose]
       marram-sim mutants [--only TEXT] [--slow] [--write]
  without arguments: the saved seeds and 10,000 more
  SEED               that seed alone, with everything that happened
  --from --count     so many seeds from that one on
  --seeds            these seeds
  --halls            of --from and --seeds: the same seeds with a hall, which have numbers of their own
  --backups          of --from: only seeds in which operators move the backups of sessions; --count is how many of these
  --first            stop at the first failure
  --verbose          of one seed, all events; of many, what each failed seed did last
  --wasm             with the Wasm machine beside the fake (feature `wasm`)
  mutants            every named mutation of the protocol must be caught: by the seed on record, or by others
  --only --slow      of mutants: whose name contains the text; the slow ones too. Both search, whatever is on record
  --write            of mutants: put the seeds that a search found on record";

/// What to run. All options are independent; a seed wins over `--from`, and `mutants` over both.
#[derive(Debug, Default)]
struct Arguments {
    seed: Option<u64>,
    from: Option<u64>,
    count: Option<u64>,
    seeds: Vec<u64>,
    halls: bool,
    backups: bool,
    first: bool,
    verbose: bool,
    mutants: bool,
    only: Option<String>,
    slow: bool,
    write: bool,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(reason) => {
            eprintln!("{reason}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // A panic is a violation, and its seed reproduces it: its message need not be printed twice.
    panic::set_hook(Box::new(|_| {}));
    let passed = match arguments.seed {
        _ if arguments.mutants => mutate(&arguments),
        Some(seed) => show(seed, arguments.verbose),
        None => many(&arguments),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The last number without an option wins. `--wasm` acts at once, since the modules are deployed
/// for the whole process.
fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    let number = |word: Option<String>| {
        let word = word.ok_or("a number is missing")?;
        word.parse().map_err(|_| format!("`{word}` is not a number"))
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--from" => arguments.from = Some(number(words.next())?),
            "--count" => arguments.count = Some(number(words.next())?),
            "--seeds" => {
                let seeds = words.next().unwrap_or_default();
                arguments.seeds =
                    seeds.split(',').map(|seed| number(Some(seed.into()))).collect::<Result<_, _>>()?;
            }
            "--halls" => arguments.halls = true,
            "--backups" => arguments.backups = true,
            "--first" => arguments.first = true,
            "--verbose" => arguments.verbose = true,
            #[cfg(feature = "wasm")]
            "--wasm" => {
                let modules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/cells");
                marram_sim::twin::deploy(modules.as_ref()).map_err(|error| format!("{modules}: {error}"))?;
            }
            "mutants" => arguments.mutants = true,
            "--only" => arguments.only = words.next(),
            "--slow" => arguments.slow = true,
            "--write" => arguments.write = true,
            _ => arguments.seed = Some(number(Some(word))?),
        }
    }
    Ok(arguments)
}

/// Runs the named mutations and checks that each is detected.
fn mutate(arguments: &Arguments) -> bool {
    let Arguments { only, slow, write, .. } = arguments;
    let chosen = mutants::Chosen { only: only.as_deref(), slow: *slow, write: *write };
    mutants::run_named(&chosen).unwrap_or_else(|error| {
        eprintln!("mutations: {error}");
        false
    })
}

/// Runs one seed and prints its events.
fn show(seed: u64, verbose: bool) -> bool {
    let outcome = run(seed, true);
    let skip = if verbose { 0 } else { outcome.lines.len().saturating_sub(LINES_SHOWN) };
    outcome.lines.iter().skip(skip).for_each(|line| println!("{line}"));
    for violation in &outcome.violations {
        println!("VIOLATION: {violation}");
    }
    println!("seed {seed}: {} events, trace {:016x}", outcome.events, outcome.hash);
    let failed = u64::from(!outcome.violations.is_empty());
    println!("{} passed, {failed} failed", 1 - failed);
    failed == 0
}

/// The seeds that were asked for: a list, a range, or the saved ones and fresh ones. With the number of fresh ones of all kinds.
fn chosen(arguments: &Arguments) -> (Vec<u64>, u64) {
    if arguments.backups {
        let count = usize::try_from(arguments.count.unwrap_or(1_000)).unwrap_or(usize::MAX);
        let from = arguments.from.unwrap_or(0)..HALLS_FROM;
        return (from.filter(|seed| marram_sim::moves_backups(*seed)).take(count).collect(), 0);
    }
    let base = if arguments.halls { HALLS_FROM } else { 0 };
    if !arguments.seeds.is_empty() {
        return (arguments.seeds.iter().map(|seed| base.saturating_add(*seed)).collect(), 0);
    }
    let count =
        arguments.count.unwrap_or(if arguments.from.is_some() || arguments.halls { 1_000 } else { FRESH });
    let from = base.saturating_add(arguments.from.unwrap_or(0));
    let saved = SAVED.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
    let is_ranged = arguments.from.is_some() || arguments.halls;
    let mut seeds: Vec<u64> = if is_ranged { Vec::new() } else { saved.collect() };
    seeds.extend(from..from.saturating_add(count));
    // Histories of one kind reach only some of what all others together reach.
    (seeds, if arguments.halls { 0 } else { count })
}

/// Runs many seeds.
fn many(arguments: &Arguments) -> bool {
    let begun = Instant::now();
    let (seeds, count) = chosen(arguments);
    let tally = batch::run_all(&seeds, if arguments.first { 1 } else { FAILURES_MAX });
    for failure in &tally.failures {
        println!("seed {} FAILED: {}", failure.seed, failure.violations.join("; "));
        if arguments.verbose {
            show(failure.seed, false);
        }
    }
    if let Some(first) = tally.failures.first() {
        println!("see it again: cargo xtask sim {}", first.seed);
    }
    report(&tally, count, begun.elapsed())
}

/// Prints the counts and returns whether they are sufficient. `count` is the number of fresh seeds
/// that were asked for: a short run, or one of a single failure, is not expected to reach
/// everything.
fn report(tally: &Tally, count: u64, took: Duration) -> bool {
    let mut enough = true;
    for (rare, times) in tally.counts.each() {
        let short = count >= FRESH && times < REACHED_MIN;
        enough &= !short;
        println!("{times:>9} {rare:?}{}", if short { "   TOO FEW" } else { "" });
    }
    let (run, struck) = (tally.seeds(), tally.counts.of(Rare::RunningSessionStruck));
    let aimed = count < SHARE_OF_MIN || struck * 100 >= run * RUNNING_STRUCK_PERCENT_MIN;
    let share = (struck * 1_000).checked_div(run).unwrap_or(0);
    println!(
        "in {}.{} % of the seeds the first fault struck a running session{}",
        share / 10,
        share % 10,
        if aimed { "" } else { "   TOO FEW" }
    );
    println!(
        "{} events, {} seeds run twice and equal, all of {} rare states reached often: {}, {:.1} s",
        tally.events,
        tally.twice,
        Rare::ALL.len(),
        if count >= FRESH { if enough { "yes" } else { "NO" } } else { "not asked" },
        took.as_secs_f64()
    );
    if tally.compared > 0 {
        println!("{} answers of the Wasm machine compared with the fake's", tally.compared);
    }
    println!("{} passed, {} failed", tally.passed, tally.failures.len());
    enough && aimed && tally.failures.is_empty()
}
