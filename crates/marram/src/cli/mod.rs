//! Flags, subcommands and exit codes. Each subcommand is one file: what it is called with, and what it does with it.

mod exit;

use clap::{Parser, Subcommand};
pub use exit::Failure;
use std::process::ExitCode;

/// Stateful sessions at the network edge that outlive the machine they run on.
#[derive(Parser)]
#[command(name = "marram", version, max_term_width = 110, after_help = exit::HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {}

/// Reads the command line, does what it says, and reports failures on standard error.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Arguments::parse().command {};
    exit::code(result)
}
