//! A cluster of real processes on this machine: edges, agents, recorders and what they log, for `marram dev`, the demo, the benchmarks
//! and tests. Faults of the network between them are in `marram-testbed`.
//!
//! Everything waits for events (log lines, exits), never for time to pass. A handle ends what it started when it is dropped.

mod cells;
mod cluster;
mod edge;
mod interrupt;
mod log_collector;
mod namespace;
mod process;
mod recorder;
mod shared_images;
mod store;
mod temp_dir;
mod watch;

pub use cells::CellFiles;
pub use cluster::{AgentSide, Layout, Listen, TestCluster};
pub use edge::TestEdge;
pub use interrupt::end_on_interrupt;
pub use log_collector::{LogCollector, LogEvent};
pub use namespace::{Namespace, ip};
pub use process::TestProcess;
pub use recorder::{RECORDER, TestRecorder};
pub use shared_images::SharedImages;
pub use store::TestStore;
pub use temp_dir::{TempDir, free_address};
