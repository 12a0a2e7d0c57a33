//! The processes of an edge and of a recorder, around the pure state machines: sockets, disks, clocks and the cells' executor. Knows no
//! command line and no configuration file.

pub mod coordinator;
pub mod edge;
pub mod keys;
pub mod logging;
pub mod memory;
pub mod recorder;
pub mod text;
