//! Does the simulation bite? Breaks the protocol on purpose, one small change at a time, and sees that seeds fail.
//!
//! Named mutations are rules left out, each written down with its reason (`mutations/named.txt`). Mechanical ones are
//! drawn from the sources: operators, conditions, statements. Knows Rust only as tokens on lines.

mod mechanical;
mod named;
mod workshop;

use crate::random::Random;
use std::{fs, io, path::PathBuf, time::Instant};
use workshop::{Verdict, Workshop};

/// Of all viable mechanical mutations so many in a hundred must be caught.
const CAUGHT_MIN_PERCENT: u64 = 90;
/// Seeds that a named mutation has to be caught in.
const NAMED_SEEDS: u64 = 20_000;
/// As above, mechanical.
const MECHANICAL_SEEDS: u64 = 6_000;

/// A change under a name.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// For people; unique.
    pub name: String,
    edits: Vec<Edit>,
}

/// One change of one file; no two of a mutation are in the same.
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

/// Applies every named mutation, or those whose name contains `only`. Returns whether all were caught.
///
/// # Errors
/// If the copies cannot be written or built, or if a mutation does not fit the sources.
pub fn run_named(only: Option<&str>) -> io::Result<bool> {
    let text = fs::read_to_string(root().join("crates/sim/mutations/named.txt"))?;
    let mut mutations = named::parse(&text, &root())?;
    mutations.retain(|mutation| only.is_none_or(|only| mutation.name.contains(only)));
    let workshop = Workshop::open(&root())?;
    let mut missed = 0_usize;
    for mutation in &mutations {
        let verdict = try_one(&workshop, mutation, NAMED_SEEDS)?;
        missed += usize::from(!matches!(verdict, Verdict::Caught(_)));
    }
    println!("{} of {} named mutations caught", mutations.len() - missed, mutations.len());
    Ok(missed == 0 && !mutations.is_empty())
}

/// Applies `count` mechanical mutations drawn by `seed`. Returns whether enough were caught.
///
/// # Errors
/// As [`run_named`].
pub fn run_mechanical(count: usize, seed: u64) -> io::Result<bool> {
    let mut candidates = mechanical::candidates(&root())?;
    println!("{} candidates", candidates.len());
    let mut random = Random::new(seed, 7);
    let known = fs::read_to_string(root().join("crates/sim/mutations/survivors.txt")).unwrap_or_default();
    let workshop = Workshop::open(&root())?;
    let (mut caught, mut survived) = (0_u64, 0_u64);
    for _ in 0..count.min(candidates.len()) {
        let mutation = candidates.swap_remove(random.index(candidates.len()));
        match try_one(&workshop, &mutation, MECHANICAL_SEEDS)? {
            Verdict::Caught(_) => caught += 1,
            Verdict::Unviable => {}
            Verdict::Survived => {
                survived += 1;
                let listed = known.lines().any(|line| line.starts_with(&mutation.name));
                println!("    {}", if listed { "listed with its reason" } else { "NOT LISTED" });
            }
        }
    }
    let viable = caught + survived;
    println!("{caught} of {viable} viable mechanical mutations caught");
    Ok(caught * 100 >= viable * CAUGHT_MIN_PERCENT && viable > 0)
}

fn try_one(workshop: &Workshop, mutation: &Mutation, seeds: u64) -> io::Result<Verdict> {
    let begun = Instant::now();
    let verdict = workshop.try_mutation(mutation, seeds)?;
    println!("{:>6.1} s  {verdict}  {}", begun.elapsed().as_secs_f64(), mutation.name);
    Ok(verdict)
}
