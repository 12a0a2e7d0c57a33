//! What sessions can be made of: chains of stages, cells that clients share (a chat room among them), tasks and locks, the edge cache,
//! and unmodified programs that `marram exec` starts.

mod cache;
mod chains;
mod exec;
mod room;
mod shared;
mod tasks;
