//! Many edges and agents, one thread, one seed: faults, checkers, workloads.
//!
//! The machines of `marram-session` and `marram-shard` are driven only through `step`. Everything around them (sockets,
//! clocks, sandboxes, programs, operators) is simulated here and drawn from the seed. An oracle that does not know the
//! protocol checks what the programs received (`oracle`).

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

/// Runs one seed. A panic of a machine counts as a violation.
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
