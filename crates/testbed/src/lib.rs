//! Network faults for tests and benchmarks: relays that delay, count or stop what passes, and links of namespaces that break.
//! Processes are in `marram-cluster`.

mod link;
mod relay;

pub use link::{Direction, Link};
pub use relay::{Counts, Relay};
