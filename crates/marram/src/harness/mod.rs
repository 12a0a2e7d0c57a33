//! Real processes on one machine: edges, agents and what they log, for the demo, the benchmarks and the fault tests.
//!
//! Everything waits for events (log lines, exits), never for time to pass. Whatever is started here is ended when its
//! handle is dropped.

mod cells;
mod edge;
mod interrupt;
mod journal;
mod lab;
mod link;
mod namespace;
mod place;
mod process;
mod recorder;
mod relay;
mod watch;

pub use cells::Cells;
pub use edge::Edge;
pub use interrupt::end_on_interrupt;
pub use journal::{Event, Journal};
pub use lab::{Lab, Layout, Listen, Side};
pub use link::Way;
pub use namespace::Namespace;
pub use place::{Place, free_address};
pub use process::Process;
pub use recorder::{RECORDER, Recorder};
pub use relay::{Counts, Relay};
