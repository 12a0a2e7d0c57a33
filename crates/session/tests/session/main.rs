//! One session's machines: its ends, its owner, and a cell that many sessions share.

mod end;
mod owner;
mod shared;
