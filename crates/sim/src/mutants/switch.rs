//! The switch that selects a mutation at run time, and the record of which switches a seed asks.
//!
//! ```text
//! MARRAM_MUTANT=7      the switch of mutation 7 is on                       a mutant
//! MARRAM_MUTANT=0      all are off                                          the sources
//! MARRAM_MUTANT=trace  all are off; "seed 12 with 900 reached 3,7" behind each seed, 900 are its events
//!                                                                           which seeds can tell a mutant from the sources
//! ```
//! A seed that never asks a mutation's switch runs with this mutation exactly as without it. So it need not be run, and a
//! mutation of a rare rule costs as many runs as seeds reach the rule.

/// The environment variable that the copy of the simulator reads.
pub(super) const VARIABLE: &str = "MARRAM_MUTANT";
/// Its value for a run that selects nothing and says what was reached.
pub(super) const TRACE: &str = "trace";

/// The file to which [`SOURCE`] is added: every crate with mutations uses its crate, or is it.
pub(super) const FILE: &str = "crates/wire/src/lib.rs";
/// Whether the mutation of a number is selected; and the line about a seed.
pub(super) const SOURCE: &str = r#"
extern crate self as marram_wire;
extern crate std;

enum Selected {
    One(u32),
    Trace,
}

static SELECTED: std::sync::LazyLock<Selected> = std::sync::LazyLock::new(|| {
    let text = std::env::var("MARRAM_MUTANT").unwrap_or_default();
    if text == "trace" { Selected::Trace } else { Selected::One(text.parse().unwrap_or(0)) }
});

std::thread_local! {
    static REACHED: core::cell::RefCell<std::vec::Vec<bool>> = const { core::cell::RefCell::new(std::vec::Vec::new()) };
}

#[doc(hidden)]
pub fn mutant(number: u32) -> bool {
    match *SELECTED {
        Selected::One(selected) => selected == number,
        Selected::Trace => {
            REACHED.with_borrow_mut(|reached| {
                let at = number as usize;
                reached.resize(reached.len().max(at + 1), false);
                reached[at] = true;
            });
            false
        }
    }
}

#[doc(hidden)]
pub fn say_reached(seed: u64, events: u64) {
    if matches!(*SELECTED, Selected::Trace) {
        let reached = REACHED.take();
        let numbers = reached.iter().enumerate().filter(|(_, is)| **is).map(|(at, _)| std::string::ToString::to_string(&at));
        std::println!("seed {seed} with {events} reached {}", numbers.collect::<std::vec::Vec<_>>().join(","));
    }
}
"#;

/// Changes of the simulator in the copy: file, text, replacement. A hang inside one step is noticed sooner, and each seed says
/// what it reached.
pub(super) const SIMULATOR: [[&str; 3]; 2] = [
    ["crates/sim/src/batch.rs", "Duration::from_secs(180)", "Duration::from_secs(20)"],
    [
        "crates/sim/src/batch.rs",
        "let mut outcome = run(seed, false);",
        "let mut outcome = run(seed, false); marram_wire::say_reached(seed, outcome.events);",
    ],
];

/// A seed, how many events it has, and the numbers of the mutations whose switch it asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reached {
    pub(super) seed: u64,
    pub(super) events: u64,
    pub(super) mutations: Vec<u32>,
}

/// The lines about seeds in a run's output, by seed.
pub(super) fn reached(output: &str) -> Vec<Reached> {
    let mut all: Vec<Reached> = output.lines().filter_map(line).collect();
    all.sort_by_key(|it| it.seed);
    all
}

/// What a line of [`SOURCE`] says, if it is one.
fn line(line: &str) -> Option<Reached> {
    let (seed, rest) = line.strip_prefix("seed ")?.split_once(" with ")?;
    let (events, numbers) = rest.split_once(" reached ")?;
    let mutations = numbers.split(',').filter_map(|number| number.parse().ok()).collect();
    Some(Reached { seed: seed.parse().ok()?, events: events.parse().ok()?, mutations })
}
