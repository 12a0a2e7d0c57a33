//! Does the simulation bite? Breaks the protocol on purpose, one small change at a time, and sees that seeds fail.
//!
//! Named mutations are rules left out, each written down with its reason (`mutations/named.txt`). Knows Rust only as text.
//! Changes by rule, of every operator and call, are the business of `cargo xtask mutants`.

mod named;
mod workshop;

use std::{fs, io, path::PathBuf, time::Instant};
use workshop::{Verdict, Workshop};

/// Seeds that a named mutation has to be caught in.
const NAMED_SEEDS: u64 = 20_000;

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

fn try_one(workshop: &Workshop, mutation: &Mutation, seeds: u64) -> io::Result<Verdict> {
    let begun = Instant::now();
    let verdict = workshop.try_mutation(mutation, seeds)?;
    println!("{:>6.1} s  {verdict}  {}", begun.elapsed().as_secs_f64(), mutation.name);
    Ok(verdict)
}
