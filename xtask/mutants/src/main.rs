//! Mutation tests of the protocol: every comparison, sum, condition and call of a crate is changed by
//! rule, and for each change the crate's unit tests or the simulation must fail.
//!
//! All changes are compiled in at once, each with a number, and a run selects one by an environment variable: so a
//! thousand of them need one build. Called by `cargo xtask mutants`.
//!
//! ```text
//! crate --tree/mutate--> copy of the repository with all changes, each behind a switch
//!       --programs-----> one build: test programs and the simulator
//!       --judge--------> verdict of each mutant   --report--> share that was caught, survivors with reasons
//! ```
//! The named mutations of the simulator break a rule on purpose; these break code by rule. What
//! they find is code that no test would miss. A survivor is either a missing test or a change that
//! no peer can see; `survivors.txt` says which, with the reason.

mod judge;
mod mutate;
mod programs;
mod tree;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};

use judge::{Judge, Verdict};
use mutate::Mutant;
use programs::Programs;

/// At least this many percent must be caught.
const CAUGHT_PERCENT_MIN: usize = 90;

/// Known survivors with reasons; path relative to the repository.
const SURVIVORS: &str = "xtask/mutants/survivors.txt";

/// Prefix of the reason of a survivor that no test needs to catch.
const HARMLESS: &str = "harmless: ";

const USAGE: &str =
    "usage: cargo xtask mutants [--crate NAME] [--file TEXT] [--every N] [--from K] [--quick] [--list]
  --crate NAME   the crate to change (session)
  --file TEXT    try only mutants of files with this text in their path
  --every N      try each N-th mutant only (1)
  --from K       beginning with the K-th (1)
  --quick        run the unit tests only, not the simulation
  --list         name the mutants and try none";

/// What `USAGE` says.
struct Arguments {
    name: String,
    file: String,
    every: usize,
    from: usize,
    quick: bool,
    list: bool,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether enough were caught. The lock is held from writing the tree until the programs
/// are copied, so that two runs do not build each other's changes.
fn run() -> Result<bool> {
    let arguments = parse(std::env::args().skip(1))?;
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("`cargo xtask mutants` runs this")?;
    let root = PathBuf::from(manifest).join("../..").canonicalize()?;
    let folder = root.join("target/mechanical");
    let lock = programs::lock(&folder)?;
    let mutants = tree::write(&root, &folder.join("tree"), &arguments.name)?;
    let in_files = mutants.iter().filter(|mutant| mutant.file.contains(&arguments.file));
    let chosen: Vec<_> = in_files.skip(arguments.from.saturating_sub(1)).step_by(arguments.every).collect();
    println!("{} mutants of marram-{}, {} chosen", mutants.len(), arguments.name, chosen.len());
    if arguments.list {
        chosen.iter().for_each(|mutant| println!("{mutant}"));
        return Ok(true);
    }
    let programs = Programs::build(&folder, &arguments.name, arguments.quick)?;
    drop(lock);
    let known = std::fs::read_to_string(root.join(SURVIVORS)).context(SURVIVORS)?;
    let judge = Judge::new(programs)?;
    let verdicts = judge.try_all(&chosen)?;
    report(&verdicts, &known)
}

/// Prints the survivors, known or not, and the totals.
///
/// Survivors that are known to be harmless do not count; a reason is found by the mutant's name,
/// which does not depend on line numbers.
fn report(verdicts: &[(&Mutant, Verdict)], known: &str) -> Result<bool> {
    let mut harmless = 0;
    for (mutant, _) in verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Survived) {
        let reason = known.lines().find_map(|line| line.strip_prefix(&mutant.name())?.strip_prefix(" # "));
        harmless += usize::from(reason.is_some_and(|reason| reason.starts_with(HARMLESS)));
        println!("survived: {mutant} # {}", reason.unwrap_or("no reason known"));
    }
    let count = |wanted| verdicts.iter().filter(|(_, verdict)| *verdict == wanted).count();
    for verdict in [Verdict::UnitTests, Verdict::Simulation, Verdict::Survived] {
        println!("{:>6} {verdict:?}", count(verdict));
    }
    let (caught, harmful) = (verdicts.len() - count(Verdict::Survived), verdicts.len() - harmless);
    if harmful == 0 {
        bail!("no mutant was tried");
    }
    println!("caught {caught} of {harmful} that change what a peer can see ({} %)", caught * 100 / harmful);
    Ok(caught * 100 >= harmful * CAUGHT_PERCENT_MIN)
}

/// A value that is missing or no number shows the usage.
fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments> {
    let (name, file) = ("session".to_owned(), String::new());
    let mut arguments = Arguments { name, file, every: 1, from: 1, quick: false, list: false };
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value after it\n{USAGE}"));
        match word.as_str() {
            "--crate" => arguments.name = value()?,
            "--file" => arguments.file = value()?,
            "--every" => arguments.every = value()?.parse().ok().filter(|every| *every > 0).context(USAGE)?,
            "--from" => arguments.from = value()?.parse().ok().context(USAGE)?,
            "--quick" => arguments.quick = true,
            "--list" => arguments.list = true,
            _ => bail!("unknown argument `{word}`\n{USAGE}"),
        }
    }
    Ok(arguments)
}
