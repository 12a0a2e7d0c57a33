//! One session's machines: its ends, its owner, and a cell that many sessions share.

mod end;
#[path = "../../../marram/tests/e2e/support/own_process.rs"]
mod own_process;
mod owner;
mod shared;
