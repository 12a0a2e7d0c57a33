//! Many edges and agents, one thread, one seed: faults, checkers, workloads.
//!
//! The machines of `marram-session` and `marram-shard` are driven only through `step`. Everything around them (sockets,
//! clocks, sandboxes, programs, operators) is simulated here and drawn from the seed. An oracle that does not know the
//! protocol checks what the programs received (`oracle`).
//!
//! ```text
//! seed --Plan--> what will happen: machines, scripts, faults           plan
//!                World: queue of events, one at a time                 world, queue, random
//!                  AgentNode: Agent::step      programs beside it      world/agents, program
//!                  EdgeNode: Control::step, Shard::handle, cells       world/edges, executor
//!                  StoreNode, RecorderNode                             world/coordinator, world/recorders
//!                  Wire: delay, cut, silence                           world/wires
//!                Watch: rare states and bounds, from frames alone      watch
//!                oracle: what the programs received                    oracle
//!             --> Outcome: violations, a hash of all events, counts
//! ```
//! Everything that a run does follows from its seed: there is one thread, one virtual clock and one
//! generator per purpose, and no map with a random order. A failed seed is therefore a complete
//! report of its bug.
//!
//! Two kinds of checks are kept apart. The oracle judges results and knows no protocol, so it stays
//! right when the protocol changes. The watch and the machines' own `invariants` know rules by
//! their numbers in `docs/protocol.md`, and find a broken rule earlier.

pub mod batch;
mod executor;
pub mod mutants;
mod oracle;
pub mod plan;
mod position;
mod program;
mod queue;
mod random;
mod trace;
#[cfg(feature = "wasm")]
pub mod twin;
pub mod watch;
mod world;

pub use world::Outcome;

use plan::Plan;
use std::panic::{AssertUnwindSafe, catch_unwind};
use watch::Watch;

/// Whether operators move the backups of sessions in this seed.
#[must_use]
pub fn moves_backups(seed: u64) -> bool {
    Plan::of(seed).moves_backups()
}

/// Runs one seed. A panic of a machine counts as a violation.
///
/// `verbose` keeps the events as text, which takes more time than the simulation itself and changes
/// nothing else. Bugs that the machines would survive in production (`bug!`) panic here.
#[must_use]
pub fn run(seed: u64, verbose: bool) -> Outcome {
    marram_session::bug::panic_on_bugs();
    let world = AssertUnwindSafe(|| world::World::new(Plan::of(seed), verbose).run());
    catch_unwind(world).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "without words".into());
        let violations = vec![format!("a machine panicked: {text}")];
        Outcome { violations, hash: 0, events: 0, compared: 0, watch: Watch::default(), lines: Vec::new() }
    })
}
