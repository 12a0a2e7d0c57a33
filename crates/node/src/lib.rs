//! The processes of an edge and of a recorder, around the pure state machines: sockets, disks, clocks and the cells' executor. Knows no
//! command line and no configuration file.
//!
//! ```text
//! marram edge      supervisor process ── one thread: accept, control, restarts
//!                    ├ threads: gate (an agent), admin API, coordinator, log, fetches of images
//!                    └ shard processes, one a core ── one busy thread: wires, Shard::step, cells
//!                                                     └ threads: worker, sealer, origins
//! marram recorder  one process ── one busy thread: wires, Recorder::step;  threads: disk, admin API
//! ```
//!
//! One busy thread an address space: threads that allocate and unmap disturb each other in the
//! kernel, and a guest that brings down a process must not take others with it. So shards are
//! processes, and each additional thread below has a reason.

pub mod coordinator;
pub mod edge;
pub mod keys;
pub mod logging;
pub mod memory;
pub mod recorder;
pub mod text;
