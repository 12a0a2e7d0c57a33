//! Real processes on one machine: edges, agents and what they log, for the demo, the benchmarks and the fault tests.
//!
//! Everything waits for events (log lines, exits), never for time to pass. A handle ends what it started when it is dropped.

mod cells;
mod cluster;
mod edge;
mod interrupt;
mod link;
mod log_collector;
mod namespace;
mod process;
mod recorder;
mod relay;
mod temp_dir;
mod watch;

pub use cells::CellFiles;
pub use cluster::{AgentSide, Layout, Listen, TestCluster};
pub use edge::TestEdge;
pub use interrupt::end_on_interrupt;
pub use link::Direction;
pub use log_collector::{LogCollector, LogEvent};
pub use namespace::Namespace;
pub use process::TestProcess;
pub use recorder::{RECORDER, TestRecorder};
pub use relay::{Counts, Relay};
pub use temp_dir::{TempDir, free_address};
