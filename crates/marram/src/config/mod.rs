//! Configuration: TOML as people write it, turned into what the programs take.

pub mod source;
pub mod units;
