//! An agent: the ends of many sessions, the wires to the edges, and the choice between them.

mod api;

pub use api::{Config, ConnectionId, In, Out, Report, Target, WireId};

use alloc::vec::Vec;

/// The agent. Feed it what happens; do what it says.
#[derive(Debug)]
pub struct Agent {
    config: Config,
}

impl Agent {
    /// `entropy` seeds session ids and jitter: 32 random bytes.
    #[must_use]
    pub fn new(config: Config, entropy: [u8; 32]) -> Self {
        let _ = entropy;
        Self { config }
    }

    /// Takes one event at `now_ns` (monotonic) and appends what is to be done.
    pub fn step(&mut self, now_ns: u64, input: In, out: &mut Vec<Out>) {
        let _ = (now_ns, input, out, &self.config);
    }
}
