//! Does the simulation bite? Breaks the protocol on purpose, one small change at a time, and sees that seeds fail.
//!
//! Named mutations are rules left out, each written down with its reason (`mutations/named.txt`). Knows Rust only as text.
//! Changes by rule, of every operator and call, are the business of `cargo xtask mutants`.

mod named;
mod workshop;

use std::{fs, io, path::PathBuf, time::Instant};
use workshop::{Verdict, Workshop};

/// Fresh seeds in one of which a named mutation has to be caught: saved ones alone say nothing of tomorrow's mistakes.
const FRESH_SEEDS: u64 = 20_000;
/// Where they begin: nothing was ever tuned to these.
const FRESH_FROM: u64 = 7_000_000;

/// A change under a name.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// For people; unique.
    pub name: String,
    /// Kinds of it that are built together and chosen when it runs; empty if there is one only.
    variants: Vec<String>,
    /// Fresh seeds catch it, and so few that CI has no time for it.
    slow: bool,
    edits: Vec<Edit>,
}

/// One change of one file.
#[derive(Clone, Debug)]
struct Edit {
    /// Relative to the workspace.
    file: String,
    /// Where in the file, in bytes, the text begins that is replaced.
    at: usize,
    /// What is replaced.
    from: String,
    /// By what.
    to: String,
}

impl Edit {
    fn apply(&self, source: &str) -> Option<String> {
        let tail = source.get(self.at..)?.strip_prefix(self.from.as_str())?;
        Some(format!("{}{}{tail}", &source[..self.at], self.to))
    }
}

/// The workspace that this program was built from.
fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Applies every named mutation that is not slow, those whose name contains `only`, or all of them, slow ones included.
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
