//! Tests the simulation itself: breaks the protocol on purpose, one small change at a time, and checks that seeds fail.
//!
//! Named mutations each remove one rule, and state the reason for it (`mutations/named.txt`). They are textual: this module does
//! not parse Rust. `cargo xtask mutants` does systematic mutations of operators and calls.

mod named;
mod workshop;

use std::{fs, io, path::PathBuf, time::Instant};
use workshop::{Verdict, Workshop};

/// A named mutation must be caught within this many fresh seeds: saved seeds alone say nothing about future bugs.
const FRESH_SEEDS: u64 = 20_000;
/// The first fresh seed: nothing was ever tuned to these seeds.
const FRESH_FROM: u64 = 7_000_000;

/// A named change of the sources.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// For people; unique.
    pub name: String,
    /// Variants that are built together and selected at run time; empty if there is only one.
    variants: Vec<String>,
    /// Whether so few fresh seeds catch it that CI has no time for it.
    slow: bool,
    edits: Vec<Edit>,
}

/// One change of one file.
#[derive(Clone, Debug)]
struct Edit {
    /// Relative to the workspace.
    file: String,
    /// Offset in the file, in bytes, of the text to replace.
    at: usize,
    /// Text to replace.
    from: String,
    /// Its replacement.
    to: String,
}

impl Edit {
    fn apply(&self, source: &str) -> Option<String> {
        let tail = source.get(self.at..)?.strip_prefix(self.from.as_str())?;
        Some(format!("{}{}{tail}", &source[..self.at], self.to))
    }
}

/// The workspace from which this program was built.
fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Applies the named mutations: all that are not slow, all with `slow`, or those whose name contains `only`.
/// Returns whether all were caught.
///
/// # Errors
/// If the copies cannot be written or built, or if a mutation does not fit the sources.
pub fn run_named(only: Option<&str>, slow: bool) -> io::Result<bool> {
    let text = fs::read_to_string(root().join("crates/sim/mutations/named.txt"))?;
    let mut mutations = named::parse(&text, &root())?;
    mutations.retain(|mutation| only.is_none_or(|only| mutation.name.contains(only)));
    if only.is_none() && !slow {
        let all = mutations.len();
        mutations.retain(|mutation| !mutation.slow);
        println!("{} of {all} are slow and left out; `--slow` runs them too", all - mutations.len());
    }
    let workshop = Workshop::open(&root())?;
    let (mut missed, mut all) = (0_usize, 0_usize);
    for mutation in &mutations {
        for verdict in try_one(&workshop, mutation)? {
            all += 1;
            missed += usize::from(!matches!(verdict, Verdict::Caught(_)));
        }
    }
    println!("{} of {all} named mutations caught by fresh seeds", all - missed);
    Ok(missed == 0 && all > 0)
}

fn try_one(workshop: &Workshop, mutation: &Mutation) -> io::Result<Vec<Verdict>> {
    let mut begun = Instant::now();
    let mut verdicts = Vec::new();
    workshop.try_mutation(mutation, FRESH_FROM, FRESH_SEEDS, |variant, verdict| {
        let name =
            variant.map_or_else(|| mutation.name.clone(), |variant| format!("{}/{variant}", mutation.name));
        println!("{name:<64} {verdict}, {:.0} s", begun.elapsed().as_secs_f64());
        begun = Instant::now();
        verdicts.push(verdict);
    })?;
    Ok(verdicts)
}
